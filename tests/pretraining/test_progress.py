"""The line that a run shows while it trains."""

from types import SimpleNamespace
from unittest.mock import Mock

import lightning.pytorch as pl
import torch

from cpc.data.batch import Batch
from cpc.pretraining.module import Pretraining
from cpc.pretraining.progress import Progress


def test_the_line_calls_no_bound_what_may_be_none() -> None:
    data = SimpleNamespace(modality=SimpleNamespace(unit="windows"))
    trainer = Mock(spec=pl.Trainer, max_steps=3, global_step=1, world_size=1, datamodule=data)
    tally = SimpleNamespace(sums=[torch.ones(6, 1, 2, dtype=torch.float64)])
    module = Mock(spec=Pretraining, tally=tally)
    progress = Progress()
    progress.disable()
    progress.on_train_start(trainer, module)
    progress.enable()
    progress._interval_seconds = -1.0
    progress._bar = Mock(n=0)
    progress.on_train_batch_end(trainer, module, None, Mock(spec=Batch, x=torch.zeros(8)), 0)
    (shown,) = progress._bar.set_postfix_str.call_args.args
    assert shown.startswith("log N - L ")
    assert "bound" not in shown
