"""Frames' features and tasks: latents and contexts of every frame of an episode, and the game's state behind it.

B windows, T frames, S frames in a stack, H W a frame's rows and columns of pixels, C context dim, D feature dim.
"""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from scipy.stats import entropy
from torch import Tensor, nn

from cpc.data.batch import Batch
from cpc.data.frames.corpus import NUM_INITIALISATION_WINDOWS, FrameCorpus, FrameWindows
from cpc.data.frames.ram import CATEGORIES, LEAST_ENTROPY_NATS, categories_of
from cpc.data.frames.recording import stacked
from cpc.data.probe_data import UNLABELLED, FeatureExtractor, Labels, LabelsOf, Pool, Precision, ProbeData
from cpc.data.store.folders import find_files
from cpc.data.store.untrusted import reading
from cpc.data.streams.uniform import UniformBatches

STATE = "state"  # the task that stands for all variables
_LEFT_OUT = -1
_FRAMES_AT_ONCE = 256


class StateLabels(Labels):
    """The value of a variable at every frame of an episode; `_LEFT_OUT` where a frame is not used."""

    vary_within = True

    def names(self, row: int) -> set[str]:
        """All values of an episode."""
        return {str(value) for value in np.unique(self.of_row[row]).tolist() if value != _LEFT_OUT}

    def codes(self, row: int, code_of: Mapping[str, int], times: Any, start: int, num_vectors: int) -> np.ndarray:
        """Of `num_vectors` frames from `start` on."""
        values = self.of_row[row][start : start + num_vectors].tolist()
        return np.array([UNLABELLED if value == _LEFT_OUT else code_of[str(value)] for value in values])


class FrameFrontEnd(FeatureExtractor):
    """Latents and contexts of episodes, from their first frame on.

    Args:
        features: `c`, `z` or both.
        model: in eval mode.
        corpus: the episodes; None: only `file_features` is asked for.
        device: where the model is.
        precision: of the model's products.
    """

    def __init__(
        self, features: Sequence[str], model: Any, corpus: FrameCorpus | None, device: str, precision: Precision
    ) -> None:
        self.model, self.corpus, self.device, self.precision = model, corpus, device, precision
        self.dims = {name: {"z": model.encoder.dim, "c": model.context.dim}[name] for name in features}

    @property
    def num_workers(self) -> int:
        """All cores, an episode each."""
        return torch.get_num_threads() if self.device == "cpu" else 1

    def num_vectors(self, rows: np.ndarray) -> np.ndarray:
        """Frames of each episode."""
        assert self.corpus is not None
        return self.corpus.recording.lengths[rows]

    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """In pieces, through which contexts are carried on."""
        assert self.corpus is not None
        recording, stack = self.corpus.recording, self.corpus.stack
        for row in rows.tolist():
            starts = range(0, int(recording.lengths[row]), _FRAMES_AT_ONCE)
            for found in self._of(recording.read(row, start, _FRAMES_AT_ONCE, stack) for start in starts):
                yield row, found

    def geometry(self, feature: str) -> dict[str, Any]:
        """One vector a frame."""
        return super().geometry(feature) | self.model.encoder.geometry

    def file_features(self, path: Path) -> Float[np.ndarray, "T D"]:
        """Of an episode in a file of numpy's, `[T, H, W]` bytes."""
        size = self.model.encoder.frame_size
        with reading(path, "cannot be read, cut off or no .npy file"):
            frames = np.load(path, mmap_mode="r")  # a map is never longer than its file
        if frames.dtype != np.uint8 or frames.shape[1:] != size or not len(frames):
            raise ValueError(
                f"{path}: holds {frames.dtype} {frames.shape}, but an episode is uint8 [T, {size[0]}, {size[1]}]"
            )
        starts, stack = range(0, len(frames), _FRAMES_AT_ONCE), self.model.encoder.num_frames
        found = self._of(stacked(frames, start, _FRAMES_AT_ONCE, stack) for start in starts)
        return np.concatenate([next(iter(piece.values())) for piece in found])

    def _of(self, pieces: Iterator[UInt8[np.ndarray, "T S H W"]]) -> Iterator[dict[str, Float[np.ndarray, "T D"]]]:
        state = None
        for frames in pieces:
            x = rearrange(torch.from_numpy(frames).to(self.device), "t s h w -> 1 t s h w")
            with (
                torch.inference_mode(),
                torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"),
            ):
                latents, contexts, state = self.model.encode(x, state)
            yield {name: {"z": latents, "c": contexts}[name][0].float().cpu().numpy() for name in self.dims}


