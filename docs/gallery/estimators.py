"""# Which estimator when: InfoNCE, NWJ, JS and SMILE against a truth

Four estimators of mutual information are trained on pairs of Gaussians whose information rises from 2 to 10 nats. Each
curve should follow the stairs. None does all the way, and each fails in its own manner.
"""

import math

import matplotlib.pyplot as plt

from cpc.bounds.calibration.training import train
from cpc.bounds.tasks import make_task

# %% One critic for each objective
# The critic scores pairs by two networks, `f(x) . g(y)`. A batch has 128 pairs, so InfoNCE cannot exceed
# `log 128 = 4.85`. JS and SMILE share their training objective: only the estimate read from the scores differs.

NUM_CANDIDATES, NUM_STEPS = 128, 250
tasks = [make_task("gaussian", nats, dim=20) for nats in (2, 4, 6, 8, 10)]
curves, last = {}, {}
for names in (["info_nce"], ["nwj"], ["js", "smile"]):
    levels = list(train(tasks, names, "separable", NUM_CANDIDATES, NUM_STEPS, num_matrices=50, seed=0))
    for name in names:
        steps = [step for level in levels for step in level.steps]
        curves[name] = steps, [nats for level in levels for nats in level.estimates[name]]
        last[name] = [level.measured[name] for level in levels]

# %% What they read
# A cell is the mean over 50 new batches, with the standard deviation of a single batch in brackets.

print("true nats     2           4           6           8          10")
for name, measured in last.items():
    cells = (f"{each.mean_nats:5.1f} ({each.standard_deviation_nats:.1f})" for each in measured)
    print(f"{name:9}", "  ".join(cells))
deviations = {name: measured[-1].standard_deviation_nats for name, measured in last.items()}
assert all(each.mean_nats < math.log(NUM_CANDIDATES) for each in last["info_nce"])
assert deviations["info_nce"] < min(deviations["nwj"], deviations["smile"])

figure, rows = plt.subplots(4, sharex=True, figsize=(4.5, 7), num="Four estimators follow a rising truth")
for axes, (name, (steps, nats)) in zip(rows, curves.items(), strict=True):
    stairs = [task.mutual_information_nats for task in tasks for _ in (0, 1)]
    edges = [NUM_STEPS * level for i in range(5) for level in (i, i + 1)]
    axes.plot(edges, stairs, color="#d55e00", label="truth")
    axes.plot(steps, nats, label=name)
    axes.set(ylim=(-0.5, 13), ylabel="nats")
    axes.legend(loc="upper left", ncols=2)
rows[0].axhline(math.log(NUM_CANDIDATES), linestyle="--", color="#858b94")
rows[-1].set_xlabel("step")
plt.show()

# %% Which to take
# - **InfoNCE** while the information lies well below `log N`. It is a lower bound and hardly varies. Above its ceiling
#   (dashed) it says nothing.
# - **NWJ** and **JS** are lower bounds without a ceiling, but they vary more the more information there is. One batch
#   of NWJ at 8 nats and more is worthless here. JS trains more steadily, because its objective has no exponentials.
# - **SMILE** varies less and has no ceiling, but it bounds nothing. Here its critic is not yet good enough, so that it
#   reads too little; with an exact critic it reads 12 where there are 10.
#
# A model trained by `cpc pretrain` has an InfoNCE critic, which knows each row only up to a constant. For it take
# `cpc evaluate --estimators tuba interpolated`. `cpc calibrate` makes this comparison for eight distributions.

# %% Options used
# [`info_nce`][cpc.bounds.estimators.info_nce] · [`nwj`][cpc.bounds.estimators.nwj] ·
# [`smile`][cpc.bounds.estimators.smile] · [`make_task`][cpc.bounds.tasks.make_task] ·
# [results with exact critics](../results/estimators.md) ·
# [theory](../theory.md#other-estimators-and-how-infonce-relates-to-mine)
