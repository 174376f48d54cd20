"""`cpc pretrain --compile`: the losses, records and resumes of a run that is not compiled.

A CPU has no CUDA graphs. `Recorded` stands for them: a replay computes the captured step again, on captured tensors.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch.utils._pytree import tree_leaves

from cpc.checkpoint import read_checkpoint
from cpc.contexts import GRU
from cpc.data.batch import Batch
from cpc.data.store.atomic import read_records
from cpc.encoders import AudioEncoder, SignalEncoder
from cpc.losses import Contrastive, candidate_sets
from cpc.model import CPC
from cpc.predictors import Bilinear
from cpc.pretraining import module as pretraining_module
from cpc.pretraining.module import Pretraining
from cpc.pretraining.step_graphs import NUM_WARM_UPS, StepGraphs, StepResult

EXACT = "--trainer.precision=64-true"


class Recorded(StepGraphs):
    def _record(self, compute: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        before, num_plans = self.generator.get_state(), candidate_sets._plan.cache_info().misses
        outputs = compute()
        assert candidate_sets._plan.cache_info().misses == num_plans  # a plan is copied from the host
        self.generator.set_state(before)  # a capture computes nothing

        def replay() -> None:
            for static, new in zip(tree_leaves(outputs), tree_leaves(compute()), strict=True):
                static.copy_(new)

        return outputs, replay


def losses(run_dir: Path) -> list[float]:
    return [loss for record in read_records(run_dir / "bound.jsonl") for loss in record["loss_nats"]]


@pytest.mark.usefixtures("unchecked_types")
def test_a_compiled_model_trains_as_in_eager_mode(run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the graph of Dynamo, but without kernels, which take seconds to compile."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    eager, compiled = run(EXACT, name="eager"), run(EXACT, "--compile=default", name="compiled")
    assert losses(compiled) == pytest.approx(losses(eager), rel=1e-9)
    assert "compile: default" in (compiled / "config.yaml").read_text()
    assert read_records(compiled / "events.jsonl")[0]["message"].endswith(", compile default")
    assert not any("orig_mod" in name for name in read_checkpoint(compiled / "checkpoints/last.ckpt")["state_dict"])


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_types")
def test_kernels_of_inductor_train_as_eager_mode_and_resume_exactly(
    run: Callable[..., Path], refused: Callable[..., str], break_at: Callable[[int], None]
) -> None:
    eager, compiled = run(name="eager"), run("--compile=default", name="compiled")
    assert losses(compiled) == pytest.approx(losses(eager), rel=1e-5)
    break_at(3)
    refused("--compile=default")
    assert losses(run("--compile=default", "--ckpt_path=last")) == losses(compiled)


@pytest.mark.usefixtures("unchecked_types")
def test_a_model_that_does_not_compile_is_an_error(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: SignalEncoder, x: torch.Tensor) -> torch.Tensor:
        print("not in a graph", x.sum().item())
        return x

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(SignalEncoder, "forward", forward)
    assert "--compile=default: torch cannot compile this model" in refused("--compile=default")


@pytest.mark.parametrize(
    ("mode", "changes", "words"),
    [
        ("default", {"num_chunks": 2}, "default does not work with model.num_chunks=2: choose off"),
        ("reduce-overhead", {"device": "cpu"}, "reduce-overhead does not work without a GPU: choose default"),
        ("reduce-overhead", {"strategy": DDPStrategy}, "for several devices: choose default, or the strategy auto"),
        ("reduce-overhead", {"precision": "16-mixed"}, "16-mixed"),
        ("reduce-overhead", {"is_continuous": True}, "Text, whose contexts continue"),
        ("reduce-overhead", {"loss": torch.nn.Identity()}, "with this model.loss: choose default"),
        ("reduce-overhead", {}, None),
        ("off", {"num_chunks": 2, "device": "cpu"}, None),
    ],
)
def test_what_a_mode_does_not_work_with(mode: str, changes: dict[str, Any], words: str | None) -> None:
    given = {"num_chunks": 1, "device": "cuda", "precision": "bf16-mixed", "is_continuous": False}
    given |= {"strategy": SingleDeviceStrategy, "loss": Contrastive()} | changes
    strategy = MagicMock(spec=given["strategy"], root_device=torch.device(given["device"]))
    stub = SimpleNamespace(
        compile_mode=mode,
        num_chunks=given["num_chunks"],
        trainer=SimpleNamespace(strategy=strategy, precision=given["precision"]),
        data=SimpleNamespace(name="Text", is_continuous=given["is_continuous"]),
        model=SimpleNamespace(loss_part=given["loss"]),
    )
    if words is None:
        Pretraining._check_compile_mode(stub)  # type: ignore[arg-type]
    else:
        with pytest.raises(ValueError, match=words):
            Pretraining._check_compile_mode(stub)  # type: ignore[arg-type]


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_gradients_of_a_fused_optimiser_are_clipped(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    norms: list[float] = []

    def measure(optimiser: torch.optim.Adam, *_: Any) -> None:
        assert optimiser.defaults["fused"]
        gradients = [each.grad for group in optimiser.param_groups for each in group["params"]]
        norms.append(sum(each.double().square().sum().item() for each in gradients if each is not None) ** 0.5)

    configure = Pretraining.configure_optimizers

    def watched(self: Pretraining) -> dict[str, Any]:
        configured = configure(self)
        configured["optimizer"].register_step_post_hook(measure)
        return configured

    monkeypatch.setattr(Pretraining, "configure_optimizers", watched)
    run(f"--trainer.precision={precision}", "--trainer.gradient_clip_val=0.01", "--trainer.max_steps=3")
    assert norms == pytest.approx([0.01] * 3, rel=1e-3)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """Lets runs on a CPU replay steps; all that were made."""
    made: list[Recorded] = []

    def make(*arguments: Any) -> Recorded:
        made.append(Recorded(*arguments))
        return made[-1]

    monkeypatch.setattr(Pretraining, "_check_compile_mode", lambda self: None)
    monkeypatch.setattr(pretraining_module, "StepGraphs", make)
    return made


@pytest.mark.usefixtures("unchecked_types")
def test_replays_train_as_steps_do(run: Callable[..., Path], recorded: list[Recorded]) -> None:
    options = [EXACT, "--trainer.max_steps=6", "--trainer.gradient_clip_val=0.1", "--model.schedule=cosine"]
    options += ["--model.warmup_steps=3", "--trainer.accumulate_grad_batches=2", "--model.frozen=[context]"]
    eager = run(*options, name="eager")
    replayed = run(*options, "--compile=reduce-overhead", name="replayed")
    (graphs,) = recorded
    assert graphs.num_replayed == graphs.num_steps - NUM_WARM_UPS > 6
    assert losses(replayed) == pytest.approx(losses(eager), rel=1e-10)


@pytest.mark.usefixtures("unchecked_types")
def test_draws_of_replays_continue_after_a_resume(
    run: Callable[..., Path], refused: Callable[..., str], break_at: Callable[[int], None], recorded: list[Recorded]
) -> None:
    options = ["--model.loss.num_negatives=5", "--trainer.max_steps=8", "--compile=reduce-overhead"]
    whole = run(*options, name="whole")
    break_at(7)
    refused(*options)
    assert losses(run(*options, "--ckpt_path=last")) == losses(whole)
    assert [each.num_replayed for each in recorded] == [5, 4, 0]


def test_steps_that_differ_are_not_replayed() -> None:
    """Other lengths or equal files; renamed files and speakers that the strategy ignores are the same step."""
    torch.manual_seed(0)
    model = CPC(AudioEncoder(6), GRU(5), Bilinear(2), Contrastive("mixed_excluding")).double()
    generator = torch.Generator()

    def compute(batch: Batch) -> StepResult:
        output = model(batch.x)
        return StepResult(output.latents.detach(), output.contexts.detach(), model.contrast(output, batch, generator))

    graphs = Recorded(compute, model, generator)
    full, short = torch.full((4,), 1600), torch.tensor([1600, 800, 1600, 1600])
    cases = [(full, [7, 8, 9, 10], [0, 0, 0, 0])] * NUM_WARM_UPS
    cases += [(full, [3, 2, 1, 5], [1, 2, 1, 2]), (short, [3, 2, 1, 5], [0] * 4), (full, [3, 3, 1, 5], [0] * 4)]
    is_replayed, results = [], []
    for num_valid, files, speakers in [*cases, cases[0]]:
        batch = Batch.of(torch.randn(4, 1600, dtype=torch.float64))._replace(num_valid=num_valid)
        batch = batch._replace(sequence_id=torch.tensor(files), group_id=torch.tensor(speakers))
        before = graphs.num_replayed
        found = graphs(batch)
        candidate_sets._plan.cache_clear()  # as evaluations between steps may do
        is_replayed.append(graphs.num_replayed > before)
        expected = compute(batch)
        results.append((found, expected))
        weights = list(model.parameters())
        gradients = (torch.autograd.grad(3 * each.contrast.loss, weights) for each in (found, expected))
        torch.testing.assert_close(*gradients)
    for found, expected in results:  # no replay has changed the results of another
        torch.testing.assert_close((*found[:2], *found.contrast), (*expected[:2], *expected.contrast))
    assert is_replayed == [False] * NUM_WARM_UPS + [True, False, False, True]


def test_a_part_that_cannot_be_captured_is_an_error(
    recorded: list[Recorded], monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    def fail(self: StepGraphs, compute: Callable[[], Any]) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    monkeypatch.setattr(Recorded, "_record", fail)
    message = refused("--compile=reduce-overhead", "--trainer.max_steps=6")
    assert "cannot be captured as a CUDA graph (RuntimeError: operation not permitted when stream is cap" in message
    assert "more of it" not in message


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("context", ["GRU", "LSTM"])
def test_on_a_gpu(run: Callable[..., Path], mode: str, context: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--trainer.accelerator=gpu", "--trainer.devices=1", "--trainer.precision=bf16-mixed"]
    options += [f"--model.context=cpc.contexts.{context}", "--model.context.dim=128", "--trainer.max_steps=12"]
    eager = run(*options, name="eager")
    assert losses(run(*options, f"--compile={mode}", name="other")) == pytest.approx(losses(eager), rel=2e-2)
    assert "without a CUDA graph" not in capsys.readouterr().err
