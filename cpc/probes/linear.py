"""The probe: standardise, then one linear map to class scores (or the paper's one hidden layer).

n examples, R stored rows, D feature dim, Y classes.
"""

import math
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from cpc.probes.results import Answers
from cpc.probes.task import UNSEEN, Examples

_BLOCK_ROWS = 4096
_GROUP_BYTES = 256_000_000
_HIDDEN_DIM = 512
_LEARNING_RATES = {0: 0.01, 1: 0.001}  # by number of hidden layers


@dataclass(frozen=True)
class ProbeProtocol:
    """How a probe is trained; the defaults were chosen by measurement (see docs/decisions/evaluation_and_probes.md).

    Attributes:
        hidden: hidden layers: 0 for the linear probe, 1 for the multi-layer probe of van den Oord et al. 2018.
        hidden_dim: its width, 512 unless given (the paper does not state its own); not for the linear probe.
        num_epochs: passes over the training examples, at least.
        min_steps: steps, at least: small training parts are passed over more often.
        batch_size: examples per step.
        learning_rate: Adam's at the start, from where it falls to zero along a cosine; 0.01 for the linear probe and
            0.001 with a hidden layer unless given.
        l2: weight of the penalty, in the convention of scikit-learn's `C = 1 / l2`: the sum of the losses plus
            l2 / 2 times the sum of squared weights.
        num_seeds: probes trained, with different orders of the examples (and initial weights, where there is a choice).
    """

    hidden: int = 0
    hidden_dim: int | None = None
    num_epochs: int = 20
    min_steps: int = 1000
    batch_size: int = 1024
    learning_rate: float | None = None
    l2: float = 1.0
    num_seeds: int = 3

    def __post_init__(self) -> None:
        for name in ("hidden_dim", "num_epochs", "min_steps", "batch_size", "num_seeds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if self.hidden not in (0, 1):
            raise ValueError(f"hidden={self.hidden}, but a probe has 0 (linear) or 1 hidden layer")
        if self.hidden_dim is not None and not self.hidden:
            raise ValueError(
                f"hidden_dim={self.hidden_dim}, but the linear probe has no hidden layer: set `hidden` to 1"
            )
        if (self.learning_rate is not None and self.learning_rate <= 0) or self.l2 < 0:
            raise ValueError(f"learning_rate={self.learning_rate} must be positive and l2={self.l2} not negative")

    @property
    def initial_learning_rate(self) -> float:
        """The rate given, or the one that suits the number of hidden layers."""
        return self.learning_rate or _LEARNING_RATES[self.hidden]

    @property
    def hidden_dims(self) -> list[int]:
        """The width of each hidden layer."""
        return [self.hidden_dim or _HIDDEN_DIM] * self.hidden

    def record(self) -> dict[str, Any]:
        """As JSON, with the values that stand in for those not given."""
        filled = {"learning_rate": self.initial_learning_rate, "hidden_dim": next(iter(self.hidden_dims), None)}
        return asdict(self) | filled


class Probe(nn.Module):
    """Class scores from features.

    Args:
        dim: D.
        num_classes: Y.
        hidden_dims: width of each hidden layer; none for the linear probe.
        generator: of the initial weights; the linear probe starts from zero and needs none.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        hidden_dims: Sequence[int] = (),
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        widths = [dim, *hidden_dims, num_classes]
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for i, (input_dim, output_dim) in enumerate(pairwise(widths)):
            weight = torch.zeros(output_dim, input_dim)
            if i < len(hidden_dims):
                nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(output_dim)))
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    def forward(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "n Y"]:
        """Unnormalised log-probabilities of the classes."""
        hidden = (x - self.mean) * self.scale
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = F.linear(hidden.relu() if i else hidden, weight, bias)
        return hidden

    @torch.inference_mode()
    def answer(self, test: Examples) -> Answers:
        """The class and the true class's log-probability of every test example."""
        device = self.mean.device
        predicted, log_likelihood = [], []
        for start in range(0, len(test), _BLOCK_ROWS):
            x = _read(test, slice(start, start + _BLOCK_ROWS)).to(device)
            labels = torch.from_numpy(test.labels[start : start + _BLOCK_ROWS]).to(device)
            log_probabilities = self(x).log_softmax(1)
            predicted.append(log_probabilities.argmax(1).cpu())
            of_label = log_probabilities.gather(1, rearrange(labels.clamp(min=0), "n -> n 1"))[:, 0]
            log_likelihood.append(torch.where(labels == UNSEEN, torch.nan, of_label).cpu())
        return Answers(torch.cat(predicted).numpy(), torch.cat(log_likelihood).double().numpy())


def fit_probe(
    train: Examples,
    num_classes: int,
    protocol: ProbeProtocol,
    seed: int = 0,
    device: str | torch.device = "cpu",
    standardisation: tuple[Tensor, Tensor] | None = None,
    *,
    title: str | None = None,
) -> Probe:
    """Train a probe on features, which stay as they are: no gradient reaches what they come from.

    Minimises, by Adam with a cosine to zero, mean cross-entropy + l2 / (2 n) |W|^2 on features standardised by the
    training examples: the objective of scikit-learn's LogisticRegression.

    Args:
        train: the training examples.
        num_classes: Y.
        protocol: see there.
        seed: of the order of the examples, and of the initial weights of a hidden layer.
        device: where to compute.
        standardisation: the mean and scale of `train`, where they are known.
        title: of a progress bar; None: none.
    """
    generator = torch.Generator().manual_seed(seed)
    probe = Probe(train.values.shape[1], num_classes, protocol.hidden_dims, generator)
    mean, scale = standardisation or standardise(train)
    probe.mean.copy_(mean)
    probe.scale.copy_(scale)
    probe.to(device)
    batch_size = min(protocol.batch_size, len(train))
    steps_per_epoch = math.ceil(len(train) / batch_size)
    num_steps = max(protocol.num_epochs * steps_per_epoch, protocol.min_steps)
    num_epochs = math.ceil(num_steps / steps_per_epoch)
    optimiser = torch.optim.Adam(probe.parameters(), lr=protocol.initial_learning_rate, fused=True)
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


def standardise(train: Examples) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
    """Mean and inverse deviation of the training examples; constant features keep their scale."""
    total = torch.zeros(train.values.shape[1], dtype=torch.float64)
    squares = torch.zeros_like(total)
    shift = _read(train, slice(0, 1))[0].double()  # sums of squares of shifted values lose no digits
    for start in range(0, len(train), _BLOCK_ROWS):
        x = _read(train, slice(start, start + _BLOCK_ROWS)).double() - shift
        total += x.sum(0)
        squares += x.square().sum(0)
    mean = total / len(train)
    std = (squares / len(train) - mean.square()).clamp(min=0).sqrt()
    mean = mean + shift
    is_constant = std <= 1e-6 * mean.abs().clamp(min=1e-6)
    return mean.float(), torch.where(is_constant, 1.0, 1 / std).float()


def _minibatches(
    train: Examples, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Float[Tensor, "n D"], Tensor]]:
    """All examples once, in random order.

    Blocks of neighbouring rows come in random order, and rows are shuffled within groups of blocks: a memory-mapped
    store is read in runs, and the order is the same wherever the values live.
    """
    blocks_per_group = max(1, _GROUP_BYTES // (4 * train.values.shape[1] * _BLOCK_ROWS))
    blocks = np.split(np.arange(len(train)), range(_BLOCK_ROWS, len(train), _BLOCK_ROWS))
    rest = np.zeros(0, np.int64)
    for group in torch.randperm(len(blocks), generator=generator).split(blocks_per_group):
        chosen = [blocks[i] for i in group.tolist()]
        for block in chosen:
            _prefetch(train.values, int(train.rows[block[0]]), int(train.rows[block[-1]]))
        order = np.concatenate([rest, *chosen])
        order = order[torch.randperm(len(order), generator=generator).numpy()]
        num_whole = len(order) // batch_size * batch_size
        for start in range(0, num_whole, batch_size):
            batch = order[start : start + batch_size]
            yield _read(train, batch), torch.from_numpy(train.labels[batch])
        rest = order[num_whole:]
    if len(rest):
        yield _read(train, rest), torch.from_numpy(train.labels[rest])


def _prefetch(values: np.ndarray, first: int, last: int) -> None:
    """Have the disk read these rows of a memory-mapped array in one run, before they are asked for in random order."""
    mapped = getattr(values, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_WILLNEED"):
        start = int(first) * values.strides[0] // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_WILLNEED, start, min((int(last) + 1) * values.strides[0], len(mapped)) - start)


def _read(examples: Examples, which: slice | np.ndarray) -> Float[Tensor, "n D"]:
    # By index, hence a copy; float16 is widened by torch, in a third of numpy's time.
    return torch.from_numpy(examples.values[examples.rows[which]]).float()
