"""The fully supervised baseline: the same architecture, trained for the labels that the probes read.

B windows, S samples, T latents, C context dim, Y classes.
"""

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from tqdm import tqdm

from cpc.data.audio.files import Audio
from cpc.data.audio.windows import WindowDataset, window_draws
from cpc.data.batch import Batch
from cpc.data.streams.uniform import UniformBatches
from cpc.model import CPC
from cpc.probes.features import Precision
from cpc.probes.linear import Probe
from cpc.probes.targets import UNLABELLED, Task


@dataclass(frozen=True)
class SupervisedProtocol:
    """How the supervised baseline is trained.

    Attributes:
        seconds: budget; the schedule follows the clock, so the result depends on the machine.
        num_steps: budget in steps instead: repeatable.
        batch_size: windows per step.
        window_latents: latents per window. Many short windows beat few long ones by far on a small budget: a gradient
            sees more speakers.
        learning_rate: Adam's peak.
        warmup_share: part of the budget over which the rate rises; then it falls to zero along a cosine.
        precision: of the encoder's products.
        seed: of weights and windows.
    """

    seconds: float | None = 75.0
    num_steps: int | None = None
    batch_size: int = 32
    window_latents: int = 32
    learning_rate: float = 2e-3
    warmup_share: float = 0.1
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.num_steps is None):
            raise ValueError(f"one budget is needed: seconds={self.seconds} or num_steps={self.num_steps}")
        if (self.seconds or self.num_steps or 0) <= 0:
            raise ValueError(
                f"seconds={self.seconds}, num_steps={self.num_steps}: the supervised baseline's budget must be positive"
            )

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def train_supervised(
    model: CPC,
    task: Task,
    audio: Audio,
    protocol: SupervisedProtocol,
    device: str | torch.device = "cpu",
    *,
    title: str | None = None,
) -> tuple[Probe, int]:
    """Train encoder and context, with a linear softmax on c, for a task's labels.

    Args:
        model: untrained; it is trained in place. Its predictor takes no part.
        task: what to learn, on its training part.
        audio: the files of the task's training part, `task.train`.
        protocol: budget and rates.
        device: where to train.
        title: of a progress bar; None: none.

    Returns:
        The linear softmax, and the number of steps taken.

    Raises:
        FloatingPointError: if the loss is no longer finite.
    """
    encoder = model.encoder
    window_samples = protocol.window_latents * encoder.hop_samples

    def labels_of_window(file: int, start: int, num_latents: int) -> np.ndarray:
        return task.labels(int(task.train[file]), encoder, start, num_latents)

    num_latents = int(encoder.num_latents(window_samples))
    dataset = WindowDataset(audio, window_samples, labels=labels_of_window, num_latents=num_latents)
    draws = window_draws(audio.num_samples, window_samples)
    batches = UniformBatches(**draws, batch_size=protocol.batch_size, num_batches=1, seed=protocol.seed)
    model.to(device).train()
    probe = _softmax(model, dataset.__getitems__(batches.batch(0)), len(task.classes), protocol.seed).to(device)
    parameters = [*encoder.parameters(), *model.context.parameters(), *probe.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=protocol.learning_rate)
    start, step, progress = time.monotonic(), 0, 0.0
    with budget_bar(title) as bar:
        while progress < 1:
            for group in optimiser.param_groups:
                group["lr"] = protocol.learning_rate * _rate(max(progress, 1e-3), protocol.warmup_share)
            batch = dataset.__getitems__(batches.batch(step))
            x, labels = batch.x.to(device), batch.labels.to(device)
            num_valid = encoder.num_latents(batch.num_valid).to(device)
            with torch.autocast(x.device.type, torch.bfloat16, enabled=protocol.precision == "bfloat16"):
                latents = encoder(x)
            contexts, _ = model.context(latents.float())
            loss = _loss(probe, contexts, labels, num_valid, task.pool)
            if not torch.isfinite(loss):
                raise FloatingPointError(
                    f"the supervised baseline's loss is {loss.item()} at step {step}: lower its learning_rate "
                    f"({protocol.learning_rate})"
                )
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            step += 1
            if protocol.num_steps is not None:
                progress = step / protocol.num_steps
            else:
                progress = (time.monotonic() - start) / (protocol.seconds or 1)
            bar.update(min(progress, 1.0) - bar.n)
    model.eval()
    return probe.requires_grad_(False), step


def budget_bar(title: str | None) -> tqdm:
    """A progress bar over the share of a budget, from 0 to 1, in steps or in seconds; None: a bar that is not shown."""
    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    return tqdm(total=1.0, desc=title, disable=title is None, bar_format=form)


@torch.no_grad()
def _softmax(model: CPC, batch: Batch, num_classes: int, seed: int) -> Probe:
    """A linear softmax on contexts standardised as they are at first, padding left out.

    Without the standardisation and with weights of zero, the encoder's first gradients are noise that Adam takes at
    full size, and training does not leave chance for hundreds of steps.
    """
    device = next(model.parameters()).device
    contexts, _ = model.context(model.encoder(batch.x.to(device)))  # [B, T, C]
    is_valid = _is_valid(contexts, model.encoder.num_latents(batch.num_valid).to(device))
    std, mean = torch.std_mean(contexts[is_valid], 0)
    probe = Probe(model.context.dim, num_classes)
    generator = torch.Generator().manual_seed(seed)
    nn.init.normal_(probe.weights[0], std=model.context.dim**-0.5, generator=generator)
    probe.mean.copy_(mean)
    probe.scale.copy_(1 / std.clamp(min=1e-6))
    return probe


def _loss(
    probe: Probe, contexts: Float[Tensor, "B T C"], labels: Int[Tensor, "B T"], num_valid: Int[Tensor, " B"], pool: str
) -> Tensor:
    is_valid = _is_valid(contexts, num_valid)
    if pool == "mean":
        weights = is_valid / rearrange(num_valid.clamp(min=1), "b -> b 1")
        return F.cross_entropy(probe(torch.einsum("btc,bt->bc", contexts, weights)), labels[:, 0])
    labels = torch.where(is_valid, labels, UNLABELLED)
    if (labels == UNLABELLED).all():
        return contexts.sum() * 0.0  # a batch of silence between labels: nothing to learn from
    return F.cross_entropy(probe(rearrange(contexts, "b t c -> (b t) c")), labels.flatten(), ignore_index=UNLABELLED)


def _is_valid(contexts: Float[Tensor, "B T C"], num_valid: Int[Tensor, " B"]) -> Bool[Tensor, "B T"]:
    return torch.arange(contexts.shape[1], device=contexts.device) < rearrange(num_valid, "b -> b 1")


def _rate(progress: float, warmup_share: float) -> float:
    if progress < warmup_share:
        return progress / warmup_share
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - warmup_share) / (1 - warmup_share))))
