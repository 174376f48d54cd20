"""Helpers of the scripts of public corpora of signals (`datasets/NAME/prepare.py`): an npz file with splits, labels.

n recordings of T samples in all, C channels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from cpc.data.store.atomic import write_atomically


@dataclass(frozen=True)
class SignalArrays:
    """Recordings of one corpus, one after the other.

    Attributes:
        x: `[T, C]` values.
        length: `[n]` samples of each recording.
        group: person of each recording.
        label: code of each recording `[n]` or of each sample `[T]`; -1 if there is none.
        classes: name of each code.
        channels: name of each channel.
        sample_rate_hz: samples per second.
        split: split of each recording; None if the corpus has none.
        more_labels: further labels by the task's name: a string of each recording `[n]` or of each sample `[T]`; "" if
            there is none.
        units: unit of each channel, "" if unknown; None: all are unknown.
    """

    x: Shaped[np.ndarray, "T C"]
    length: Int[np.ndarray, " n"]
    group: Int[np.ndarray, " n"]
    label: Int[np.ndarray, " m"]
    classes: Sequence[str]
    channels: Sequence[str]
    sample_rate_hz: float
    split: Sequence[str] | None = None
    more_labels: Mapping[str, Sequence[str] | np.ndarray] = field(default_factory=dict)
    units: Sequence[str] | None = None


def write_recordings(path: Path, arrays: SignalArrays) -> tuple[Path, SignalArrays]:
    """Write the arrays to an npz file, which `cpc.data.Signals` takes as its source; return both."""
    columns: dict[str, Any] = {
        "x": arrays.x,
        "length": arrays.length.astype(np.int64),
        "group": arrays.group.astype(np.int64),
        "label": arrays.label.astype(np.int64 if len(arrays.label) == len(arrays.length) else np.int8),
        "classes": np.array(arrays.classes),
        "channels": np.array(arrays.channels),
        "sample_rate_hz": np.array(float(arrays.sample_rate_hz)),
        **{task: np.array(names) for task, names in arrays.more_labels.items()},
    }
    if arrays.units is not None:
        columns["units"] = np.array(arrays.units)
    if arrays.split is not None:
        columns["split"] = np.array(arrays.split)
    with write_atomically(path) as new, new.open("wb") as stream:
        np.savez_compressed(stream, **columns)
    return path, arrays


def describe(written: tuple[Path, SignalArrays], published: dict[str, int] | None = None) -> str:
    """Return a table of the splits: recordings, people, seconds, labelled share; `published` numbers if they differ."""
    path, arrays = written
    num = len(arrays.length)
    splits = np.array(["all"] * num if arrays.split is None else arrays.split)
    of_sample = np.repeat(np.arange(num), arrays.length)
    has_label = arrays.label >= 0 if len(arrays.label) == len(of_sample) else (arrays.label >= 0)[of_sample]
    lines = [
        f"{num} recordings of {len(arrays.channels)} channels ({', '.join(arrays.channels)}) at "
        f"{arrays.sample_rate_hz:g} Hz in {path}",
        f"{'split':8}{'recordings':>12}{'people':>8}{'seconds':>10}{'labelled':>10}",
    ]
    for split in dict.fromkeys([*splits.tolist(), *((published or {}) if arrays.split is not None else {})]):
        is_here = splits == split
        seconds = arrays.length[is_here].sum() / arrays.sample_rate_hz
        labelled = has_label[is_here[of_sample]].mean() if is_here.any() else 0.0
        people = len(np.unique(arrays.group[is_here]))
        line = f"{split:8}{is_here.sum():12}{people:8}{seconds:10.0f}{labelled:10.1%}"
        expected = (published or {}).get(split) if arrays.split is not None else sum((published or {}).values()) or None
        if expected is not None and expected != is_here.sum():
            line += f"   (published: {expected})"
        lines.append(line)
    labels = arrays.label[arrays.label >= 0]
    unit = "recordings" if len(arrays.label) == num else "samples"
    counts = np.bincount(labels, minlength=len(arrays.classes))
    lines.append(
        f"{unit} of each class: "
        + ", ".join(f"{name} {count}" for name, count in zip(arrays.classes, counts, strict=True))
    )
    return "\n".join(lines)
