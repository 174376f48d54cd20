"""Supervised training of the architecture of a model, from untrained or from pretrained weights (fine-tuning).

B observations of a batch, T vectors of each, D feature dim, Y classes.
"""

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from tqdm import tqdm

from cpc.config.argument_rules import Count, Dropout, NonNegative, Positive, Seed, check_fields
from cpc.data.batch import Batch
from cpc.data.probe_data import UNLABELLED, ProbeData
from cpc.data.tensors import move
from cpc.model import CPC
from cpc.probes.classifier import Probe
from cpc.probes.fit import fit_probe
from cpc.probes.store import Extraction, FeatureStore
from cpc.probes.task import Examples, Task

DEFAULT_SECONDS = 75.0
_CHECK_EVERY = 50  # steps between two looks at the losses; the host waits for a GPU to see them
_NUM_HELD_OUT_CHECKS = 20
_PRETRAINED_RATE = 0.1  # learning rate of a pretrained network, relative to that of an untrained one


@dataclass(frozen=True)
class SupervisedProtocol:
    """Settings of supervised training; `ProbeData.supervised` has a modality's recipe.

    The schedule follows the budget that will be used up first.

    Attributes:
        seconds: time budget; None for no limit. With a time budget the result depends on the machine.
        num_steps: budget in steps; None for no limit.
        num_epochs: budget in passes over the labelled observations; None for no limit.
        min_steps: minimum number of steps with the budget `num_epochs`. Few observations get more passes.
        batch_size: number of observations, or of parts of long observations, per step.
        window_latents: number of vectors in a part of a long observation.
        learning_rate: peak rate of AdamW; a pretrained network has a tenth of it.
        weight_decay: decoupled weight decay.
        warmup_share: share of the budget in which the rate rises; afterwards the rate falls to zero along a cosine.
        norm: normalisation before the softmax: `first_batch` standardises by the features of the first batch, `layer`
            is a LayerNorm without weights.
        held_out_share: share of the labels of each class that a first network is not trained on. The network is then
            trained with all labels for as much of the budget as gave the first the lowest loss on this share, of twenty
            in the budget. 0 uses the whole budget, without a first network.
        augment: change windows of recordings as pretraining did; images are always cut and mirrored as in pretraining.
        seed: seed of weights and batches.
    """

    seconds: Positive | None = DEFAULT_SECONDS
    num_steps: Count | None = None
    num_epochs: Count | None = None
    min_steps: Count = 1
    batch_size: Count = 32
    window_latents: Count = 32
    learning_rate: Positive = 2e-3
    weight_decay: NonNegative = 0.0
    warmup_share: Dropout = 0.1  # below 1: then no step would be left in which the rate falls
    norm: Literal["first_batch", "layer"] = "first_batch"
    held_out_share: Dropout = 0.0
    augment: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.seconds is None and self.num_steps is None and self.num_epochs is None:
            raise ValueError("the supervised network needs a budget: seconds, num_steps or num_epochs")

    def steps(self, num_observations: int) -> float:
        """Return the maximum number of steps; infinite if the only budget is time."""
        epoch_steps = (self.num_epochs or math.inf) * math.ceil(num_observations / self.batch_size)
        return float(min(max(self.min_steps, epoch_steps), self.num_steps or math.inf))


def new_head(dim: int, num_classes: int, norm: str, seed: int) -> Probe:
    """Return the linear softmax of a network that is trained for labels; `norm` is that of `SupervisedProtocol`."""
    head = Probe(dim, num_classes, is_layer_normed=norm == "layer")
    nn.init.normal_(head.weight, std=dim**-0.5, generator=torch.Generator().manual_seed(seed))
    return head


@torch.no_grad()
def _standardise(head: Probe, x: Float[Tensor, "n D"]) -> None:
    """Set the mean and scale of the standardisation from the features of the first batch.

    Without standardisation the encoder's first gradients are noise, which Adam scales to full steps. Accuracy then
    stays at chance for hundreds of steps.
    """
    std, mean = torch.std_mean(x, 0)
    head.mean.copy_(mean)
    head.scale.copy_(1 / std.clamp(min=1e-6))


def train_supervised(
    model: CPC,
    probe_data: ProbeData,
    task: Task,
    protocol: SupervisedProtocol,
    *,
    is_pretrained: bool = False,
    title: str | None = None,
) -> tuple[Probe, int]:
    """Train a model in place, with a linear softmax, on the training part of a task.

    The softmax of a pretrained model starts at a linear probe of it (Kumar et al. 2022, arXiv:2202.10054), and both
    have a tenth of the learning rate. `title` is that of the progress bar, None for no bar. Returns the softmax, and
    the number of steps. A loss that is not finite is a FloatingPointError.
    """
    options: dict[str, Any] = {"is_pretrained": is_pretrained, "title": title}
    until: float | None = 1.0
    if protocol.held_out_share:
        part = task.hold_out(protocol.held_out_share)
        *_, until = _train(copy.deepcopy(model), probe_data, part, protocol, until=None, **options)
    return _train(model, probe_data, task, protocol, until=until, **options)[:2]


