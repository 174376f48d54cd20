"""Subwords by byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909): frequent neighbours become one symbol."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from cpc.data.text.segmentation import CHUNK, WORD_START

Pair = tuple[str, str]


def chunks(line: str) -> list[str]:
    """Words and rows of punctuation, `▁` for the white space before them; symbols never cross their borders."""
    return CHUNK.findall("".join(WORD_START + word for word in line.split()))


def learn_merges(counts: Mapping[str, int], num_merges: int) -> list[Pair]:
    """The pairs of neighbours that are joined, the most frequent first, each counted with those before it joined.

    Args:
        counts: how often each chunk occurs.
        num_merges: pairs to find; fewer where no two symbols are neighbours any more.
    """
    symbols = [list(chunk) for chunk in counts]
    weights = list(counts.values())
    pair_counts: Counter[Pair] = Counter()
    holders: dict[Pair, set[int]] = defaultdict(set)
    for chunk, (row, weight) in enumerate(zip(symbols, weights, strict=True)):
        for pair in pairwise(row):
            pair_counts[pair] += weight
            holders[pair].add(chunk)
    # Counts in the heap may be out of date: what comes out is looked at again.
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
        grown: set[Pair] = set()
        for chunk in holders.pop(best):
            before, weight = symbols[chunk], weights[chunk]
            after = join(before, best)
            if len(after) == len(before):
                continue
            pair_counts.subtract({pair: weight * num for pair, num in Counter(pairwise(before)).items()})
            for pair in pairwise(after):
                pair_counts[pair] += weight
                holders[pair].add(chunk)
                grown.add(pair)
            symbols[chunk] = after
        pair_counts[best] = 0
        for pair in grown:
            heapq.heappush(heap, (-pair_counts[pair], pair))
    return merges


class BytePairs:
    """Splits lines into the symbols that merges make.

    Args:
        merges: as `learn_merges` finds them, the first ones joined first.
    """

    def __init__(self, merges: Iterable[Sequence[str]]) -> None:
        self._rank: dict[Pair, int] = {(left, right): rank for rank, (left, right) in enumerate(merges)}
        self._symbols_of: dict[str, list[str]] = {}

    def __call__(self, line: str) -> list[str]:
        """The symbols of a line."""
        return [symbol for chunk in chunks(line) for symbol in self.merge_chunk(chunk)]

    def merge_chunk(self, chunk: str) -> list[str]:
        """The symbols of one chunk; worked out once."""
        if chunk not in self._symbols_of:
            symbols = list(chunk)
            while len(symbols) > 1:
                first = min(pairwise(symbols), key=lambda pair: self._rank.get(pair, len(self._rank)))
                if first not in self._rank:
                    break
                symbols = join(symbols, first)
            self._symbols_of[chunk] = symbols
        return self._symbols_of[chunk]


def join(symbols: list[str], pair: Pair) -> list[str]:
    """The symbols with each occurrence of the pair made one, from the left."""
    joined: list[str] = []
    place = 0
    while place < len(symbols):
        is_pair = symbols[place] == pair[0] and place + 1 < len(symbols) and symbols[place + 1] == pair[1]
        joined.append(pair[0] + pair[1] if is_pair else symbols[place])
        place += 2 if is_pair else 1
    return joined
