"""# Heartbeats: waves of an ECG found without labels

A heartbeat has three waves: P, QRS and T. A model that learns to predict its own future tells them apart without labels.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import f1_score

from cpc.sklearn import CPCTransformer

# %% An ECG with known waves
# Each wave is a Gaussian of its own time, width and height, as in the model of McSharry et al. (2003,
# doi:10.1109/TBME.2003.808805). People differ in heart rate, heights and widths; noise and a slow drift are added.

RATE, SECONDS = 100, 10
QRS = [(-0.03, -0.12, 0.01), (0, 1.0, 0.011), (0.03, -0.25, 0.01)]  # seconds from the beat, mV, deviation in seconds
WAVES = {"P": [(-0.2, 0.12, 0.025)], "QRS": QRS, "T": [(0.28, 0.3, 0.05)]}


def ecg(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    time, wave = np.arange(RATE * SECONDS) / RATE, np.zeros(RATE * SECONDS, int)
    signal = 0.1 * np.sin(2 * np.pi * (0.25 * time + rng.random())) + 0.03 * rng.standard_normal(len(time))
    period, scale = rng.uniform(0.65, 1.1), {name: rng.uniform(0.75, 1.3, 2) for name in WAVES}
    for beat in np.arange(rng.uniform(0, period), SECONDS + 1, period):
        beat += 0.03 * period * rng.standard_normal()
        for label, (name, gaussians) in enumerate(WAVES.items(), start=1):
            for shift, height, width in gaussians:
                distance = (time - beat - shift * period**0.5) / (width * scale[name][1])
                signal += scale[name][0] * height * np.exp(-(distance**2) / 2)
                wave[np.abs(distance) < 2] = label
    return signal.astype(np.float32), wave


rng = np.random.default_rng(0)
people = [ecg(rng) for _ in range(100)]
x_train, x_test = np.split(np.stack([signal for signal, _ in people])[:, :, None], [80])
truth = np.stack([wave[1::2] for _, wave in people[80:]])  # of every latent

# %% Train without labels
# A latent reads 40 ms, every 20 ms. Negatives come from the same recording, so that the person does not matter.

options = {"sample_rate_hz": RATE, "kernels": (4,), "strides": (2,), "negatives": "sequence_only", "random_state": 0}
trained = CPCTransformer(max_steps=200, window_samples=500, valid_share=0, **options).fit(x_train)
untrained = CPCTransformer(max_steps=0, valid_share=0, **options).fit(x_train)

# %% Group, then compare with the truth
# k-means makes 20 groups of the contexts of 20 new people. Each is named after the wave that most of its contexts lie on.
# For comparison: contexts before training, and windows of the signal itself.

with torch.inference_mode():
    contexts = [each.model_.encode(torch.from_numpy(x_test))[1].numpy() for each in (trained, untrained)]
past = np.pad(x_test[:, :, 0], ((0, 0), (39, 0)), mode="edge")
windows = np.lib.stride_tricks.sliding_window_view(past, 40, axis=1)[:, 1::2]
found, f1 = {}, {}
for name, x in zip(("contexts", "untrained", "last 400 ms"), (*contexts, windows), strict=True):
    flat = ((x - x.mean((0, 1))) / x.std((0, 1))).reshape(-1, x.shape[2])
    groups = KMeans(20, n_init=3, random_state=0).fit_predict(flat)
    counts = np.stack([np.bincount(truth.flat[groups == group], minlength=4) for group in range(20)])
    found[name] = counts.argmax(1)[groups].reshape(truth.shape)
    f1[name] = 100 * f1_score(truth.ravel(), found[name].ravel(), average="macro")
    print(f"{name:12} macro-F1 of none, P, QRS and T {f1[name]:.0f} %")
assert f1["contexts"] > max(f1["untrained"], f1["last 400 ms"]) + 4

figure, rows = plt.subplots(2, sharex=True, figsize=(4.5, 4), num="An ECG, coloured by true waves and by groups of c")
for axes, title, waves in zip(rows, ("true", "found without labels"), (truth[0], found["contexts"][0]), strict=True):
    axes.plot(np.arange(300) / RATE, x_test[0, :300, 0], color="#858b94", linewidth=0.8)
    for label, (name, colour) in enumerate(zip(WAVES, ("#d55e00", "#2079b8", "#00906a"), strict=True), start=1):
        at = 2 * np.flatnonzero(waves[:150] == label) + 1
        axes.plot(at / RATE, x_test[0, at, 0], "o", color=colour, markersize=4, label=name)
    axes.set(ylabel="mV", title=title)
rows[1].set_xlabel("seconds")
figure.legend(*rows[0].get_legend_handles_labels(), ncols=3, loc="outside upper center")
plt.show()

# %% Options used
# [`CPCTransformer`][cpc.sklearn.transformer.CPCTransformer] · [signals](../signals.md) ·
# [real ECGs of 150 people](../results/signals.md)
