"""Plain text to sentences and splits, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

from cpc.data.sentences.books import Books, paragraphs, split_sentences

TWO = "It was late. Nobody came.\n"
SHARES: dict[str, Any] = {"valid_share": 0.2, "test_share": 0.2}


@pytest.mark.parametrize(
    ("paragraph", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("\u201cGo!\u201d he said. \u201cNow.\u201d So.", ["\u201cGo!\u201d he said.", "\u201cNow.\u201d", "So."]),
        ("Mr. and Mrs. Weston met J. Knightley. They left.", ["Mr. and Mrs. Weston met J. Knightley.", "They left."]),
        ("at 3.5 per cent. of it, e.g. London.", ["at 3.5 per cent. of it, e.g. London."]),
        ('Stop... "Why?" (Silence.) So.', ["Stop...", '"Why?"', "(Silence.)", "So."]),
        ("  ", []),
    ],
)
def test_sentences_of_a_paragraph(paragraph: str, sentences: list[str]) -> None:
    assert split_sentences(paragraph) == sentences


def test_blank_lines_end_a_paragraph() -> None:
    assert list(paragraphs(["CHAPTER I", " ", "", "It  was", "late. "])) == ["CHAPTER I", "It was late."]
    assert list(paragraphs([])) == []


def test_books_are_held_out_whole(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(TWO)
    books = Books(tmp_path, **SHARES)
    assert set(books.splits) == {"train", "valid", "test"}
    assert len(books.splits) == len(books.names) == 20
    assert sum(1 for _ in books.split_books("valid")) == 2 * books.splits.count("valid")
    before, split_of = books.digest, dict(zip(books.names, books.splits, strict=True))
    (tmp_path / "new.txt").write_text(TWO)
    later = Books(tmp_path, **SHARES)
    assert later.digest != before
    assert split_of.items() <= dict(zip(later.names, later.splits, strict=True)).items()


def test_a_path_says_the_split(tmp_path: Path) -> None:
    for name in ("train/a.txt", "train/b.txt", "dev/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(TWO)
    books = Books(tmp_path, **SHARES)
    assert dict(zip(books.names, books.splits, strict=True)) == {
        "dev/c.txt": "valid",
        "train/a.txt": "train",
        "train/b.txt": "train",
    }
    (tmp_path / "d.txt").write_text(TWO)
    refuses(r"dev/c\.txt names its split, but d\.txt does not", Books, tmp_path, **SHARES)


def test_books_that_cannot_be_used(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(TWO)
    (tmp_path / "blank.txt").write_text(" \n\n")
    (tmp_path / "motto.txt").write_text("A single sentence.")
    (tmp_path / "old.txt").write_bytes(b"Caf\xe9. Next one.")
    with pytest.raises(ValueError, match="3 of 7 books") as refused:
        Books(tmp_path, **SHARES)
    for words in ("blank.txt is empty", "motto.txt has a single", "old.txt, byte 3: 0xe9 is not UTF-8", "`skip_bad`"):
        assert words in str(refused.value)
    with pytest.warns(UserWarning, match="went on without 3 of 7 books"):
        assert len(Books(tmp_path, skip_bad=True, **SHARES).names) == 4
    with pytest.warns(UserWarning, match="went on without 2 of 7 books"):
        assert "old.txt" in Books(tmp_path, skip_bad=True, encoding="latin-1", **SHARES).names
    refuses("is not a folder", Books, tmp_path / "motto.txt", **SHARES)


def test_too_few_books_to_hold_some_out(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text(TWO)
    refuses("too few, since train, valid, test", Books, tmp_path, **SHARES)
