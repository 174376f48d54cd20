"""`cpc embed` of files of signals: the channels of the run, and its precision."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import cpc
from cpc.data import Signals
from cpc.encoders import SignalEncoder
from cpc.probes.embed import embed

RATE_HZ = 20.0


@pytest.fixture
def model() -> cpc.CPC:
    torch.manual_seed(0)
    made = cpc.CPC(SignalEncoder(2, 4, RATE_HZ), cpc.contexts.GRU(5), cpc.predictors.Bilinear(1))
    made.initialise_from(torch.randn(3, 200, 2))
    return made.eval()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three channels, of which the run reads the third and the first."""
    values = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    (tmp_path / "files").mkdir()
    path = tmp_path / "files" / "walk.csv"
    np.savetxt(path, values, "%.9g", ",", header="x,y,z", comments="")
    return path


def folder_of(model: cpc.CPC, tmp_path: Path, channels: tuple[str, ...] | None) -> Path:
    data = Signals(source="unknown", channels=channels, window_seconds=5.0)
    cpc.save_pretrained(model, tmp_path / "model", provenance={"data": data.saved_settings})
    return tmp_path / "model"


def test_channels_of_the_run(model: cpc.CPC, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(model, tmp_path, ("z", "x"))
    (file.parent / "manifest.csv").write_text("path\nwalk.csv\n")  # no recording
    (written,) = embed(folder, [file.parent], tmp_path / "out", progress=False)
    x = np.loadtxt(file, np.float32, delimiter=",", skiprows=1)[:, [2, 0]]
    with torch.no_grad():
        latents, contexts, _ = model.encode(torch.from_numpy(x)[None])
    np.testing.assert_allclose(np.load(written), contexts[0], atol=1e-5)
    assert "recordings" not in capsys.readouterr().err  # the contents of a corpus, not of each file
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        rounded = model.encoder(torch.from_numpy(x)[None]).float()
    assert (rounded - latents).abs().max() > 1e-4
    embed(folder, [file], tmp_path / "rounded", "z", precision="bfloat16", progress=False)
    np.testing.assert_allclose(np.load(tmp_path / "rounded" / "walk.npy"), rounded[0], atol=1e-6)


def test_advice_that_names_no_option_of_the_command_says_so(
    model: cpc.CPC, file: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    """The advice is right for `cpc.data.Signals`, where the message comes from."""
    folder = folder_of(model, tmp_path, ("x", "z"))
    (file.parent / "manifest.csv").write_text("path,split\nwalk.csv,valid\n")
    file.write_text("x,z\n" + "1,2\n" * 99 + "1,\n")
    told = refusal(["evaluate", str(folder), "--data", str(file.parent)])  # the rate is that of the model
    assert "; but cpc evaluate has no option for `missing`" in told
    doubled = np.stack([np.arange(100) / 10, *np.ones((2, 100))], 1)  # seconds at half the model's rate
    np.savetxt(file, doubled, "%.9g", ",", header="time,x,z", comments="")
    told = refusal(["embed", str(folder), str(file), "--out", str(tmp_path / "out")])
    assert "set --skip_bad" in told
    assert "; but cpc embed has no option for `sample_rate_hz`" in told


def test_other_channels_are_refused(model: cpc.CPC, file: Path, tmp_path: Path) -> None:
    folder = folder_of(model, tmp_path, None)
    with pytest.raises(ValueError, match=r"walk.csv holds 1 recordings of the channels x, y, z, but must hold one"):
        embed(folder, [file], tmp_path / "out", progress=False)