class FrameProbeData(ProbeData):
    """Features of every frame, probed for variables of the game that Atari's memory shows (Anand et al. 2019).

    A task is a variable, a category of them, or `state`, all of them. Categories leave out variables of less than 0.6
    nats of entropy, as Anand et al. do; what is left out is printed. Frames of other splits that the training split
    has, pixel by pixel, are not tested on.

    Args:
        corpus: the episodes; None: only files outside a corpus are read.
        where: as `ProbeData` takes it.
    """

    unit = "episode"
    default_baselines = ("majority", "random", "supervised")
    several_vectors = True
    penalty_chosen_by = "accuracy"
    supervised: Mapping[str, Any] = {"batch_size": 8, "window_latents": 32}

    def __init__(self, corpus: FrameCorpus | None, **where: Any) -> None:
        super().__init__(**where)
        self._corpus = corpus

    @property
    def corpus(self) -> FrameCorpus:
        """The episodes, which everything but `file_features` asks for."""
        assert self._corpus is not None
        return self._corpus

    @property
    def splits(self) -> Sequence[str]:
        """Drawn when the episodes were recorded."""
        return self.corpus.recording.splits

    def families(self, task: str) -> Mapping[str, Sequence[str]]:
        """The variables of a category; for `state` those of all categories, and the mean over categories.

        Raises:
            ValueError: if a category has no variable that changes enough.
        """
        if task == STATE and self._categories:
            kept = {category: self._varied(category) for category in self._categories}
            found = {category: variables for category, variables in kept.items() if variables}
            return {**found, STATE: list(found)}
        if task not in self._categories:
            return {}
        variables = self._varied(task)
        if not variables:
            raise ValueError(f"task={task!r}: none of its variables changes enough in this recording")
        return {task: variables}

    def labels(self, task: str, rows: np.ndarray) -> Labels:
        """The byte of a variable at every frame."""
        addresses = {name: byte for variables in self._categories.values() for name, byte in variables.items()}
        if not addresses:
            raise ValueError(
                f"task={task!r}: the state of {self.corpus.recording.environment} is not known. Probes read Atari's "
                f"memory, of {', '.join(CATEGORIES)}"
            )
        if task not in addresses:
            raise ValueError(f"task={task!r} is not one of {', '.join([STATE, *self._categories, *addresses])}")
        return StateLabels({row: self._values(addresses[task], row) for row in rows.tolist()})

    def front_end(self, features: Sequence[str], model: Any = None) -> FeatureExtractor:
        """Of a model."""
        return FrameFrontEnd(features, model, self._corpus, self.device, self.precision)

    def find_files(self, folder: Path) -> list[str]:
        """Episodes, one a file."""
        return find_files(folder, {".npy"}, "episode")

    def default_pool(self, task: str) -> Pool:
        """The state changes with every frame."""
        return "frames"

    def initialise(self, model: Any, seed: int) -> None:
        """By the training split's pixels, and windows of it."""
        model.encoder.set_statistics(*self.corpus.statistics(self.train_split))
        windows = self.corpus.windows(self.train_split)
        drawn = self.corpus.batches(windows, "uniform", NUM_INITIALISATION_WINDOWS, 1, seed).batch(0)
        model.initialise_from(windows.__getitems__(drawn).x)

    def trained(self, model: Any) -> list[nn.Module]:
        """Encoder and context."""
        return [model.encoder, model.context]

    def batches(self, rows: np.ndarray, labels: LabelsOf, model: Any, protocol: Any) -> Iterator[Batch]:
        """Windows drawn uniformly."""
        windows = FrameWindows(self.corpus, rows, self.train_split, protocol.window_latents)
        drawn = UniformBatches(**windows.draws, batch_size=protocol.batch_size, num_batches=1, seed=protocol.seed)
        for step in itertools.count():
            draws = drawn.batch(step)
            batch = windows.__getitems__(draws)
            classes = np.full(batch.x.shape[:2], UNLABELLED)
            for of_window, (episode, start), length in zip(
                classes, draws, windows.num_valid(draws).tolist(), strict=True
            ):
                of_window[:length] = labels(int(rows[episode]), None, start, length)
            yield batch._replace(labels=torch.from_numpy(classes))

    def vectors(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """Contexts `[B, T, C]`; padding is left out."""
        with torch.autocast(batch.x.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            latents = model.encoder(batch.x)
        contexts, _ = model.context(latents.float())
        assert batch.num_valid is not None
        num_valid = rearrange(batch.num_valid, "b -> b 1")
        return contexts, torch.arange(contexts.shape[1], device=contexts.device) < num_valid

    def record(self) -> dict[str, Any]:
        """How the episodes were recorded, and how many frames are not tested on."""
        num_seen = sum(int(is_seen.sum()) for is_seen in self._is_seen.values())
        return {**self.corpus.recording.about, "num_frames_seen_in_training": num_seen}

    @property
    def _categories(self) -> Mapping[str, Mapping[str, int]]:
        """Addresses by category and variable; empty where the game has no table, or no memory was recorded."""
        recording = self.corpus.recording
        return categories_of(recording.environment) if "ram" in recording.steps else {}

    def _varied(self, category: str) -> list[str]:
        """The variables that are not nearly constant over the training split; a line about the others is printed."""
        recording, variables = self.corpus.recording, self._categories[category]
        memory = np.concatenate(
            [recording.episode_frames("ram", row) for row in recording.rows(self.train_split).tolist()]
        )
        nats = {name: float(entropy(np.bincount(memory[:, byte]))) for name, byte in variables.items()}
        constant = [name for name, of_variable in nats.items() if of_variable < LEAST_ENTROPY_NATS]
        if constant:
            print(f"{category}: left out, entropy below {LEAST_ENTROPY_NATS} nats: {', '.join(constant)}", flush=True)
        return [name for name in variables if name not in constant]

    def _values(self, byte: int, row: int) -> np.ndarray:
        values = self.corpus.recording.episode_frames("ram", row)[:, byte].astype(np.int64)
        return np.where(self._is_seen[row], _LEFT_OUT, values) if row in self._is_seen else values

    @cached_property
    def _is_seen(self) -> dict[int, np.ndarray]:
        """`[T]` of each episode outside the training split: which frames it has, too."""
        recording = self.corpus.recording

        def hashes(row: int) -> list[bytes]:
            return [
                hashlib.blake2b(frame.tobytes()).digest()
                for frame in recording.read(row, 0, int(recording.lengths[row]), 1)
            ]

        trained = set(recording.rows(self.train_split).tolist()) if self.train_split else set(range(len(recording)))
        seen = {each for row in trained for each in hashes(row)} if len(trained) < len(recording) else set()
        others = (row for row in range(len(recording)) if row not in trained)
        return {row: np.array([each in seen for each in hashes(row)]) for row in others}
