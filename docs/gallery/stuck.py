"""# Stuck at log N, at chance, at 50 %

Six small trainings of one network: the first is healthy, the others are not. Every
fault is made on purpose. The page shows its traces in the records of a run, the badges
of `cpc monitor`, and what to change.
"""

import json
import tempfile

import matplotlib.pyplot as plt
import torch

import cpc
from cpc.bounds import BoundTally, VectorAR1
from cpc.monitor.badges import badges
from cpc.monitor.run import Run
from cpc.probes.tracker import health

# %% Data
# A slow process, noise, exact orbits of which each batch holds all twice, and the
# process in loud voices: 16 sequences of 24 steps.

rotation = torch.linalg.qr(torch.randn(8, 8, generator=torch.manual_seed(1))).Q
orbit = torch.cat([torch.linalg.matrix_power(rotation, i) for i in range(24)], dim=1)


def batch(kind):
    slow = VectorAR1(coefficient=0.9, dim=8).sample(16, 24, torch.default_generator)
    noise = torch.randn(16, 24, 8)
    twice = (noise[:8, 0] @ orbit).view(8, 24, 8).repeat(2, 1, 1)
    loud = slow + 6 * noise[:, :1]
    return {"slow": slow, "noise": noise, "twice": twice, "loud": loud}[kind]


# %% A loop that writes the records of a run


def train(kind, rate=3e-3, negatives="mixed"):
    torch.manual_seed(0)
    encoder = cpc.encoders.VectorEncoder(input_dim=8, dim=16, hidden_dim=32)
    loss = cpc.losses.Contrastive(negatives)
    model = cpc.CPC(encoder, cpc.contexts.GRU(dim=32), cpc.predictors.Bilinear(2), loss)
    optimiser = torch.optim.Adam(model.parameters(), rate)
    folder = cpc.Run(tempfile.mkdtemp())
    records = []
    for step in range(240):
        tally = BoundTally(model.steps)
        result = model.loss(batch(kind))
        optimiser.zero_grad()
        result.loss.backward()
        optimiser.step()
        tally.update(result)
        records.append(json.dumps(tally.compute(negatives, "train").record(step)))
    (folder / "bound.jsonl").write_text("\n".join(records[::4]) + "\n")
    is_collapsed = health(encoder(batch(kind)).flatten(0, 1)).is_collapsed
    record = {"schema": 1, "step": step, "collapsed": ["z"] * is_collapsed}
    (folder / "health.jsonl").write_text(json.dumps(record) + "\n")
    return folder


# %% Five faults
# The flat line is log N, the ceiling of log N - L.

trainings = {
    "healthy": ("slow",),
    "1 rate too high": ("slow", 0.3),
    "2 rate too low": ("slow", 1e-6),
    "3 only noise": ("noise",),
    "4 all twice": ("twice", 5e-3),
    "5 too easy": ("loud", 3e-3, "mixed_excluding"),
}
figure, panels = plt.subplots(3, 2, figsize=(4.5, 5), num="log N - L of six runs")
for axes, (name, options) in zip(panels.flat, trainings.items(), strict=True):
    folder = train(*options)
    run = Run(folder, name)
    run.refresh()
    shown = [name for name, _ in badges(run, now_seconds=0)]
    curves = [(b["mi_bound_nats"][0], b["mi_ceiling_nats"][0]) for b in folder.bounds]
    print(f"{name:16} {folder.bounds[-1]['accuracy'][0]:4.0%} right", *shown)
    axes.plot(curves)
    axes.set(title=name, ylim=(-1, 6.5))
    assert ("stalled" in shown) == (name[0] in "123")
    assert ("collapsed" in shown) == (name[0] == "1")
plt.show()

# %% What to change
# 1. **Collapsed at log N**: z is the same for all inputs. Lower the learning rate, or
#    warm it up.
# 2. **Stalled at log N, z healthy**: raise the rate or wait. CPC can stay at log N for
#    some hundred steps.
# 3. **The same curve, but nothing to predict**: no rate helps. Predict nearer steps, or
#    check the order of the data.
# 4. **50 %**: each positive has a twin among the negatives. Remove duplicates, and give
#    copies one `sequence_id`.
# 5. **At the ceiling**: negatives are too easy. Take them from the same recording; set
#    `skip_steps` if samples overlap.

# %% Options used
# [badges](../monitor.md) · [files of a run](../records.md) ·
# [`Contrastive`][cpc.losses.contrastive.Contrastive]
