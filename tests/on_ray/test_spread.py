"""Workers on Ray return and write the same bytes as a single process, also if workers are slow or killed."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cpc import CPC, save_pretrained
from cpc.contexts import GRU
from cpc.data import Audio
from cpc.encoders import AudioEncoder
from cpc.predictors import Bilinear

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def folder(tmp_path: Path, write_audio: Callable[..., Path]) -> Path:
    """300 files, more than a message to a worker holds; `bad` has two that cannot be read besides."""
    for number in range(300):
        write_audio(tmp_path / "audio" / f"{number}.wav", seconds=0.05 + 0.001 * number, seed=number)
    for number in range(20):
        write_audio(tmp_path / "bad" / f"{number}.wav", seconds=0.05, seed=number)
    (tmp_path / "bad" / "11.wav").write_bytes(b"no audio")
    (tmp_path / "bad" / "13.wav").write_bytes(b"")
    return tmp_path


def words(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Without the bar, whose seconds differ, and the line that names the file."""
    return [line for line in (done.stdout + done.stderr).splitlines() if not re.match("(index|embed|data): |$", line)]


@pytest.mark.slow
def test_an_index_is_that_of_one_process(folder: Path, environment: dict[str, str], cpc: Run) -> None:
    index = ["data", "index", "audio", "--out"]
    local, spread = cpc(environment, *index, "1.csv"), cpc(environment, *index, "2.csv", "--num_ray_workers", "2")
    assert (folder / "1.csv").read_bytes() == (folder / "2.csv").read_bytes()
    assert words(local) == words(spread)
    assert "300 files indexed" in spread.stdout


@pytest.mark.slow
def test_bad_files_of_an_index_are_named_or_left(
    folder: Path, cluster: Callable[..., dict[str, str]], cpc: Run
) -> None:
    environment = cluster(2)
    for more in ([], ["--skip_bad"]):
        index = ["data", "index", "bad", *more, "--out"]
        local, spread = cpc(environment, *index, "1.csv"), cpc(environment, *index, "2.csv", "--num_ray_workers", "2")
        assert (local.returncode, words(local)) == (spread.returncode, words(spread))
        assert "13.wav: is empty (0 bytes)" in spread.stderr
    assert (folder / "1.csv").read_bytes() == (folder / "2.csv").read_bytes()


@pytest.mark.slow
def test_features_are_those_of_one_process(folder: Path, cluster: Callable[..., dict[str, str]], cpc: Run) -> None:
    torch.manual_seed(0)
    model = CPC(AudioEncoder(dim=12), GRU(dim=10), Bilinear(num_steps=2))
    save_pretrained(model, folder / "model", provenance={"data": Audio(manifest="unknown").saved_settings})
    environment = cluster(2)
    for number, more in enumerate(([], ["--skip_bad", "--format", "safetensors"])):
        embed = ["embed", "model", "bad", *more, "--out"]
        outs = [folder / f"{place}{number}" / "out" for place in ("local", "spread")]
        local = cpc(environment, *embed, str(outs[0]))
        spread = cpc(environment, *embed, str(outs[1]), "--num_ray_workers", "2")
        found = [line.replace(str(outs[1]), str(outs[0])) for line in words(spread)]
        assert found == words(local)
        assert spread.returncode == local.returncode == (0 if more else 2)
        written = [{path.relative_to(out): path.read_bytes() for path in out.rglob("*.*")} for out in outs]
        assert written[0].items() <= written[1].items()  # what others were at when the bad file came may be there too
        assert not more or len(written[0]) == len(written[1]) == 2 * 18


SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
from cpc.on_ray.spread import spread

def work(item):
    {work}
    return [item, os.getpid()]

print(json.dumps(list(spread(lambda: work, list(range(8)), 2, name="item {{}}".format))))
"""


def spread(environment: dict[str, str], work: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, "-W", "error", "-c", SCRIPT.format(work=work)]
    return subprocess.run(script, env=environment, capture_output=True, text=True, timeout=300)


def found(done: subprocess.CompletedProcess[str]) -> list[list[int]]:
    """Before it, Ray tells of workers that have ended."""
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_workers_that_are_slow_killed_or_raise(tmp_path: Path, cluster: Callable[..., dict[str, str]]) -> None:
    environment = cluster(2)
    slow = found(spread(environment, "time.sleep(3 * (item == 0))"))
    assert [item for item, _ in slow] == list(range(8))
    assert [process for _, process in slow].count(slow[0][1]) == 1, "the other worker took the remaining items"

    killed = f"(Path({str(tmp_path)!r}) / str(time.time_ns())).touch() if item == 5 else None"
    twice = f"{killed}; item == 5 and len(os.listdir({str(tmp_path)!r})) < 3 and os.kill(os.getpid(), signal.SIGKILL)"
    assert [item for item, _ in found(spread(environment, twice))] == list(range(8))
    assert len(list(tmp_path.iterdir())) == 3

    always = spread(environment, "item == 5 and os.kill(os.getpid(), signal.SIGKILL)")
    assert "OSError: item 5: its Ray worker ended 3 times; was it killed, or is memory short?" in always.stderr
    raised = spread(environment, "if item in (5, 6): raise OSError(28, f'No space left for {item}')")
    assert raised.stderr.strip().splitlines()[-1] == "OSError: [Errno 28] No space left for 5"
    busy = spread(environment, "time.sleep(5 * (item == 4))\n    if item == 3: raise OSError(28, 'No space')")
    assert (busy.stdout, busy.stderr.strip().splitlines()[-1]) == ("", "OSError: [Errno 28] No space"), "and no more"
