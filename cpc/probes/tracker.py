"""Records of a run: health of features, gradients and speed (`health.jsonl`), start and end (`events.jsonl`).

B windows or images, T frames, D feature dim.
"""

import math
import sys
import time
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from cpc.config.argument_rules import Range
from cpc.contexts.grid import is_signal
from cpc.data.batch import Batch
from cpc.data.store.atomic import finite

SCHEMA = 1


class Tracker(pl.Callback):
    """Statistics of every step, as a line of `health.jsonl` at each recorded step.

    Variance and rank are computed only at recorded steps, on at most 512 features of one batch. The speed leaves out
    held-out evaluation and saving, since `restart_clock` is called after them. With several ranks the features are
    those of rank 0, and the windows are counted over all ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trained_seconds = 0.0  # seconds in earlier processes of the run
        self._started: float | None = None
        self._collapsed: set[str] = set()
        self._learning_rate = math.nan
        self._former_norms: list[float] = []  # from the checkpoint
        self._begin_interval()

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds trained so far, and the gradients' norms since the last record."""
        return {"trained_seconds": self._seconds_so_far(), "gradient_norms": self._norms_so_far()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the seconds and norms of the checkpoint."""
        self.trained_seconds = state_dict["trained_seconds"]
        self._former_norms = state_dict.get("gradient_norms", [])  # older checkpoints lack these entries

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clocks."""
        self._started = self._since = time.monotonic()

    def restart_clock(self) -> None:
        """Exclude the time since the last step from the speed."""
        self._since = time.monotonic()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Measure the gradient before clipping, and save the rate of this step, not of the next."""
        self._learning_rate = optimizer.param_groups[0]["lr"]
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self._gradient_norms.append(torch.nn.utils.get_total_norm(gradients))

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_index: int
    ) -> None:
        """Count the windows of the step and its seconds."""
        now = time.monotonic()
        self._seconds += now - self._since
        self._since = now
        self._num_windows += len(batch.x) * trainer.world_size

    def record(
        self, trainer: pl.Trainer, module: pl.LightningModule, step: int, outputs: dict[str, Tensor], batch: Batch
    ) -> dict[str, Any]:
        """Return a line of `health.jsonl` on the steps since the last line; warn when features collapse."""
        norms = self._norms_so_far() or [math.nan]
        measures: dict[str, float] = {
            "time_unix_seconds": time.time(),
            "trained_seconds": self._seconds_so_far(),
            "windows_per_second": self._num_windows / self._seconds if self._seconds > 0 else math.nan,
            "learning_rate": self._learning_rate,
            "gradient_norm": sum(norms) / len(norms),
            "gradient_norm_max": max(norms) if all(map(math.isfinite, norms)) else math.nan,
        }
        collapsed = []
        for name, features in (("z", outputs["latents"]), ("c", outputs["contexts"])):
            x = features[is_signal(features, *module.model.lengths(batch))]  # type: ignore[operator, union-attr]
            if len(x) < 2:
                measures |= dict.fromkeys((f"{name}_variance", f"{name}_effective_rank"), math.nan)
                continue
            sample = health(x)
            measures |= {f"{name}_variance": sample.variance, f"{name}_effective_rank": sample.effective_rank}
            if sample.is_collapsed:
                collapsed.append(name)
                if name not in self._collapsed and trainer.is_global_zero:
                    rank = f"effective rank {sample.effective_rank:.2f} of {x.shape[1]}"
                    advice = "lower model.learning_rate, or try data initialisation or another norm"
                    found = f"{name} has collapsed (variance {sample.variance:.3g}, {rank})"
                    print(f"\nstep {step}: {found}: it hardly depends on the input; {advice}", file=sys.stderr)
        self._collapsed = set(collapsed)
        self._begin_interval()
        dims = {"z_dim": outputs["latents"].shape[-1], "c_dim": outputs["contexts"].shape[-1]}
        return {"schema": SCHEMA, "step": step, **finite(measures), **dims, "collapsed": collapsed}

    def _begin_interval(self) -> None:
        self._former_norms = []
        self._gradient_norms: list[Tensor] = []
        self._num_windows = 0
        self._seconds = 0.0
        self._since = time.monotonic()

    def _norms_so_far(self) -> list[float]:
        new = torch.stack(self._gradient_norms).double().tolist() if self._gradient_norms else []
        return self._former_norms + new

    def _seconds_so_far(self) -> float:
        return self.trained_seconds + (0.0 if self._started is None else time.monotonic() - self._started)


def event_record(step: int, event: str, message: str = "") -> dict[str, Any]:
    """Return a line of `events.jsonl`.

    The event is `started`, `resumed`, `finished`, `interrupted`, `not_finite` or `failed`.
    """
    return {"schema": SCHEMA, "step": step, "time_unix_seconds": time.time(), "event": event, "message": message}


NUM_FEATURES = 512  # largest number of features; with more, the rank takes as long as a training step of a small model
LEAST_RELATIVE_VARIANCE = 1e-4
LEAST_EFFECTIVE_RANK = 1.5


class Health(NamedTuple):
    """Statistics of a sample of features.

    Attributes:
        variance: mean over the dimensions of the variance over the features.
        relative_variance: variance over all dimensions divided by the mean square of the features; 0 if all features
            are equal.
        effective_rank: number of dimensions that the features fill, from 1 to min(n - 1, D).
        is_collapsed: True if `relative_variance` is below 1e-4, `effective_rank` is below 1.5 in more than two
            dimensions, or a feature is not finite.
    """

    variance: float
    relative_variance: float
    effective_rank: float
    is_collapsed: bool


@torch.no_grad()
def health(features: Float[Tensor, "n D"]) -> Health:
    """Return variance and effective rank of at least two features, of 512 at most; no random number is drawn."""
    Range(2).check("the number of features", len(features))
    if len(features) > NUM_FEATURES:
        features = features[torch.linspace(0, len(features) - 1, NUM_FEATURES, device=features.device).long()]
    x = features.double()
    if not torch.isfinite(x).all():
        return Health(math.nan, math.nan, math.nan, is_collapsed=True)
    variances = x.var(0)
    mean_square = x.square().sum(1).mean().item()
    relative = variances.sum().item() / mean_square if mean_square > 0 else 0.0
    rank = effective_rank(x)
    is_flat = x.shape[1] > 2 and rank < LEAST_EFFECTIVE_RANK
    return Health(variances.mean().item(), relative, rank, relative < LEAST_RELATIVE_VARIANCE or is_flat)


def effective_rank(features: Float[Tensor, "n D"]) -> float:
    """Return exp of the entropy of the normalised singular values of the centred features.

    It is 1 for features on a line or at a point, and D for white noise: definition 1 of Roy and Vetterli 2007, "The
    effective rank: a measure of effective dimensionality"; Garrido et al. 2023 (arXiv:2210.02885) use it to find
    collapse without labels. The singular values come from the smaller Gram matrix in float64.
    """
    x = features.double()
    x = x - x.mean(0)
    if x.shape[0] < x.shape[1]:
        x = rearrange(x, "n d -> d n")
    values = torch.linalg.eigvalsh(x.T @ x).clamp(min=0).sqrt()
    total = values.sum()
    if total == 0:
        return 1.0
    shares = values / total
    return math.exp(-torch.special.xlogy(shares, shares).sum().item())
