from collections import Counter, defaultdict
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from scipy.stats import chisquare
from torchdata.stateful_dataloader import StatefulDataLoader

from cpc.data.recordings.windows import WindowDataset
from cpc.data.streams.same_group import SameGroupBatches
from cpc.data.streams.stream import SpreadBatches, UniformBatches

WINDOW = 100


class Ramps:
    """Audio whose samples count 0, 1, 2, ... in each file."""

    sample_rate_hz = 16000

    def __init__(self, num_samples: list[int]) -> None:
        self.num_samples = np.array(num_samples)

    def read(self, file_index: int, start: int, num_samples: int) -> np.ndarray:
        return np.arange(start, min(start + num_samples, self.num_samples[file_index]), dtype=np.float32)


def uniform(num_samples: list[int], batch_size: int = 4, seed: int = 0, **options: int):
    draws = WindowDataset(Ramps(num_samples), WINDOW).draws
    return UniformBatches(**draws, batch_size=batch_size, seed=seed, **options)


def same_speaker(num_samples: list[int], groups: list[int], batch_size: int = 4, **options: Any):
    options = {"seed": 0, "group_ids": np.array(groups), "nouns": ("speaker", "file")} | options
    draws = WindowDataset(Ramps(num_samples), WINDOW).draws
    return SameGroupBatches(**draws, batch_size=batch_size, **options)


LENGTHS = [1000, 250, 99, 0, 730, 100]
SLOTS = {0: 10, 1: 2, 2: 1, 4: 7, 5: 1}


def test_every_pass_covers_the_corpus_once() -> None:
    batches = uniform(LENGTHS, batch_size=4)
    stream = [window for index in range(21) for window in batches.batch(index)]  # 4 passes of 21 windows
    orders = set()
    for start in range(0, 84, 21):
        files = [file for file, _ in stream[start : start + 21]]
        assert Counter(files) == SLOTS
        orders.add(tuple(files))
    assert len(orders) == 4
    assert all(0 <= start <= max(LENGTHS[file] - WINDOW, 0) for file, start in stream)
    assert batches.draws_per_pass == 21


def test_a_part_of_the_corpus_may_be_shuffled_at_a_time() -> None:
    lengths = [WINDOW] * 1600
    batches = uniform(lengths, slots_at_once=160)
    stream = np.array([file for index in range(800) for file, _ in batches.batch(index)]).reshape(2, 1600)
    assert all(sorted(files) == list(range(1600)) for files in stream.tolist())  # each pass covers it once
    for files in stream:
        runs = [np.unique(part) for part in files.reshape(10, 160)]
        assert all(np.count_nonzero(np.diff(part) > 1) <= 16 for part in runs)  # neighbours come together
        assert all(np.mean(np.abs(np.diff(part)) < 20) < 0.3 for part in files.reshape(10, 160))  # yet are mixed
    assert (stream[0] != stream[1]).mean() > 0.99
    refuses("slots_at_once=15 must be at least 16", uniform, lengths, slots_at_once=15)
    refuses("slots_at_once", batches.load_state_dict, uniform(lengths).state_dict())


def test_starts_are_uniform() -> None:
    """1 100 possible starts (0..1099) in 11 cells of 100: chi-square, and both ends are reached."""
    batches = uniform([1199], batch_size=1100)
    starts = np.array([start for index in range(50) for _, start in batches.batch(index)])
    assert chisquare(np.bincount(starts // 100, minlength=11)).pvalue > 1e-3
    assert starts.min() == 0
    assert starts.max() == 1099


def test_a_batch_is_a_pure_function_of_seed_index_rank_and_world_size() -> None:
    expected = [uniform(LENGTHS).batch(index) for index in range(30)]
    batches = uniform(LENGTHS)
    for index in [29, 3, 17, 0, 3]:
        np.random.seed(index)
        assert batches.batch(index) == expected[index]
    assert uniform(LENGTHS, seed=1).batch(0) != expected[0]
    # Two ranks share the stream: together they see what one would.
    for index in range(15):
        for rank in (0, 1):
            assert uniform(LENGTHS, rank=rank, world_size=2).batch(index) == expected[2 * index + rank]


def test_a_state_continues_where_it_was_taken() -> None:
    expected = [uniform(LENGTHS).batch(index) for index in range(20)]
    batches = uniform(LENGTHS)
    assert list(islice(batches, 7)) == expected[:7]
    state = batches.state_dict()
    fresh = uniform(LENGTHS)
    fresh.load_state_dict(state)
    assert list(islice(fresh, 3)) == expected[7:10]
    assert list(islice(fresh, 5)) == expected[10:15]
    older = uniform(LENGTHS)  # a checkpoint that counts in rounds
    older.load_state_dict(state | {"round_start": 5, "position": 2})
    assert next(iter(older)) == expected[7]


def test_any_number_of_processes_may_go_on_with_the_batches_that_they_share() -> None:
    one = uniform(LENGTHS)
    next(islice(one, 1, 2))
    halves = [uniform(LENGTHS, batch_size=2, world_size=2, rank=rank) for rank in (0, 1)]
    for half in halves:
        half.load_state_dict(one.state_dict())
    assert [first + second for first, second in islice(zip(*halves, strict=True), 8)] == list(islice(one, 8))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 1}, r"seed 0 -> 1"),
        ({"batch_size": 8}, r"batch_size of all processes 4 -> 8"),
        ({"world_size": 2}, r"batch_size of all processes 4 -> 8"),
        ({"num_samples": [*LENGTHS, 500]}, r"recordings '\w+' -> '\w+'"),
    ],
)
def test_a_state_of_another_stream_is_refused(changed: dict[str, Any], message: str) -> None:
    state = uniform(LENGTHS).state_dict()
    refuses(message, uniform(**({"num_samples": LENGTHS} | changed)).load_state_dict, state)
    refuses(r"sampler 'UniformBatches' -> 'SameGroupBatches'", same_speaker([200, 200], [0, 0]).load_state_dict, state)
    draws = WindowDataset(Ramps(LENGTHS), WINDOW + 1).draws
    other = UniformBatches(**draws, batch_size=4, seed=0)
    refuses(r"window_samples 100 -> 101", other.load_state_dict, state)


