"""Every shipped config is parsed against the signatures and its model is built."""

from pathlib import Path

import pytest
import yaml

from cpc.agents.comparison import read_config
from cpc.config.description import build
from cpc.pretraining.command import parse

FOLDER = Path(__file__).parent.parent / "configs"
OF_AGENTS = sorted((FOLDER / "agents").glob("*.yaml"))
CONFIGS = sorted({*FOLDER.rglob("*.yaml")} - {*OF_AGENTS})


@pytest.fixture(autouse=True)
def no_initial_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers for hundreds of millions of weights take seconds."""
    for name in ("kaiming_normal_", "kaiming_uniform_"):
        monkeypatch.setattr(f"torch.nn.init.{name}", lambda weight, *_, **__: weight)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_builds_its_model(path: Path) -> None:
    command = parse(["--config", str(path), "--trainer.accelerator=cpu", "--trainer.devices=1"])
    assert command.model.model.predictor.num_steps > 0
    assert command.trainer.max_steps > 0
    assert sum(p.numel() for p in command.model.parameters()) > 10_000


@pytest.mark.parametrize("path", OF_AGENTS, ids=lambda path: path.stem)
def test_config_builds_its_agent(path: Path) -> None:
    architecture, environment, a2c = read_config(path)
    assert build(architecture).predictor.num_steps < a2c.rollout_steps
    assert environment.name


@pytest.mark.parametrize("path", [*CONFIGS, *OF_AGENTS], ids=lambda path: path.stem)
def test_header_says_where_from_how_long_and_how(path: Path) -> None:
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    for word in ("Data:", "Cost:", "Expected:", "Command:"):
        assert any(word in line for line in header), f"{path.name} has no '{word}' in its header"
    command = "cpc agent" if path in OF_AGENTS else "--config"
    assert any(f"{command} configs/{path.relative_to(FOLDER)}" in line for line in header)


def test_the_paper_config_is_the_papers() -> None:
    config = yaml.safe_load((FOLDER / "cpc_audio_paper.yaml").read_text())
    model = parse(["--config", str(FOLDER / "cpc_audio_paper.yaml"), "--trainer.devices=1"]).model.model
    assert (model.encoder.dim, model.context.dim, model.predictor.num_steps) == (512, 256, 12)
    assert model.encoder.num_latents(config["data"]["init_args"]["window_samples"]) == 128
    assert (config["model"]["learning_rate"], config["data"]["init_args"]["batch_size"]) == (2e-4, 8)
