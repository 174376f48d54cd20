"""# Pretrain on arrays of your own in three lines

`CPCTransformer` is an estimator of scikit-learn: arrays in, features out, no labels, no files. Here it reads a
smartwatch: 140 recordings of ten people who do seven exercises of the shoulder. They ship with the package seglearn.
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
# A recording is an array of samples by channels; lengths may differ. `people` says who made each recording.

arrays = read_installed_smartwatch()
X = np.split(arrays.x, np.cumsum(arrays.length)[:-1])
people, exercise = np.asarray(arrays.group), np.asarray(arrays.label)
seconds = np.array([len(x) for x in X]) / 50
print(f"{len(X)} recordings of {seconds.min():.0f} to {seconds.max():.0f} s, {X[0].shape[1]} channels")

# %% Three lines
# `fit` holds one of the ten people out to measure the bound. `transform` returns the mean and the deviation of the
# latents and contexts of each recording.

pretrained = CPCTransformer(sample_rate_hz=50, max_steps=200, batch_size=12, random_state=0)
pretrained.fit(X, groups=people)
features = pretrained.transform(X)

# %% Did it learn?
# `bound_` is `log N - L` of the person who was held out. It should lie clearly above zero and below its ceiling. With
# candidates of the recording itself (`mixed`, the default) it is a sign of learning, but not a bound on information.

bound = pretrained.bound_
print(f"features {features.shape}; log N - L from {bound.mi_bound_nats[0]:.1f} to {bound.mi_bound_nats[-1]:.1f} nats")
assert all(0.5 < nats < ceiling for nats, ceiling in zip(bound.mi_bound_nats, bound.mi_ceiling_nats, strict=True))

figure, axes = plt.subplots(num="log N - L of a person who was held out, by the step that is predicted")
axes.errorbar(0.16 * np.array(bound.steps), bound.mi_bound_nats, 2 * np.array(bound.standard_error_nats), fmt="o-")
axes.plot(0.16 * np.array(bound.steps), bound.mi_ceiling_nats, "--", color="#858b94", label="ceiling log N")
axes.set(xlabel="seconds ahead", ylabel="log N - L, nats", ylim=(0, None))
axes.legend()
plt.show()

# %% What the features know
# A linear classifier reads the exercises of new people, in folds over people. Untrained networks are strong on signals,
# so always compare with one (`max_steps=0`). Here pretraining gains little. It pays off where time matters more, as in
# [heartbeats](heartbeats.md), and with the labels of few people.

untrained = CPCTransformer(sample_rate_hz=50, max_steps=0, random_state=0).fit(X).transform(X)
by_hand = np.stack([np.concatenate([x.mean(0), x.std(0)]) for x in X])
accuracy = {}
for name, f in (("CPC", features), ("untrained", untrained), ("mean and deviation", by_hand)):
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000))
    scores = cross_val_score(classifier, f, exercise, groups=people, cv=GroupKFold(5))
    accuracy[name] = 100 * scores.mean()
    print(f"{name:18} {accuracy[name]:.1f} % of {len(CLASSES)} exercises")
assert accuracy["CPC"] > 75

points = TSNE(init="pca", perplexity=15, random_state=0).fit_transform(StandardScaler().fit_transform(features))
figure, axes = plt.subplots(figsize=(4.5, 4), num="The recordings, placed by their features, coloured by exercise")
colours = ("#2079b8", "#d55e00", "#00906a", "#bf6597", "#c08500", "#56b4e9", "#858b94")
for label, (name, marker, colour) in enumerate(zip(CLASSES, "osD^vPX", colours, strict=True)):
    axes.scatter(*points[exercise == label].T, s=22, marker=marker, color=colour, label=name)
axes.axis("off")
figure.legend(loc="outside upper center", ncols=4)
plt.show()

# %% Options used
# [`CPCTransformer`][cpc.sklearn.transformer.CPCTransformer] · [signals](../signals.md) ·
# [results on signals](../results/signals.md)