def test_arguments_out_of_range() -> None:
    refuses("batch_size=0", uniform, LENGTHS, batch_size=0)
    refuses("seed=-1", uniform, LENGTHS, seed=-1)
    refuses("the rank=2 must be at least 0 and at most 1", uniform, LENGTHS, rank=2, world_size=2)
    refuses("none of the 2 recordings holds a sample", uniform, [0, 0])


def make_loader(batches: Any, num_workers: int) -> StatefulDataLoader:
    options = {"batch_sampler": batches, "num_workers": num_workers, "collate_fn": lambda whole: whole}
    generator = torch.Generator().manual_seed(0)
    return StatefulDataLoader(WindowDataset(Ramps(LENGTHS), WINDOW), generator=generator, **options)


def seen(batch: Any) -> tuple[list[int], list[float]]:
    return batch.sequence_id.tolist(), batch.x[:, 0].tolist()


# torchdata 0.11 calls a function that torch 2.14 deprecates; nothing replaces it.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize(("kind", "num_workers"), [("uniform", 0), ("same_speaker", 0), ("uniform", 2)])
def test_a_loader_resumes_at_the_next_batch(kind: str, num_workers: int) -> None:
    """What prefetching workers have drawn already must not shift the position."""

    def sampler() -> Any:
        return uniform(LENGTHS) if kind == "uniform" else same_speaker(LENGTHS, [0, 0, 1, 1, 1, 0])

    draws = [sampler().batch(index) for index in range(12)]
    expected = [([f for f, _ in batch], [float(s) for _, s in batch]) for batch in draws]
    global_state = torch.get_rng_state()
    for num_consumed in (1, 6) if num_workers else (0, 1, 6):  # workers take a while to start
        loader = make_loader(sampler(), num_workers)
        iterator = iter(loader)
        assert [seen(batch) for batch in islice(iterator, num_consumed)] == expected[:num_consumed]
        resumed = make_loader(sampler(), num_workers)
        resumed.load_state_dict(loader.state_dict())
        assert [seen(batch) for batch in islice(resumed, 4)] == expected[num_consumed : num_consumed + 4]
    assert torch.equal(torch.get_rng_state(), global_state)


