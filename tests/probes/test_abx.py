"""ABX tests against loops over triplets, and fractions worked out by hand."""

import itertools
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses

from cpc.data.audio.items import Items
from cpc.data.features import Features, RecordingFeatures
from cpc.probes.abx import ABXProtocol, Spans, abx_errors, frames_of_items
from cpc.probes.abx.alignment import alignment_distances, angles, mean_along_alignment
from cpc.probes.abx.errors import abx_error
from cpc.probes.store import FeatureStore

ALL = ABXProtocol(max_size_group=10_000, max_x_across=10_000)


def items_of(labels: list[tuple[str, str, str]]) -> Items:
    contexts, speakers, phones = (list(column) for column in zip(*labels, strict=True))
    seconds = np.arange(len(labels), dtype=float)
    return Items(["file"] * len(labels), seconds, seconds + 1, phones, contexts, contexts, speakers)


def at_angles(*degrees: float) -> np.ndarray:
    return np.stack([np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))], 1).astype(np.float32)


def single_frames(count: int) -> Spans:
    return Spans(np.arange(count), np.ones(count, np.int64))


def drawn(num_items: int, num_labels: int, longest: int, dim: int, seed: int, values: list[float] | None = None) -> Any:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, num_items)
    shape = (int(lengths.sum()), dim)
    vectors = (rng.standard_normal(shape) if values is None else rng.choice(values, shape)).astype(np.float32)
    labels = [tuple(f"{kind}{rng.integers(num_labels)}" for kind in "csp") for _ in range(num_items)]
    return vectors, Spans(np.cumsum(lengths) - lengths, lengths), items_of(labels)


def angle(x: np.ndarray, y: np.ndarray) -> float:
    """By loops, on the grid of 2^-20."""
    norms = np.linalg.norm(x), np.linalg.norm(y)
    if 0 in norms:
        return float(norms[0] != norms[1])
    cosine = sum(float(a) * float(b) for a, b in zip(x, y, strict=True)) / float(norms[0] * norms[1])
    return round(math.acos(min(max(cosine, -1), 1)) / math.pi * 2**20) / 2**20


def aligned(distances: list[list[float]]) -> float:
    """Dynamic time warping by the book: the table of costs, then the way back."""
    num_x, num_y = len(distances), len(distances[0])
    cost = {(-1, -1): 0.0}
    for i, j in itertools.product(range(num_x), range(num_y)):
        before = [cost.get(place, math.inf) for place in ((i - 1, j - 1), (i, j - 1), (i - 1, j))]
        cost[i, j] = distances[i][j] + min(before)
    i, j, length = num_x - 1, num_y - 1, 1
    while (i, j) != (0, 0):
        # `min` takes the first of equals
        i, j = min(((i - 1, j - 1), (i, j - 1), (i - 1, j)), key=lambda place: cost.get(place, math.inf))
        length += 1
    return cost[num_x - 1, num_y - 1] / length


def distance(vectors: np.ndarray, spans: Spans, x: int, y: int) -> float:
    of_x, of_y = (vectors[spans.starts[i] : spans.starts[i] + spans.lengths[i]].astype(float) for i in (x, y))
    return aligned([[angle(u, v) for v in of_y] for u in of_x])


def errors_by_loops(vectors: np.ndarray, spans: Spans, items: Items) -> dict[str, float]:
    """All triplets one by one; a cell's mean, then over contexts, speakers and pairs of phones."""
    label = list(zip(items.previous, items.speakers, items.phones, strict=True))
    far = {(x, y): distance(vectors, spans, x, y) for x, y in itertools.product(range(len(items)), repeat=2) if x != y}
    cells: dict[str, Any] = {"within": defaultdict(list), "across": defaultdict(list)}
    for a, b, x in itertools.product(range(len(items)), repeat=3):
        (context, speaker, phone), (_, _, other), (_, of_x, _) = label[a], label[b], label[x]
        if label[b] == (context, speaker, other) and label[x] == (context, of_x, phone) and other != phone and x != a:
            to_a, to_b = far[min(a, x), max(a, x)] if of_x == speaker else far[x, a], far[x, b]
            wrong = 1.0 if to_a > to_b else 0.5 if to_a == to_b else 0.0
            cells["within" if of_x == speaker else "across"][phone, other, speaker, context, of_x].append(wrong)
    found = {}
    for mode, of_mode in cells.items():
        means = {key: float(np.mean(wrong)) for key, wrong in of_mode.items()}
        for num_kept in (3, 2):  # drop context and X's speaker, then the speaker
            above = defaultdict(list)
            for key, mean in means.items():
                above[key[:num_kept]].append(mean)
            means = {key: float(np.mean(of_key)) for key, of_key in above.items()}
        found[mode] = 100 * float(np.mean(list(means.values())))
    return found


