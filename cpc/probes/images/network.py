"""A whole network trained for the labels: from scratch, the supervised baseline; from pretrained weights, fine-tuning.

B images, D latent dim, Y classes.
"""

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn

from cpc.data.images.corpus import ImageDataset
from cpc.data.streams.stream import Draw
from cpc.probes.features import Precision
from cpc.probes.images.task import ImageTask
from cpc.probes.results import Answers, answer_by_likelihood
from cpc.probes.supervised import budget_bar


@dataclass(frozen=True)
class NetworkProtocol:
    """How a network is trained for labels.

    Attributes:
        num_epochs: passes over the labelled images, at most.
        min_steps: steps, at least: few images are passed over more often.
        seconds: stop the schedule's clock there; the result then depends on the machine. None: passes alone count.
        batch_size: images per step.
        learning_rate: Adam's peak; of a pretrained encoder a tenth.
        weight_decay: decoupled.
        warmup_share: part of the steps over which the rate rises; then it falls to zero along a cosine.
        precision: of the encoder's products.
        seed: of the head and the batches.

    Raises:
        ValueError: on numbers of which there is no such training.
    """

    num_epochs: int = 20
    min_steps: int = 300
    seconds: float | None = 120.0
    batch_size: int = 64
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    warmup_share: float = 0.1
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_epochs", "min_steps", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.seconds is not None and self.seconds <= 0:
            raise ValueError(f"seconds={self.seconds}: the supervised network's budget must be positive")
        if self.learning_rate <= 0 or self.weight_decay < 0:
            raise ValueError(
                f"learning_rate={self.learning_rate} must be positive and weight_decay={self.weight_decay} not negative"
            )
        if not 0 <= self.warmup_share < 1:
            raise ValueError(f"warmup_share={self.warmup_share} must lie between 0 and 1")

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class Classifier(nn.Module):
    """The encoder, the mean over the grid, and a linear softmax.

    Args:
        encoder: trained in place.
        num_classes: Y.
        seed: of the softmax.
    """

    def __init__(self, encoder: Any, num_classes: int, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.norm = nn.LayerNorm(encoder.dim, elementwise_affine=False)
        self.head = nn.Linear(encoder.dim, num_classes)
        generator = torch.Generator().manual_seed(seed)
        nn.init.normal_(self.head.weight, std=encoder.dim**-0.5, generator=generator)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Float[Tensor, "B Y"]:
        """Scores of the classes; the mean is normalised, so that training starts at one scale whatever the encoder."""
        return self.head(self.norm(reduce(self.encoder(x).float(), "b h w d -> b d", "mean")))


def train_network(
    encoder: nn.Module,
    task: ImageTask,
    protocol: NetworkProtocol,
    *,
    rows: np.ndarray | None = None,
    is_pretrained: bool = False,
    device: str = "cpu",
    title: str | None = None,
) -> tuple[Answers, int]:
    """Train a copy of an encoder for a task's labels, and ask it about the test part.

    Images are cut and mirrored as in pretraining, their patches are not changed.

    Args:
        encoder: untrained, or pretrained.
        task: what to learn.
        protocol: how.
        rows: of the training part; all if None.
        is_pretrained: change the encoder ten times more slowly than the softmax.
        device: where to train.
        title: of a progress bar; None: none.

    Returns:
        Answers to the test part, and the steps taken.

    Raises:
        FloatingPointError: if the loss is no longer finite.
    """
    rows = np.arange(len(task.train)) if rows is None else rows
    network = Classifier(copy.deepcopy(encoder), len(task.classes), protocol.seed).to(device).train()
    share = 0.1 if is_pretrained else 1.0
    optimiser = torch.optim.AdamW(
        [{"params": network.encoder.parameters(), "share": share}, {"params": network.head.parameters(), "share": 1.0}],
        lr=protocol.learning_rate,
        weight_decay=protocol.weight_decay,
    )
    batch_size = min(protocol.batch_size, len(rows))
    num_steps = max(protocol.min_steps, protocol.num_epochs * math.ceil(len(rows) / batch_size))
    images = task.train.images.with_chance("images")
    start, progress, step = time.monotonic(), 0.0, 0
    with budget_bar(title) as bar:
        for drawn in _batches(rows, batch_size, protocol.seed):
            for group in optimiser.param_groups:
                group["lr"] = (
                    protocol.learning_rate * group["share"] * _rate(max(progress, 1e-3), protocol.warmup_share)
                )
            x, labels = images.__getitems__(drawn).x.to(device), torch.from_numpy(task.train.labels[_rows(drawn)])
            with torch.autocast(x.device.type, torch.bfloat16, enabled=protocol.precision == "bfloat16"):
                scores = network(x)
            loss = F.cross_entropy(scores.float(), labels.to(device))
            if not torch.isfinite(loss):
                raise FloatingPointError(
                    f"the supervised network's loss is {loss.item()} at step {step}: lower its learning_rate "
                    f"({protocol.learning_rate})"
                )
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            step += 1
            progress = step / num_steps
            if protocol.seconds is not None:
                progress = max(progress, (time.monotonic() - start) / protocol.seconds)
            bar.update(min(progress, 1.0) - bar.n)
            if progress >= 1:
                break
    return _answer(network.eval(), task, device, protocol.precision), step


@torch.no_grad()
def _answer(network: Classifier, task: ImageTask, device: str, precision: Precision) -> Answers:
    scores = []
    images: ImageDataset = task.test.images
    for start in range(0, len(task.test), 128):
        drawn = [(row, 0) for row in range(start, min(start + 128, len(task.test)))]
        x = images.__getitems__(drawn).x.to(device)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            scores.append(network(x).float().cpu())
    return answer_by_likelihood(torch.cat(scores).log_softmax(1).numpy(), task.test.labels)


def _batches(rows: np.ndarray, batch_size: int, seed: int) -> Iterator[list[Draw]]:
    """Endless passes over the rows, each image with a key of its own."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(rows)
        for start in range(0, len(order) - batch_size + 1, batch_size):
            chosen = order[start : start + batch_size]
            yield list(zip(chosen.tolist(), rng.integers(0, 2**40, batch_size).tolist(), strict=True))


def _rows(drawn: list[Draw]) -> list[int]:
    return [row for row, _ in drawn]


def _rate(progress: float, warmup_share: float) -> float:
    if progress < warmup_share:
        return progress / warmup_share
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - warmup_share) / (1 - warmup_share))))
