"""Lightning's trainer of one endless epoch, which evaluates, saves and logs nothing itself, and its progress bar."""

import os
import sys
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from cpc.bounds import BoundTally
from cpc.config.argument_rules import Count, NonNegative, check_values
from cpc.data.store.contents import later_ranks, say
from cpc.pretraining.module import Pretraining

FIXED = {
    "max_epochs": 1,  # the sampler counts passes over the corpus
    "limit_val_batches": 0,  # `RunFolder` evaluates, saves and logs
    "enable_checkpointing": False,
    "log_every_n_steps": 1,
    "enable_model_summary": False,
    "use_distributed_sampler": False,  # the batch samplers distribute over ranks
}
NOT_OFFERED = {  # options of Lightning that would have no effect, or stop the endless epoch
    *FIXED,
    *("min_epochs", "min_steps", "limit_train_batches", "limit_test_batches", "limit_predict_batches", "barebones"),
    *("val_check_interval", "check_val_every_n_epoch", "num_sanity_val_steps", "fast_dev_run", "overfit_batches"),
    *("inference_mode", "reload_dataloaders_every_n_epochs", "default_root_dir", "enable_autolog_hparams"),
    "model_registry",
}


OPTION_TYPES: dict[str, Any] = {  # of Lightning's trainer, where it does not check the values itself
    "gradient_clip_val": NonNegative | None,
    "accumulate_grad_batches": Count,
    # 16-bit weights make the bound inexact.
    "precision": Literal["32-true", "64-true", "bf16-mixed", "16-mixed"] | None,
}


def make_trainer(**options: Any) -> pl.Trainer:
    """Build the trainer of one endless epoch, which `max_steps` ends, from options except `NOT_OFFERED`."""
    named = {name: options[name] for name in OPTION_TYPES if name in options}
    check_values(OPTION_TYPES, named, "trainer.")
    clip_algorithm = options.get("gradient_clip_algorithm")
    if clip_algorithm is not None and not options.get("gradient_clip_val"):
        raise ValueError(f"trainer.gradient_clip_algorithm={clip_algorithm} needs trainer.gradient_clip_val")
    if options.get("logger") in (None, True):
        options["logger"] = False  # `pretrain` adds the default logger, and the progress bar
    try:
        trainer = pl.Trainer(**options | FIXED | {"enable_progress_bar": False})
    except (MisconfigurationException, ModuleNotFoundError, TypeError) as error:
        names = ("accelerator", "devices", "num_nodes", "strategy")
        values = ", ".join(f"trainer.{name}={options[name]}" for name in names if name in options)
        raise ValueError(f"{error} Given: {values}; `cpc doctor` lists the devices of this machine") from error
    world_size = os.environ.get("WORLD_SIZE", "1")  # torchrun also sets RANK, Lightning does not
    if world_size not in ("1", str(trainer.world_size)) and "RANK" in os.environ:
        given = f"WORLD_SIZE={world_size} in the environment, but the options start {trainer.world_size} processes"
        advice = "give --trainer.devices, --trainer.num_nodes and --trainer.strategy ddp, or unset WORLD_SIZE and RANK"
        raise ValueError(f"{given}: {advice}")
    if left := ", ".join(later_ranks(is_launched=False)):
        if trainer.world_size > 1:
            raise ValueError(f"{left} in the environment, without WORLD_SIZE, is no rank of several: unset it")
        rank_zero_only.rank = 0  # Lightning has read the variable, and would not log
        say(f"{left} in the environment is ignored: no launcher of several processes has set it")
    return trainer


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
