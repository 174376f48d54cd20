"""Lightning's progress bar of a run, with log N - L and its ceiling."""

import sys

import lightning.pytorch as pl
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm

from cpc.bounds import BoundTally
from cpc.pretraining.module import Pretraining


class Progress(TQDMProgressBar):
    """Lightning's progress bar over the batches of the whole run; outside a terminal it is printed less often."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=10 if sys.stderr.isatty() else 100)

    @property
    def total_train_batches(self) -> int:
        """Batches of the whole run; the epoch is endless."""
        return self.trainer.max_steps * self.trainer.accumulate_grad_batches

    def init_train_tqdm(self) -> Tqdm:
        """Return a bar on stderr that knows its total; Lightning sets it only at the start of an epoch."""
        form = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"
        settings = {"disable": self.is_disabled, "dynamic_ncols": True, "smoothing": 0, "bar_format": form}
        return Tqdm(total=self.total_train_batches, **settings)

    def get_metrics(self, trainer: pl.Trainer, pl_module: Pretraining) -> dict[str, str]:
        """Return log N - L of the latest batches, and its ceiling."""
        if not pl_module.tally.sums:
            return {}
        latest = BoundTally()
        latest.sums = pl_module.tally.sums[-20:]
        bound = latest.compute("", "train")
        ceiling = bound.mean("mi_ceiling_nats")
        return {"log N - L": f"{bound.mean('mi_bound_nats'):.2f} of {ceiling:.2f} nats"}

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Close the bar, so that the error message begins on a new line."""
        if self._train_progress_bar is not None:
            self._train_progress_bar.close()
