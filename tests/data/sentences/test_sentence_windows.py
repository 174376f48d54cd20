"""Passages and windows, against the text they come from."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

from cpc.data import Sentences
from cpc.data.sentences.corpus import SentenceCorpus
from cpc.encoders import SentenceEncoder

BOOKS = {"train_a": 25, "train_b": 9, "valid_c": 2}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Sentence n of a book holds its name and `word` n + 1 times."""
    for name, num_sentences in BOOKS.items():
        lines = [f"{name} " + "word " * (n + 1) + "." for n in range(num_sentences)]
        (tmp_path / f"{name}.txt").write_text("\n\n".join(lines))
    return tmp_path


def opened(source: Path, **options: int) -> SentenceCorpus:
    data = Sentences(source=str(source), **{"window_sentences": 4, "passage_sentences": 8, "max_tokens": 12, **options})
    return data.open(SentenceEncoder(num_tokens=5, dim=4, embedding_dim=4), is_training=True)


def test_passages_partition_the_books(source: Path) -> None:
    corpus = opened(source, max_tokens=1000)
    passages = corpus.passages
    assert np.bincount(passages.book).tolist() == [3, 1, 1]
    assert passages.num_sentences.tolist() == [9, 8, 8, 9, 2]
    assert passages.first.tolist() == [0, 9, 17, 25, 34]
    encoded = [corpus.vocabulary.encode(each) for name in corpus.books.names for each in corpus.books.sentences(name)]
    found = [passages.tokens[a:b].tolist() for a, b in zip(passages.ends[:-1], passages.ends[1:], strict=True)]
    assert found == encoded


def test_copies_of_passages_are_found_under_another_name(source: Path) -> None:
    (source / "valid_again.txt").write_bytes((source / "train_a.txt").read_bytes())
    corpus = opened(source, max_tokens=1000)
    copies = corpus.options.held_out_copies(corpus, corpus.options.trained_on(corpus))
    assert copies == {"num_shared": 3, "num_compared": 4, "num_tested": 4, "unit": "passage"}


def test_a_long_sentence_is_cut_and_nothing_is_lost(source: Path) -> None:
    whole, cut = opened(source, max_tokens=1000).passages, opened(source, max_tokens=12).passages
    assert np.array_equal(whole.tokens, cut.tokens)
    lengths = np.diff(cut.ends)
    assert lengths.max() <= 12
    longest_lengths = lengths[cut.num_sentences[cut.book == 0].sum() - 3 :][:3]  # 25 words, name, stop, end: 28 tokens
    assert sorted(longest_lengths.tolist()) == [9, 9, 10]


def test_windows_are_consecutive_sentences_of_one_passage(source: Path) -> None:
    corpus = opened(source, max_tokens=1000)
    windows = corpus.windows("train")
    word, end = (corpus.vocabulary.encode("word .")[place] for place in (0, 2))
    drawn = [(row, start) for row, starts in enumerate(windows.draws["num_starts"].tolist()) for start in range(starts)]
    batch = windows.__getitems__(drawn)
    assert batch.x.shape == (len(drawn), 4, batch.x.shape[2])
    assert batch.num_valid.tolist() == [4] * len(drawn)
    counts = (batch.x == word).sum(2)
    assert (counts.diff(dim=1) == 1).all()  # consecutive
    assert ((batch.x == end).sum(2) == 1).all()
    first_of_row = np.array([0, 9, 17, 0])[[row for row, _ in drawn]] + [start for _, start in drawn]
    assert (counts[:, 0] - 1).tolist() == first_of_row.tolist()
    assert batch.group_id.tolist() == [0 if row < 3 else 1 for row, _ in drawn]
    assert batch.sequence_id.tolist() == [row for row, _ in drawn]
    assert Counter(windows.draws["num_slots"].tolist()) == {2: 4}


def test_a_short_passage_is_padded(source: Path) -> None:
    windows = opened(source).windows("valid")
    batch = windows.__getitems__([(0, 0)])
    assert batch.num_valid.tolist() == [2]
    assert (batch.x[0, 2:] == -1).all()
    assert (batch.x[0, :2, 0] >= 0).all()


def test_packed_tokens_are_made_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(source).passages.tokens
    monkeypatch.setattr(SentenceCorpus, "_pack", lambda corpus, folder: pytest.fail("packed again"))
    assert np.array_equal(opened(source).passages.tokens, first)
    assert [path.name[:10] for path in (source / ".cpc_cache").iterdir()] == ["sentences_"]


def test_refusals(source: Path) -> None:
    refuses("no passage is of split 'test'; the splits are train, valid", opened(source).check, "test")
    refuses("`passage_sentences`=3 is less than `window_sentences`=4", opened, source, passage_sentences=3)
    with pytest.raises(ValueError, match="`train_split`='all' is not one of"):
        Sentences(source=str(source), train_split="all").open(SentenceEncoder(5, 4, 4), is_training=True)
    refuses("holds no vocabulary", Sentences(source=str(source)).open, SentenceEncoder(5, 4, 4))
