"""Changes of features before probes read them: normalisation, and neighbours of a frame. T vectors, D feature dim."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from cpc.config.argument_rules import Natural, check_fields
from cpc.data.probe_data import ProbeData
from cpc.probes.store import FeatureStore
from cpc.probes.task import Task

_LEAST_DEVIATION = 1e-5
Unit = Literal["speaker", "recording"]


@dataclass(frozen=True)
class Reading:
    """A change of the vectors of every feature alike, before probes read them.

    A network that was trained with labels is then read by a new probe, in place of its softmax.

    Attributes:
        normalise: take out the mean and the deviation of all vectors of a `speaker` (of signals: a person), or of a
            `recording`. It needs no label, but the other vectors of the unit.
        frames_around: number of vectors on each side that are read beside each vector. The first and the last vector
            of an observation stand for those outside.
    """

    normalise: Unit | None = None
    frames_around: Natural = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self, task: Task) -> None:
        """Raise a ValueError if an observation has only one vector, or the unit is unknown or is the task."""
        data, unit = task.probe_data, self.normalise
        if self != Reading() and not data.several_vectors:
            found = f"a {data.unit} has only one vector"
        elif unit is not None and data.units(unit, task.name) is None:
            found = f"the {unit} of some {data.unit} is unknown, or is the task {task.name!r}"
        else:
            return
        raise ValueError(f"`normalise`={unit}, `frames_around`={self.frames_around}: {found}")

    def change(self, store: FeatureStore, data: ProbeData, task: str) -> FeatureStore:
        """Return a store of the changed vectors, which lie in memory, whatever the size."""
        if self == Reading():
            return store
        rows = np.array(store.rows)
        units = None if self.normalise is None else data.units(self.normalise, task)
        unit_by_row = np.array([]) if units is None else units[rows]
        values: dict[str, Any] = {name: np.array(each, np.float32) for name, each in store.values.items()}
        for name, vectors in values.items():
            for unit in np.unique(unit_by_row):
                places = np.concatenate([np.r_[store.span(row)] for row in rows[unit_by_row == unit].tolist()])
                chosen = vectors[places]
                vectors[places] = (chosen - chosen.mean(0)) / np.maximum(chosen.std(0), _LEAST_DEVIATION)
            if self.frames_around:
                values[name] = np.concatenate([self._neighbours(vectors[store.span(row)]) for row in store.rows])
        return store.replaced(values)

    def _neighbours(self, vectors: Float[np.ndarray, "T D"]) -> Float[np.ndarray, "T F"]:
        num = self.frames_around
        places = np.arange(len(vectors))[:, None] + np.arange(-num, num + 1)
        return vectors[places.clip(0, max(len(vectors) - 1, 0))].reshape(len(vectors), -1)