def test_angles() -> None:
    x, y = at_angles(0, 90), np.concatenate([at_angles(45, 180, 270), np.zeros((1, 2), np.float32)])
    found = angles(torch.from_numpy(5 * x)[None].double(), torch.from_numpy(y)[None].double())
    np.testing.assert_allclose(found[0], [[0.25, 1, 0.5, 1], [0.25, 0.5, 1, 1]], atol=1e-6)
    nothing = torch.zeros(1, 1, 2, dtype=torch.float64)
    assert angles(nothing, nothing) == 0
    random = torch.randn(1, 9, 300)
    same = angles(random.double(), random.double())[0]
    assert (same.diagonal() == 0).all()
    assert (same == same.T).all()


def test_alignments_by_hand() -> None:
    def mean(distances: list[list[float]]) -> float:
        table = torch.tensor([distances], dtype=torch.float64)
        return float(mean_along_alignment(table, torch.tensor([table.shape[1]]), torch.tensor([table.shape[2]])))

    assert mean([[0.25]]) == 0.25
    assert mean([[0.25, 0.5, 0.75]]) == 0.5
    assert mean([[0, 1], [1, 0]]) == 0  # two steps of both
    assert mean([[0, 0.25], [1, 0.5]]) == 0.25  # the step of both costs less than the two around it
    assert mean([[0.5, 0, 1], [1, 0, 0.5]]) == 1 / 3  # as dear as the way of four frames: the step of both goes first
    assert mean([[0, 0], [1, 0], [1, 1]]) == pytest.approx(1 / 3)


@pytest.mark.parametrize("grid", [4, 2**20])
def test_alignments_against_the_book(grid: int) -> None:
    """With coarse distances most paths tie, and their lengths differ."""
    rng = np.random.default_rng(grid)
    tables = [rng.integers(0, grid + 1, rng.integers(1, 9, 2)) / grid for _ in range(200)]
    padded = torch.full((200, 8, 8), math.nan, dtype=torch.float64)
    for row, table in zip(padded, tables, strict=True):
        row[: table.shape[0], : table.shape[1]] = torch.from_numpy(table)
    padded = padded.nan_to_num(0.1)
    found = mean_along_alignment(padded, *(torch.tensor([table.shape[axis] for table in tables]) for axis in (0, 1)))
    np.testing.assert_allclose(found, [aligned(table.tolist()) for table in tables], rtol=1e-12)


