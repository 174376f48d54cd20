"""Streams in memory and on disk, counts and entropy."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

from cpc.data.text.corpus import TokenCorpus, entropy_nats, training_vocabulary
from cpc.data.text.lines import Text
from cpc.data.text.vocabulary import Vocabulary


def corpus_of(source: Path | str, num_tokens: int = 4, tokens: str = "whitespace", **options: Any) -> TokenCorpus:
    text = Text(source)
    vocabulary = training_vocabulary(text, num_tokens, tokens, **options)
    return TokenCorpus(text, vocabulary, options.get("cache_dir"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split, lines in {"train": ["a b a", "c a"], "valid": ["a d"], "test": ["b"]}.items():
        (tmp_path / f"{split}.txt").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def test_streams_begin_with_the_end_of_a_line(folder: Path) -> None:
    corpus = corpus_of(folder)
    # a 3, <eos> 2, then b and c are one each: b comes first, and c is unknown
    assert corpus.vocabulary.symbols == ("a", "<eos>", "<unk>", "b")
    assert corpus.stream("train").tolist() == [1, 0, 3, 0, 1, 2, 0, 1]
    assert corpus.stream("valid").tolist() == [1, 0, 2, 1]
    assert corpus.counts("train").tolist() == [3, 2, 1, 1]
    refuses("the split='other' is not one of test, train, valid", corpus.stream, "other")


def test_a_pack_is_made_once_and_shared_with_a_trained_vocabulary(folder: Path) -> None:
    corpus = corpus_of(folder)
    packs = sorted((folder / ".cpc_cache").iterdir())
    assert isinstance(corpus.stream("train"), np.memmap)
    again = TokenCorpus(Text(folder), Vocabulary(**corpus.vocabulary.description))
    assert sorted((folder / ".cpc_cache").iterdir()) == packs
    assert again.digest == corpus.digest
    (folder / "train.txt").write_text("a b a\nc b", encoding="utf-8")
    changed = corpus_of(folder)
    assert changed.vocabulary.symbols == ("<eos>", "a", "b", "<unk>")
    assert changed.stream("train").tolist() == [0, 1, 2, 1, 0, 3, 2, 0]


def test_the_embedded_prose_is_the_same_in_memory_and_packed(tmp_path: Path) -> None:
    unpacked = corpus_of("embedded", 500, "words", lower_case=True)
    packed = corpus_of("embedded", 500, "words", lower_case=True, cache_dir=tmp_path)
    for split in ("train", "valid", "test"):
        assert np.array_equal(unpacked.stream(split), packed.stream(split))


def test_a_trained_vocabulary_reads_text_without_a_training_part(folder: Path) -> None:
    vocabulary = corpus_of(folder).vocabulary
    test_text = Text(folder / "test.txt")
    assert TokenCorpus(test_text, vocabulary).stream("test").tolist() == [1, 3, 1]
    refuses(r"test\.txt has no training text .*, only the splits test", training_vocabulary, test_text, 4)


def test_entropy() -> None:
    assert entropy_nats(np.array([5, 5, 0, 5, 5])) == pytest.approx(math.log(4))
    assert entropy_nats(np.array([7])) == 0
    # on average too low, so that what H - L certifies is not too much: Miller's (V - 1) / 2n
    rng = np.random.default_rng(0)
    found = [entropy_nats(rng.multinomial(500, np.full(50, 1 / 50))) for _ in range(400)]
    assert np.mean(found) == pytest.approx(math.log(50) - 49 / 1000, abs=0.003)
