"""Batch samplers that resume exactly: batch number i of a rank depends on (seed, i, rank, world_size) and nothing else.

Windows are drawn in endless passes over the corpus. In each pass a file of L samples has max(1, L // window) slots, and
each slot becomes a window at a uniformly random start in its file. Ranks take turns: rank r's batch i is batch
i * world_size + r of the stream.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from cpc.data.streams.resuming import check_same_batches

# (file index, first sample)
Window = tuple[int, int]

# Swaps that each batch takes part in: 20 mix 10 speakers so far that all pairs of them meet (test_batches.py).
_NUM_SWAPS = 20


@contextmanager
def naming(split: str | None) -> Iterator[None]:
    """Begin what is wrong with batches with the split that they are of; None: all files."""
    try:
        yield
    except ValueError as error:
        whose = "all files" if split is None else f"split {split!r}"
        raise ValueError(f"{whose}: {error}") from error


class _BatchStream:
    """The endless stream of batches, cut into rounds of `num_batches`, and the position in it.

    `windows_per_pass` windows are drawn in one pass over the corpus, by all ranks together; they fill its `num_slots`
    slots, some of them more than once where batches of same speakers need it.

    A round that was not finished starts again at its first batch with the next `iter`, unless a state was loaded: then
    it goes on from there. A finished round is followed by the next part of the stream.
    """

    def __init__(
        self,
        audio_num_samples: np.ndarray,
        window_samples: int,
        batch_size: int,
        num_batches: int,
        seed: int,
        rank: int,
        world_size: int,
    ) -> None:
        for name, value in (
            ("window_samples", window_samples),
            ("batch_size", batch_size),
            ("num_batches", num_batches),
        ):
            if value < 1:
                raise ValueError(f"{name}={value}, but must be at least 1")
        if seed < 0:
            raise ValueError(f"seed={seed}, but must not be negative")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank}, but must lie in 0..{world_size - 1} (world_size={world_size})")
        num_samples = np.asarray(audio_num_samples, np.int64)
        if not num_samples.any():
            raise ValueError(f"none of the {len(num_samples)} audio files holds a sample, so there is nothing to draw")
        self.batch_size = batch_size
        self.num_batches = num_batches
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self._num_slots = np.where(num_samples > 0, np.maximum(num_samples // window_samples, 1), 0)
        self._num_starts = np.maximum(num_samples - window_samples, 0) + 1
        self.num_slots = self.windows_per_pass = int(self._num_slots.sum())
        self._passes: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._round_start = 0
        self._position = 0
        self._is_resumed = False
        # What a state must agree on; the rank is not in it, since all ranks resume from one state.
        self._fingerprint: dict[str, Any] = {
            "sampler": type(self).__name__,
            "seed": seed,
            "batch_size": batch_size,
            "window_samples": window_samples,
            "world_size": world_size,
            "audio_files": _hash(num_samples),
        }

    def batch(self, index: int) -> list[Window]:
        """Batch number `index` of this rank: a pure function of (seed, index, rank, world_size)."""
        first = (index * self.world_size + self.rank) * self.batch_size
        last = first + self.batch_size
        windows: list[Window] = []
        for number in range(first // self.windows_per_pass, (last - 1) // self.windows_per_pass + 1):
            offset = number * self.windows_per_pass
            part = slice(max(first - offset, 0), last - offset)
            files, starts = self._pass(number)
            windows += zip(files[part].tolist(), starts[part].tolist(), strict=True)
        return windows

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[Window]]:
        if not self._is_resumed:
            self._position = 0
        self._is_resumed = False
        while self._position < self.num_batches:
            batch = self.batch(self._round_start + self._position)
            self._position += 1
            yield batch
        self._round_start += self._position
        self._position = 0

    def state_dict(self) -> dict[str, Any]:
        """The position of the next batch, and what the stream was made from."""
        return {"round_start": self._round_start, "position": self._position, "fingerprint": dict(self._fingerprint)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state.

        Raises:
            ValueError: if the state belongs to another stream: another seed, batch size, window, world size or corpus.
        """
        check_same_batches(state["fingerprint"], self._fingerprint)
        self._round_start = state["round_start"]
        self._position = state["position"]
        self._is_resumed = True

    def _draw_files(self, rng: np.random.Generator) -> np.ndarray:
        """`[windows_per_pass]` the file of each window of a pass, in order."""
        raise NotImplementedError

    def _pass(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        if number not in self._passes:
            rng = np.random.default_rng((self.seed, number))
            files = self._draw_files(rng)
            starts = rng.integers(0, self._num_starts[files])
            # A batch may straddle two passes, so the one before is kept.
            self._passes = {old: drawn for old, drawn in self._passes.items() if old == number - 1}
            self._passes[number] = (files, starts)
        return self._passes[number]


class UniformBatches(_BatchStream):
    """Batches of windows drawn uniformly from the corpus: in each pass every slot of every file comes once.

    Args:
        audio_num_samples: `[num_files]` length of each file; files of length 0 are never drawn.
        window_samples: length of a window.
        batch_size: windows per batch, on each rank.
        num_batches: batches of one round (what a loader calls an epoch).
        seed: of the whole stream, not negative.
        rank: this process, 0..world_size - 1.
        world_size: processes that share the stream.

    Raises:
        ValueError: if an argument is out of range, or no file holds a sample.
    """

    def __init__(
        self,
        audio_num_samples: np.ndarray,
        window_samples: int,
        batch_size: int,
        num_batches: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(audio_num_samples, window_samples, batch_size, num_batches, seed, rank, world_size)

    def _draw_files(self, rng: np.random.Generator) -> np.ndarray:
        return rng.permutation(np.repeat(np.arange(len(self._num_slots)), self._num_slots))


class SameSpeakerBatches(_BatchStream):
    """Batches that hold `speakers_per_batch` speakers, with equally many windows of each.

    In each pass every slot of every file comes at least once. A speaker whose slots do not fill their part of a batch
    adds further windows of their own; where speakers have too different amounts of audio for batches of different
    speakers, those with less come again.

    Args:
        audio_num_samples: `[num_files]` length of each file; files of length 0 are never drawn.
        window_samples: length of a window.
        batch_size: windows per batch, on each rank: a multiple of `speakers_per_batch`, at least 2 per speaker.
        num_batches: batches of one round (what a loader calls an epoch).
        seed: of the whole stream, not negative.
        group_ids: `[num_files]` the speaker of each file.
        speakers_per_batch: different speakers in a batch.
        require_distinct_files: a speaker's part of a batch holds at least two files. `same_speaker_excluding` needs it:
            windows of one file share the sequence id, and would leave no negative.
        group_names: names of the speakers by id, for messages.
        rank: this process, 0..world_size - 1.
        world_size: processes that share the stream.

    Raises:
        ValueError: if an argument is out of range, a file's speaker is unknown (-1), there are fewer speakers than
            `speakers_per_batch`, or `require_distinct_files` meets a speaker with a single file.
    """

    def __init__(
        self,
        audio_num_samples: np.ndarray,
        window_samples: int,
        batch_size: int,
        num_batches: int,
        seed: int,
        group_ids: np.ndarray,
        speakers_per_batch: int = 1,
        require_distinct_files: bool = True,
        group_names: Sequence[str] | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(audio_num_samples, window_samples, batch_size, num_batches, seed, rank, world_size)
        if speakers_per_batch < 1 or batch_size % speakers_per_batch or batch_size < 2 * speakers_per_batch:
            raise ValueError(
                f"batch_size={batch_size} with speakers_per_batch={speakers_per_batch}: the batch must divide into "
                "equal parts of at least 2 windows; change `batch_size` or `speakers_per_batch`"
            )
        group_ids = np.asarray(group_ids, np.int64)
        if len(group_ids) != len(self._num_slots):
            raise ValueError(f"group_ids has {len(group_ids)} entries for {len(self._num_slots)} audio files")
        self._files = np.flatnonzero(self._num_slots)
        num_unknown = int((group_ids[self._files] < 0).sum())
        if num_unknown:
            raise ValueError(
                f"{num_unknown} of {len(self._files)} files have no speaker, which same-speaker batches need; fill the "
                "manifest's speaker column, or choose uniform batches"
            )
        groups, self._speaker_of_file = np.unique(group_ids[self._files], return_inverse=True)
        self._num_files = np.bincount(self._speaker_of_file)
        if len(groups) < speakers_per_batch:
            raise ValueError(
                f"speakers_per_batch={speakers_per_batch}, but there are {len(groups)} speakers; lower "
                "`speakers_per_batch` to that"
            )
        single = groups[self._num_files == 1].tolist() if require_distinct_files else []
        if single:
            named = [str(group) if group_names is None else group_names[group] for group in single[:5]]
            more = f" and {len(single) - 5} more" if len(single) > 5 else ""
            raise ValueError(
                f"speakers with a single file: {', '.join(named)}{more}. Windows of one file are no negatives for each "
                "other under same_speaker_excluding; leave these speakers out of the manifest, cut their recordings "
                "into several files, or choose another strategy (model.loss.init_args.negatives)"
            )
        self.speakers_per_batch = speakers_per_batch
        self._require_distinct_files = require_distinct_files
        self._fingerprint |= {
            "speakers_per_batch": speakers_per_batch,
            "require_distinct_files": require_distinct_files,
            "speakers": _hash(group_ids),
        }
        self._part = batch_size // speakers_per_batch
        self._num_parts = self._count_parts()
        # Each speaker's parts go to different batches, so there are at least as many batches as parts of one speaker.
        num_parts = int(self._num_parts.sum())
        self._batches_per_pass = max(-(-num_parts // speakers_per_batch), int(self._num_parts.max()))
        self.windows_per_pass = self._batches_per_pass * batch_size

    def _count_parts(self) -> np.ndarray:
        """How many parts of a batch each speaker's slots take in a pass."""
        slots = self._num_slots[self._files]
        num_parts = -(-np.bincount(self._speaker_of_file, slots).astype(np.int64) // self._part)
        if self._require_distinct_files:
            # Dealt out evenly, even the longest file leaves one place in every part to another file.
            longest = np.zeros_like(num_parts)
            np.maximum.at(longest, self._speaker_of_file, slots)
            num_parts = np.maximum(num_parts, -(-longest // (self._part - 1)))
        return num_parts

    def _draw_files(self, rng: np.random.Generator) -> np.ndarray:
        parts, speaker_of_part = self._draw_parts(rng)
        return parts[self._seat_parts(rng, speaker_of_part)].reshape(-1)

    def _draw_parts(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """`[num_parts, windows per part]` files, and `[num_parts]` the speaker of each part, in ascending order."""
        # Files by speaker, each speaker's in random order; from here on a file is its position in `order`.
        shuffled = rng.permutation(len(self._files))
        order = shuffled[np.argsort(self._speaker_of_file[shuffled], kind="stable")]
        first_file = _starts(self._num_files)
        file_of_slot = np.repeat(np.arange(len(order)), self._num_slots[self._files[order]])
        speaker_of_slot = self._speaker_of_file[order][file_of_slot]
        num_slots = np.bincount(speaker_of_slot)
        first_slot = _starts(num_slots)

        # Slots are dealt out like cards, so that those of one file go to different parts.
        position = np.arange(len(file_of_slot)) - first_slot[speaker_of_slot]
        num_parts = self._num_parts[speaker_of_slot]
        parts = np.full((self._num_parts.sum(), self._part), -1)
        parts[_starts(self._num_parts)[speaker_of_slot] + position % num_parts, position // num_parts] = file_of_slot
        speaker_of_part = np.repeat(np.arange(len(self._num_parts)), self._num_parts)

        part, place = np.nonzero(parts < 0)
        speaker = speaker_of_part[part]
        parts[part, place] = file_of_slot[first_slot[speaker] + rng.integers(0, num_slots[speaker])]
        if self._require_distinct_files:
            # Only a place that was left over can be the last one of such a part: no slot is lost.
            (lonely,) = np.nonzero((parts == parts[:, :1]).all(axis=1))
            speaker = speaker_of_part[lonely]
            step = rng.integers(1, self._num_files[speaker])
            number = (parts[lonely, 0] - first_file[speaker] + step) % self._num_files[speaker]
            parts[lonely, -1] = first_file[speaker] + number
        return self._files[order[parts]], speaker_of_part

    def _seat_parts(self, rng: np.random.Generator, speaker_of_part: np.ndarray) -> np.ndarray:
        """`[batches, speakers_per_batch]` part numbers: every part at least once, different speakers in each batch."""
        rank_of_speaker = rng.permutation(len(self._num_parts))
        order = rng.permutation(len(speaker_of_part))
        order = order[np.argsort(rank_of_speaker[speaker_of_part[order]], kind="stable")]
        # Seat by seat through all batches: a speaker's parts are neighbours and no more than there are batches, so no
        # two of them meet.
        seats = np.full(self.speakers_per_batch * self._batches_per_pass, -1)
        seats[: len(order)] = order
        seats = rng.permutation(seats.reshape(self.speakers_per_batch, -1).T)
        first_part = _starts(self._num_parts)
        for seat in range(self.speakers_per_batch):
            (empty,) = np.nonzero(seats[:, seat] < 0)
            while len(empty):
                speaker = rng.integers(0, len(self._num_parts), len(empty))
                is_there = (speaker_of_part[seats[empty, :seat]] == speaker[:, None]).any(axis=1)
                part = first_part[speaker] + rng.integers(0, self._num_parts[speaker])
                seats[empty[~is_there], seat] = part[~is_there]
                empty = empty[is_there]
        self._mix(rng, seats, speaker_of_part)
        return seats

    def _mix(self, rng: np.random.Generator, seats: np.ndarray, speaker_of_part: np.ndarray) -> None:
        """Swaps parts between random batches, wherever both stay without a double, so that all speakers meet."""
        half = len(seats) // 2
        for _ in range(_NUM_SWAPS if self.speakers_per_batch > 1 else 0):
            one, other = rng.permutation(len(seats))[: 2 * half].reshape(2, half)
            seat_of_one, seat_of_other = rng.integers(0, self.speakers_per_batch, (2, half))
            part_of_one, part_of_other = seats[one, seat_of_one], seats[other, seat_of_other]
            swaps = ~(
                (speaker_of_part[seats[one]] == speaker_of_part[part_of_other][:, None]).any(axis=1)
                | (speaker_of_part[seats[other]] == speaker_of_part[part_of_one][:, None]).any(axis=1)
            )
            seats[one[swaps], seat_of_one[swaps]] = part_of_other[swaps]
            seats[other[swaps], seat_of_other[swaps]] = part_of_one[swaps]


def _starts(counts: np.ndarray) -> np.ndarray:
    """Where each of several consecutive stretches of these lengths begins."""
    return np.cumsum(counts) - counts


def _hash(numbers: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(numbers, "<i8").tobytes()).hexdigest()[:16]
