"""Recordings in EDF and BDF files, read by edfio; their annotations are intervals."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpc.config.extras import install_hint
from cpc.data.signals.labels import Interval
from cpc.data.signals.listing import ReadOptions
from cpc.data.signals.rates import channels_rate, choose_channels
from cpc.data.store.untrusted import reading

_BLOCK_SAMPLES = 1 << 16
_DAMAGE = "cannot be read as an EDF or BDF file"
_RANGES = ("physical_min", "physical_max", "digital_min", "digital_max")


class EdfFile:
    """An EDF, EDF+ or BDF file without gaps. Values are in the units that the file's header names.

    Raises:
        ValueError: naming the file, if it is damaged, has no signals or gaps (EDF+D), the chosen channels have
            different rates, or the minimum or maximum of a chosen channel is no number, or both are equal.
    """

    sample_labels: Sequence[str] = ()

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self.path = path
        self.parts = [path]
        with reading(path, _DAMAGE):
            edf = _open(path)
            signals = edf.signals
            is_continuous, num_records, record_seconds = (
                edf.is_continuous,
                edf.num_data_records,
                edf.data_record_duration,
            )
            intervals = _intervals(edf)
        if not signals:
            raise ValueError(f"{path} holds no signals, only annotations")
        if not is_continuous:
            raise ValueError(f"{path} has gaps in time (EDF+D); a recording has none: write each part to its own file")
        self.channels = _distinct([signal.label for signal in signals])
        rates = [float(signal.sampling_frequency) for signal in signals]
        _, chosen = choose_channels(options.channels, self.channels, path)
        for column in chosen:
            _check_ranges(path, self.channels[column], signals[column])
        self.sample_rate_hz: float | None = channels_rate(rates, chosen, self.channels, path)
        self._per_record = signals[chosen[0]].samples_per_data_record
        self._num_records, self._record_seconds = num_records, float(record_seconds)
        self.num_samples = self._per_record * num_records
        self.intervals = {"annotation": intervals} if intervals else {}

    def blocks(self, columns: Sequence[int]) -> Iterator[np.ndarray]:
        """Yield the chosen channels, in the header's units."""
        step = max(1, _BLOCK_SAMPLES // self._per_record)
        with reading(self.path, _DAMAGE):
            signals = _open(self.path).signals
            for first in range(0, self._num_records, step):
                end = min(first + step, self._num_records)
                seconds = (first * self._record_seconds, end * self._record_seconds)
                yield np.stack([signals[column].get_data_slice(*seconds) for column in columns], axis=1)

    def texts(self, name: str) -> list[str]:
        """Raise, since an EDF file has no labels per sample."""
        raise ValueError(f"{self.path} holds no labels {name!r}")


def read_annotations(path: Path) -> list[Interval]:
    """Return the annotations of an EDF file, which may hold no signals.

    Raises:
        ValueError: naming the file, if it is damaged.
    """
    with reading(path, _DAMAGE):
        return _intervals(_open(path))


def _open(path: Path) -> Any:
    try:
        import edfio
    except ImportError as error:
        raise ValueError(f"{path}: EDF needs the package `edfio`: {install_hint('signals')}") from error
    if path.suffix.lower() == ".bdf":
        edf = edfio.read_bdf(path)  # into memory, since 24 bits cannot be mapped
    else:
        edf = edfio.read_edf(path, lazy_load_data=True)
    for signal in edf.signals:
        for name in _RANGES:  # edfio would return digital values where a header has a decimal comma
            setattr(signal, f"_{name}", getattr(signal, f"_{name}").replace(b",", b"."))
    return edf


def _intervals(edf: Any) -> list[Interval]:
    return [
        Interval(each.onset, each.onset + (each.duration or 0.0), each.text.strip())
        for each in edf.annotations
        if each.text.strip() and each.onset >= 0
    ]


def _check_ranges(path: Path, channel: str, signal: Any) -> None:
    """Raise an error on a channel without a scale, of which edfio returns digital values."""
    for name in _RANGES:
        try:
            getattr(signal, name)
        except ValueError:
            text = getattr(signal, f"_{name}").decode("ascii", "replace").strip()
            raise ValueError(
                f"{path}: the {_title(name)} of channel {channel} is {text!r}, no number: correct the header, or "
                "choose other channels by `channels`"
            ) from None
    for lowest, highest in (_RANGES[:2], _RANGES[2:]):
        if getattr(signal, lowest) == getattr(signal, highest):
            raise ValueError(
                f"{path}: the {_title(lowest)} and {_title(highest)} of channel {channel} are both "
                f"{getattr(signal, lowest):g}: correct the header, or choose other channels by `channels`"
            )


def _title(name: str) -> str:
    return name.replace("_", " ") + "imum"


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names; a name that occurs again gets a number."""
    seen: dict[str, int] = {}
    distinct = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return distinct
