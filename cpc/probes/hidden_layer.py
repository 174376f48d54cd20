"""The probe with a hidden layer: trained by Adam on shuffled minibatches.

n examples, D feature dim.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from cpc.probes.classifier import BLOCK_ROWS, Probe, standardise
from cpc.probes.task import Examples

_GROUP_BYTES = 256_000_000


def fit_hidden(
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
    blocks = torch.arange(len(train)).split(BLOCK_ROWS)
    x, labels = torch.zeros(0, train.values.shape[1]), torch.zeros(0, dtype=torch.int64)
    for group in torch.randperm(len(blocks), generator=generator).split(blocks_per_group):
        read = np.concatenate([blocks[i].numpy() for i in group.tolist()])
        x = torch.cat([x, train.read(read)])
        labels = torch.cat([labels, torch.from_numpy(train.labels[read])])
        order = torch.randperm(len(x), generator=generator)
        num_whole = len(order) // batch_size * batch_size
        for batch in order[:num_whole].split(batch_size) if num_whole else ():
            yield x[batch], labels[batch]
        x, labels = x[order[num_whole:]], labels[order[num_whole:]]
    if len(x):
        yield x, labels
