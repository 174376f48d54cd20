"""Rates and channels that the files of one source must share."""

import math
from collections.abc import Sequence

RATE_TOLERANCE = 0.01  # largest relative difference of equal rates; clocks of two devices differ by less


def common_rate(rates: Sequence[float | None], names: Sequence[str], source: object) -> float | None:
    """Return the rate of all files, None if no file has one; raise a ValueError that names two files of other rates."""
    known = [(rate, name) for rate, name in zip(rates, names, strict=True) if rate is not None]
    for rate, name in known[1:]:
        if abs(rate / known[0][0] - 1) > RATE_TOLERANCE:
            raise ValueError(
                f"{source}: {known[0][1]} has {known[0][0]:g} Hz, {name} {rate:g} Hz; the recordings of a source must "
                "have one rate: resample one of them, or read them as two sources"
            )
    return known[0][0] if known else None


def channels_rate(rates: Sequence[float], chosen: Sequence[int], channels: Sequence[str], source: object) -> float:
    """Return the rate of the chosen columns of a file, from the rates and names of all its channels."""
    if len({rates[column] for column in chosen}) > 1:
        listed = ", ".join(f"{channels[column]} {rates[column]:g} Hz" for column in chosen)
        raise ValueError(f"{source}: channels have different rates: {listed}; choose those of one rate by `channels`")
    if not 0 < rates[chosen[0]] < math.inf:
        raise ValueError(f"{source}: channel {channels[chosen[0]]} has {rates[chosen[0]]:g} Hz: correct the header")
    return rates[chosen[0]]


def common_channels(channels: Sequence[Sequence[str]], names: Sequence[str], source: object) -> list[str]:
    """Return the channels of all files; raise a ValueError that names two files of other channels, in any order."""
    for other, name in zip(channels[1:], names[1:], strict=True):
        if sorted(other) != sorted(channels[0]):
            raise ValueError(
                f"{source}: {names[0]} has the channels {', '.join(channels[0])}; {name} has {', '.join(other)}; "
                "set `channels` to channels that all files have"
            )
    return list(channels[0])


def choose_channels(
    chosen: Sequence[str | int] | None, available: Sequence[str], source: object
) -> tuple[list[str], list[int]]:
    """Return names and columns of the chosen channels, in the order of `chosen`; None: of all channels.

    A string is the name of one channel or, if there is not exactly one channel of this name, a channel number as text.
    An integer is a channel number. Numbers start at 0.

    Raises:
        ValueError: if `chosen` is empty, or names an unknown channel or one channel twice; if it is None and several
            channels have one name. The message lists the channels.
    """
    if chosen is None:
        twice = sorted({name for name in available if list(available).count(name) > 1})
        if twice:
            raise ValueError(
                f"{source} has several channels named {', '.join(twice)}: set `channels` to the numbers of channels"
            )
        return list(available), list(range(len(available)))
    columns = [_column(channel, available, source) for channel in chosen]
    if not columns or len(set(columns)) < len(columns):
        raise ValueError(
            f"`channels` are {', '.join(map(str, chosen)) or 'empty'}, but must name at least one channel, each once; "
            f"{source} has {', '.join(available)}"
        )
    return [available[column] for column in columns], columns


def choose_model_channels(
    wanted: Sequence[str] | None, chosen: Sequence[str | int] | None, available: Sequence[str], source: object
) -> tuple[list[str], list[int]]:
    """Return names and columns of the channels that a model reads, in its order; `wanted` are their names.

    Channels without names ("0", "1", ...), and those of a model without names (`wanted` is None), are read by position,
    as `choose_channels` returns them.

    Raises:
        ValueError: if a wanted channel is missing or not chosen, or channels without names are of another number; the
            message lists both. Also the errors of `choose_channels`.
    """
    if wanted is None:
        return choose_channels(chosen, available, source)
    nameless = is_nameless(available)
    if nameless and chosen and set(chosen) <= set(wanted):
        chosen = None
    names = list(available) if chosen is None else choose_channels(chosen, available, source)[0]
    places = range(len(names)) if nameless else [find_channel(name, names) for name in wanted]
    if -1 in places or ((nameless or chosen is not None) and len(names) != len(wanted)):
        has = "has the channels" if chosen is None else "has, by `channels`, the channels"
        raise ValueError(
            f"{source} {has} {', '.join(names)}, but the model reads {', '.join(wanted)}, by these names: rename the "
            "channels of the source, or the model's (`channel_names` of the encoder, in its config.json)"
        )
    return names if nameless else list(wanted), [list(available).index(names[place]) for place in places]


def is_nameless(channels: Sequence[str]) -> bool:
    """Return whether channels have no names but their numbers."""
    return list(channels) == [str(number) for number in range(len(channels))]


def find_channel(name: str, available: Sequence[str]) -> int:
    """Return the column of the only channel of this name, or of the only one that differs in case; -1 if absent."""
    for spelt in (str, str.casefold):
        columns = [column for column, other in enumerate(available) if spelt(other) == spelt(name)]
        if columns:
            return columns[0] if len(columns) == 1 else -1
    return -1


def _column(channel: str | int, available: Sequence[str], source: object) -> int:
    if isinstance(channel, str) and list(available).count(channel) == 1:
        return list(available).index(channel)
    number = int(channel) if isinstance(channel, int) or channel.isdecimal() else -1
    if 0 <= number < len(available):
        return number
    raise ValueError(
        f"{source} has no channel {channel!r}, only {', '.join(available)}: name one of these, or its number from 0 to "
        f"{len(available) - 1}"
    )
