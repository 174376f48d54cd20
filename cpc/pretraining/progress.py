"""The progress bar of a run: log N - L, its ceiling, windows or images per second, and the time left."""

import sys
import time
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

from cpc.bounds import BoundTally
from cpc.data.batch import Batch
from cpc.pretraining.module import Pretraining


class Progress(ProgressBar):
    """A progress bar in one line on a terminal, or a new line every half minute elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self._is_enabled = True

    def disable(self) -> None:
        """Hide the bar, as Lightning does on ranks other than 0."""
        self._is_enabled = False

    def enable(self) -> None:
        """Show the bar if it was hidden before."""
        self._is_enabled = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the bar at the first step."""
        self._interval_seconds = 0.5 if sys.stderr.isatty() else 30.0
        self._bar = tqdm(
            total=trainer.max_steps,
            initial=trainer.global_step,
            unit="step",
            dynamic_ncols=True,
            disable=not self._is_enabled,
            mininterval=self._interval_seconds,
            maxinterval=max(10.0, self._interval_seconds),
        )
        self._num_observations = 0
        self._since = time.perf_counter()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Pretraining, outputs: Any, batch: Batch, batch_index: int
    ) -> None:
        """Advance the bar, and update log N - L and the speed about twice a second."""
        self._num_observations += len(batch.x) * trainer.world_size
        seconds = time.perf_counter() - self._since
        if self._is_enabled and seconds > self._interval_seconds and pl_module.tally.sums:
            latest = BoundTally()
            latest.sums = pl_module.tally.sums[-20:]
            bound = latest.compute("", "train")
            self._bar.set_postfix_str(
                f"log N - L {bound.mean('mi_bound_nats'):.2f} of {bound.mean('mi_ceiling_nats'):.2f} nats, "
                f"{self._num_observations / seconds:.0f} {trainer.datamodule.modality.unit}/s",
                refresh=False,
            )
            self._num_observations = 0
            self._since = time.perf_counter()
        self._bar.update(trainer.global_step - self._bar.n)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the bar after the last step."""
        self._bar.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Close the bar, so that the error message begins on a new line."""
        if hasattr(self, "_bar"):
            self._bar.close()
