"""Vocabularies: the symbols of a text and their ids; subwords by byte-pair encoding.

Byte pairs (Sennrich et al. 2016, arXiv:1508.07909) join frequent pairs of symbols to one symbol.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal

from cpc.config.argument_rules import Range
from cpc.config.extras import import_extra
from cpc.data.text.segmentation import CHUNK, CUT_ANEW, VERSION, WORD, WORD_START, normal_form

Pair = tuple[str, str]
Tokens = Literal["whitespace", "words", "subwords"]
END, UNKNOWN = "<eos>", "<unk>"
MIN_CHARACTER_COUNT = 2  # minimum; rarer characters become <unk>, so that <unk> occurs in training
_SEPARATOR = "\n"  # separator of chunks, because no line contains it


def chunks(line: str) -> list[str]:
    """Split a line into chunks, from which symbols are cut: words and punctuation, with `▁` for white space before."""
    return CHUNK.findall("".join(WORD_START + word for word in line.split()))


def learn_merges(counts: Mapping[str, int], alphabet: Collection[str], num_symbols: int) -> list[Pair]:
    """Return the pairs of adjacent symbols to merge. Each is the most frequent pair after all earlier merges.

    Among equally frequent pairs, the pair of older symbols is first; characters are the oldest, in Unicode's order.
    `counts` has the number of occurrences of each chunk, `alphabet` the characters.
    """
    package = _tokenizers()
    learner = package.Tokenizer(package.models.BPE())
    learner.pre_tokenizer = package.pre_tokenizers.CharDelimiterSplit(_SEPARATOR)
    trainer = package.trainers.BpeTrainer(vocab_size=num_symbols, initial_alphabet=list(alphabet), show_progress=False)
    learner.train_from_iterator((_SEPARATOR.join([chunk] * count) for chunk, count in counts.items()), trainer)
    return [(left, right) for left, right in json.loads(learner.to_str())["model"]["merges"]]


def byte_pairs(symbols: Iterable[str], merges: Iterable[Sequence[str]]) -> Callable[[str], list[str]]:
    """Return a function that splits a chunk by the merges of `learn_merges`; other characters become `<unk>`."""
    ids = {symbol: i for i, symbol in enumerate(dict.fromkeys([UNKNOWN, *symbols]))}
    package = _tokenizers()
    try:
        model = package.models.BPE(ids, [(left, right) for left, right in merges], unk_token=UNKNOWN)
    except Exception as error:  # the package does not raise a narrower class
        raise ValueError(f"the merges of subwords do not fit their symbols: {error}") from error
    return cache(lambda chunk: [token.value for token in model.tokenize(chunk)])


def _tokenizers() -> Any:
    return import_extra("tokenizers", "text", "subwords need the package `tokenizers`")


_SPLITTERS: dict[str, Callable[[str], list[str]]] = {"whitespace": str.split, "words": WORD.findall, "subwords": chunks}


class Vocabulary:
    """Symbols of a text, the most frequent in training first, as a log-uniform sampler needs; `<eos>` ends a line.

    Args:
        symbols: the symbols, including `<eos>` and `<unk>`; `<unk>` stands for every other symbol.
        tokens: as in `cpc.data.Text`.
        lower_case: True if text is converted to lower case first.
        merges: merges of the subwords.
        segmentation: version of the rules in `cpc.data.text.segmentation` that segmented the training text. It is 1 for
            descriptions without a version; version 1 cut words at every mark.

    Symbols that repeat, or lack `<eos>` or `<unk>`, are a ValueError, as are symbols of version 1 that later versions
    would cut in another way.
    """

    def __init__(
        self,
        symbols: Sequence[str],
        tokens: Tokens = "whitespace",
        lower_case: bool = False,
        merges: Iterable[Sequence[str]] = (),
        segmentation: int = 1,
    ) -> None:
        self.symbols = tuple(symbols)
        self.tokens = tokens
        self.lower_case = lower_case
        self.merges = tuple((left, right) for left, right in merges)
        self._ids = {symbol: i for i, symbol in enumerate(self.symbols)}
        if len(self._ids) < len(self.symbols) or END not in self._ids or UNKNOWN not in self._ids:
            raise ValueError(f"a vocabulary must hold {END}, {UNKNOWN} and every symbol once")
        # If both versions cut all symbols alike, the version is 1, and descriptions equal those of early releases.
        changed = [symbol for symbol in self.symbols if tokens != "whitespace" and CUT_ANEW.search(symbol)]
        self.segmentation = VERSION if changed else 1
        if segmentation != VERSION and (changed := [*changed, *(s for s in self.symbols if normal_form(s) != s)]):
            problem = f"the vocabulary holds {changed[0]!r}. An earlier version of cpc made it"
            raise ValueError(f"{problem}, which segmented text by other rules: train the model again")
        self.end, self.unknown = self._ids[END], self._ids[UNKNOWN]
        self._split = _SPLITTERS[tokens]
        if tokens == "subwords":
            merge = byte_pairs(self.symbols, self.merges)
            self._split = lambda line: [symbol for chunk in chunks(line) for symbol in merge(chunk)]

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return partial(Vocabulary, **self.description), ()  # the cache of merged chunks cannot be pickled

    def __len__(self) -> int:
        return len(self.symbols)

    @property
    def description(self) -> dict[str, Any]:
        """Arguments of the constructor, for JSON."""
        return {
            "tokens": self.tokens,
            "lower_case": self.lower_case,
            "symbols": list(self.symbols),
            "merges": [list(pair) for pair in self.merges],
        } | ({} if self.segmentation == 1 else {"segmentation": self.segmentation})

    def encode(self, line: str) -> list[int]:
        """Return the ids of a line's tokens, and `<eos>`."""
        line = normal_form(line, lower_case=self.lower_case)
        return [*(self._ids.get(symbol, self.unknown) for symbol in self._split(line)), self.end]


