"""The recordings in an estimator's X: arrays, tensors, data frames, and lists of these. T samples, C channels."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float32

from cpc.data.signals.channels import find_channel, is_nameless

_SAMPLES_AT_ONCE = 2**18  # padded samples of recordings that are encoded together


def on_cpu(values: Any) -> Any:
    """Return a tensor as a tensor that numpy reads, and anything else unchanged."""
    if not isinstance(values, torch.Tensor):
        return values
    values = values.detach().cpu()
    return values.float() if values.dtype == torch.bfloat16 else values


def real_numbers(values: Any, name: str) -> Float32[np.ndarray, "..."]:
    """Return an array, a tensor or a data frame of real numbers as float32; `name` is for messages."""
    try:
        array = np.asarray(on_cpu(values))
        if array.dtype.kind in "cmM":
            raise ValueError(f"Complex data not supported, nor times: the dtype is {array.dtype}")
        with np.errstate(over="ignore"):  # infinity is refused later, with its place
            return array.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be read as real numbers: {error}") from error


def list_recordings(X: Any) -> list[Any] | None:
    """Return the recordings of `[n, T, C]`, or of a list or Series of recordings; None if X is a table `[n, T]`."""
    num_dims = getattr(X, "ndim", None)
    is_list = isinstance(X, list | tuple) or (num_dims == 1 and X.dtype.kind == "O")
    if not is_list:
        return list(X) if num_dims == 3 else None
    parts = list(X)
    is_ragged = len({len(part) for part in parts if isinstance(part, list | tuple)}) > 1
    if parts and (is_ragged or all(getattr(part, "ndim", 0) > 0 for part in parts)):
        return parts
    return None


def read_recordings(
    parts: Sequence[Any], channels: Sequence[str] | None, num_channels: int | None
) -> list[Float32[np.ndarray, "_ C"]]:
    """Return recordings as arrays of channels; an array `[T]` has one channel.

    `channels` are the columns of data frames, in the order of the channels; None: all columns as they are.
    `num_channels` is C; None: that of the first recording.
    """
    recordings: list[np.ndarray] = []
    for row, part in enumerate(parts):
        array = real_numbers(channels_named(part, f"recording {row}", channels), f"recording {row}")
        recording = rearrange(array, "t -> t 1") if array.ndim == 1 else array
        num_channels = num_channels or recording.shape[-1]
        if recording.ndim != 2 or recording.shape[1] != num_channels or len(recording) < 1:
            raise ValueError(f"recording {row} has the shape {list(array.shape)}, not [samples, {num_channels}]")
        if not np.isfinite(recording).all():
            sample, channel = np.argwhere(~np.isfinite(recording))[0].tolist()
            raise ValueError(f"recording {row} is not finite in channel {channel} at sample {sample}: fill or cut it")
        recordings.append(recording)
    return recordings


def column_names(table: Any) -> list[str] | None:
    """Return the names of a data frame's columns; None if the columns are numbered, or the table is an array."""
    names = list(getattr(table, "columns", ()))
    return names if all(isinstance(name, str) for name in names) and not is_nameless(names) else None


def channels_named(recording: Any, name: str, channels: Sequence[str] | None) -> Any:
    """Return a data frame with exactly these columns, in this order. Arrays and numbered columns stay as they are."""
    own = column_names(recording)
    if own is None or channels is None:
        return recording
    columns = [find_channel(channel, own) for channel in channels]
    if -1 in columns or len(own) != len(channels):
        raise ValueError(f"{name} has the columns {own}, but the channels are {list(channels)}")
    return recording[[own[column] for column in columns]]


def check_table(X: Any) -> None:
    """Refuse a table that looks like one recording `[T, C]`, or like several recordings below each other."""
    names, shape, groups = column_names(X), np.shape(X), ""
    if names is not None and not all(re.search(r"\d", name) for name in names):
        problem = f"X has the columns {names}, which look like channels"
        groups = (
            '. If a column `id` tells recordings apart, give [part.drop(columns="id") for _, part in X.groupby("id")]'
        )
    elif len(shape) == 2 and shape[0] > shape[1] > 0:
        problem = f"X has the shape {list(shape)}, and more rows than columns look like [samples, channels]"
    else:
        return
    raise ValueError(
        f"{problem}, but each row would be a recording of one channel. For one recording give [X]{groups}. If each row "
        "is a recording, set `num_channels` to 1"
    )


def similar_lengths(lengths: np.ndarray) -> list[np.ndarray]:
    """Return the rows in groups of similar length, whose padded samples stay below `_SAMPLES_AT_ONCE`."""
    order = np.argsort(lengths, kind="stable")
    groups, first = [], 0
    for last in range(1, len(order) + 1):
        if last == len(order) or (last + 1 - first) * lengths[order[last]] > _SAMPLES_AT_ONCE:
            groups.append(order[first:last])
            first = last
    return groups
