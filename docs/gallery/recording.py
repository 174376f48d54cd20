"""# A recording seen by a model

What happens between a waveform and the features that a probe reads? This page takes one
sentence apart: waveform, spectrogram, latents z and contexts c. Its phones are known,
because it is synthesised; the model never saw them.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np
import torch

import cpc
from cpc.data import read_alignments, read_audio
from cpc.data.synthetic.speech import synthesize

# %% A model, and speech
# `speech-small` ships with cpc. Four of twelve synthesised voices are test speakers.

speech = tempfile.mkdtemp() + "/speech"
manifest = synthesize(speech, num_speakers=12, num_heldout_speakers=4, minutes=8)
model = cpc.load_pretrained("speech-small").requires_grad_(False)

# %% Sentences seen by the model
# `encode` returns z and c of a whole recording, one vector every 10 ms. A latent sees
# 65 ms around its own frame. Half of a context sees all latents so far, the other half
# all that follow. Rows of z and c are sorted: units which rise and fall together are
# neighbours.

alignments = read_alignments(f"{speech}/alignments.csv")
tested = manifest.select("test")
sentences = []
for path, file in zip(tested.paths, tested.files, strict=True):
    waveform = torch.from_numpy(read_audio(file, 16_000))[None]
    z, c, _ = model.encode(waveform)
    spectrogram = model.encoder.log_energies(waveform)
    features = {"spectrogram": spectrogram, "latents z": z, "contexts c": c}
    features = {name: ((x - x.mean(1)) / x.std(1))[0] for name, x in features.items()}
    sentences.append((waveform[0], features, alignments.segments(path)))

waveform, features, phones = sentences[0]
figure, rows = plt.subplots(4, figsize=(4.5, 6.5), num="Waveform, spectrogram, z and c")
rows[0].plot(np.arange(19_200) / 16_000, waveform[:19_200], linewidth=0.5)
for start, end, label in [phone for phone in phones if phone.end_seconds <= 1.2]:
    rows[0].text((start + end) / 2, 1.1 * waveform.max(), label, ha="center")
    rows[0].axvline(end, color="#d55e00", linewidth=0.8)
rows[0].set(yticks=[], ylabel="waveform", xlim=(0, 1.2), title=" ")
for axes, (name, x) in zip(rows[1:], features.items(), strict=True):
    if name != "spectrogram":
        x = x[:, torch.pca_lowrank(x, 2)[2][:, 0].argsort()]
    axes.imshow(x[:120].T, origin="lower", extent=(0, 1.2, 0, 1), clim=(-2, 2))
    axes.set(aspect="auto", yticks=[], ylabel=name)
rows[3].set_xlabel("seconds")

# %% What changes at a phone
# How far do 20 ms carry the features? Over all test sentences, the spectrogram changes
# most at the edge of two phones. Latents change when the edge enters their 65 ms, and
# again when it leaves them. Contexts read from both sides, and change at both times.

offsets = np.arange(-8, 9)  # frames from an edge
figure, axes = plt.subplots(num="Features change most near the edges of phones")
for name in features:
    changes = []
    for _, seen, phones in sentences:
        change = (seen[name][2:] - seen[name][:-2]).norm(dim=1)
        edges = np.array([[round(100 * each.start_seconds) - 1] for each in phones[1:]])
        near = (edges + offsets).clip(0, len(change) - 1)
        changes.append(change[near] / change.mean())
    curve = torch.cat(changes).mean(0)
    at = 10 * offsets[curve.argmax()]
    print(f"{name:12} {curve.max() - 1:.0%} above its mean, {at} ms from an edge")
    assert curve.max() > 1.1 and abs(at) <= 30
    axes.plot(10 * offsets, curve, label=name)
axes.set(xlabel="milliseconds from the edge of a phone", ylabel="change / its mean")
axes.legend()
plt.show()

# %% Options used
# [`CPC.encode`][cpc.model.CPC.encode] ·
# [`read_alignments`][cpc.data.audio.alignments.read_alignments] ·
# [embed whole folders](../tutorial.md#use-the-features)
