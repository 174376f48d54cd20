"""# Stuck at log N, at chance, at 50 %

Six small trainings of one network: the first is healthy, the others are not. Every fault is made on purpose. The page
shows its traces in the records of a run, the badges of `cpc monitor`, and what to change.
"""

import json
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import cpc
from cpc.bounds import BoundTally, VectorAR1
from cpc.monitor.badges import badges
from cpc.monitor.run import Run
from cpc.probes.tracker import health

# %% A loop that writes the records of a run
folder, g = Path(tempfile.mkdtemp()), torch.Generator()


def train(name, sample, rate=3e-3, negatives="mixed"):
    torch.manual_seed(0), g.manual_seed(0)
    encoder, context = cpc.encoders.VectorEncoder(input_dim=8, dim=16, hidden_dim=32), cpc.contexts.GRU(dim=32)
    model = cpc.CPC(encoder, context, cpc.predictors.Bilinear(num_steps=2), cpc.losses.Contrastive(negatives))
    optimiser, records = torch.optim.Adam(model.parameters(), rate), []
    for step in range(240):
        result, tally = model.loss(sample()), BoundTally(model.steps)
        optimiser.zero_grad()
        result.loss.backward()
        optimiser.step()
        tally.update(result)
        records.append(tally.compute(negatives, "train").record(step))
    collapsed = ["z"] if health(model.encoder(sample()).flatten(0, 1)).is_collapsed else []
    (folder / name).mkdir()
    (folder / name / "bound.jsonl").write_text("\n".join(map(json.dumps, records[::4])) + "\n")
    (folder / name / "health.jsonl").write_text(json.dumps({"schema": 1, "step": step, "collapsed": collapsed}) + "\n")
    return records


# %% Five faults
# The data are a slow process, noise, exact orbits of which each batch holds all twice, and the process in loud voices.

rotation = torch.linalg.qr(torch.randn(8, 8, generator=g.manual_seed(1))).Q
orbit = torch.stack([torch.linalg.matrix_power(rotation, time) for time in range(24)], 1)
slow = VectorAR1(coefficient=0.9, dim=8)
trainings = {
    "healthy": (lambda: slow.sample(16, 24, g),),
    "1 rate too high": (lambda: slow.sample(16, 24, g), 0.3),
    "2 rate too low": (lambda: slow.sample(16, 24, g), 1e-6),
    "3 only noise": (lambda: torch.randn(16, 24, 8, generator=g),),
    "4 all twice": (lambda: torch.einsum("bd,dte->bte", torch.randn(8, 8, generator=g), orbit).repeat(2, 1, 1), 1e-2),
    "5 too easy": (lambda: slow.sample(16, 24, g) + 6 * torch.randn(16, 1, 8, generator=g), 3e-3, "mixed_excluding"),
}
print("run              log N - L  log N  accuracy  badges")
figure, panels = plt.subplots(3, 2, sharex=True, sharey=True, figsize=(4.5, 5), num="log N - L of six runs, and log N")
for axes, (name, options) in zip(panels.flat, trainings.items(), strict=True):
    records, run = train(name, *options), Run(folder / name, name)
    run.refresh()
    shown = [badge.name for badge in badges(run, time.monotonic())]
    nats, ceiling, accuracy = (records[-1][key][0] for key in ("mi_bound_nats", "mi_ceiling_nats", "accuracy"))
    print(f"{name:16} {nats:9.2f}  {ceiling:5.2f}  {100 * accuracy:6.1f} %  {', '.join(shown)}")
    axes.plot([record["mi_bound_nats"][0] for record in records])
    axes.axhline(ceiling, linestyle="--", color="#858b94")
    axes.set(title=name, ylim=(-1, 6.5))
    assert ("stalled" in shown) == (name[0] in "123") and ("collapsed" in shown) == (name[0] == "1")
plt.show()

# %% What to change
# 1. **Collapsed at log N**: z is the same for all inputs. Lower the learning rate, or warm it up.
# 2. **Stalled at log N, z healthy**: raise the rate or wait. CPC can stay at log N for some hundred steps.
# 3. **The same curve, but nothing to predict**: no rate helps. Predict nearer steps, or check the order of the data.
# 4. **50 %**: each positive has a twin among the negatives. Remove duplicates, and give copies one `sequence_id`.
# 5. **At the ceiling**: negatives are too easy. Take them from the same recording; set `skip_steps` if samples overlap.

# %% Options used
# [badges](../monitor.md) · [files of a run](../records.md) · [`Contrastive`][cpc.losses.contrastive.Contrastive]
