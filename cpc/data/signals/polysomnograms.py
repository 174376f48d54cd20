"""Recordings in EDF and BDF files, read by edfio; their annotations are intervals."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpc.config.extras import install_hint
from cpc.data.signals.labels import Interval
from cpc.data.signals.listing import ReadOptions
from cpc.data.store.untrusted import reading

_BLOCK_SAMPLES = 1 << 16
_DAMAGE = "cannot be read as an EDF or BDF file"


class EdfFile:
    """An EDF, EDF+ or BDF file without gaps. Values are in the units that the file's header names.

    Raises:
        ValueError: naming the file, if it is damaged, has no signals or gaps (EDF+D), or the chosen channels have
            different rates.
    """

    sample_labels: Sequence[str] = ()

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self.path = path
        self.parts = [path]
        with reading(path, _DAMAGE):
            edf = self._open()
            signals = edf.signals
            is_continuous, num_records, record_seconds = (
                edf.is_continuous,
                edf.num_data_records,
                edf.data_record_duration,
            )
            annotations = edf.annotations
        if not signals:
            raise ValueError(f"{path} holds no signals, only annotations")
        if not is_continuous:
            raise ValueError(f"{path} has gaps in time (EDF+D); a recording has none: write each part to its own file")
        self.channels = _distinct([signal.label for signal in signals])
        rates = [float(signal.sampling_frequency) for signal in signals]
        self.units = [signal.physical_dimension.strip() for signal in signals]
        _, chosen = options.choose(self.channels, path)
        if len({rates[column] for column in chosen}) > 1:
            listed = ", ".join(f"{self.channels[column]} {rates[column]:g} Hz" for column in chosen)
            raise ValueError(f"{path}: channels have different rates: {listed}; choose those of one rate by `channels`")
        self.sample_rate_hz: float | None = rates[chosen[0]]
        self._per_record = signals[chosen[0]].samples_per_data_record
        self._num_records, self._record_seconds = num_records, float(record_seconds)
        self.num_samples = self._per_record * num_records
        self.intervals = (
            {
                "annotation": [
                    Interval(each.onset, each.onset + (each.duration or 0.0), each.text.strip())
                    for each in annotations
                    if each.text.strip() and each.onset >= 0
                ]
            }
            if annotations
            else {}
        )

    def blocks(self, columns: Sequence[int]) -> Iterator[np.ndarray]:
        """Yield the chosen channels, in the header's units."""
        step = max(1, _BLOCK_SAMPLES // self._per_record)
        with reading(self.path, _DAMAGE):
            signals = self._open().signals
            for first in range(0, self._num_records, step):
                end = min(first + step, self._num_records)
                seconds = (first * self._record_seconds, end * self._record_seconds)
                yield np.stack([signals[column].get_data_slice(*seconds) for column in columns], axis=1)

    def texts(self, name: str) -> list[str]:
        """Raise, since an EDF file has no labels per sample."""
        raise ValueError(f"{self.path} holds no labels {name!r}")

    def _open(self) -> Any:
        try:
            import edfio
        except ImportError as error:
            raise ValueError(f"{self.path}: EDF needs the package `edfio`: {install_hint('signals')}") from error
        if self.path.suffix.lower() == ".bdf":
            return edfio.read_bdf(self.path)  # into memory, since 24 bits cannot be mapped
        return edfio.read_edf(self.path, lazy_load_data=True)


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names; a name that occurs again gets a number."""
    seen: dict[str, int] = {}
    distinct = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return distinct
