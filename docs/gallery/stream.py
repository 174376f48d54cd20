"""# A stream: chunk by chunk equals the whole

A microphone delivers chunks, not recordings. The features of the chunks should be those of the whole recording, to the
last digit. This page cuts a recording into chunks in three ways, and then does the same with ONNX graphs, which need
neither PyTorch nor cpc.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime
import torch

import cpc
from cpc.data.features import Features
from cpc.data.synthetic.espeak import Espeak, Voice
from cpc.data.synthetic.speech import resample
from cpc.interop.export import export

# %% A recording, and an untrained model: what follows holds for any weights
with Espeak() as espeak:
    samples = espeak.speak("A microphone delivers chunks, not recordings.", Voice("en-us", "f2")).samples
waveform = resample(samples)[:44_800].astype(np.float32) / 32768
torch.manual_seed(0)
encoder, predictor = cpc.encoders.MelEncoder(dim=64, num_frames=5), cpc.predictors.Bilinear(num_steps=2)
model = cpc.CPC(encoder, cpc.contexts.GRU(dim=64), predictor).eval()
model.initialise_from(torch.from_numpy(waveform)[None])
hop = encoder.hop_samples
with torch.inference_mode():
    _, whole, _ = model.encode(torch.from_numpy(waveform)[None])
whole = whole[0].numpy()

# %% Three ways to cut
# 1. Every chunk by itself: the context forgets what came before.
# 2. With the state of the chunk before: the context remembers, but latents at the cut see padding, not sound.
# 3. `Features.stream` does both. It waits for the samples that a latent sees, and yields it only then.

CHUNK = 20 * hop
starts = range(0, len(waveform), CHUNK)
chunks = [waveform[start : start + CHUNK] for start in starts]
streams, state = {"alone": [], "with the state": [], "ONNX": []}, None
with torch.inference_mode():
    for chunk in chunks:
        x = torch.from_numpy(chunk)[None]
        streams["alone"].append(model.encode(x)[1][0].numpy())
        _, c, state = model.encode(x, state)
        streams["with the state"].append(c[0].numpy())
streams["Features.stream"] = list(Features("c", model).stream(chunks))

# %% The same as graphs
# `export` writes the encoder and the context. Each chunk is extended on both sides by half of the receptive field, and
# the latents of the extension are dropped.

folder = tempfile.mkdtemp()
cpc.save_pretrained(model, f"{folder}/model")
graphs = [onnxruntime.InferenceSession(path) for path in export(f"{folder}/model", f"{folder}/graphs")]
margin = -(-encoder.receptive_field_samples // 2 // hop) * hop
graph_state = np.zeros((1, 1, 64), np.float32)
for start in starts:
    before = min(margin, start)
    (z,) = graphs[0].run(None, {"x": waveform[None, start - before : start + CHUNK + margin]})
    z = z[:, before // hop :][:, : CHUNK // hop]
    c, graph_state = graphs[1].run(None, {"z": z, "state": graph_state})
    streams["ONNX"].append(c[0])

# %% How far they are from the whole
figure, axes = plt.subplots(num="Chunks with the state and their neighbourhood equal the whole recording")
for name, pieces in streams.items():
    difference = np.abs(np.concatenate(pieces) - whole).max(1)
    print(f"{name:16} largest difference {difference.max():.0e}")
    assert (difference.max() < 1e-5) == (name in ("Features.stream", "ONNX"))
    axes.semilogy(np.arange(len(whole)) / 100, difference + 1e-9, label=name)
axes.set(xlabel="seconds", ylabel="largest difference of c", ylim=(1e-9, 1e3))
axes.legend(ncols=2)
plt.show()

# %% Options used
# [`CPC.encode`][cpc.model.CPC.encode] · [`export`][cpc.interop.export.export] · [graphs](../library.md)
