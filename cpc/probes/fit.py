"""The fit of a probe to frozen features: a linear probe is solved, a probe with a hidden layer is trained by Adam.

n examples, D feature dim.
"""

import math
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from cpc.probes.classifier import BLOCK_ROWS, Probe, ProbeProtocol, standardise
from cpc.probes.convex import Coordinates, solve
from cpc.probes.penalty import choose_l2
from cpc.probes.task import Examples

_TOLERANCE_CHOSEN = 0.01  # tolerance, in standard errors, if the penalty was chosen on a coarse grid
_TOLERANCE_GIVEN = 0.001  # tolerance with which weights equal scikit-learn's
_GROUP_BYTES = 256_000_000


def fit_probe(
    train: Examples,
    num_classes: int,
    protocol: ProbeProtocol,
    seed: int = 0,
    device: str | torch.device = "cpu",
    *,
    title: str | None = None,
    penalty_chosen_by: str = "likelihood",
) -> Probe:
    """Fit a probe to frozen features, standardised by the training examples.

    The linear probe minimises the sum of the cross-entropies + l2 / 2 |W|^2, the objective of scikit-learn's
    LogisticRegression (see `cpc.probes.convex.solve`); its optimum does not depend on the seed. `title` is that of the
    progress bar, None for no bar; `penalty_chosen_by` is the criterion of `cpc.data.probe_data.ProbeData`.
    """
    if protocol.hidden:
        return _fit_hidden(train, num_classes, protocol, seed, device, title)
    mean, scale = standardise(train)
    coordinates = Coordinates(train.values, train.indices, mean, scale, device)
    l2, start, tolerance = protocol.l2, None, _TOLERANCE_GIVEN
    with tqdm(total=2, desc=title, unit="step", disable=title is None) as bar:
        if l2 is None:
            l2, start = choose_l2(coordinates, train.labels, train.groups, num_classes, penalty_chosen_by)
            tolerance = _TOLERANCE_CHOSEN
        bar.update()
        solution = solve(coordinates, train.labels, num_classes, l2, start, tolerance)
        bar.update()
    probe = Probe(train.values.shape[1], num_classes, l2=l2).requires_grad_(False)
    fitted = (coordinates.feature_weights(solution.weight), solution.bias, mean, scale)
    for parameter, values in zip((probe.weights[0], probe.biases[0], probe.mean, probe.scale), fitted, strict=True):
        parameter.copy_(values)
    return probe.to(device)


def _fit_hidden(
    train: Examples,
    num_classes: int,
    protocol: Any,
    seed: int = 0,
    device: str | torch.device = "cpu",
    title: str | None = None,
) -> Probe:
    """Minimise mean cross-entropy + l2 / (2 n) |W|^2 by Adam, with a cosine schedule to zero.

    The arguments are those of `fit_probe`; all fields of the protocol are set.
    """
    generator = torch.Generator().manual_seed(seed)
    probe = Probe(train.values.shape[1], num_classes, [protocol.hidden_dim], protocol.l2, generator)
    for buffer, values in zip((probe.mean, probe.scale), standardise(train), strict=True):
        buffer.copy_(values)
    probe.to(device)
    batch_size = min(protocol.batch_size, len(train))
    steps_per_epoch = math.ceil(len(train) / batch_size)
    num_steps = max(protocol.num_epochs * steps_per_epoch, protocol.min_steps)
    num_epochs = math.ceil(num_steps / steps_per_epoch)
    optimiser = torch.optim.Adam(probe.parameters(), lr=protocol.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, num_epochs * steps_per_epoch)
    penalty = protocol.l2 / (2 * len(train))
    with tqdm(total=num_epochs * steps_per_epoch, desc=title, unit="step", disable=title is None) as bar:
        for _ in range(num_epochs):
            for x, labels in _minibatches(train, batch_size, generator):
                loss = F.cross_entropy(probe(x.to(device)), labels.to(device))
                loss = loss + penalty * sum(weight.square().sum() for weight in probe.weights)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                bar.update()
    return probe.requires_grad_(False)


def _minibatches(
    train: Examples, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Float[Tensor, "n D"], Tensor]]:
    """Yield all examples once, in random order.

    Blocks of neighbouring rows come in random order, and rows are shuffled only within groups of blocks. So a
    memory-mapped store is read in long runs. The order does not depend on where the values are stored.
    """
    blocks_per_group = max(1, _GROUP_BYTES // (4 * train.values.shape[1] * BLOCK_ROWS))
    blocks = np.split(np.arange(len(train)), range(BLOCK_ROWS, len(train), BLOCK_ROWS))
    rest = np.zeros(0, np.int64)
    for group in torch.randperm(len(blocks), generator=generator).split(blocks_per_group):
        chosen = [blocks[i] for i in group.tolist()]
        for block in chosen:
            _prefetch(train.values, int(train.indices[block[0]]), int(train.indices[block[-1]]))
        order = np.concatenate([rest, *chosen])
        order = order[torch.randperm(len(order), generator=generator).numpy()]
        num_whole = len(order) // batch_size * batch_size
        for start in range(0, num_whole, batch_size):
            batch = order[start : start + batch_size]
            yield train.read(batch), torch.from_numpy(train.labels[batch])
        rest = order[num_whole:]
    if len(rest):
        yield train.read(rest), torch.from_numpy(train.labels[rest])


def _prefetch(values: np.ndarray, first: int, last: int) -> None:
    """Make the disk read these rows of a memory-mapped array in one run, before they are read in random order."""
    mapped = getattr(values, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_WILLNEED"):
        start = first * values.strides[0] // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_WILLNEED, start, min((last + 1) * values.strides[0], len(mapped)) - start)
