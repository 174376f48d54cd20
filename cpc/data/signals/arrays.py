"""Recordings in arrays: npz and npy files. n recordings, T samples, C channels."""

import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock

import numpy as np

from cpc.data.images.arrays import array_header, load_array, open_npz
from cpc.data.recordings.labels import RecordingLabels, encode_names, labels_of_recordings, runs_of_samples, sort_names
from cpc.data.signals.listing import GROUP_NAMES, Listing
from cpc.data.store.contents import split_called
from cpc.data.store.folders import file_version
from cpc.data.store.untrusted import reading

BLOCK_SAMPLES = 1 << 16
SIGNAL_NAMES = ("x", "X", "data")  # names of the signals, if the file has other arrays too
_IS_LOADING = Lock()
_KNOWN = ("length", "split", "channels", "units", "classes", "sample_rate_hz")


def open_npy(path: Path) -> np.ndarray:
    """Open an array as a memory map; raise a ValueError that names the file if it is damaged or holds objects."""
    with reading(path, "cannot be read as an npy file"):
        array: np.ndarray = np.lib.format.open_memmap(path, mode="r")
        return array


def list_npy(path: Path) -> Listing:
    """List the recordings of an npy file: one, `[T, C]` or `[T]`, or n of one length, `[n, T, C]`."""
    array = open_npy(path)
    num, num_samples, num_channels = _recordings_shape(path, "the array", array.shape, array.dtype)
    spans = np.tile([0, num_samples], (num, 1))
    return Listing(
        names=[path.name] if array.ndim < 3 else _names(num),
        channels=[str(channel) for channel in range(num_channels)],
        num_samples=[num_samples] * num,
        read_blocks=partial(_read_npy, path, spans),
        version=file_version(path),
        layout_problem=transposed(path, num_samples, num_channels),
    )


def list_npz(path: Path) -> Listing:
    """List the recordings of an npz file.

    Signals are the array `x` (or the file's only array): `[total, C]` with an array `length`, `[n]`, of recordings one
    after the other; `[n, T, C]`, where `length`, if there is one, leaves out the padding at the end of each recording;
    or one recording, `[T, C]`. Further arrays are `group` (or `user`, `subject`), `split` and any number of label
    arrays: whole numbers (negative: no label) or strings ("": none), `[n]` per recording or `[total]` (or `[n, T]`) per
    sample. `classes` names the labels 0, 1, ... of the array `label`; `channels` names the channels, `units`
    their units ("" if unknown); `sample_rate_hz` is a number.
    """
    with open_npz(path) as archive:
        members = [member.removesuffix(".npy") for member in archive.namelist()]
        named = [name for name in SIGNAL_NAMES if name in members] or (members if len(members) == 1 else [])
        if not named:
            raise ValueError(f"{path}: has no array 'x', only {', '.join(sorted(members)) or 'nothing'}")
        signals = named[0]
        shape, dtype = array_header(archive, signals)
        version = sorted((member.filename, member.file_size, member.CRC) for member in archive.infolist())
    arrays = {name: load_array(path, name) for name in members if name != signals}
    spans = _spans(path, signals, shape, dtype, arrays.get("length"))
    num, num_channels = len(spans), shape[-1] if len(shape) > 1 else 1
    channels = [str(channel) for channel in range(num_channels)]
    if "channels" in arrays:
        channels = _column(path, "channels", arrays["channels"], num_channels)
    units = _column(path, "units", arrays["units"], num_channels) if "units" in arrays else [""] * num_channels
    problem = "" if {"length", "channels"} & arrays.keys() else transposed(path, shape[-2:][0], num_channels)
    group_name = next((name for name in GROUP_NAMES if name in arrays), None)
    splits = _column(path, "split", arrays["split"], num) if "split" in arrays else [""] * num
    return Listing(
        names=_names(num) if num > 1 or len(shape) == 3 else [path.name],
        channels=channels,
        sample_rate_hz=_rate(path, arrays["sample_rate_hz"]) if "sample_rate_hz" in arrays else None,
        num_samples=np.diff(spans).ravel().tolist(),
        read_blocks=partial(_read_npz, path, path.stat().st_mtime_ns, signals, spans),
        version=version,
        splits=[split_called(split) or split for split in splits],
        groups=_column(path, group_name, arrays[group_name], num) if group_name else [""] * num,
        labels=_labels(path, arrays, spans, shape, group_name),
        file_units=[units] * num,
        layout_problem=problem,
    )


