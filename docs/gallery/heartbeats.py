"""# Heartbeats: waves of an ECG found without labels

A heartbeat has three waves: P, QRS and T. A model that learns to predict the future tells them apart. `ecg-small`,
which ships with cpc, learnt this from the ECGs of 90 people without any label. Here it reads ECGs that are drawn by a
formula, so that the true waves are known.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import f1_score

import cpc
from cpc.sklearn import CPCTransformer

# %% ECGs with known waves
# Each wave is a sum of Gaussians, as in the model of McSharry et al. (2003, doi:10.1109/TBME.2003.808805). Each lead
# has other heights. People differ in heart rate, heights and widths; noise and a slow drift are added.

RATE, SECONDS = 500, 10
QRS = [(-0.03, -0.12, 0.01), (0, 1.0, 0.011), (0.03, -0.25, 0.01)]  # seconds from the beat, mV, seconds
WAVES = {"P": [(-0.2, 0.12, 0.025)], "QRS": QRS, "T": [(0.28, 0.3, 0.05)]}
LEADS = {  # I, II, III, aVR, aVL, aVF, V1 to V6
    "P": [0.5, 1, 0.6, -0.8, 0.1, 0.8, 0.4, 0.6, 0.6, 0.6, 0.6, 0.5],
    "QRS": [0.6, 1, 0.5, -0.8, 0.2, 0.7, -0.7, -0.9, 0.2, 1.2, 1.4, 1.1],
    "T": [0.7, 1, 0.4, -0.9, 0.2, 0.7, -0.3, 1.2, 1.3, 1.2, 1, 0.7],
}


def ecg(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    time, wave = np.arange(RATE * SECONDS) / RATE, np.zeros(RATE * SECONDS, int)
    drift = np.outer(np.sin(2 * np.pi * (0.25 * time + rng.random())), 0.1 * rng.standard_normal(12))
    signal = drift + 0.02 * rng.standard_normal((len(time), 12))
    period, scale = rng.uniform(0.65, 1.1), {name: rng.uniform(0.75, 1.3, 2) for name in WAVES}
    leads = {name: heights + 0.15 * rng.standard_normal(12) for name, heights in LEADS.items()}
    for beat in np.arange(rng.uniform(0, period), SECONDS + 1, period) + 0.03 * rng.standard_normal():
        for label, (name, gaussians) in enumerate(WAVES.items(), start=1):
            for shift, height, width in gaussians:
                distance = (time - beat - shift * period**0.5) / (width * scale[name][1])
                signal += np.outer(scale[name][0] * height * np.exp(-(distance**2) / 2), leads[name])
                wave[np.abs(distance) < 2] = label
    return 1000 * signal.astype(np.float32), wave


signals, waves = zip(*(ecg(np.random.default_rng(number)) for number in range(40)), strict=True)
x, truth = np.stack(signals), np.stack(waves)[:, 5::10]  # the wave of every latent

# %% Group, then compare with the truth
# k-means makes twelve groups of contexts, one context every 20 ms. Each group is named after the wave that most of its
# contexts lie on. For comparison, the same network untrained (`max_steps=0`).

shape = {"sample_rate_hz": RATE, "kernels": (10, 4), "strides": (5, 2), "dim": 128}
untrained = CPCTransformer(**shape, max_steps=0, valid_share=0, random_state=0).fit(x).model_
found, f1 = {}, {}
for name, model in (("ecg-small", cpc.load_pretrained("ecg-small")), ("untrained", untrained)):
    with torch.inference_mode():
        c = model.encode(torch.from_numpy(x))[1].numpy()
    c = ((c - c.mean((0, 1))) / c.std((0, 1))).reshape(-1, 128)
    groups = KMeans(12, n_init=3, random_state=0).fit_predict(c)
    counts = np.stack([np.bincount(truth.flat[groups == group], minlength=4) for group in range(12)])
    found[name] = counts.argmax(1)[groups].reshape(truth.shape)
    f1[name] = 100 * f1_score(truth.ravel(), found[name].ravel(), average="macro")
    print(f"{name:10} macro-F1 of none, P, QRS and T {f1[name]:.0f} %")
assert f1["ecg-small"] > f1["untrained"] + 3

figure, rows = plt.subplots(2, sharex=True, figsize=(4.5, 4), num="An ECG, coloured by true waves and by groups of c")
for axes, title, waves in zip(rows, ("true", "found without labels"), (truth[0], found["ecg-small"][0]), strict=True):
    axes.plot(np.arange(1500) / RATE, x[0, :1500, 1] / 1000, color="#858b94", linewidth=0.8)
    for label, (name, colour) in enumerate(zip(WAVES, ("#d55e00", "#2079b8", "#00906a"), strict=True), start=1):
        at = 10 * np.flatnonzero(waves[:150] == label) + 5
        axes.plot(at / RATE, x[0, at, 1] / 1000, "o", color=colour, markersize=4, label=name)
    axes.set(ylabel="lead II, mV", title=title)
rows[1].set_xlabel("seconds")
figure.legend(*rows[0].get_legend_handles_labels(), ncols=3, loc="outside upper center")
plt.show()

# %% Options used
# [`load_pretrained`][cpc.checkpoint.load_pretrained] · [`CPCTransformer`][cpc.sklearn.transformer.CPCTransformer] ·
# [signals](../signals.md) · [real ECGs with labels](../results/signals.md)
