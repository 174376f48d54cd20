"""The how-to pages of docs/: their commands run as they stand, on small data and with smaller options.

Only parsed, by tests/test_docs.py, are most commands of docs/results, which take hours and corpora that are not
here, and those in the middle of a sentence. SLURM's job runs there with a SLURM that does nothing, the quickstart in
tests of its own. Of `python -m benchmarks.NAME`, minutes to hours each, and `python datasets/...` it is checked that
they are there.
"""

import io
import json
import shlex
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpc_audio_checkpoint import WIDTH, random_weights, save
from hub_server import Hub, serve_hub
from shown import PAGES, blocks, command_blocks, commands, run, small

from cpc.checkpoint import read_config
from cpc.data import index_folder, read_manifest
from cpc.data.store.atomic import read_records

# A block that is added to a page has no name here, and no test.
SHARDS, IMAGE_SHARDS, SIGNAL_SHARDS, TARS, DATASETS, FRAMES = command_blocks("docs/data.md")
SHIPPED, HUB, CPC_AUDIO = command_blocks("docs/library.md")
(MONITOR,) = command_blocks("docs/monitor.md")
(AGENTS,) = command_blocks("docs/agents.md")
(SIGNALS,) = command_blocks("docs/signals.md")
OTHERS = {
    "docs/tutorial.md",  # tests/test_docs.py runs it
    "docs/scale.md",  # tests/on_ray, and torchrun below
    *(f"docs/results/{domain}.md" for domain in ("frames", "speech", "text")),  # take hours
}


