"""Datasets of Hugging Face, in folders as its package writes them, against the files that went in."""

import io
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cpc import cli
from cpc.data import read_image_source, read_manifest
from cpc.data.audio.index import index_folder
from cpc.data.hub_datasets import download_dataset, file_of

library: Any = pytest.importorskip("datasets")
assert library is import_module("datasets")


def of_rows(rows: list[dict[str, Any]], **features: Any) -> Any:
    """A dataset with a column `audio`, whose own encoder would need a package."""
    plain = {"audio": {"bytes": library.Value("binary"), "path": library.Value("string")}}
    table = library.Dataset.from_list(rows, features=library.Features(plain | features))
    return table.cast(library.Features({"audio": library.Audio()} | features))


def flac(write_audio: Callable[..., Path], folder: Path, number: int) -> bytes:
    return write_audio(folder / f"{number}.flac", seconds=0.1, seed=number).read_bytes()


@pytest.fixture
def speech(tmp_path: Path, write_audio: Callable[..., Path]) -> tuple[Path, list[bytes]]:
    """Parquet files by split, as datasets of the Hub have them."""
    files = [flac(write_audio, tmp_path / "made", number) for number in range(6)]
    features = {
        "speaker_id": library.Value("int64"),
        "text": library.Value("string"),
        "emotion": library.ClassLabel(names=["calm", "glad"]),
        "words": library.List(library.Value("string")),
    }
    rows = [
        {
            "audio": {"bytes": content, "path": None if number % 2 else f"x/{number}.flac"},
            "speaker_id": number % 3,
            "text": f"a, {number}",
            "emotion": number % 2,
            "words": ["a"],
        }
        for number, content in enumerate(files)
    ]
    (tmp_path / "source").mkdir()
    for split, chosen in {"train": rows[:4], "validation": rows[4:]}.items():
        of_rows(chosen, **features).to_parquet(tmp_path / "source" / f"{split}-00000-of-00001.parquet")
    return tmp_path / "source", files


def test_audio_comes_with_its_labels_and_is_indexed(
    speech: tuple[Path, list[bytes]], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    source, files = speech
    out = tmp_path / "out"
    cli.main(["data", "download", str(source), "--out", str(out)])
    assert f"cpc data index {out} --labels {out / 'labels.csv'}" in capsys.readouterr().out
    index_folder(out, labels=out / "labels.csv", progress=False)
    manifest = read_manifest(out)
    assert [file.read_bytes() for file in manifest.files] == files
    assert manifest.column("split") == ["train"] * 4 + ["valid"] * 2
    assert manifest.column("speaker") == ["0", "1", "2", "0", "1", "2"]
    assert manifest.column("emotion") == ["calm", "glad"] * 3
    assert manifest.column("text")[5] == "a, 5"
    assert "words" not in manifest.columns
    download_dataset(str(source), out=tmp_path / "one", splits=["validation"])
    assert len(list((tmp_path / "one").rglob("*.flac"))) == 2


def test_images_lie_by_split_and_class(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)) for _ in range(8)]
    names = ["cat", "../dog"]
    features = library.Features({"image": library.Image(), "label": library.ClassLabel(names=names)})
    data = {}
    for split, chosen in {"train": range(6), "test": range(6, 8)}.items():
        rows = []
        for number in chosen:
            stream = io.BytesIO()
            pictures[number].save(stream, "png")
            rows.append({"image": {"bytes": stream.getvalue(), "path": None}, "label": number % 2})
        data[split] = library.Dataset.from_list(rows, features=features)
    library.DatasetDict(data).save_to_disk(tmp_path / "source")
    download_dataset(str(tmp_path / "source"), out=tmp_path / "out")
    table = read_image_source(tmp_path / "out", valid_share=0.0)
    assert table.classes == ["_dog", "cat"]
    assert Counter(table.splits) == {"train": 6, "test": 2}
    for row, name in enumerate(table.names):
        with table.open(row) as found:
            number = int(Path(name).stem.rpartition("-")[2]) + 6 * (table.splits[row] == "test")
            assert found.tobytes() == pictures[number].tobytes()
            assert table.classes[table.labels[row]] == ["cat", "_dog"][number % 2]


def test_what_cannot_be_read_is_named_and_leaves_nothing(speech: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    source, _ = speech
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"`splits` dev: .* has train, validation"):
        download_dataset(str(source), out=out, splits=["dev"])
    with pytest.raises(ValueError, match=r"audio \(Audio\), speaker_id \(Value\).*`column` must be one of"):
        download_dataset(str(source), out=out, column="text")
    with pytest.raises(ValueError, match="there is no dataset"):
        download_dataset(str(tmp_path / "none"), out=out)
    (tmp_path / "secret.wav").write_bytes(b"RIFF")
    table = of_rows([{"audio": {"bytes": b"text", "path": None}}])
    library.DatasetDict({"train": table}).save_to_disk(tmp_path / "text")
    with pytest.raises(ValueError, match="train, row 0 holds no audio file that is known: it begins with b'text'"):
        download_dataset(str(tmp_path / "text"), out=out)
    with pytest.raises(ValueError, match="row 0 holds no file"):
        file_of({"bytes": None, "path": None}, "Audio", str(source), "row 0")
    for elsewhere in (str(tmp_path / "secret.wav"), f"{source}/../secret.wav", "hf://buckets/x.wav"):
        with pytest.raises(ValueError, match="outside of the dataset: refused"):
            file_of({"bytes": None, "path": elsewhere}, "Audio", str(source), "row 0")
    library.DatasetDict({"holdout": table}).save_to_disk(tmp_path / "odd")
    with pytest.raises(ValueError, match="split 'holdout' is none of train"):
        download_dataset(str(tmp_path / "odd"), out=out)
    assert not out.exists()
    out.mkdir()
    with pytest.raises(ValueError, match="is there already"):
        download_dataset(str(source), out=out)