def test_distances_of_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches of a few."""
    monkeypatch.setattr("cpc.probes.abx.alignment._BATCH_VALUES", 500)
    vectors, spans, _ = drawn(30, 1, 7, 3, seed=0, values=[-1, 0, 1])
    pairs = np.random.default_rng(0).integers(0, 30, (100, 2))
    found = alignment_distances(vectors, *spans, pairs, progress=False)
    np.testing.assert_allclose(found, [distance(vectors, spans, x, y) for x, y in pairs.tolist()], rtol=1e-12)


@pytest.mark.parametrize("values", [None, [0, 1]])
def test_errors_against_all_triplets_one_by_one(values: list[float] | None) -> None:
    vectors, spans, items = drawn(60, 3, 4, 3, seed=1, values=values)
    found = abx_errors(vectors, spans, items, ALL)
    expected = errors_by_loops(vectors, spans, items)
    for mode in ("within", "across"):
        assert found[mode] is not None
        assert found[mode].error_percent == pytest.approx(expected[mode])  # type: ignore[union-attr]


def test_fractions_by_hand() -> None:
    """p at 0 and 10 degrees, q at 4 and 90; another speaker's p at 2.

    Within, A of p: X at 0 and A at 10 are further apart than B at 4, not than B at 90; from X at 10 likewise: 2 of 4.
    A of q: X at 4 is closer to both p, X at 90 closer to the one at 10: 3 of 4. Across, X at 2: as far from A at 0
    as from B at 4, a half; further from A at 10, a whole; nearer to both than to B at 90: 3/2 of 4.
    """
    labels = [("c", "s", "p"), ("c", "s", "p"), ("c", "s", "q"), ("c", "s", "q"), ("c", "t", "p")]
    found = abx_errors(at_angles(0, 10, 4, 90, 2), single_frames(5), items_of(labels))
    within, across = found["within"], found["across"]
    assert within.error_percent == pytest.approx(100 * (2 / 4 + 3 / 4) / 2)
    assert across.error_percent == pytest.approx(100 * 1.5 / 4)
    assert (within.num_triplets, within.num_cells, within.num_phone_pairs, within.num_speakers) == (8, 2, 2, 1)
    assert (across.num_triplets, across.num_cells, across.num_phone_pairs) == (4, 1, 1)
    assert within.interval_percent is None


def test_averages_of_cells() -> None:
    """Cells of given errors: a group of one A, one B and one X each, distances 0 or 1."""
    labels = list(zip("cccdddeee", "sstsstuut", "pqppqppqp", strict=True))
    groups = {label: np.array([item]) for item, label in enumerate(labels)}
    cells = [(labels[x], labels[x - 2], labels[x - 1]) for x in (2, 5, 8)]
    to_a = {2: 1.0, 5: 0.0, 8: 1.0}

    def distances(pairs: np.ndarray) -> np.ndarray:
        return np.array([to_a[x] if other in (0, 3, 6) else 0.5 for x, other in pairs.tolist()])

    found = abx_error(groups, cells, distances)
    # speaker s errs in one context of two, speaker u in its only one
    assert found.error_percent == pytest.approx(100 * (1 / 2 + 1) / 2)
    assert found.interval_percent[0] <= found.error_percent <= found.interval_percent[1]


def test_random_features_err_in_half_of_the_triplets() -> None:
    vectors, spans, items = drawn(1500, 4, 6, 8, seed=3)
    found = [error.error_percent for error in abx_errors(vectors, spans, items).values() if error]
    assert found == pytest.approx([50, 50], abs=1.5)  # over seeds: 0.5 within speakers and 0.3 across


def test_constant_features_err_in_exactly_half() -> None:
    """A collapsed encoder: rounding must not decide."""
    _, spans, items = drawn(300, 3, 9, 1, seed=4)
    vectors = np.tile(np.random.default_rng(0).standard_normal(100).astype(np.float32), (3000, 1))
    assert [found.error_percent for found in abx_errors(vectors, spans, items).values() if found] == [50, 50]


def test_contexts_are_kept_apart_unless_any_will_do() -> None:
    labels = [("c", "s", "p"), ("d", "s", "p"), ("e", "s", "q"), ("c", "t", "p")]
    vectors, spans = at_angles(0, 1, 90, 2), single_frames(4)
    assert abx_errors(vectors, spans, items_of(labels)) == {"within": None, "across": None}
    found = abx_errors(vectors, spans, items_of(labels), ABXProtocol(context="any"))
    assert [error.num_triplets for error in found.values() if error] == [2, 2]


def test_large_groups_are_drawn_from() -> None:
    vectors, spans, items = drawn(400, 2, 2, 3, seed=5)
    few, other = ABXProtocol(max_size_group=3, max_x_across=1), ABXProtocol("within", 3, 1, seed=1)
    found = [abx_errors(vectors, spans, items, protocol) for protocol in (few, few, other)]
    within, across = found[0]["within"], found[0]["across"]
    assert within.num_triplets == within.num_cells * 3 * 2 * 3
    assert across.num_triplets == across.num_cells * 3 * 3 * 3
    assert found[0] == found[1] != found[2]


def test_items_without_frames_are_left_out() -> None:
    labels = [("c", "s", "p"), ("c", "s", "p"), ("c", "s", "q"), ("c", "s", "q")]
    spans = Spans(np.arange(4), np.array([1, 1, 1, 0]))
    within = abx_errors(at_angles(0, 10, 4, 90), spans, items_of(labels))["within"]
    assert (within.error_percent, within.num_triplets) == (100, 2)
    empty = Spans(np.arange(4), np.zeros(4, np.int64))
    assert abx_errors(at_angles(0, 10, 4, 90), empty, items_of(labels)) == {"within": None, "across": None}


def test_frames_that_say_nothing_are_refused() -> None:
    labels = [("c", "s", "p"), ("c", "s", "p"), ("c", "s", "q"), ("c", "s", "q")]
    vectors, items = at_angles(0, 10, 4, 90), items_of(labels)
    for value in (np.nan, np.inf):
        broken = vectors.copy()
        broken[2, 0] = value
        refuses("item 2 needs finite frames 2 to 3", abx_errors, broken, single_frames(4), items)
    refuses("the number of spans=3 must be 4", abx_errors, vectors, single_frames(3), items)
    refuses("item 3 needs .* of the 4 frames", abx_errors, vectors, Spans(np.arange(4), np.array([1, 1, 1, 2])), items)


def test_frames_of_an_item_have_their_centres_in_it() -> None:
    times = Features("mfcc", sample_rate_hz=16000)
    times.first_centre_samples = 80.0
    vectors = {"c": np.zeros((305, 1), np.float32)}
    store = FeatureStore(RecordingFeatures([], times, None), np.arange(3), np.array([10, 90, 5]), vectors)
    onsets = np.array([0.0, 0.005, 0.006, 0.0149, 0.03, 0.03])
    offsets = np.array([0.025, 0.015, 0.015, 0.0151, 9.0, 9.0])
    items = Items(["f"] * 6, onsets, offsets, *[["x"] * 6] * 4)
    spans = frames_of_items(items, np.array([0, 0, 0, 0, 0, 2]), store)
    # centres at 5, 15, 25 ms ...: an onset belongs to its item, an offset does not
    assert list(zip(*spans, strict=True)) == [(0, 2), (0, 1), (1, 0), (1, 1), (3, 7), (103, 2)]