def _train(
    model: CPC,
    probe_data: ProbeData,
    task: Task,
    protocol: SupervisedProtocol,
    *,
    until: float | None,
    is_pretrained: bool,
    title: str | None,
) -> tuple[Probe, int, float]:
    """Train for a share of the budget; None: for all of it, to find where the loss on the test part is lowest.

    Returns the softmax, the number of steps, and this place as a share of the budget.
    """
    device = probe_data.device
    model.to(device).train(protocol.norm == "first_batch")  # eval mode leaves batch norm as it is
    batches: Iterator[Batch] = probe_data.batches(task.train, task.labels, model, protocol)
    first = next(batches)
    body = [parameter for module in probe_data.trained(model) for parameter in module.parameters()]
    if is_pretrained:
        examples = _examples("train", model, probe_data, task)
        chosen_by = probe_data.penalty_chosen_by
        head = fit_probe(examples, len(task.classes), device=device, penalty_chosen_by=chosen_by).requires_grad_()
    else:
        with torch.no_grad():
            vectors, is_valid = probe_data.vectors(model, first.beside(body[0]))
        head = new_head(vectors.shape[2], len(task.classes), protocol.norm, protocol.seed).to(device)
        if protocol.norm == "first_batch":
            _standardise(head, vectors[is_valid])
    model.train()
    peak_rate = protocol.learning_rate * (_PRETRAINED_RATE if is_pretrained else 1.0)
    weights = [*body, *head.parameters()]
    is_gpu = body[0].device.type == "cuda"
    # A small network's step on a GPU is mostly launches.
    optimiser = torch.optim.AdamW(weights, weight_decay=protocol.weight_decay, fused=is_gpu or None)
    num_steps = protocol.steps(len(task.train))
    start, step, progress = time.monotonic(), 0, 0.0
    lowest, lowest_at, next_check = math.inf, 1.0, 0.0
    loss_sum = torch.zeros((), device=device)  # not finite as soon as one loss is not
    share_of_budget = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    with tqdm(total=1.0, desc=title, disable=title is None, bar_format=share_of_budget) as bar:
        for batch in chain([first], batches):
            (group,) = optimiser.param_groups
            group["lr"] = peak_rate * _schedule(max(progress, 1e-3), protocol.warmup_share)
            batch = batch.beside(body[0])
            vectors, is_valid = probe_data.vectors(model, batch)
            loss = _loss(head, vectors, move(batch.labels, vectors.device), is_valid, task.pool)
            loss_sum += loss.detach()
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimiser.step()
            step += 1
            progress = step / num_steps
            if protocol.seconds is not None:
                progress = max(progress, (time.monotonic() - start) / protocol.seconds)
            if (step % _CHECK_EVERY == 0 or progress >= 1) and not torch.isfinite(loss_sum):
                advice = f"lower its learning_rate ({protocol.learning_rate})"
                raise FloatingPointError(f"the supervised network's loss is not finite by step {step}: {advice}")
            bar.update(min(progress, 1.0) - bar.n)
            if until is None and len(task.test) and progress >= next_check:
                next_check += 1 / _NUM_HELD_OUT_CHECKS
                if (held_out := _held_out_loss(model, head, probe_data, task)) < lowest:
                    lowest, lowest_at = held_out, progress
            if progress >= (until or 1.0):
                break
    model.eval()
    return head.requires_grad_(False), step, lowest_at


@torch.no_grad()
def _examples(part: Literal["train", "test"], model: CPC, probe_data: ProbeData, task: Task) -> Examples:
    extractor = probe_data.feature_extractor([probe_data.supervised_feature], model.eval())
    rows = task.train if part == "train" else task.test
    store = FeatureStore.extract(extractor, rows, probe_data.name, Extraction(progress=False))
    return task.averaged().examples(part, store, probe_data.supervised_feature)


def _held_out_loss(model: CPC, head: Probe, probe_data: ProbeData, task: Task) -> float:
    """Return the mean loss on the test part, and leave the model in training."""
    answers = head.answer(_examples("test", model, probe_data, task))
    model.train()
    return -float(np.nanmean(answers.log_likelihood_nats))


def _loss(
    head: Probe,
    vectors: Float[Tensor, "B T D"],
    labels: Int[Tensor, "B T"],
    is_valid: Bool[Tensor, "B T"],
    pool: str | None,
) -> Tensor:
    if pool not in (None, "frames"):
        weights = is_valid / is_valid.sum(1, keepdim=True).clamp(min=1)
        return F.cross_entropy(head(torch.einsum("btd,bt->bd", vectors, weights)), labels[:, 0])
    labels = torch.where(is_valid, labels, UNLABELLED).flatten()
    scores = head(rearrange(vectors, "b t d -> (b t) d"))
    total = F.cross_entropy(scores, labels, ignore_index=UNLABELLED, reduction="sum")
    return total / (labels != UNLABELLED).sum().clamp(min=1)  # 0 if no vector of the batch has a label


def _schedule(progress: float, warmup_share: float) -> float:
    if progress < warmup_share:
        return progress / warmup_share
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - warmup_share) / (1 - warmup_share))))
