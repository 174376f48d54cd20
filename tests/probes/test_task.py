"""Which labels, of which frames, in which parts; and every way to ask for something that is not there."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from opened import stored
from refusals import refuses

import cpc
from cpc.data.audio.manifest import Manifest
from cpc.data.audio.probe_data import AudioProbeData
from cpc.probes import Task
from cpc.probes.task import UNSEEN

Open = Callable[..., AudioProbeData]


def splits_of(manifest: Manifest, rows: np.ndarray) -> set[str]:
    return {manifest.column("split")[row] for row in rows}


@pytest.mark.parametrize(
    ("name", "test_split", "pool", "classes"),
    [
        ("phones", "test", "frames", ["high", "low", "mid"]),
        ("speaker", "valid", "frames", ["ann", "bob", "eve"]),
        ("first", "test", "mean", ["high", "low", "mid"]),
    ],
)
def test_defaults(manifest: Manifest, audio: Open, name: str, test_split: str, pool: str, classes: list[str]) -> None:
    task = Task(name, audio())
    assert splits_of(manifest, task.train) == {"train"}
    assert splits_of(manifest, task.test) == {test_split}
    assert task.pool == pool
    assert task.classes == classes
    assert (len(task.train), len(task.test)) == (12, 12)


def test_numbers_are_sorted_as_numbers(manifest: Manifest, audio: Open) -> None:
    digits = [str(row % 11) for row in range(len(manifest))]
    assert Task("digit", audio({"digit": digits})).classes == [str(i) for i in range(11)]


def test_phones_hold_at_the_centre_of_every_frame(manifest: Manifest, audio: Open, model: cpc.CPC) -> None:
    task = Task("phones", audio())
    store = stored(task, ["z"], model)
    test = task.examples("test", store, "z")
    assert len(test) == 12 * 40
    row = int(task.test[0])
    labels = test.labels[:40]
    lines = (manifest.root / "alignments.csv").read_text().splitlines()
    segments = [line.split(",") for line in lines if line.startswith(manifest.paths[row])]
    for frame in range(40):
        centre_seconds = (model.encoder.first_centre_samples + 160 * frame) / 16000
        (expected,) = [label for _, start, end, label in segments if float(start) <= centre_seconds < float(end)]
        assert task.classes[labels[frame]] == expected


def test_frames_with_no_label_are_no_examples(manifest: Manifest, audio: Open, model: cpc.CPC, tmp_path: Path) -> None:
    lines = (manifest.root / "alignments.csv").read_text().splitlines()
    kept = [line for line in lines if "-0.wav" not in line and ",0.1,0.2," not in line]
    (tmp_path / "alignments.csv").write_text("\n".join(kept) + "\n")
    task = Task("phones", audio(alignments=tmp_path))
    assert task.num_unlabelled == {"train": 3, "test": 3}
    store = stored(task, ["z"], model)
    train = task.examples("train", store, "z")
    assert len(train) == 9 * 30
    frame = train.indices - np.array([store.span(row).start for row in train.clusters.tolist()])
    assert set(frame // 10) == {0, 2, 3}


def test_means_are_over_the_frames_of_a_file(manifest: Manifest, audio: Open, model: cpc.CPC) -> None:
    task = Task("speaker", audio(), pool="mean")
    store = stored(task, ["z"], model)
    train = task.examples("train", store, "z")
    assert train.values.shape == (12, 12)
    for example, row in enumerate(task.train.tolist()):
        np.testing.assert_allclose(train.values[example], store.values["z"][store.span(row)].mean(0), rtol=1e-5)
        assert task.classes[train.labels[example]] == manifest.column("speaker")[row]


def test_labels_unseen_in_training_are_marked(manifest: Manifest, audio: Open, model: cpc.CPC) -> None:
    splits = manifest.column("split")
    words = ["x" if split == "train" and row % 2 else "y" for row, split in enumerate(splits)]
    words = [
        "new" if split == "test" and row % 3 == 0 else word
        for row, (split, word) in enumerate(zip(splits, words, strict=False))
    ]
    task = Task("word", audio({"word": words}))
    test = task.examples("test", stored(task, ["z"], model), "z")
    assert task.classes == ["x", "y"]
    assert (test.labels == UNSEEN).sum() == 4
    assert (test.labels == 1).sum() == 8


def test_a_task_learnt_from_some_files_keeps_its_classes(manifest: Manifest, audio: Open) -> None:
    task = Task("speaker", audio())
    smaller = task.trained_on(task.train[:2])
    assert smaller.train.tolist() == task.train[:2].tolist()
    assert (smaller.classes, len(smaller.test), len(task.train)) == (task.classes, 12, 12)
    refuses("no file of the train part", task.trained_on, task.test)


def test_the_last_rows_of_each_class_are_held_out(manifest: Manifest, audio: Open) -> None:
    words = ["once" if row == 5 else "abc"[row % 3] for row in range(36)]
    task = Task("word", audio({"word": words}))
    smaller = task.hold_out(0.3)
    for word in task.classes:
        rows = [row for row in task.train.tolist() if words[row] == word]
        num_held_out = min(len(rows) - 1, max(1, round(0.3 * len(rows))))
        assert [row for row in smaller.train.tolist() if words[row] == word] == rows[: len(rows) - num_held_out]
        assert [row for row in smaller.test.tolist() if words[row] == word] == rows[len(rows) - num_held_out :]
    phones = Task("phones", audio()).hold_out(0.25)
    assert phones.test.tolist() == Task("phones", audio()).train[-3:].tolist()


def test_held_out_speakers_are_the_clusters(manifest: Manifest, audio: Open) -> None:
    assert Task("phones", audio()).clusters == "file"  # the same speakers in both parts
    splits = manifest.column("split")
    speakers = [f"{split}{row % 6}" for row, split in enumerate(splits)]
    assert Task("phones", audio({"speaker": speakers})).clusters == "speaker"
    assert Task("first", audio({"speaker": speakers})).clusters == "speaker"
    few = [f"{split}{row % 3}" for row, split in enumerate(splits)]
    assert Task("phones", audio({"speaker": few})).clusters == "file"


def test_speakers_that_do_not_meet_say_which_split_to_take(manifest: Manifest, audio: Open) -> None:
    with_strangers = [
        speaker + ("2" if split == "test" else "")
        for speaker, split in zip(manifest.column("speaker"), manifest.column("split"), strict=True)
    ]
    with pytest.raises(ValueError, match=r"'train' .* and 'test' .* no label in\s+common.*try `test_split` valid"):
        Task("speaker", audio({"speaker": with_strangers}), test_split="test")


@pytest.mark.parametrize(
    ("columns", "arguments", "message"),
    [
        ({"split": ["train"] * 36}, {"name": "first"}, r"needs split 'test', .* has only train.*`test_split`"),
        ({"split": ["test"] * 36}, {"name": "first"}, r"needs split 'train', .* has only test.*`train_split`"),
        ({"first": ["same"] * 36}, {"name": "first"}, "only the class 'same' in split 'train'"),
        ({"first": [""] * 36}, {"name": "first"}, "no file of the train part"),
        ({}, {"name": "word"}, "no column 'word'"),
        ({}, {"name": "path"}, "another column"),
        ({}, {"name": "first", "test_split": "train"}, "are both 'train'"),
        ({}, {"name": "phones", "pool": "mean"}, "pool='frames'"),
    ],
)
def test_mistakes_are_named(
    manifest: Manifest, audio: Open, columns: dict[str, list[str]], arguments: dict[str, str], message: str
) -> None:
    refuses(message, Task, probe_data=audio(columns), **arguments)


def test_a_manifest_without_splits(manifest: Manifest, audio: Open) -> None:
    probe_data = audio()
    probe_data.corpus.table = Manifest(
        manifest.root, {name: values for name, values in manifest.columns.items() if name != "split"}
    )
    refuses(r"no column 'split'", Task, "speaker", probe_data)


def test_labels_without_matching_audio(manifest: Manifest, audio: Open, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("path,start,end,label\nsomething/else.wav,0,1,a\n")
    refuses(r"24 of 24 audio (.|\n)*train.*\n?[^§]*else", Task, "phones", audio(alignments=tmp_path / "other.csv"))
    refuses("`alignments`", Task, "phones", audio(alignments="nowhere.csv"))


def test_alignments_of_other_times(manifest: Manifest, audio: Open, model: cpc.CPC, tmp_path: Path) -> None:
    def aligned(times: str) -> Task:
        lines = [f"{path},{times},{'ab'[row % 2]}" for row, path in enumerate(manifest.paths)]
        (tmp_path / "other.csv").write_text("path,start,end,label\n" + "\n".join(lines) + "\n")
        return Task("phones", audio(alignments=tmp_path / "other.csv"))

    refuses(r"24 of 24 labelled files(.|\n)*labels until 400 s, audio until 0\.4 s", aligned, "0,400")
    task = aligned("0.399,0.4")  # after the last frame's centre
    refuses("or no frame has one", task.examples, "train", stored(task, ["z"], model), "z")
