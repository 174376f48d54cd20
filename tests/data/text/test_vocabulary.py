"""Words, subwords, and the two symbols that every vocabulary has."""

import pickle
import random
from collections import Counter
from itertools import pairwise
from unicodedata import is_normalized, normalize

import pytest
from refusals import refuses

from cpc.data.text.vocabulary import END, UNKNOWN, Vocabulary, build_vocabulary, byte_pairs, chunks, learn_merges

pytest.importorskip("tokenizers")

LINES = ["the cat saw the dog", "the dog ran", "a cat ran"]


def test_words_are_sorted_by_count_with_both_symbols_among_them() -> None:
    # the 3, <eos> 3, cat 2, dog 2, ran 2, a 1, saw 1: the last two are unknown
    vocabulary = build_vocabulary(LINES, tokens="whitespace", num_tokens=6)
    assert vocabulary.symbols == (END, "the", UNKNOWN, "cat", "dog", "ran")
    assert vocabulary.encode("the cow saw") == [1, 2, 2, 0]
    # A text that writes unknown words itself keeps all of its words.
    vocabulary = build_vocabulary(["a <unk> b", "b <unk> <unk>"], tokens="whitespace", num_tokens=4)
    assert vocabulary.symbols == (UNKNOWN, END, "b", "a")


def test_words_are_parted_from_punctuation_and_put_in_lower_case() -> None:
    lines = ["Don't stop, DON'T!"] * 2 + ["never"]
    vocabulary = build_vocabulary(lines, tokens="words", num_tokens=6, lower_case=True)
    assert vocabulary.symbols == ("don't", END, "!", ",", "stop", UNKNOWN)
    assert [vocabulary.symbols[i] for i in vocabulary.encode("DON'T stop!")] == ["don't", "stop", "!", END]


@pytest.mark.parametrize("tokens", ["whitespace", "words", "subwords"])
def test_a_description_or_a_pickle_builds_it_again(tokens: str) -> None:
    built = build_vocabulary(LINES * 4, tokens=tokens, num_tokens=7 if tokens != "subwords" else 20)
    for again in (Vocabulary(**built.description), pickle.loads(pickle.dumps(built))):
        assert again.description == built.description
        assert again.encode("the dog sat") == built.encode("the dog sat")


def join(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    joined: list[str] = []
    while symbols:
        size = 2 if tuple(symbols[:2]) == pair else 1
        joined.append("".join(symbols[:size]))
        symbols = symbols[size:]
    return joined


def test_merges_are_those_of_counting_anew_each_time() -> None:
    rng = random.Random(0)
    counts = Counter("".join(rng.choices("abcd", weights=[5, 3, 2, 1], k=rng.randint(1, 9))) for _ in range(300))
    words = {word: list(word) for word in counts}
    expected, symbols = [], list("abcd")
    while len(symbols) < 64:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in words.items():
            for pair in pairwise(parts):
                pairs[pair] += counts[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], [symbols.index(symbol) for symbol in pair]))
        expected.append(best)
        if (joined := "".join(best)) not in symbols:
            symbols.append(joined)
        words = {word: join(parts, best) for word, parts in words.items()}
    merges = learn_merges(counts, "abcd", 64)
    assert merges == expected
    encode = byte_pairs(symbols, merges)
    assert {word: encode(word) for word in counts} == words
    assert learn_merges({"ab": 3, "c": 1}, "abc", 13) == [("a", "b")]


def test_chunks_part_words_from_punctuation() -> None:
    assert chunks("It's (a) test...") == ["▁It", "'", "s", "▁(", "a", ")", "▁test", "..."]
    assert "".join(chunks("It's (a) test...")) == "▁It's▁(a)▁test..."


def test_subwords_spell_every_word_of_known_characters() -> None:
    lines = ["low lower lowest", "new newer newest wide widest"] * 3
    vocabulary = build_vocabulary(lines, tokens="subwords", num_tokens=24)
    assert len(vocabulary) == 24
    ids = vocabulary.encode("lower newest slow")
    assert vocabulary.unknown not in ids
    assert "".join(vocabulary.symbols[i] for i in ids) == f"▁lower▁newest▁slow{END}"
    assert vocabulary.unknown in vocabulary.encode("zebra")
    assert "#" not in build_vocabulary(["aab", "ab#"], tokens="subwords", num_tokens=6).symbols  # rare


@pytest.mark.parametrize("tokens", ["whitespace", "words", "subwords"])
def test_both_normal_forms_are_one_text(tokens: str) -> None:
    lines = ["trời đẹp quá", "trời mưa", "कितने लोग", "J\u030cem"]
    decomposed = [normalize("NFD", line) for line in lines]
    num_tokens = 7 if tokens != "subwords" else 30
    for lower_case in (False, True):
        built = build_vocabulary(lines * 2, tokens=tokens, num_tokens=num_tokens, lower_case=lower_case)
        again = build_vocabulary(decomposed * 2, tokens=tokens, num_tokens=num_tokens, lower_case=lower_case)
        assert again.description == built.description
        assert all(is_normalized("NFC", symbol) for symbol in built.symbols)
        for line, other in zip(lines, decomposed, strict=True):
            assert built.encode(other) == built.encode(line)
        assert Vocabulary(**built.description).encode(lines[0]) == built.encode(lines[0])


def test_vocabularies_of_earlier_releases_read_as_before_or_are_refused() -> None:
    english = ["don't", "café", "naïve", ",", "Œuvre", "слово", "½"]
    assert "segmentation" not in Vocabulary([*english, END, UNKNOWN], "words").description
    for tokens, symbol in (("words", "\u093f"), ("words", "我们"), ("subwords", "\u0bbe,"), ("whitespace", "e\u0301")):
        refuses(r"An earlier version of cpc made it.*train the model again", Vocabulary, [symbol, END, UNKNOWN], tokens)
    hindi = build_vocabulary(["यह किताब", "किताब"], tokens="words", num_tokens=3)
    assert hindi.description["segmentation"] == 2
    assert "segmentation" not in build_vocabulary(["यह किताब"], tokens="whitespace", num_tokens=3).description


def test_refusals() -> None:
    for lines in ([], ["", " "]):
        refuses("the vocabulary would be empty", build_vocabulary, lines, tokens="words", num_tokens=10)
    refuses("7 different tokens, .*=9 must be at least 3 and", build_vocabulary, LINES, tokens="words", num_tokens=9)
    refuses("num_tokens`=2 must be at least 3 and at most 7", build_vocabulary, LINES, tokens="words", num_tokens=2)
    refuses("the 11 characters .*=5 must be at least 13", build_vocabulary, LINES, tokens="subwords", num_tokens=5)
    refuses("num_tokens`=500 must be at most", build_vocabulary, LINES, tokens="subwords", num_tokens=500)
    refuses("every symbol once", Vocabulary, ["a", "a", END, UNKNOWN])
