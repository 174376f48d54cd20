"""One comparison: several front ends, the same tasks, the same files, the same protocol.

n examples, D feature dim.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cpc.data.audio.manifest import Manifest
from cpc.data.audio.pack import PackedAudio
from cpc.model import CPC
from cpc.probes.baselines import answer_by_frequency
from cpc.probes.features import Features, Kind, Precision
from cpc.probes.linear import ProbeProtocol, fit_probe, standardise
from cpc.probes.results import Answers, ProbeResult, summarise
from cpc.probes.store import DEFAULT_MAX_RAM_BYTES, FeatureStore
from cpc.probes.supervised import SupervisedProtocol, train_supervised
from cpc.probes.targets import Examples, Task


@dataclass(frozen=True)
class Extraction:
    """How and where features are computed and kept.

    Attributes:
        device: where networks and probes run.
        precision: of the encoder's products, see `Features`.
        max_ram_bytes: larger feature stores are memory-mapped.
        scratch_dir: folder for these; the system's for temporary files unless given.
        dtype: of stored features.
        cache_dir: folder of packed audio; beside the manifest unless given.
        skip_bad: go on without files that cannot be read.
        progress: show progress bars.

    Raises:
        ValueError: if `scratch_dir` is no folder, or `max_ram_bytes` negative.
    """

    device: str = "cpu"
    precision: Precision = "float32"
    max_ram_bytes: int = DEFAULT_MAX_RAM_BYTES
    scratch_dir: str | Path | None = None
    dtype: Literal["float32", "float16"] = "float32"
    cache_dir: str | Path | None = None
    skip_bad: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        if self.max_ram_bytes < 0:
            raise ValueError(f"features may take {self.max_ram_bytes / 1e9:g} GB of memory: this cannot be negative")
        if self.scratch_dir is not None and not Path(self.scratch_dir).is_dir():
            raise ValueError(f"scratch_dir={str(self.scratch_dir)!r} is no folder: make it, or name another one")


class Comparison:
    """Collects what every front end says about every task.

    Args:
        manifest: the corpus.
        audio: its files, in the order of the manifest.
        tasks: what to predict.
        statistics: mean and deviation of the training part's samples, for spectral features.
        protocol: how probes are trained.
        extraction: how features are computed and kept.

    Attributes:
        results: `[task][name]`.
        geometries: of the features, by name.
        num_too_short: files too short for a frame, by name.
        seconds: what each name took, all tasks together.
    """

    def __init__(
        self,
        manifest: Manifest,
        audio: PackedAudio,
        tasks: list[Task],
        statistics: tuple[float, float],
        protocol: ProbeProtocol,
        extraction: Extraction,
    ) -> None:
        self.manifest = manifest
        self.audio = audio
        self.tasks = tasks
        self.protocol = protocol
        self.extraction = extraction
        self.statistics = statistics
        self.results: dict[str, dict[str, ProbeResult]] = {task.name: {} for task in tasks}
        self.geometries: dict[str, dict[str, Any]] = {}
        self.num_too_short: dict[str, int] = {}
        self.seconds: dict[str, float] = defaultdict(float)

    def features(self, kind: Kind, model: CPC | None = None) -> Features:
        """A front end for this corpus."""
        return Features(
            kind,
            model,
            self.audio.sample_rate_hz,
            statistics=self.statistics,
            device=self.extraction.device,
            precision=self.extraction.precision,
        )

    def probe(self, names: Mapping[Kind, str], front_ends: Iterable[Features], num_seeds: int) -> None:
        """Train and test probes on features.

        Args:
            names: which parts of the features to probe, and what their results are called.
            front_ends: one, or several whose answers are averaged (untrained models of several seeds).
            num_seeds: probes for each.
        """
        start = time.monotonic()
        answers: dict[tuple[str, str], list[Answers]] = defaultdict(list)
        rows = np.unique(np.concatenate([task.rows for task in self.tasks]))
        for features in front_ends:
            store = self._store(features, rows)
            for (kind, name), task in product(names.items(), self.tasks):
                self.geometries[name] = features.geometry() | {"features": kind, "dim": store.part(kind).shape[1]}
                self.num_too_short[name] = store.num_too_short
                train, test = task.examples("train", store, kind), task.examples("test", store, kind)
                standardisation = standardise(train)
                for seed in range(num_seeds):
                    probe = fit_probe(
                        train,
                        len(task.classes),
                        self.protocol,
                        seed,
                        self.extraction.device,
                        standardisation,
                        title=self._title(name, task),
                    )
                    answers[task.name, name].append(probe.answer(test))
                self.results[task.name][name] = summarise(answers[task.name, name], test, len(task.classes), len(train))
        self.seconds[" and ".join(names.values())] += time.monotonic() - start

    def guess(self, name: str) -> None:
        """Answer every task by the frequency of its classes, without a look at the audio."""
        for task in self.tasks:
            train, test = self._labelled_frames(task, "train"), self._labelled_frames(task, "test")
            answers = answer_by_frequency(train, test, len(task.classes))
            self.results[task.name][name] = summarise([answers], test, len(task.classes), len(train))

    def supervise(self, name: str, task: Task, model: CPC, protocol: SupervisedProtocol) -> None:
        """Train an untrained model for a task's labels, on all of its training part."""
        start = time.monotonic()
        audio = self.audio.subset(task.train)
        probe, num_steps = train_supervised(
            model, task, audio, protocol, self.extraction.device, title=self._title(name, task)
        )
        test = task.examples("test", self._store(self.features("c", model), task.test), "c")
        num_train = len(self._labelled_frames(task, "train"))
        result = summarise([probe.answer(test)], test, len(task.classes), num_train)
        self.results[task.name][name] = replace(result, num_network_steps=num_steps)
        self.seconds[f"{name} {task.name}"] += time.monotonic() - start

    def _title(self, name: str, task: Task) -> str | None:
        return f"probe {name}: {task.name}" if self.extraction.progress else None

    def _labelled_frames(self, task: Task, part: Literal["train", "test"]) -> Examples:
        """Labels without features."""
        features = self.features("logmel")
        num_frames = features.num_frames(self.audio.num_samples[task.rows])
        nothing = np.broadcast_to(np.float32(0), (int(num_frames.sum()), 1))
        return task.examples(part, FeatureStore(features, task.rows, num_frames, nothing), "logmel")

    def _store(self, features: Features, rows: np.ndarray) -> FeatureStore:
        return FeatureStore.extract(
            features,
            self.manifest,
            self.audio,
            rows,
            max_ram_bytes=self.extraction.max_ram_bytes,
            scratch_dir=self.extraction.scratch_dir,
            dtype=self.extraction.dtype,
            progress=self.extraction.progress,
        )
