"""Without Ray, or without enough of it, a command ends with words."""

import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "arguments", [["ray", "--num_ranks", "2", "pretrain", "--config", "x"], ["data", "index", "DIR"]]
)
def test_a_missing_extra_is_named(
    arguments: list[str],
    audio_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Callable[..., str],
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    if arguments[0] == "data":
        arguments = ["data", "index", str(audio_folder), "--out", str(tmp_path / "x.csv"), "--num_ray_workers", "2"]
    assert "a Ray cluster needs ray: install it with `uv sync --extra ray`" in refusal(arguments)
    assert not (tmp_path / "x.csv").exists()


def test_an_address_without_a_cluster_is_named(refusal: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    assert f"no Ray cluster answers at {address} (Connection refused): check --address" in refusal(
        ["ray", "--num_ranks", "2", "--address", address, "pretrain"]
    )
