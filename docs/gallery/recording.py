"""# A recording seen by a model

What happens between a waveform and the features that a probe reads? This page takes one sentence apart: waveform,
spectrogram, latents z and contexts c. Its phones are known, because it is synthesised; the model never saw them.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np
import torch

import cpc
from cpc.data import Segment, read_alignments, read_audio
from cpc.data.synthetic.speech import synthesize

# %% A model
# Eight minutes of synthesised speech and 200 steps are enough for a first look.
folder = tempfile.mkdtemp()
manifest = synthesize(f"{folder}/speech", num_speakers=12, num_heldout_speakers=4, minutes=8, progress=False)
data = {"manifest": f"{folder}/speech", "augmentation": None, "eval_batches": 4}
small = {"encoder": {"init_args": {"dim": 64}}, "context": {"init_args": {"dim": 128}}}
run = cpc.pretrain("configs/small_speech.yaml", data, run_dir=f"{folder}/run", max_steps=200, model=small)
model = cpc.load_pretrained(run)

# %% One sentence of an unseen speaker
# `encode` returns z and c of a whole recording, one vector every 10 ms. A latent sees 65 ms around its own frame, and a
# context sees all latents so far. Rows of z and c are sorted: units which rise and fall together are neighbours.


def look(number: int) -> tuple[np.ndarray, dict[str, torch.Tensor], list[Segment]]:
    waveform = torch.from_numpy(read_audio(tested.files[number], 16_000))[None]
    with torch.inference_mode():
        (z, c, _), spectrogram = model.encode(waveform), model.encoder.log_energies(waveform)
    features = {"spectrogram": spectrogram, "latents z": z, "contexts c": c}
    features = {name: ((x - x.mean(1)) / x.std(1))[0] for name, x in features.items()}
    return waveform[0].numpy(), features, alignments.segments(tested.paths[number])


tested, alignments = manifest.select("test"), read_alignments(f"{folder}/speech/alignments.csv")
waveform, features, phones = look(0)
figure, rows = plt.subplots(4, sharex=True, figsize=(4.5, 6.5), num="Waveform with its phones, spectrogram, z and c")
rows[0].plot(np.arange(19_200) / 16_000, waveform[:19_200], linewidth=0.5, rasterized=True)
for axes, (name, x) in zip(rows[1:], features.items(), strict=True):
    x = x if name == "spectrogram" else x[:, torch.pca_lowrank(x, 2)[2][:, 0].argsort()]
    axes.imshow(x[:120].T, aspect="auto", origin="lower", extent=(0, 1.2, 0, 1), clim=(-2, 2), cmap="magma")
    axes.set(yticks=[], ylabel=name)
for start, end, label in [phone for phone in phones if phone.end_seconds <= 1.2]:
    rows[0].text((start + end) / 2, 1.1 * waveform.max(), label, ha="center", fontsize=8)
    rows[0].axvline(end, color="#d55e00", linewidth=0.8)
rows[0].set(yticks=[], ylabel="waveform", xlim=(0, 1.2), title=" ")
rows[3].set_xlabel("seconds")
plt.show()

# %% What changes at a phone
# How far do 20 ms carry the features? Over all test sentences, the spectrogram changes most at the edge of two phones.
# Latents change when the edge enters their 65 ms, and again when it leaves them. Contexts change when it enters.

offsets = np.arange(-8, 9)  # frames from an edge
figure, axes = plt.subplots(num="Features change most near the edges of phones")
sentences = [look(number)[1:] for number in range(len(tested))]
for name in features:
    changes: list[list[float]] = [[] for _ in offsets]
    for x, phones in sentences:
        change = (x[name][2:] - x[name][:-2]).norm(dim=1)
        edges = torch.tensor([round(100 * phone.start_seconds) - 1 for phone in phones[1:]])
        for values, offset in zip(changes, offsets, strict=True):
            values += (change / change.mean())[(edges + offset).clamp(0, len(change) - 1)].tolist()
    curve = np.array([np.mean(values) for values in changes])
    print(f"{name:12} {100 * curve.max() - 100:.0f} % above its mean, {10 * offsets[curve.argmax()]} ms from an edge")
    assert curve.max() > 1.1 and abs(offsets[curve.argmax()]) <= 3
    axes.plot(10 * offsets, curve, label=name)
axes.set(xlabel="milliseconds from the edge of a phone", ylabel="change / its mean")
axes.legend()
plt.show()

# %% Options used
# [`CPC.encode`][cpc.model.CPC.encode] · [`read_alignments`][cpc.data.audio.alignments.read_alignments] ·
# [embed whole folders](../tutorial.md#use-the-features)
