"""The line that a run shows while it trains."""

from types import SimpleNamespace
from unittest.mock import Mock

import lightning.pytorch as pl
import torch

from cpc.pretraining.module import Pretraining
from cpc.pretraining.progress import Progress


def test_the_line_calls_no_bound_what_may_be_none() -> None:
    tally = SimpleNamespace(sums=[torch.ones(6, 1, 2, dtype=torch.float64)])
    shown = Progress().get_metrics(Mock(spec=pl.Trainer), Mock(spec=Pretraining, tally=tally))
    assert list(shown) == ["log N - L"]
    assert "bound" not in str(shown)
