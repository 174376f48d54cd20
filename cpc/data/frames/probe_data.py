"""Probe data of frames: latents and contexts of every frame of an episode, and the game's state as labels.

B windows, T frames, S frames in a stack, H W rows and columns of a frame's pixels, C context dim, D feature dim.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from scipy.stats import entropy

from cpc.data.batch import Batch
from cpc.data.frames.corpus import NUM_INITIALISATION_WINDOWS, FrameCorpus, stacked
from cpc.data.probe_data import UNLABELLED, FeatureExtractor, Labels, LabelsOf, Precision, ProbeData, autocast
from cpc.data.recordings.windows import WindowDataset
from cpc.data.store.fingerprints import Content
from cpc.data.store.folders import find_files
from cpc.data.store.untrusted import reading
from cpc.data.streams.stream import UniformBatches

STATE = "state"  # the task of all variables
_LEFT_OUT = -1
_FRAMES_AT_ONCE = 256
LEAST_ENTROPY_NATS = 0.6  # a variable whose entropy over recorded frames is lower is nearly constant

# Addresses of the state variables in the memory of Atari games (Anand et al. 2019, arXiv:1906.08226).
CATEGORIES: Mapping[str, Mapping[str, Mapping[str, int]]] = {  # by category: variable and byte (0 to 127)
    "Boxing": {
        "agent_localisation": {"player_x": 32, "player_y": 34},
        "other_localisation": {"enemy_x": 33, "enemy_y": 35},
        "score_clock_lives_display": {"clock": 17, "player_score": 18, "enemy_score": 19},
    },
    "Breakout": {
        "agent_localisation": {"player_x": 72},
        "small_object_localisation": {"ball_x": 99, "ball_y": 101},
        "score_clock_lives_display": {"score": 84},
        "miscellaneous": {"blocks_hit_count": 77, **{f"block_bit_map_{byte}": byte for byte in range(30)}},
    },
    "Pong": {
        "agent_localisation": {"player_x": 46, "player_y": 51},
        "small_object_localisation": {"ball_x": 49, "ball_y": 54},
        "other_localisation": {"enemy_x": 45, "enemy_y": 50},
        "score_clock_lives_display": {"enemy_score": 13, "player_score": 14},
    },
}


class FrameFeatureExtractor(FeatureExtractor):
    """Latents `z` and contexts `c` of episodes, from the first frame on. Without a corpus it reads only files."""

    def __init__(
        self, features: Sequence[str], model: Any, corpus: FrameCorpus | None, device: str, precision: Precision
    ) -> None:
        self.model, self.corpus, self.device, self.precision = model, corpus, device, precision
        dims = {"z": model.encoder.dim, "c": model.context.dim}
        self.dims = {name: dims[name] for name in features}

    @property
    def num_workers(self) -> int:
        """All cores if the device is a CPU; a core takes one episode."""
        return torch.get_num_threads() if self.device == "cpu" else 1

    def num_vectors(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of frames of each episode."""
        assert self.corpus is not None
        return self.corpus.recording.lengths[rows]

    def read(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield each episode and its features, in pieces; the state of the context is carried over between pieces."""
        assert self.corpus is not None
        stacks = self.corpus.stacks
        for row in rows.tolist():
            starts = range(0, int(stacks.num_samples[row]), _FRAMES_AT_ONCE)
            for features in self._encode(stacks.read(row, start, _FRAMES_AT_ONCE) for start in starts):
                yield row, features

    def geometry(self, feature: str) -> dict[str, Any]:  # noqa: D102
        return super().geometry(feature) | self.model.encoder.geometry

    def file_features(self, path: Path) -> Float[np.ndarray, "T D"]:
        """Return the features of an episode in a numpy file, uint8 `[T, H, W]`."""
        size = self.model.encoder.frame_size
        with reading(path, "cannot be read: it is cut off, or not an .npy file"):
            frames = np.load(path, mmap_mode="r")  # mapped, in case the header has a huge shape
        if frames.dtype != np.uint8 or frames.shape[1:] != size or not len(frames):
            legal = f"uint8 [T, {size[0]}, {size[1]}]"
            raise ValueError(f"{path}: holds {frames.dtype} {frames.shape}, but an episode is {legal}")
        starts, stack = range(0, len(frames), _FRAMES_AT_ONCE), self.model.encoder.num_frames
        (feature,) = self.dims
        pieces = self._encode(stacked(frames, start, _FRAMES_AT_ONCE, stack) for start in starts)
        return np.concatenate([piece[feature] for piece in pieces])

    def _encode(self, pieces: Iterator[UInt8[np.ndarray, "T S H W"]]) -> Iterator[dict[str, Float[np.ndarray, "T D"]]]:
        state = None
        for frames in pieces:
            x = rearrange(torch.from_numpy(frames).to(self.device), "t s h w -> 1 t s h w")
            with torch.inference_mode(), autocast(x, self.precision):
                latents, contexts, state = self.model.encode(x, state)
            yield {name: {"z": latents, "c": contexts}[name][0].float().cpu().numpy() for name in self.dims}


class FrameProbeData(ProbeData):
    """Features of every frame, probed for variables of the game in Atari's memory (Anand et al. 2019).

    A task is a variable, a category of variables, or `state`, all variables. Categories leave out variables with less
    than 0.6 nats of entropy, as Anand et al. do, and print their names. Frames of other splits that are equal to a
    frame of the training split are not used for tests. `corpus` is None if only files outside a corpus are read.
    """

    unit = source_unit = "episode"
    default_baselines = ("majority", "random", "supervised")
    several_vectors = True
    penalty_chosen_by = "accuracy"
    supervised: Mapping[str, Any] = {"batch_size": 8, "window_latents": 32}

    def __init__(self, corpus: Any, **where: Any) -> None:
        super().__init__(**where)
        self.corpus = corpus

    @property
    def splits(self) -> Sequence[str]:  # noqa: D102
        return self.corpus.splits

    def families(self, task: str) -> Mapping[str, Sequence[str]]:
        """Return the variables of a category that change enough; for `state`, all categories with their variables."""
        if task == STATE and self._categories:
            all_variables = {category: self._varying_variables(category) for category in self._categories}
            categories = {category: variables for category, variables in all_variables.items() if variables}
            return {**categories, STATE: list(categories)}
        if task not in self._categories:
            return {}
        variables = self._varying_variables(task)
        if not variables:
            raise ValueError(f"task={task!r}: in this recording no variable of the category changes enough")
        return {task: variables}

    def labels(self, task: str, rows: np.ndarray) -> Labels:
        """Return the byte of a variable at every frame."""
        addresses = {name: byte for variables in self._categories.values() for name, byte in variables.items()}
        if not addresses:
            legal = f"only the memory of these Atari games: {', '.join(CATEGORIES)}"
            raise ValueError(f"task={task!r}: the state of {self.corpus.recording.environment} is not known, {legal}")
        if task not in addresses:
            raise ValueError(f"task={task!r} is not one of {', '.join([STATE, *self._categories, *addresses])}")
        values = {
            row: self.corpus.recording.episode_frames("ram", row)[:, addresses[task]].astype(np.int64)
            for row in rows.tolist()
        }
        values |= {row: np.where(self._is_seen[row], _LEFT_OUT, values[row]) for row in self._is_seen.keys() & values}

        def codes_of(row: int, code_of: Mapping[str, int], times: Any, start: int, num_vectors: int) -> np.ndarray:
            found = values[row][start : start + num_vectors].tolist()
            codes = [UNLABELLED if value == _LEFT_OUT else code_of[str(value)] for value in found]
            return np.array(codes + [UNLABELLED] * (num_vectors - len(codes)))  # an episode may end in a window

        all_values = {row: set(np.unique(each).tolist()) - {_LEFT_OUT} for row, each in values.items()}
        return Labels({row: set(map(str, each)) for row, each in all_values.items()}, codes_of=codes_of)

    def feature_extractor(self, features: Sequence[str], model: Any = None) -> FeatureExtractor:  # noqa: D102
        return FrameFeatureExtractor(features, model, self.corpus, self.device, self.precision)

    def find_files(self, folder: Path) -> list[str]:
        """Return the numpy files of a folder, one episode per file."""
        return find_files(folder, {".npy"}, "episode")

    def default_pool(self, task: str) -> str:  # noqa: D102 - the state changes with every frame
        return "frames"

    def initialise(self, model: Any, seed: int) -> None:
        """Initialise by the pixel statistics of the training split and by some of its windows."""
        model.encoder.set_statistics(*self.corpus.statistics(self.train_split))
        model.initialise_from(self.corpus.initialisation_windows(self.train_split, NUM_INITIALISATION_WINDOWS, seed))

    def batches(self, rows: np.ndarray, labels: LabelsOf, model: Any, protocol: Any) -> Iterator[Batch]:
        """Yield batches of uniformly random windows."""
        windows = WindowDataset(
            self.corpus.stacks,
            protocol.window_latents,
            rows,
            labels=lambda row, start, num_frames: labels(row, None, start, num_frames),
            num_latents=protocol.window_latents,
        )
        stream = UniformBatches(**windows.draws, batch_size=protocol.batch_size, seed=protocol.seed)
        return (windows.__getitems__(indices) for indices in stream)

    def content(self, rows: np.ndarray) -> Content | None:  # noqa: D102
        return self.corpus.content(rows)

    def record(self) -> dict[str, Any]:
        """Return how the episodes were recorded, and how many frames are not used for tests."""
        num_seen = sum(int(is_seen.sum()) for is_seen in self._is_seen.values())
        return {**self.corpus.recording.about, "num_frames_seen_in_training": num_seen}

    @property
    def _categories(self) -> Mapping[str, Mapping[str, int]]:
        """Addresses by category and variable; empty if the game has no table or no memory was recorded."""
        recording = self.corpus.recording
        game = recording.environment.rpartition("/")[2].partition("-")[0]  # of a name such as `ALE/Pong-v5`
        return CATEGORIES.get(game, {}) if "ram" in recording.steps else {}

    def _varying_variables(self, category: str) -> list[str]:
        """Return the variables that are not nearly constant in the training split, and print the others."""
        recording, variables = self.corpus.recording, self._categories[category]
        memory = np.concatenate(
            [recording.episode_frames("ram", row) for row in recording.rows(self.train_split).tolist()]
        )
        nats = {name: float(entropy(np.bincount(memory[:, byte]))) for name, byte in variables.items()}
        constant = [name for name, entropy_nats in nats.items() if entropy_nats < LEAST_ENTROPY_NATS]
        if constant:
            print(f"{category}: left out, entropy below {LEAST_ENTROPY_NATS} nats: {', '.join(constant)}", flush=True)
        return [name for name in variables if name not in constant]

    @cached_property
    def _is_seen(self) -> dict[int, np.ndarray]:
        """For each episode outside the training split, the mask `[T]` of frames that the training split also has."""
        recording = self.corpus.recording

        def hashes(row: int) -> list[bytes]:
            return [hashlib.blake2b(frame.tobytes()).digest() for frame in recording.read(row)]

        trained = recording.rows(self.train_split).tolist()
        others = sorted(set(range(len(recording))) - set(trained))
        seen = {digest for row in trained for digest in hashes(row)} if others else set()
        return {row: np.array([digest in seen for digest in hashes(row)]) for row in others}
