"""# Heartbeats: waves of an ECG from the labels of one person

A heartbeat has three waves: P, QRS and T. A model that learns to predict what follows
and what came before tells them apart. `ecg-small`, which ships with cpc, learnt this
from the ECGs of 90 people without any label. So the labels of one person are enough to
name the waves of others. Here all ECGs are drawn by a formula, so that the true waves
are known.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

import cpc
from cpc.sklearn import CPCTransformer

# %% ECGs with known waves
# Each wave is a sum of Gaussians, as in the model of McSharry et al. (2003,
# doi:10.1109/TBME.2003.808805). Each lead has other heights. People differ in heart
# rate, heights and widths; noise and a slow drift are added.

shapes = {  # seconds from the beat, mV, seconds of width
    "P": [(-0.2, 0.12, 0.025)],
    "QRS": [(-0.03, -0.12, 0.01), (0, 1.0, 0.011), (0.03, -0.25, 0.01)],
    "T": [(0.28, 0.3, 0.05)],
}
leads = {  # I, II, III, aVR, aVL, aVF, V1 to V6
    "P": [0.5, 1, 0.6, -0.8, 0.1, 0.8, 0.4, 0.6, 0.6, 0.6, 0.6, 0.5],
    "QRS": [0.6, 1, 0.5, -0.8, 0.2, 0.7, -0.7, -0.9, 0.2, 1.2, 1.4, 1.1],
    "T": [0.7, 1, 0.4, -0.9, 0.2, 0.7, -0.3, 1.2, 1.3, 1.2, 1, 0.7],
}
time = np.arange(5000) / 500  # ten seconds
x = np.zeros((40, 5000, 12), np.float32)  # of 40 people, in microvolts
waves = np.zeros((40, 5000), int)
rng = np.random.default_rng(0)
for signal, wave in zip(x, waves, strict=True):
    signal += np.outer(np.sin(1.6 * time + rng.uniform(0, 6.3)), rng.normal(0, 100, 12))
    signal += rng.normal(0, 20, signal.shape)
    period = rng.uniform(0.65, 1.1)
    beats = np.arange(rng.uniform(0, period), 11, period)
    for label, (name, gaussians) in enumerate(shapes.items(), start=1):
        taller, wider = rng.uniform(0.75, 1.3, 2)
        heights = 1000 * taller * (leads[name] + rng.normal(0, 0.15, 12))
        for shift, height, width in gaussians:
            distance = np.subtract.outer(time, beats + shift * period**0.5)
            distance /= width * wider
            signal += np.outer(height * np.exp(-(distance**2) / 2).sum(1), heights)
            wave[np.abs(distance).min(1) < 2] = label

# %% Labels of one person, waves of the others
# A linear classifier reads the contexts of the first person, one every 20 ms, and names
# the waves of the 39 others. For comparison, an untrained network (`max_steps=0`) with
# the same latents, whose contexts read only forward.

truth = waves[:, 5::10]  # the wave of every latent
shape = {"sample_rate_hz": 500, "kernels": (10, 4), "strides": (5, 2), "dim": 128}
untrained = CPCTransformer(**shape, max_steps=0, valid_share=0, random_state=0).fit(x)
models = {"untrained": untrained.model_, "ecg-small": cpc.load_pretrained("ecg-small")}
f1 = {}
for name, model in models.items():
    _, c, _ = model.requires_grad_(False).encode(torch.from_numpy(x))
    c = (c - c.mean((0, 1))) / c.std((0, 1))
    probe = LogisticRegression(C=0.1, max_iter=300).fit(c[0], truth[0])
    found = probe.predict(c[1:].reshape(-1, 128)).reshape(39, -1)
    f1[name] = f1_score(truth[1:].ravel(), found.ravel(), average="macro")
    print(f"{name:10} macro-F1 of none, P, QRS and T {f1[name]:.0%}")
assert f1["ecg-small"] > f1["untrained"] + 0.05

figure, rows = plt.subplots(2, sharex=True, num="True and named waves of an ECG")
for axes, wave in zip(rows, (truth[1], found[0]), strict=True):
    axes.plot(time[:1500], x[1, :1500, 1], color="#858b94", linewidth=0.8)
    for label, name in enumerate(shapes, start=1):
        at = 10 * np.flatnonzero(wave[:150] == label) + 5
        axes.plot(time[at], x[1, at, 1], "o", markersize=4, label=name)
rows[0].set(ylabel="true", title="lead II, microvolts")
rows[0].legend(ncols=3)
rows[1].set(ylabel="named", xlabel="seconds")
plt.show()

# %% Options used
# [`load_pretrained`][cpc.checkpoint.load_pretrained] ·
# [`CPCTransformer`][cpc.sklearn.transformer.CPCTransformer] ·
# [signals](../signals.md) · [real ECGs with labels](../results/signals.md)
