"""The commands of docs/scale.md that use Ray, as they stand there, with two processes in place of many."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from shown import command_blocks, small

from cpc.data.audio.index import index_folder
from cpc.data.store.atomic import read_records

# A rank has a processor of its own and no GPU.
PLACES = {"DIR": "own", "32": "2", "8": "1", "1": "0", "64": "2", "16": "2", "cuda": "cpu"}


@pytest.mark.slow
def test_ranks_and_files_are_shared_out(
    own_audio: Path, cluster: Callable[..., dict[str, str]], cpc: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    _, _, (pretrain,), (index, embed) = command_blocks("docs/scale.md")
    index_folder(own_audio, speaker_level=0, progress=False)
    manifest = own_audio / "manifest.csv"
    expected = manifest.read_bytes()
    environment = cluster(2)
    for words in (pretrain, [*index, "--speaker_level", "0", "--overwrite"], embed):
        done = cpc(environment, *small(words, PLACES))
        assert done.returncode == 0, done.stderr
    config = Path("runs/960/config.yaml").read_text()
    assert "devices: '2'\n  num_nodes: 1\n" in config
    assert {record["step"] for record in read_records(Path("runs/960/bound.jsonl")) if record["split"] == "valid"} == {
        2
    }
    assert manifest.read_bytes() == expected
    assert len(list(Path("features").rglob("*.npy"))) == 60
