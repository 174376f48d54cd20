"""# A stream: chunk by chunk equals the whole

A microphone delivers chunks, not recordings. The features of the chunks should be those
of the whole recording, to the last digit. This page cuts a recording into chunks in
three ways, and then does the same with ONNX graphs, which need neither PyTorch nor cpc.
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
    speech = espeak.speak("A microphone delivers chunks.", Voice("en-us", "f2"))
x = torch.from_numpy(resample(speech.samples)[None, :22_400] / 32768).float()
torch.manual_seed(0)
encoder = cpc.encoders.MelEncoder(dim=64, num_frames=5)
model = cpc.CPC(encoder, cpc.contexts.GRU(dim=64), cpc.predictors.Bilinear(2)).eval()
model.initialise_from(x)
model.requires_grad_(False)
whole = model.encode(x)[1][0].numpy()

# %% Three ways to cut
# 1. Every chunk by itself: the context forgets what came before.
# 2. With the state of the chunk before: the context remembers, but latents at the cut
#    see padding, not sound.
# 3. `Features.stream` does both. It waits for the samples that a latent sees, and
#    yields it only then.

hop = encoder.hop_samples
size = 20 * hop
streams = {"alone": [], "with the state": [], "Features.stream": [], "ONNX": []}
chunks = x.split(size, dim=1)
state = None
for chunk in chunks:
    streams["alone"].append(model.encode(chunk)[1][0])
    _, c, state = model.encode(chunk, state)
    streams["with the state"].append(c[0])
streams["Features.stream"] += Features("c", model).stream(x[0].numpy() for x in chunks)

# %% The same as graphs
# `export` writes the encoder and the context. Each chunk is extended on both sides by
# half of the receptive field, and the latents of the extension are dropped.

folder = tempfile.mkdtemp()
cpc.save_pretrained(model, f"{folder}/model")
paths = export(f"{folder}/model", f"{folder}/graphs")
encode, context = map(onnxruntime.InferenceSession, paths)
margin = -(-encoder.receptive_field_samples // 2 // hop) * hop
state = np.zeros((1, 1, 64), np.float32)
for start in range(0, x.shape[1], size):
    before = min(margin, start)
    chunk = x[:, start - before : start + size + margin].numpy()
    (z,) = encode.run(None, {"x": chunk})
    c, state = context.run(None, {"z": z[:, before // hop :][:, :20], "state": state})
    streams["ONNX"].append(c[0])

# %% How far they are from the whole
figure, axes = plt.subplots(num="Differences of streams from the whole recording")
for name, pieces in streams.items():
    difference = np.abs(np.concatenate(pieces) - whole).max(1)
    print(f"{name:16} largest difference {difference.max():.0e}")
    assert (difference.max() < 1e-5) == (name in ("Features.stream", "ONNX"))
    axes.semilogy(np.arange(len(difference)) / 100, difference + 1e-9, label=name)
axes.set(xlabel="seconds", ylabel="largest difference of c", ylim=(1e-9, 1e3))
axes.legend(ncols=2)
plt.show()

# %% Options used
# [`CPC.encode`][cpc.model.CPC.encode] · [`export`][cpc.interop.export.export] ·
# [graphs](../library.md)
