"""Files that a stranger may have written: FIFOs and devices do not stop a reader, aliases take no memory."""

import os
import signal
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refuses

from cpc.agents.comparison import read_config as read_agent_config
from cpc.checkpoint import read_checkpoint, read_config, weights_of
from cpc.data.audio.headers import read_header
from cpc.data.images.table import FolderImages
from cpc.data.sentences.books import read_text
from cpc.data.store.atomic import drop_records_after, read_records
from cpc.data.store.untrusted import MOST_YAML_BYTES, open_regular, read_json, read_yaml, reading
from cpc.data.text.lines import read_lines
from cpc.interop.cpc_audio import import_checkpoint
from cpc.probes.record import read_report


@pytest.fixture
def _impatience() -> Iterator[None]:
    """A reader that waits ends with an error after five seconds."""

    def give_up(*_: object) -> None:
        raise AssertionError("a reader waits")

    former = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, 5)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


def read_image(path: Path) -> None:
    with FolderImages(path.parent).open(path.name):
        pass


def read_weights(path: Path) -> None:
    (path.parent / "config.json").write_text(
        '{"format_version": 1, "architecture": {}, "sha256": "", "provenance": {}}'
    )
    weights_of(path.parent)


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "records": ("returns.jsonl", read_records),
    "records of a resumed run": ("probe.jsonl", lambda path: drop_records_after(path, 3)),
    "report": ("probe.json", lambda path: read_report(path, "")),
    "model": ("config.json", lambda path: read_config(path.parent)),
    "weights": ("model.safetensors", read_weights),
    "checkpoint": ("best.ckpt", read_checkpoint),
    "checkpoint of CPC_audio": ("checkpoint_30.pt", lambda path: import_checkpoint(path, out=path.parent / "out")),
    "agents": ("agent.yaml", read_agent_config),
    "audio": ("a.flac", read_header),
    "image": ("a.jpg", read_image),
    "text": ("a.txt", lambda path: list(read_lines(path))),
    "book": ("b.txt", lambda path: read_text(path, "latin-1")),
}


@pytest.mark.usefixtures("_impatience")
@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a device"])
@pytest.mark.parametrize("reader", READERS)
def test_other_kinds_of_files(reader: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, read = READERS[reader]
    if kind == "a FIFO":
        os.mkfifo(tmp_path / name)
    elif kind == "a device":
        (tmp_path / name).symlink_to("/dev/zero")  # which never ends
    else:
        monkeypatch.chdir(tmp_path)  # the name of a socket may not be long
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
    with pytest.raises((ValueError, OSError), match=name):
        read(tmp_path / name)


def bomb(kind: str) -> str:
    """A few hundred bytes that stand for 9^20 values."""
    lines = ["a: &a {x: 1}" if kind == "merge" else "a: &a [lol]"]
    for before, name in zip("abcdefghijklmnopqrst", "bcdefghijklmnopqrstu", strict=True):
        many = ",".join([f"*{before}"] * 9)
        lines.append(f"{name}: &{name} " + (f"{{<<: [{many}]}}" if kind == "merge" else f"[{many}]"))
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bomb("list"), "with expanded aliases"),
        (bomb("merge"), "with expanded aliases"),
        (f"a: &a {'x' * 500_000}\nb: [*a, *a, *a]", "with expanded aliases"),
        ("a: &a\n  b: *a", "lies within its own"),
        ("[" * 70 + "]" * 70, "more than 64 levels deep"),
        ("[" * 100_000, "nest"),
        ("a: b: c", "cannot be read as YAML"),
        ("a: \xff", "is not UTF-8"),
        ("a: " + "x" * MOST_YAML_BYTES, "at most"),
    ],
)
def test_yaml_has_limits(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(content, encoding="latin-1")
    tracemalloc.start()
    refuses(rf"a\.yaml.*{message}", read_yaml, tmp_path / "a.yaml")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2**20


@pytest.mark.fuzz
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=15,
    ).map(lambda value: {"first": value, "again": [value, value]})  # which YAML writes by aliases
)
def test_yaml_within_the_limits_is_what_pyyaml_reads(tmp_path: Path, value: Any) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(value), encoding="utf-8")
    assert read_yaml(tmp_path / "a.yaml") == value


def test_json_has_limits(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"[" + b"[]," * 2**21 + b"[]]")  # 6 MB, as lists 120
    refuses(r"a\.json has more than 4194304 values", read_json, path)
    path.write_bytes(b"[" * 100_000)
    refuses(r"a\.json is not JSON", read_json, path)
    with path.open("wb") as file:
        file.truncate(2**40)  # takes no disk
    refuses(r"a\.json has 1099511627776 bytes, but such a file has at most 67108864", read_json, path)


@pytest.mark.parametrize(
    "error", [EOFError(), KeyError("shape"), RuntimeError("a\nb"), OSError(5, "I/O error"), OverflowError()]
)
def test_whatever_a_reader_raises_names_the_file(error: Exception, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(b"x")
    with pytest.raises(ValueError, match=rf"^{path}: is cut off \(.+\)$"), reading(path, "is cut off"):
        raise error
    with pytest.raises(MemoryError), reading(path):
        raise MemoryError
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=rf"^{path}: is empty"), reading(path):
        raise error


def test_an_open_file_is_closed_and_a_missing_one_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "a")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    (tmp_path / "a").write_bytes(b"abc")
    with open_regular(tmp_path / "a") as file:
        assert file.read() == b"abc"
    assert file.closed