def transposed(
    file: Path | str, num_samples: int, num_channels: int, option: str = "list all channels by `channels`"
) -> str:
    """Return a message if a recording has more channels than samples; "" if it does not."""
    if num_channels <= num_samples:
        return ""
    found = f"{num_channels} channels of {num_samples} samples each look transposed"
    return f"{file}: {found}; time comes first, [T, C] or [n, T, C]; if the layout is right, {option}"


def read_array(spans: np.ndarray, array: np.ndarray, row: int, columns: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield columns of a slice of an array, `[n, T, C]` or one after the other in `[total, C]`."""
    samples = array[row] if array.ndim == 3 else array
    samples = samples[:, None] if samples.ndim == 1 else samples
    first, end = spans[row].tolist()
    for start in range(first, end, BLOCK_SAMPLES):
        yield np.asarray(samples[start : min(start + BLOCK_SAMPLES, end), list(columns)])


def release_arrays() -> None:
    """Release the array of an npz file, which stays in memory while its recordings are read."""
    _load_once.cache_clear()


def _read_npy(path: Path, spans: np.ndarray, row: int, columns: Sequence[int]) -> Iterator[np.ndarray]:
    return read_array(spans, open_npy(path), row, columns)


def _read_npz(
    path: Path, changed: int, name: str, spans: np.ndarray, row: int, columns: Sequence[int]
) -> Iterator[np.ndarray]:
    with _IS_LOADING:
        array = _load_once(path, name, changed)
    return read_array(spans, array, row, columns)


@lru_cache(maxsize=1)
def _load_once(path: Path, name: str, changed: int) -> np.ndarray:
    return load_array(path, name)


def _names(num: int) -> list[str]:
    return [f"recording {index}" for index in range(num)]


def _recordings_shape(path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype) -> tuple[int, int, int]:
    """Return n, T and C of an array without lengths."""
    if dtype.kind not in "iuf" or not 1 <= len(shape) <= 3 or 0 in shape:
        legal = "real numbers [T, C] or [n, T, C], none of them 0"
        raise ValueError(f"{path}: {name} is {dtype} {list(shape)}, but must be {legal}")
    return (1, *shape, 1) if len(shape) == 1 else (1, *shape)[-3:]  # type: ignore[return-value]


def _spans(path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype, length: np.ndarray | None) -> np.ndarray:
    """Return start and end of each recording in the axis of time, `[n, 2]`."""
    num, num_samples, num_channels = _recordings_shape(path, name, shape, dtype)
    if length is None:
        return np.tile([0, num_samples], (num, 1))
    if length.dtype.kind not in "iu" or length.ndim != 1 or not length.size or int(length.min()) < 1:
        shown = f"{length.dtype} {list(length.shape)}"
        raise ValueError(f"{path}: length is {shown}, but must be the samples of each recording, [n], at least 1 each")
    lengths = length.astype(np.int64)
    total, longest = int(lengths.sum()), int(lengths.max())
    if len(shape) == 3:
        if len(lengths) != num or longest > num_samples:
            hint = f": {name} seems to be [n, C, T], transpose it" if num_samples < longest <= num_channels else ""
            held = f"length has {len(lengths)} entries of at most {longest} samples"
            raise ValueError(f"{path}: {held}, but {name} is [n, T, C] = {list(shape)}{hint}")
        return np.stack([np.zeros_like(lengths), lengths], axis=1)
    if total != num_samples:
        hint = f": {name} seems to be [C, total], transpose it" if total == num_channels else ""
        held = f"the lengths add up to {total} samples, but {name} has {num_samples}"
        raise ValueError(f"{path}: {held}, [total, C] = {list(shape)}{hint}")
    ends = np.cumsum(lengths)
    return np.stack([ends - lengths, ends], axis=1)


def _column(path: Path, name: str, array: np.ndarray, num: int) -> list[str]:
    """Return an array of strings or whole numbers as strings."""
    if array.dtype.kind not in "USiu" or array.shape != (num,):
        found = f"{name} is {array.dtype} {list(array.shape)}"
        raise ValueError(f"{path}: {found}, but must be strings or whole numbers [{num}]")
    values = array.tolist()
    return [value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) for value in values]


def _rate(path: Path, array: np.ndarray) -> float:
    if array.size != 1 or array.dtype.kind not in "iuf" or not 0 < float(array.reshape(())) < np.inf:
        raise ValueError(f"{path}: sample_rate_hz is {array.tolist()}, but must be one positive number")
    return float(array.reshape(()))


def _labels(
    path: Path, arrays: dict[str, np.ndarray], spans: np.ndarray, shape: tuple[int, ...], group_name: str | None
) -> dict[str, RecordingLabels]:
    """Return the labels of all further arrays with one entry per recording or per sample; warn of other arrays."""
    labels: dict[str, RecordingLabels] = {}
    ignored = []
    classes = arrays.get("classes")
    for name, array in arrays.items():
        if name in (*_KNOWN, group_name):
            continue
        is_legal = array.dtype.kind in "USiu"
        if is_legal and array.shape == (len(spans),):
            labels[name] = _recording_labels(path, name, array, classes)
        elif is_legal and array.shape == shape[: max(1, len(shape) - 1)]:
            rows = list(array) if array.ndim == 2 else [array] * len(spans)
            parts = [values[first:end] for values, (first, end) in zip(rows, spans.tolist(), strict=True)]
            labels[name] = _sample_labels(path, name, parts, classes)
        else:
            ignored.append(f"{name} ({array.dtype} {list(array.shape)})")
    if ignored:
        legal = f"strings or whole numbers, one per recording [{len(spans)}] or one per sample"
        warnings.warn(f"{path}: ignored the arrays {', '.join(ignored)}; labels are {legal}", stacklevel=2)
    return labels


def _recording_labels(path: Path, name: str, array: np.ndarray, classes: np.ndarray | None) -> RecordingLabels:
    if name == "label" and classes is not None and array.dtype.kind in "iu":
        names = [*_class_names(path, array, classes), ""]  # a negative code is the last name
        return labels_of_recordings([names[max(code, -1)] for code in array.tolist()], names[:-1])
    return labels_of_recordings(_column(path, name, array, len(array)))


def _sample_labels(path: Path, name: str, parts: list[np.ndarray], classes: np.ndarray | None) -> RecordingLabels:
    values = np.concatenate(parts)
    if name == "label" and classes is not None and values.dtype.kind in "iu":
        return RecordingLabels((_class_names(path, values, classes), list(map(runs_of_samples, parts))))
    distinct, inverse = np.unique(values, return_inverse=True)
    names = _column(path, name, distinct, len(distinct))
    sorted_names = sort_names(names)
    codes = np.split(encode_names(names, sorted_names)[inverse], np.cumsum(list(map(len, parts)))[:-1])
    return RecordingLabels((sorted_names, list(map(runs_of_samples, codes))))


def _class_names(path: Path, codes: np.ndarray, classes: np.ndarray) -> list[str]:
    names = _column(path, "classes", classes, classes.size)
    if int(codes.max()) >= len(names) or len(set(names)) < len(names):
        found = f"labels go up to {codes.max()}, classes are {', '.join(names)}"
        raise ValueError(f"{path}: {found}; classes must name each of the labels 0, 1, ... once")
    return names
