"""Subwords by byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909): frequent pairs become one symbol."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from cpc.data.text.segmentation import CHUNK, WORD_START

Pair = tuple[str, str]


def chunks(line: str) -> list[str]:
    """Split a line into words and runs of punctuation, with `▁` for white space before them; symbols lie in chunks."""
    return CHUNK.findall("".join(WORD_START + word for word in line.split()))


def learn_merges(counts: Mapping[str, int], num_merges: int) -> list[Pair]:
    """Return the pairs of adjacent symbols to merge, the most frequent first, counted after all earlier merges.

    Args:
        counts: number of occurrences of each chunk.
        num_merges: number of pairs; fewer are returned if no two symbols are adjacent any more.
    """
    symbols = [list(chunk) for chunk in counts]
    weights = list(counts.values())
    pair_counts: Counter[Pair] = Counter()
    pair_chunks: dict[Pair, set[int]] = defaultdict(set)
    for chunk, (chunk_symbols, weight) in enumerate(zip(symbols, weights, strict=True)):
        for pair in pairwise(chunk_symbols):
            pair_counts[pair] += weight
            pair_chunks[pair].add(chunk)
    # Counts in the heap may be out of date, so each popped count is compared with `pair_counts`.
    heap = [(-count, pair) for pair, count in pair_counts.items()]
    heapq.heapify(heap)
    merges: list[Pair] = []
    while heap and len(merges) < num_merges:
        negated, best = heapq.heappop(heap)
        if pair_counts[best] != -negated:
            if pair_counts[best] > 0:
                heapq.heappush(heap, (-pair_counts[best], best))
            continue
        merges.append(best)
        changed: set[Pair] = set()
        for chunk in pair_chunks.pop(best):
            before, weight = symbols[chunk], weights[chunk]
            after = join(before, best)
            if len(after) == len(before):
                continue
            pair_counts.subtract({pair: weight * num for pair, num in Counter(pairwise(before)).items()})
            for pair in pairwise(after):
                pair_counts[pair] += weight
                pair_chunks[pair].add(chunk)
                changed.add(pair)
            symbols[chunk] = after
        pair_counts[best] = 0
        for pair in changed:
            heapq.heappush(heap, (-pair_counts[pair], pair))
    return merges


class BytePairs:
    """Splits lines into subwords by a list of merges.

    Args:
        merges: merges of `learn_merges`, applied in their order.
    """

    def __init__(self, merges: Iterable[Sequence[str]]) -> None:
        self._rank: dict[Pair, int] = {(left, right): rank for rank, (left, right) in enumerate(merges)}
        self._chunk_symbols: dict[str, list[str]] = {}

    def __call__(self, line: str) -> list[str]:
        """Return the symbols of a line."""
        return [symbol for chunk in chunks(line) for symbol in self.merge_chunk(chunk)]

    def merge_chunk(self, chunk: str) -> list[str]:
        """Return the symbols of one chunk; they are cached."""
        if chunk not in self._chunk_symbols:
            symbols = list(chunk)
            while len(symbols) > 1:
                first = min(pairwise(symbols), key=lambda pair: self._rank.get(pair, len(self._rank)))
                if first not in self._rank:
                    break
                symbols = join(symbols, first)
            self._chunk_symbols[chunk] = symbols
        return self._chunk_symbols[chunk]


def join(symbols: list[str], pair: Pair) -> list[str]:
    """Merge each occurrence of a pair of symbols into one symbol, from the left."""
    joined: list[str] = []
    i = 0
    while i < len(symbols):
        is_pair = symbols[i] == pair[0] and i + 1 < len(symbols) and symbols[i + 1] == pair[1]
        joined.append(pair[0] + pair[1] if is_pair else symbols[i])
        i += 2 if is_pair else 1
    return joined
