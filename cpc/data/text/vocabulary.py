"""Which symbols a text is written in, and the class of each."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from cpc.data.text.byte_pairs import BytePairs, chunks, learn_merges

Tokens = Literal["whitespace", "words", "subwords"]
END, UNKNOWN = "<eos>", "<unk>"
MIN_CHARACTER_COUNT = 2  # rarer ones are unknown, so that <unk> occurs in training
WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")


class Vocabulary:
    """Symbols in the order of how often the training text has them, the most frequent first; `<eos>` ends a line.

    That order is what a log-uniform sampler expects.

    Args:
        symbols: among them `<eos>` and `<unk>`, what any other symbol counts as.
        tokens: `whitespace`: what white space separates (of text that is tokenised already); `words`: words and
            punctuation marks, one by one; `subwords`: byte pairs (`cpc.data.text.byte_pairs`).
        lower_case: whether text is put in lower case first.
        merges: of subwords.

    Raises:
        ValueError: on symbols listed twice, or without `<eos>` or `<unk>`.
    """

    def __init__(
        self,
        symbols: Sequence[str],
        tokens: Tokens = "whitespace",
        lower_case: bool = False,
        merges: Iterable[Sequence[str]] = (),
    ) -> None:
        self.symbols = tuple(symbols)
        self.tokens = tokens
        self.lower_case = lower_case
        self.merges = tuple((left, right) for left, right in merges)
        self._ids = {symbol: place for place, symbol in enumerate(self.symbols)}
        if len(self._ids) < len(self.symbols) or END not in self._ids or UNKNOWN not in self._ids:
            raise ValueError(f"a vocabulary has every symbol once, {END} and {UNKNOWN} among them")
        self.end, self.unknown = self._ids[END], self._ids[UNKNOWN]
        self._split = _splitter(tokens, self.merges)

    def __len__(self) -> int:
        return len(self.symbols)

    @property
    def description(self) -> dict[str, Any]:
        """What builds it again, for JSON."""
        return {
            "tokens": self.tokens,
            "lower_case": self.lower_case,
            "symbols": list(self.symbols),
            "merges": [list(pair) for pair in self.merges],
        }

    def encode(self, line: str) -> list[int]:
        """The classes of a line's tokens, and that of its end."""
        line = line.lower() if self.lower_case else line
        return [*(self._ids.get(symbol, self.unknown) for symbol in self._split(line)), self.end]


def build_vocabulary(lines: Iterable[str], *, tokens: Tokens, num_tokens: int, lower_case: bool = False) -> Vocabulary:
    """The `num_tokens` most frequent symbols of training text, `<eos>` and `<unk>` among them.

    Args:
        lines: of the training split.
        tokens: `whitespace`, `words` or `subwords`, as of `Vocabulary`.
        num_tokens: size of the vocabulary. `<unk>` takes the place of rare words, so it occurs in training.
        lower_case: put the text in lower case first.

    Raises:
        ValueError: if the lines hold no token, or not as many different ones; or, of subwords, if `num_tokens` has no
            room for the characters.
    """
    split: Callable[[str], list[str]] = chunks if tokens == "subwords" else _splitter(tokens, ())
    counts: Counter[str] = Counter()
    num_lines = 0
    for line in lines:
        counts.update(split(line.lower() if lower_case else line))
        num_lines += 1
    if not counts:
        raise ValueError(f"{num_lines} lines of training text hold no token: the vocabulary would be empty")
    if tokens == "subwords":
        return _subwords(counts, num_lines, num_tokens, lower_case)
    counts[END] += num_lines
    if not 3 <= num_tokens <= len(counts):
        raise ValueError(
            f"num_tokens={num_tokens}, but the training text has {len(counts)} different tokens, {END} included: "
            f"set model.encoder.init_args.num_tokens to 3 to {len(counts)}"
        )
    special = {END, UNKNOWN}
    kept = [symbol for symbol, _ in _by_count(counts) if symbol not in special][: num_tokens - len(special)]
    of_kept = {symbol: counts[symbol] for symbol in (*kept, END)}
    of_kept[UNKNOWN] = counts.total() - sum(of_kept.values())
    return Vocabulary([symbol for symbol, _ in _by_count(of_kept)], tokens, lower_case)


def _subwords(counts: Counter[str], num_lines: int, num_tokens: int, lower_case: bool) -> Vocabulary:
    characters: Counter[str] = Counter()
    for chunk, count in counts.items():
        for character in chunk:
            characters[character] += count
    alphabet = {character for character, count in characters.items() if count >= MIN_CHARACTER_COUNT}
    num_merges = num_tokens - len(alphabet) - 2
    if num_merges < 0:
        raise ValueError(
            f"num_tokens={num_tokens}, but the training text is written in {len(alphabet)} characters, which with "
            f"{END} and {UNKNOWN} are {len(alphabet) + 2} subwords already: raise model.encoder.init_args.num_tokens"
        )
    known = Counter({chunk: count for chunk, count in counts.items() if alphabet.issuperset(chunk)})
    merges = learn_merges(known, num_merges)
    # Merges may make one symbol in two ways: what is missing is found further on.
    while len(symbols := alphabet | {left + right for left, right in merges}) + 2 < num_tokens:
        longer = learn_merges(known, len(merges) + num_tokens - 2 - len(symbols))
        if len(longer) == len(merges):
            raise ValueError(
                f"num_tokens={num_tokens}, but the training text gives at most {len(symbols) + 2} subwords, {END} and "
                f"{UNKNOWN} included: lower model.encoder.init_args.num_tokens"
            )
        merges = longer
    pairs = BytePairs(merges)
    used = Counter(dict.fromkeys(symbols, 0) | {END: num_lines, UNKNOWN: 0})
    for chunk, count in counts.items():
        for symbol in pairs.of_chunk(chunk):
            used[symbol if symbol in symbols else UNKNOWN] += count
    return Vocabulary([symbol for symbol, _ in _by_count(used)], "subwords", lower_case, merges)


def _splitter(tokens: str, merges: Iterable[Sequence[str]]) -> Callable[[str], list[str]]:
    if tokens == "subwords":
        return BytePairs(merges)
    return str.split if tokens == "whitespace" else WORD.findall


def _by_count(counts: dict[str, int]) -> list[tuple[str, int]]:
    """The most frequent first; equally frequent ones in the order of their letters, whatever the text's."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