def check_same_speaker_pass(
    num_samples: list[int], groups: list[int], batch_size: int, speakers_per_batch: int, distinct: bool
) -> None:
    """One pass: who is in each batch, in equal parts, with two files where asked; and every slot comes."""
    batches = same_speaker(
        num_samples, groups, batch_size, groups_per_batch=speakers_per_batch, require_distinct_items=distinct
    )
    assert batches.draws_per_pass % batch_size == 0
    part = batch_size // speakers_per_batch
    counts: Counter[int] = Counter()
    for index in range(batches.draws_per_pass // batch_size):
        files_of = defaultdict(list)
        for file, start in batches.batch(index):
            assert 0 <= start <= max(num_samples[file] - WINDOW, 0)
            files_of[groups[file]].append(file)
            counts[file] += 1
        assert len(files_of) == speakers_per_batch
        assert all(len(files) == part for files in files_of.values())
        if distinct:
            assert all(len(set(files)) >= 2 for files in files_of.values())
    for file, length in enumerate(num_samples):
        assert counts[file] >= (max(1, length // WINDOW) if length else 0)
        assert (counts[file] > 0) == (length > 0)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_same_speaker_batches_for_any_corpus(data: st.DataObject) -> None:
    speakers_per_batch = data.draw(st.integers(1, 4), "speakers per batch")
    part = data.draw(st.integers(2, 5), "part")
    distinct = data.draw(st.booleans(), "distinct files")
    num_samples, groups = [], []
    for speaker in range(data.draw(st.integers(speakers_per_batch, 7), "speakers")):
        lengths = data.draw(st.lists(st.integers(1, 3000), min_size=2 if distinct else 1, max_size=5), "lengths")
        num_samples += lengths
        groups += [speaker] * len(lengths)
    order = np.random.default_rng(0).permutation(len(groups))
    num_samples, groups = [num_samples[i] for i in order] + [0], [groups[i] for i in order] + [-1]
    check_same_speaker_pass(num_samples, groups, part * speakers_per_batch, speakers_per_batch, distinct)


def test_a_speaker_with_one_long_file_still_meets_another() -> None:
    check_same_speaker_pass([50_000, 10, 300, 300], [0, 0, 1, 1], 4, 1, distinct=True)
    check_same_speaker_pass([50_000, 10, 300, 300], [0, 0, 1, 1], 4, 2, distinct=True)


def test_a_pass_repeats_little_when_speakers_are_alike() -> None:
    lengths, groups = [730] * 60, [file % 12 for file in range(60)]
    for speakers_per_batch in (1, 2, 4):
        batches = same_speaker(lengths, groups, 8, groups_per_batch=speakers_per_batch)
        assert batches.draws_per_pass <= 1.2 * 60 * 7


def test_speakers_meet_different_speakers_in_every_pass() -> None:
    lengths, groups = [400] * 40, [file % 10 for file in range(40)]
    batches = same_speaker(lengths, groups, 4, groups_per_batch=2)
    per_pass = batches.draws_per_pass // 4
    pairs = [frozenset(groups[file] for file, _ in batches.batch(index)) for index in range(20 * per_pass)]
    assert len(set(pairs)) == 45  # all pairs of 10


def test_same_speaker_batches_are_pure_and_shared_by_ranks() -> None:
    lengths, groups = [300, 500, 700, 900] * 3, [0, 0, 1, 1] * 3
    expected = [same_speaker(lengths, groups).batch(index) for index in range(40)]
    batches = same_speaker(lengths, groups)
    assert [batches.batch(index) for index in (39, 0, 7)] == [expected[39], expected[0], expected[7]]
    halves = [same_speaker(lengths, groups, 2, groups_per_batch=1, rank=rank, world_size=2) for rank in (0, 1)]
    for index in range(40):
        assert halves[0].batch(index) + halves[1].batch(index) == halves[1].of_all_ranks(index) == expected[index]
    assert same_speaker(lengths, groups, seed=5).batch(0) != expected[0]


def test_speakers_that_do_not_fit_are_named() -> None:
    lengths, groups = [300] * 5, [0, 0, 1, 2, 2]
    refuses(r"single file:\n  bert\n.*`loss", same_speaker, lengths, groups, group_names=["anna", "bert", "cleo"])
    refuses(r"single file:\n  1\n", same_speaker, lengths, groups)
    refuses(r"7 speakers have a single file:\n  0\n(.|\n)* 2 more", same_speaker, [300] * 7, list(range(7)))
    # One of two files is empty: that leaves a single one.
    refuses(r"single file:\n  1\n", same_speaker, [300, 300, 300, 0], [0, 0, 1, 1])
    check_same_speaker_pass(lengths, groups, 4, 1, distinct=False)
    refuses(r"2 of 5 files have no speaker", same_speaker, lengths, [0, 0, -1, -1, 0])
    refuses(r"=2, but there are only 1 speakers", same_speaker, [300, 300], [7, 7], groups_per_batch=2)
    refuses(r"batch_size=4 with speakers_per_batch=3", same_speaker, lengths, groups, groups_per_batch=3)
    refuses(r"speakers_per_batch=4: .* at least 2 windows", same_speaker, lengths, groups, groups_per_batch=4)
    refuses(r"the batch of 3 processes", same_speaker, lengths, groups, 1, groups_per_batch=2, world_size=3)
    refuses(r"group_ids has 2 entries for 5", same_speaker, lengths, [0, 0])
    one, two = (same_speaker([300] * 4, [0, 0, 1, 1], groups_per_batch=num) for num in (1, 2))
    refuses(r"speakers_per_batch 1 -> 2", two.load_state_dict, one.state_dict())


def test_a_stream_needs_no_modality() -> None:
    """Anything with slots and starts can be drawn; without `made_from` the fingerprint is of these."""
    options = {"batch_size": 3, "seed": 0}
    batches = UniformBatches(np.array([2, 0, 1]), 5, **options)
    drawn = [draw for batch in islice(batches, 10) for draw in batch]
    assert Counter(item for item, _ in drawn) == {0: 20, 2: 10}
    assert {start for _, start in drawn} == set(range(5))
    refuses(r"items '\w+' ->", UniformBatches(np.array([2, 0, 1]), 6, **options).load_state_dict, batches.state_dict())
    refuses("none of the 2 items has a slot", UniformBatches, np.zeros(2), 1, **options)
    options = {"num_starts": 1, "batch_size": 2, "seed": 0}
    refuses("2 of 3 items have no group", SameGroupBatches, np.array([0, -1, -1]), num_slots=np.ones(3), **options)
    refuses("batch_size=2 on 2 processes exceeds the 3 items", SpreadBatches, np.arange(3), world_size=2, **options)
