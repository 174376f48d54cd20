"""Subwords by byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909): frequent pairs become one symbol."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from cpc.config.extras import install_hint
from cpc.data.text.segmentation import CHUNK, WORD_START

Pair = tuple[str, str]
_UNKNOWN = "<unk>"
_SEPARATOR = "\n"  # separator of chunks, because no line contains it


def chunks(line: str) -> list[str]:
    """Split a line into chunks, from which symbols are cut: words and punctuation, with `▁` for white space before."""
    return CHUNK.findall("".join(WORD_START + word for word in line.split()))


def learn_merges(counts: Mapping[str, int], alphabet: Collection[str], num_symbols: int) -> list[Pair]:
    """Return the pairs of adjacent symbols to merge. Each is the most frequent pair after all earlier merges.

    Among equally frequent pairs, the pair of older symbols is first; characters are the oldest symbols, in the order of
    Unicode.

    Args:
        counts: number of occurrences of each chunk.
        alphabet: the characters, which are the first symbols.
        num_symbols: number of different symbols, including characters. The result has fewer symbols if no adjacent
            symbols are left to merge.

    Raises:
        ValueError: if `tokenizers` is not installed.
    """
    package = _tokenizers()
    learner = package.Tokenizer(package.models.BPE())
    learner.pre_tokenizer = package.pre_tokenizers.CharDelimiterSplit(_SEPARATOR)
    trainer = package.trainers.BpeTrainer(vocab_size=num_symbols, initial_alphabet=list(alphabet), show_progress=False)
    learner.train_from_iterator((_SEPARATOR.join([chunk] * count) for chunk, count in counts.items()), trainer)
    return [(left, right) for left, right in json.loads(learner.to_str())["model"]["merges"]]


class BytePairs:
    """Splits lines into subwords by a list of merges.

    Args:
        symbols: all symbols, including characters; other characters become `<unk>`.
        merges: merges of `learn_merges`, applied in their order.

    Raises:
        ValueError: if `tokenizers` is not installed, or a merge is not made of the symbols.
    """

    def __init__(self, symbols: Iterable[str], merges: Iterable[Sequence[str]]) -> None:
        ids = {symbol: i for i, symbol in enumerate(dict.fromkeys([_UNKNOWN, *symbols]))}
        package = _tokenizers()
        try:
            self._model = package.models.BPE(ids, [(left, right) for left, right in merges], unk_token=_UNKNOWN)
        except Exception as error:  # the package does not raise a narrower class
            raise ValueError(f"the merges of subwords do not fit their symbols: {error}") from error
        self._chunk_symbols: dict[str, list[str]] = {}

    def __call__(self, line: str) -> list[str]:
        """Return the symbols of a line."""
        return [symbol for chunk in chunks(line) for symbol in self.merge_chunk(chunk)]

    def merge_chunk(self, chunk: str) -> list[str]:
        """Return the symbols of one chunk; they are cached."""
        if chunk not in self._chunk_symbols:
            self._chunk_symbols[chunk] = [token.value for token in self._model.tokenize(chunk)]
        return self._chunk_symbols[chunk]


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ValueError(f"subwords need the package `tokenizers`: {install_hint('text')}") from error
    return tokenizers
