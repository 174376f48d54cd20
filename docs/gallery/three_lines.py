"""# Pretrain on arrays of your own in three lines

`CPCTransformer` is an estimator of scikit-learn: arrays in, features out, no labels, no
files. Here it reads a smartwatch: 140 recordings of ten people who do seven exercises
of the shoulder. They ship with the package seglearn.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import TSNE
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cpc.data.signals.corpora import CLASSES, read_installed_smartwatch
from cpc.sklearn import CPCTransformer

# %% Arrays
# A recording is an array of samples by channels; lengths may differ. `people` says who
# made each recording.

arrays = read_installed_smartwatch()
X = np.split(arrays.x, np.cumsum(arrays.length)[:-1])
people = np.asarray(arrays.group)
exercise = np.asarray(arrays.label)
seconds = [len(x) / 50 for x in X]
print(f"{len(X)} recordings of {min(seconds):.0f} to {max(seconds):.0f} s")

# %% Three lines
# `fit` holds one of the ten people out to measure the bound. `transform` returns the
# mean and the deviation of the latents and contexts of each recording.

model = CPCTransformer(sample_rate_hz=50, max_steps=200, batch_size=12, random_state=0)
model.fit(X, groups=people)
features = model.transform(X)

# %% Did it learn?
# `bound_` is `log N - L` of the person who was held out. It should lie clearly above
# zero and below its ceiling. With candidates of the recording itself (`mixed`, the
# default) it is a sign of learning, but not a bound on information.

bound = model.bound_
nats = np.array(bound.mi_bound_nats)
print(f"features {features.shape}; log N - L from {nats[0]:.1f} to {nats[-1]:.1f} nats")
assert all(nats > 0.5) and all(nats < bound.mi_ceiling_nats)

figure, axes = plt.subplots(num="log N - L of the person who was held out, by step k")
ahead = 0.16 * np.array(bound.steps)
axes.errorbar(ahead, nats, 2 * np.array(bound.standard_error_nats), fmt="o-")
axes.plot(ahead, bound.mi_ceiling_nats, "--", label="ceiling log N")
axes.set(xlabel="seconds ahead", ylabel="log N - L, nats", ylim=(0, None))
axes.legend()

# %% What the features know
# A linear classifier reads the exercises of new people, in folds over people. Untrained
# networks are strong on signals, so always compare with one (`max_steps=0`). Here
# pretraining gains little. It pays off where time matters more, as in
# [heartbeats](heartbeats.md), and with the labels of few people.

untrained = CPCTransformer(sample_rate_hz=50, max_steps=0, random_state=0)
random = untrained.fit_transform(X)
by_hand = np.stack([np.concatenate([x.mean(0), x.std(0)]) for x in X])
compared = {"CPC": features, "untrained": random, "mean and deviation": by_hand}
logistic = LogisticRegression(C=0.1, max_iter=2000)
classifier = make_pipeline(StandardScaler(), logistic)
accuracy = {}
for name, f in compared.items():
    scores = cross_val_score(classifier, f, exercise, groups=people, cv=GroupKFold(5))
    accuracy[name] = 100 * scores.mean()
    print(f"{name:18} {accuracy[name]:.1f} % of {len(CLASSES)} exercises")
assert accuracy["CPC"] > 75

points = StandardScaler().fit_transform(features)
points = TSNE(init="pca", perplexity=15, random_state=0).fit_transform(points)
figure, axes = plt.subplots(figsize=(4.5, 4), num="Recordings placed by their features")
for label, name in enumerate(CLASSES):
    marker = "osD^vPX"[label]
    axes.scatter(*points[exercise == label].T, s=22, marker=marker, label=name)
axes.axis("off")
figure.legend(loc="outside upper center", ncols=4)
plt.show()

# %% Options used
# [`CPCTransformer`][cpc.sklearn.transformer.CPCTransformer] ·
# [signals](../signals.md) · [results on signals](../results/signals.md)
