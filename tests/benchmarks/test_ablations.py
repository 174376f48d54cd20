"""The ablations' variants and what an earlier, interrupted call leaves to do; nothing is trained here."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import SAVED

ROOT = Path(__file__).parents[2]


@pytest.fixture
def ablations(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import ablations

    return ablations


@pytest.mark.parametrize(("num_steps", "strategy"), [(2, "mixed"), (16, "same_speaker"), (2, "sequence_only")])
def test_a_variant_is_the_base_config_with_one_change(ablations: Any, num_steps: int, strategy: str) -> None:
    options = ablations.variant_options(num_steps, strategy)
    command = ablations.parse(["--config", str(ablations.BASE), "--trainer.accelerator=cpu", *options])
    assert command.model.model.predictor.num_steps == num_steps
    assert command.model.strategies == (strategy,)
    assert command.datamodule.sampler == ("same_speaker" if strategy == "same_speaker" else "uniform")
    assert command.datamodule.batch_size == 8


class Stand:
    """In place of `pretrain` and `probe`: keeps what it was asked for, and leaves what they would."""

    def __init__(self, folder: Path, max_steps: int) -> None:
        self.folder = folder
        self.max_steps = max_steps
        self.calls: list[str] = []

    def pretrain(self, arguments: list[str]) -> None:
        self.calls.append("resume" if "--ckpt_path=last" in arguments else "train")
        self.leave(self.max_steps, sha256="final")

    def probe(self, *_: Any, **__: Any) -> None:
        self.calls.append("probe")
        results = {name: {"accuracy_percent": 50.0, "accuracy_interval_percent": [49.0, 51.0]} for name in CPC}
        sha256 = json.loads((self.folder / "model" / "config.json").read_text())["sha256"]
        report = {"model": {"sha256": sha256}, "tasks": {task: {"results": results} for task in ("phones", "speaker")}}
        (self.folder / "probe.json").write_text(json.dumps(report))

    def leave(self, step: int, sha256: str) -> None:
        for name in ("checkpoints", "model"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        torch.save(SAVED | {"global_step": step}, self.folder / "checkpoints" / "last.ckpt")
        config = {"format_version": 1, "architecture": {}, "sha256": sha256, "provenance": {}}
        (self.folder / "model" / "config.json").write_text(json.dumps(config))
        record = {"step": step, "split": "valid", "mi_bound_nats": [1.0, 2.0], "mi_ceiling_nats": [4.0, 4.0]}
        early = [record | {"step": s, "split": "train", "mi_bound_nats": [s / 10, s / 10]} for s in (5, 15, 25)]
        (self.folder / "bound.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [*early, record]))


CPC = ("cpc", "cpc_z")


@pytest.fixture
def stand(ablations: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    stand = Stand(tmp_path / "variant", max_steps=9)
    monkeypatch.setattr(ablations, "run_pretraining", stand.pretrain)
    monkeypatch.setattr(ablations, "probe", stand.probe)
    return stand


def run(ablations: Any, stand: Stand) -> dict[str, Any]:
    options = ["--trainer.max_steps=9", "--trainer.accelerator=cpu", *ablations.variant_options(2, "mixed")]
    return ablations.run(stand.folder, Path("corpus"), options)


def test_a_finished_variant_is_not_run_again_and_is_not_of_other_options(ablations: Any, stand: Stand) -> None:
    found = run(ablations, stand)
    assert stand.calls == ["train", "probe"]
    assert found["mi_bound_nats"] == 1.5
    assert found["first_nat_step"] == 15  # the training bound is above one nat from there on
    assert run(ablations, stand) == found
    assert stand.calls == ["train", "probe"]
    with pytest.raises(ValueError, match="name another folder with --out"):
        ablations.run(stand.folder, Path("corpus"), ["--trainer.max_steps=9", *ablations.variant_options(4, "mixed")])


def test_an_interrupted_variant_goes_on(ablations: Any, stand: Stand) -> None:
    stand.leave(step=4, sha256="of step 4")
    stand.probe()  # a report on half a training does not count
    run(ablations, stand)
    assert stand.calls == ["probe", "resume", "probe"]
