"""Records of a run: health of features, gradients and speed (`health.jsonl`), start and end (`events.jsonl`).

B windows or images, T frames, D feature dim.
"""

import math
import sys
import time
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from cpc.contexts.grid import is_signal
from cpc.data.batch import Batch
from cpc.data.store.atomic import finite
from cpc.probes.health import health

SCHEMA = 1


class Tracker(pl.Callback):
    """Statistics of every step, as a line of `health.jsonl` at each recorded step.

    At each step only the norm of all gradients and the time are computed. Variance and rank are computed only at
    recorded steps, on at most 512 features of one batch. The speed leaves out held-out evaluation and saving, since
    `restart_clock` is called after them. With several ranks the features are those of rank 0, and the windows are
    counted over all ranks.
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
        """Measure the gradient before clipping, without waiting for an accelerator, and save the learning rate.

        The learning rate is saved here, because after the step the schedule has already set the rate of the next step.
        """
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
        """Return a line of `health.jsonl` on the steps since the last line; warn when features collapse.

        A value is None if it is not finite, or if there are too few features for it. `outputs` are the `latents` and
        `contexts` of the last batch.
        """
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
                    print(
                        f"\nstep {step}: {name} has collapsed (variance {sample.variance:.3g}, effective rank "
                        f"{sample.effective_rank:.2f} of {x.shape[1]}): it hardly depends on the input; lower "
                        "model.learning_rate, or try data initialisation or another norm",
                        file=sys.stderr,
                    )
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