def test_no_other_page_has_commands_or_snippets() -> None:
    here = {"docs/data.md", "docs/library.md", "docs/monitor.md", "docs/agents.md", "docs/signals.md"}
    assert {page for page in PAGES if commands(page)} == here | OTHERS
    snippets = {"docs/library.md", "docs/signals.md", "docs/tutorial.md"}  # test_docs.py
    assert {page for page in PAGES if blocks(page, "python")} == snippets
    assert {page for page in PAGES if blocks(page, "yaml")} == {"docs/data.md"}  # below, and test_own_modality.py


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a server of the folder in which commands run."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def aligned(own_audio: Path) -> Path:
    rows = ["path,start,end,label"]
    for number in range(60):
        phones = ["ah", "pb"[number // 3 % 2], "ah", "pb"[number % 2], "ah"]
        rows += [f"speaker{number % 3}/{number}.flac,{t / 10},{(t + 1) / 10},{phone}" for t, phone in enumerate(phones)]
    (own_audio / "alignments.csv").write_text("\n".join(rows) + "\n")
    return own_audio


@pytest.fixture
def indexed(aligned: Path) -> Path:
    index_folder(aligned, speaker_level=0, progress=False)
    return aligned


@pytest.fixture
def own_signals(beside_configs: Path) -> Path:
    """Of ten people, who walk or sit with six channels at 50 Hz."""
    rng, header = np.random.default_rng(0), ",".join("abcdef")
    for person in range(10):
        for activity, deviation in (("sit", 0.1), ("walk", 1.0)):
            path = beside_configs / "own" / f"p{person}" / f"{activity}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savetxt(path, deviation * rng.normal(size=(500, 6)), "%.5f", ",", header=header, comments="")
    return beside_configs / "own"


def contents(folder: Path | str, pattern: str) -> set[bytes]:
    return {file.read_bytes() for file in Path(folder).rglob(pattern)}


def held_out_at(run_dir: str) -> set[int]:
    return {record["step"] for record in read_records(Path(run_dir) / "bound.jsonl") if record["split"] == "valid"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "corpus", "run_dir"),
    [
        (SHARDS, "indexed", "runs/far"),
        (IMAGE_SHARDS, "own_images", "runs/far_images"),
        (SIGNAL_SHARDS, "own_signals", "runs/far_signals"),
    ],
    ids=["audio", "images", "signals"],
)
def test_training_on_the_url_of_shards(
    block: list[list[str]], corpus: str, run_dir: str, address: str, request: pytest.FixtureRequest
) -> None:
    folder = str(request.getfixturevalue(corpus))
    places = {"DIR": folder, "IMAGES": folder, "SIGNALS": folder, "https://HOST/OUT": f"{address}/OUT"}
    shard, pretrain = block
    run(shard, places)
    run(pretrain, places, "--data.cache_dir", "fetched")
    assert held_out_at(run_dir) == {2}
    assert contents("fetched", "*.bin") == contents("OUT", "*.bin") != set()


@pytest.mark.slow
def test_tars_and_back(own_audio: Path, tmp_path: Path) -> None:
    """Of the kind that others make: a class and a text beside each file."""
    (tmp_path / "theirs").mkdir()
    with tarfile.open(tmp_path / "theirs/train-0.tar", "w") as tar:
        for file in sorted(own_audio.rglob("*.flac")):
            for suffix, content in (
                ("cls", file.parent.name[-1]),
                ("flac", file.read_bytes()),
                ("txt", f"a {file.stem}"),
            ):
                member = tarfile.TarInfo(f"{file.stem}.{suffix}")
                content = content if isinstance(content, bytes) else content.encode()
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    for words in TARS:
        run(words, {"TARS": "theirs"})
    manifest = read_manifest("data/mine")
    assert [file.read_bytes() for file in manifest.files] == [
        (own_audio / f"speaker{number}" / f"{text.split()[1]}.flac").read_bytes()
        for number, text in zip(manifest.column("cls"), manifest.column("txt"), strict=True)
    ]


def run_there(hub: Hub, folder: Path, *commands: list[str]) -> None:
    told = hub.call([f"importlib.import_module('cpc.cli').main({words!r})" for words in commands], folder)
    assert told == ["None"] * len(commands)


@pytest.mark.slow
def test_datasets_of_the_hub(own_audio: Path, own_images: Path, tmp_path: Path) -> None:
    library: Any = pytest.importorskip("datasets")
    download, index, pretrain = DATASETS
    sounds = sorted(own_audio.rglob("*.flac"))
    files = [{"bytes": file.read_bytes(), "path": file.name} for file in sounds]
    rows = [{"audio": audio, "speaker_id": file.parent.name} for audio, file in zip(files, sounds, strict=True)]
    plain = {"audio": {"bytes": library.Value("binary"), "path": library.Value("string")}}
    features = {"speaker_id": library.Value("string")}
    table = library.Dataset.from_list(rows, features=library.Features(plain | features))
    table = table.cast(library.Features({"audio": library.Audio()} | features))
    table.to_parquet(tmp_path / "all.parquet")
    pictures = {f"train/{f.parent.name}/{f.name}": f.read_bytes() for f in own_images.rglob("*.png")}
    heard = {"data/theirs": "data/heard", "data/theirs/labels.csv": "data/heard/labels.csv"}
    with serve_hub() as hub:
        tables = {"data/train.parquet": (tmp_path / "all.parquet").read_bytes()}
        hub.repositories["datasets/ORG/NAME"] = [tables, pictures]
        first = ["--revision", hub.commit("datasets/ORG/NAME", 0)]
        run_there(hub, tmp_path, [*small(download, heard), *first], download)
    run(index, heard)
    manifest = read_manifest("data/heard")
    assert [file.read_bytes() for file in manifest.files] == [row["audio"]["bytes"] for row in rows]
    assert manifest.column("speaker") == [row["speaker_id"] for row in rows]
    run(pretrain, {})
    assert held_out_at("runs/theirs") == {2}


@pytest.mark.slow
def test_frames_of_a_game(beside_configs: Path) -> None:
    pytest.importorskip("ale_py")
    for words in FRAMES:
        run(words, {})
    assert held_out_at("runs/pong") == {2}
    report = json.loads(Path("runs/pong/probe.json").read_text())
    assert report["families"]["state"]["members"]


def test_models_that_ship(indexed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in SHIPPED:
        run(words, {"DIR": str(indexed)})
    assert "MB" in capsys.readouterr().out
    assert len(list(Path("features").rglob("*.npy"))) == 60
    provenance = read_config("runs/more")["provenance"]
    assert provenance["init_from"] == "speech-small"
    shipped = read_config("speech-small")["provenance"]["trained_on"]["num_observations"]
    assert provenance["trained_on"]["num_observations"] > shipped


@pytest.mark.slow
def test_models_of_the_hub(indexed: Path, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    places = {"DIR": str(indexed)}
    train = ["pretrain", "--config", "configs/small_speech.yaml", "--data.manifest", "DIR", "--run_dir", "runs/mine"]
    run(train, places)
    model = {file.name: file.read_bytes() for file in Path("runs/mine/model").iterdir()}
    with serve_hub() as hub:
        hub.repositories["ORG/NAME"] = [model]
        run_there(hub, tmp_path, *(small(words, places) for words in HUB))
        shared = hub.repositories["ORG/NAME"][-1]
    assert len(list(Path("features").rglob("*.npy"))) == 60
    assert read_config("runs/more")["provenance"]["init_from"] == "ORG/NAME"
    assert {file.name for file in Path("shared").iterdir()} == set(shared)
    assert shared["model.safetensors"] == model["model.safetensors"]
    assert b"license: cc-by-4.0" in shared["README.md"]


@pytest.mark.slow
def test_a_checkpoint_of_cpc_audio(indexed: Path, tmp_path: Path) -> None:
    checkpoint = save(tmp_path / "theirs", *random_weights("LSTM", "layerNorm"), {"arMode": "LSTM"})
    for words in CPC_AUDIO:
        run(words, {"DIR": str(indexed), "checkpoint_30.pt": str(checkpoint)})
    assert np.load("features/speaker0/0.npy").shape == (50, WIDTH)
    report = json.loads(Path("models/cpc_audio/probe.json").read_text())
    assert report["tasks"]["phones"]["protocol"]["classes"] == ["ah", "b", "p"]


@pytest.mark.slow
def test_agents_are_compared_and_watched(beside_configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium")
    agent, watch = AGENTS
    run(agent, {})
    compared = json.loads(Path("runs/cart_pole/comparison.json").read_text())
    assert set(compared["by_cpc_weight"]) == {"0", "0.1"}
    run(watch, {})
    assert "cpc_0.1/seed_0" in Path("report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_signals_from_a_folder_to_features(own_signals: Path) -> None:
    for words in SIGNALS:
        run(words, {"DIR": str(own_signals)})
    assert held_out_at("runs/signals") == {2}
    report = json.loads(Path("runs/signals/probe.json").read_text())
    assert report["tasks"]["activity"]["protocol"]["classes"] == ["sit", "walk"]
    assert np.load("features/p3/walk.npy").shape == (62, 8)


@pytest.mark.slow
def test_torchrun_starts_ranks(indexed: Path) -> None:
    """Two in place of eight, at a port that is free."""
    block = blocks("docs/scale.md", "sh")[0].replace("\\\n", " ")
    launcher, *words = small(shlex.split(block), {"8": "2", "DIR": str(indexed)})
    assert launcher == "torchrun"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert held_out_at("runs/960") == {2}
    assert "devices: '2'" in Path("runs/960/config.yaml").read_text()


@pytest.mark.slow
def test_the_augmentation_of_the_page(indexed: Path) -> None:
    config, _ = blocks("docs/data.md", "yaml")
    Path("augmentation.yaml").write_text(config)
    train = ["pretrain", "--config", "configs/small_speech.yaml", "--config", "augmentation.yaml"]
    run([*train, "--data.manifest", "DIR", "--run_dir", "runs/mine"], {"DIR": str(indexed)})
    assert held_out_at("runs/mine") == {2}


@pytest.mark.slow
def test_phones_and_their_confusions(aligned: Path) -> None:
    (pretrain, *probe), *_ = command_blocks("docs/results/speech.md")
    (abx,) = [block for block in command_blocks("docs/results/speech.md") if block[-1][0] == "abx"]
    shutil.copytree(aligned, "AN4")
    index_folder("AN4", speaker_level=0, progress=False)
    for words in [pretrain, *probe, *abx[1:]]:
        more = ["--num_folds", "3"] if words[0] == "probe" else []  # as many as there are speakers
        run(words, {"TIMIT": str(aligned), "TIMIT/phone.item": str(aligned / "phone.item")}, *more)
    report = json.loads(Path("runs/small_speech/probe.json").read_text())
    assert report["tasks"]["phones"]["protocol"]["folds"] == "speaker"
    assert set(report["abx"]) == {"phone", "phone, context any, max_size_group 4"}