def build_vocabulary(lines: Iterable[str], *, tokens: Tokens, num_tokens: int, lower_case: bool = False) -> Vocabulary:
    """Build the vocabulary of the `num_tokens` most frequent symbols of a training text, including `<eos>` and `<unk>`.

    `<unk>` replaces rare words, so that it occurs in training. `tokens` and `lower_case` are those of `Vocabulary`.
    """
    split = _SPLITTERS[tokens]
    counts: Counter[str] = Counter()
    num_lines = 0
    for line in lines:
        counts.update(split(normal_form(line, lower_case=lower_case)))
        num_lines += 1
    if not counts:
        raise ValueError(f"{num_lines} lines of training text hold no token: the vocabulary would be empty")
    if tokens == "subwords":
        return _subwords(counts, num_lines, num_tokens, lower_case)
    counts[END] += num_lines
    found = f"the training text has {len(counts)} different tokens, including {END}"
    Range(3, len(counts)).check(f"{found}: `encoder.num_tokens`", num_tokens)
    special = {END, UNKNOWN}
    kept = [symbol for symbol in _sort_symbols(counts) if symbol not in special][: num_tokens - len(special)]
    kept_counts = {symbol: counts[symbol] for symbol in (*kept, END)}
    kept_counts[UNKNOWN] = counts.total() - sum(kept_counts.values())
    return Vocabulary(_sort_symbols(kept_counts), tokens, lower_case, segmentation=VERSION)


def _subwords(counts: Counter[str], num_lines: int, num_tokens: int, lower_case: bool) -> Vocabulary:
    characters: Counter[str] = Counter()
    for chunk, count in counts.items():
        for character in chunk:
            characters[character] += count
    alphabet = {character for character, count in characters.items() if count >= MIN_CHARACTER_COUNT}
    found = f"the {len(alphabet)} characters of the training text, {END} and {UNKNOWN} are tokens"
    Range(len(alphabet) + 2).check(f"{found}: `encoder.num_tokens`", num_tokens)
    known = Counter({chunk: count for chunk, count in counts.items() if alphabet.issuperset(chunk)})
    merges = learn_merges(known, alphabet, num_tokens - 2)
    symbols = alphabet | {left + right for left, right in merges}
    found = f"the training text has {len(symbols)} subwords, besides {END} and {UNKNOWN}"
    Range(most=len(symbols) + 2).check(f"{found}: `encoder.num_tokens`", num_tokens)
    merge = byte_pairs(symbols, merges)
    used = Counter(dict.fromkeys(symbols, 0) | {END: num_lines, UNKNOWN: 0})
    for chunk, count in counts.items():
        for symbol in merge(chunk):
            used[symbol if symbol in symbols else UNKNOWN] += count
    return Vocabulary(_sort_symbols(used), "subwords", lower_case, merges, VERSION)


def _sort_symbols(counts: dict[str, int]) -> list[str]:
    """Sort symbols by falling frequency, and symbols of equal frequency by their letters."""
    return sorted(counts, key=lambda symbol: (-counts[symbol], symbol))


def encoder_vocabulary(encoder: Any) -> Vocabulary:
    """Return the vocabulary with which an encoder of tokens was trained."""
    if encoder.vocabulary is None:
        raise ValueError("the model holds no vocabulary, so it cannot read text: it was not trained by cpc pretrain")
    try:
        return Vocabulary(**encoder.vocabulary)
    except TypeError as error:
        raise ValueError(f"the vocabulary in the model's config.json cannot be read: {error}") from error
