"""The lines of files and their splits, and sources that are refused."""

import hashlib
import shutil
from pathlib import Path

import pytest
from refusals import refuses

from cpc.data.store.fingerprints import count_copies, fingerprint_record
from cpc.data.synthetic.prose import sentences
from cpc.data.text.lines import BLOCK_LINES, Text


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def numbered(start: int, num: int) -> list[str]:
    return [f"line {start + i}" for i in range(num)]


def test_files_and_folders_name_their_split(tmp_path: Path) -> None:
    write(tmp_path / "ptb.train.txt", "a b", "", "  c  ")
    write(tmp_path / "dev" / "one.txt", "d")
    write(tmp_path / "training_part2.txt", "e")
    write(tmp_path / "test.txt", "f")
    write(tmp_path / "CARD.md", "no text")
    text = Text(tmp_path)
    found = {split: list(text.lines(split)) for split in text.splits}
    assert found == {"test": ["f"], "train": ["a b", "c", "e"], "valid": ["d"]}


def test_a_copied_file_is_found_block_by_block(tmp_path: Path) -> None:
    write(tmp_path / "train.txt", *numbered(0, 50))
    write(tmp_path / "valid_copy.txt", "", *numbered(0, 50))
    write(tmp_path / "valid_own.txt", *numbered(50, 30))
    text = Text(tmp_path)
    record = fingerprint_record(text.content("train"))
    assert count_copies(text.content("valid"), record, "block") == {
        "num_shared": 3,
        "num_compared": 5,
        "num_tested": 5,
        "unit": "block",
    }


def test_held_out_blocks_are_whole_and_stay_where_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "book.txt", *numbered(0, 2000))
    text = Text(path, valid_share=0.1, test_share=0.1)
    split_of = {line: split for split in text.splits for line in text.lines(split)}
    assert len(split_of) == 2000
    for start in range(0, 2000, BLOCK_LINES):
        assert len({split_of[line] for line in numbered(start, BLOCK_LINES)}) == 1
    assert 60 < sum(split == "valid" for split in split_of.values()) < 400
    write(path, *numbered(0, 2400))
    grown = Text(path, valid_share=0.1, test_share=0.1)
    assert {line: split for split in grown.splits for line in grown.lines(split)}.items() >= split_of.items()


def test_valid_is_drawn_from_training_files_where_none_is_named(tmp_path: Path) -> None:
    write(tmp_path / "train.txt", *numbered(0, 400))
    write(tmp_path / "test.txt", *numbered(1000, 3))
    text = Text(tmp_path, valid_share=0.3)
    assert list(text.lines("test")) == numbered(1000, 3)
    assert sorted([*text.lines("train"), *text.lines("valid")]) == sorted(numbered(0, 400))


def test_held_out_text_may_stand_alone(tmp_path: Path) -> None:
    test = write(tmp_path / "ptb.test.txt", "a b", "c")
    text = Text(test)
    assert text.splits == ["test"]
    assert list(text.lines("test")) == ["a b", "c"]


def test_a_text_is_read_whole(tmp_path: Path) -> None:
    lines = numbered(0, 2000)
    write(tmp_path / "foreign.txt", *lines)
    write(tmp_path / "more" / "train.txt", "one more")
    for source in (tmp_path / "foreign.txt", write(tmp_path / "valid_few.txt", *lines)):
        text = Text(source, is_whole=True)
        assert text.splits == ["all"]
        assert list(text.lines("all")) == lines
    assert list(Text(tmp_path / "more", is_whole=True).lines("all")) == ["one more"]


def test_the_digest_follows_content_and_splits(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", *numbered(0, 2000))
    first = Text(path).digest
    assert Text(path).digest == first
    assert Text(path, valid_share=0.4).digest != first
    write(path, *numbered(1, 2000))
    assert Text(path).digest != first


def test_the_first_byte_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    write(tmp_path / "train.txt", "good")
    write(tmp_path / "valid.txt", "good too")
    (tmp_path / "test.txt").write_bytes("première\n".encode() + "caf\xe9\n".encode("latin-1"))
    refuses(r"test\.txt, byte 13: 0xe9 is not UTF-8", Text, tmp_path)
    with pytest.warns(UserWarning, match="went on without 1 of 3 files"):
        assert Text(tmp_path, skip_bad=True).splits == ["train", "valid"]


def test_runs_of_an_earlier_segmentation_are_of_another_text(tmp_path: Path) -> None:
    def plain_digest(*lines: str) -> str:
        content = "".join(f"{line}\n" for line in ["train.txt", "train", *lines])
        return hashlib.sha256(content.encode()).hexdigest()

    for lines, is_same in ((["one", "café"], True), (["one", "یک\u200cدو"], False), (["வணக்கம்"], False)):
        text = Text(write(tmp_path / "train.txt", *lines), valid_share=0.0)
        assert (text.digest == plain_digest(*lines)) == is_same
        assert text.segmentation == (1 if is_same else 2)


def test_refusals(tmp_path: Path) -> None:
    refuses("no such file or folder", Text, tmp_path / "absent")
    refuses(r"no text below", Text, tmp_path)
    write(tmp_path / "blank" / "train.txt", "", "  ")
    refuses("has only white space: pass a source with text", Text, tmp_path / "blank")
    shutil.rmtree(tmp_path / "blank")
    few = write(tmp_path / "few.txt", *numbered(0, 30))
    refuses("too few", Text, few)
    write(tmp_path / "train.txt", *numbered(0, 30))
    refuses(r"train\.txt names its split, but few\.txt does not", Text, tmp_path)
    few.rename(tmp_path / "valid_test.txt")
    refuses("names the splits test, valid", Text, tmp_path)
    lone = write(tmp_path / "alone" / "test.txt", "a")
    write(lone.parent / "train.txt", "a")
    write(lone.parent / "valid.txt", "a")
    refuses("no split 'other'; it has test, train, valid", next, Text(lone.parent).lines("other"))


def test_the_embedded_prose_is_whole() -> None:
    text = Text("embedded")
    assert sorted(line for split in text.splits for line in text.lines(split)) == sorted(sentences())
