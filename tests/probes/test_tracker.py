"""What the tracker writes down, and what counts as collapse, against closed forms and numpy."""

import itertools
import math
from typing import Any
from unittest.mock import Mock

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import Tensor

import cpc
from cpc.data.batch import Batch
from cpc.probes import Tracker, tracker
from cpc.probes.tracker import effective_rank, health

NUM_FRAMES = 6


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of a clock that the test sets."""
    now = [100.0]
    monkeypatch.setattr(tracker.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def module(model: cpc.CPC) -> Any:
    return Mock(spec=pl.LightningModule, model=model)


@pytest.fixture
def trainer(model: cpc.CPC) -> pl.Trainer:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.25)
    return Mock(spec=pl.Trainer, world_size=2, is_global_zero=True, optimizers=[optimiser])


def batch(num_valid: list[int]) -> Batch:
    return Batch.of(torch.zeros(len(num_valid), 160 * NUM_FRAMES))._replace(num_valid=160 * torch.tensor(num_valid))


def outputs(generator: torch.Generator, size: int) -> dict[str, Tensor]:
    return {name: torch.randn(size, NUM_FRAMES, 9, generator=generator) for name in ("latents", "contexts")}


def test_speed_is_of_training(clock: list[float], trainer: pl.Trainer, module: Any, generator: torch.Generator) -> None:
    watched, seen = Tracker(), outputs(generator, 4)
    watched.on_train_start(trainer, module)
    for seconds, evaluation in ((2.0, 50.0), (3.0, 0.0)):
        clock[0] += seconds
        watched.on_train_batch_end(trainer, module, seen, batch([6, 6, 6, 6]), 0)
        clock[0] += evaluation
        watched.restart_clock()
    record = watched.record(trainer, module, 2, seen, batch([6, 6, 6, 6]))
    assert record["windows_per_second"] == pytest.approx(2 * 4 * 2 / 5)  # two batches of four on two ranks
    assert record["trained_seconds"] == 55
    continued = Tracker()
    continued.load_state_dict(watched.state_dict())
    continued.on_train_start(trainer, module)
    clock[0] += 5
    assert continued.state_dict()["trained_seconds"] == 60


def test_gradient_norm_is_of_all_parameters(trainer: pl.Trainer, module: Any, generator: torch.Generator) -> None:
    watched, norms = Tracker(), []
    watched.on_train_start(trainer, module)
    (optimiser,) = trainer.optimizers
    for scale in (1.0, 30.0):
        squares = 0.0
        for parameter in itertools.islice(module.model.parameters(), 3):  # the others have none
            parameter.grad = scale * torch.randn(parameter.shape, generator=generator)
            squares += float(np.sum(np.square(parameter.grad.double().numpy())))
        norms.append(math.sqrt(squares))
        watched.on_before_optimizer_step(trainer, module, optimiser)
        if scale == 1:  # as a run that is killed here goes on
            former, watched = watched, Tracker()
            watched.load_state_dict(former.state_dict())
            watched.on_train_start(trainer, module)
    record = watched.record(trainer, module, 2, outputs(generator, 2), batch([6, 6]))
    assert record["gradient_norm"] == pytest.approx(sum(norms) / 2, rel=1e-5)
    assert record["gradient_norm_max"] == pytest.approx(norms[1], rel=1e-5)
    assert record["learning_rate"] == 0.25


def test_the_learning_rate_is_that_of_the_step_and_not_the_next_ones(
    trainer: pl.Trainer, module: Any, generator: torch.Generator
) -> None:
    watched, recorded = Tracker(), []
    watched.on_train_start(trainer, module)
    (optimiser,) = trainer.optimizers
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 0.5**step)
    for step in range(3):  # as Lightning does: the schedule moves on before the callbacks see the batch's end
        watched.on_before_optimizer_step(trainer, module, optimiser)
        optimiser.step()
        schedule.step()
        record = watched.record(trainer, module, step + 1, outputs(generator, 2), batch([6, 6]))
        recorded.append(record["learning_rate"])
    assert recorded == [0.25, 0.125, 0.0625]


def test_padding_is_no_feature_grids_have_none(trainer: pl.Trainer, module: Any, generator: torch.Generator) -> None:
    watched, seen = Tracker(), outputs(generator, 2)
    watched.on_train_start(trainer, module)
    record = watched.record(trainer, module, 1, seen, batch([6, 2]))
    kept = torch.cat([seen["latents"][0], seen["latents"][1, :2]])
    assert record["z_variance"] == pytest.approx(kept.double().var(0).mean().item())
    assert (record["z_dim"], record["c_dim"]) == (9, 9)
    grids = {name: x.reshape(2, 2, 3, 9) for name, x in seen.items()}
    record = watched.record(trainer, module, 1, grids, batch([0, 0]))
    assert record["z_variance"] == pytest.approx(seen["latents"].reshape(12, 9).double().var(0).mean().item())


def test_collapse_is_on_record_and_told_once(
    trainer: pl.Trainer, module: Any, generator: torch.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    watched, seen = Tracker(), outputs(generator, 2)
    watched.on_train_start(trainer, module)
    flat = seen | {"contexts": torch.ones(2, NUM_FRAMES, 9)}
    records = [watched.record(trainer, module, step, flat, batch([6, 6])) for step in (10, 20)]
    assert [record["collapsed"] for record in records] == [["c"], ["c"]]
    told = capsys.readouterr().err
    assert told.count("collapsed") == 1
    assert "step 10: c has collapsed (variance 0, effective rank 1.00 of 9)" in told
    assert watched.record(trainer, module, 30, seen, batch([6, 6]))["collapsed"] == []
    watched.record(trainer, module, 40, flat, batch([6, 6]))
    assert "step 40: c has collapsed" in capsys.readouterr().err


def test_what_is_not_finite_is_none(trainer: pl.Trainer, module: Any, generator: torch.Generator) -> None:
    watched, seen = Tracker(), outputs(generator, 1)
    watched.on_train_start(trainer, module)
    seen["latents"][0, 0, 0] = math.nan
    record = watched.record(trainer, module, 1, seen, batch([6]))
    assert record["z_variance"] is None
    assert record["collapsed"] == ["z"]
    assert record["gradient_norm"] is None  # no step of the optimiser was seen


def by_definition(x: np.ndarray) -> float:
    """Roy and Vetterli's formula on the singular values of LAPACK's SVD."""
    values = np.linalg.svd(x - x.mean(0), compute_uv=False)
    shares = values / values.sum()
    shares = shares[shares > 1e-15]
    return math.exp(-sum(share * math.log(share) for share in shares))


@pytest.mark.parametrize(("num_features", "dim"), [(200, 12), (10, 40), (2, 3)])
def test_effective_rank_is_that_of_the_definition(num_features: int, dim: int, generator: torch.Generator) -> None:
    x = torch.randn(num_features, dim, generator=generator) * torch.linspace(0.1, 3, dim) + 5
    assert effective_rank(x) == pytest.approx(by_definition(x.double().numpy()), rel=1e-5)


def test_effective_rank_of_equal_directions_counts_them() -> None:
    x = torch.cat([torch.eye(6), -torch.eye(6)])  # six orthogonal directions of equal length
    assert effective_rank(x) == pytest.approx(6)
    assert effective_rank(torch.cat([x, torch.zeros(12, 30)], 1)) == pytest.approx(6, rel=1e-6)
    assert effective_rank(torch.arange(9.0)[:, None] * torch.ones(5)) == pytest.approx(1, abs=1e-5)  # a line
    assert effective_rank(torch.ones(9, 5)) == 1


def test_variance_is_the_mean_over_dimensions(generator: torch.Generator) -> None:
    x = torch.randn(500, 7, generator=generator).double() * 3 + 2
    found = health(x)
    assert found.variance == pytest.approx(np.var(x.numpy(), axis=0, ddof=1).mean())
    assert found.relative_variance == pytest.approx(
        np.var(x.numpy(), axis=0, ddof=1).sum() / (x.numpy() ** 2).sum(1).mean()
    )
    assert not found.is_collapsed


def constant(generator: torch.Generator) -> Tensor:
    return torch.full((100, 8), 3.0) + 1e-3 * torch.randn(100, 8, generator=generator)


def on_a_line(generator: torch.Generator) -> Tensor:
    return torch.randn(100, 1, generator=generator) * torch.randn(1, 8, generator=generator)


def nonfinite_names(generator: torch.Generator) -> Tensor:
    x = torch.randn(100, 8, generator=generator)
    x[3, 4] = math.inf
    return x


@pytest.mark.parametrize("collapsed", [constant, on_a_line, nonfinite_names, lambda _: torch.zeros(100, 8)])
def test_collapse(collapsed: object, generator: torch.Generator) -> None:
    assert callable(collapsed)
    assert health(collapsed(generator)).is_collapsed


def test_two_dimensions_may_be_a_line(generator: torch.Generator) -> None:
    assert not health(torch.randn(100, 1, generator=generator) * torch.ones(1, 2)).is_collapsed


def test_many_features_are_sampled_evenly_and_no_random_number_is_drawn() -> None:
    x = torch.randn(5000, 4)
    before = torch.get_rng_state()
    found = health(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.variance == pytest.approx(x[torch.linspace(0, 4999, 512).long()].var(0).mean().item(), rel=1e-6)
