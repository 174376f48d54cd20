"""Without Ray, or without enough of it, a command ends with words."""

import socket
import sys
from pathlib import Path

import pytest

from cpc.cli import main


@pytest.mark.parametrize(
    "arguments", [["ray", "--num_ranks", "2", "pretrain", "--config", "x"], ["data", "index", "DIR"]]
)
def test_a_missing_extra_is_named(
    arguments: list[str],
    audio_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    if arguments[0] == "data":
        arguments = ["data", "index", str(audio_folder), "--out", str(tmp_path / "x.csv"), "--num_ray_workers", "2"]
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "a Ray cluster needs ray: install it with `uv sync --extra ray`" in capsys.readouterr().err
    assert not (tmp_path / "x.csv").exists()


def test_an_address_without_a_cluster_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(SystemExit):
        main(["ray", "--num_ranks", "2", "--address", address, "pretrain"])
    assert f"no Ray cluster answers at {address} (Connection refused): check --address" in capsys.readouterr().err
