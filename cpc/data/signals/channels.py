"""Rates and channels that the files of one source must share."""

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import Float64

RATE_TOLERANCE = 0.01  # largest relative difference of equal rates; clocks of two devices differ by less


def common_rate(rates: Sequence[float | None], names: Sequence[str], source: object) -> float | None:
    """Return the rate of all files, None if no file has one; raise a ValueError that names two files of other rates."""
    known = [(rate, name) for rate, name in zip(rates, names, strict=True) if rate is not None]
    for rate, name in known[1:]:
        if abs(rate / known[0][0] - 1) > RATE_TOLERANCE:
            two = f"{known[0][1]} has {known[0][0]:g} Hz, {name} {rate:g} Hz"
            raise ValueError(f"{source}: {two}; the recordings of a source must have one rate")
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
            two = f"{names[0]} has the channels {', '.join(channels[0])}; {name} has {', '.join(other)}"
            raise ValueError(f"{source}: {two}; set `channels` to channels that all files have")
    return list(channels[0])


def choose_channels(
    chosen: Sequence[str | int] | None, available: Sequence[str], source: object
) -> tuple[list[str], list[int]]:
    """Return names and columns of the chosen channels, in the order of `chosen`; None: of all channels.

    A string is the name of one channel or, if there is not exactly one channel of this name, a channel number as text.
    An integer is a channel number. Numbers start at 0.
    """
    if chosen is None:
        if twice := sorted({name for name in available if list(available).count(name) > 1}):
            raise ValueError(f"{source} has several channels named {', '.join(twice)}: set `channels` to numbers")
        return list(available), list(range(len(available)))
    columns = [_column(channel, available, source) for channel in chosen]
    if not columns or len(set(columns)) < len(columns):
        found = f"`channels` are {', '.join(map(str, chosen)) or 'empty'}, but must name channels, each once"
        raise ValueError(f"{found}; {source} has {', '.join(available)}")
    return [available[column] for column in columns], columns


def choose_model_channels(
    wanted: Sequence[str] | None, chosen: Sequence[str | int] | None, available: Sequence[str], source: object
) -> tuple[list[str], list[int]]:
    """Return names and columns of the channels that a model reads, in its order; `wanted` are their names.

    Channels without names ("0", "1", ...), and those of a model without names (`wanted` is None), are read by position,
    as `choose_channels` returns them.
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
        found = f"{source} {has} {', '.join(names)}, but the model reads {', '.join(wanted)}, by these names"
        raise ValueError(f"{found}: rename those of the source, or `channel_names` in the model's config.json")
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
    legal = f"{', '.join(available)}, or the numbers from 0 to {len(available) - 1}"
    raise ValueError(f"{source} has no channel {channel!r}, only {legal}")


_EXPONENTS = {"": 0, "p": -12, "n": -9, "u": -6, "m": -3, "c": -2, "k": 3, "M": 6, "G": 9}  # of SI prefixes
_SPELLINGS = {"\N{GREEK SMALL LETTER MU}": "u", "\N{GREEK CAPITAL LETTER OMEGA}": "Ohm", "°": "deg", "^": "", " ": ""}
_PER_DEGREE = math.pi / 180
# Kind and size of units that take a prefix. `g` is the acceleration of free fall, so `mg` is a thousandth of it.
_UNITS = {name: (name, 1.0) for name in ("V", "A", "Ohm", "S", "T", "Pa", "N", "W", "Hz", "K", "m", "m/s", "m/s2", "s")}
_UNITS |= {"v": ("V", 1.0), "ohm": ("Ohm", 1.0), "g": ("m/s2", 9.80665), "rad": ("rad", 1.0), "rad/s": ("rad/s", 1.0)}
_UNITS |= {"deg": ("rad", _PER_DEGREE), "deg/s": ("rad/s", _PER_DEGREE), "dps": ("rad/s", _PER_DEGREE)}


@cache
def conversion(from_unit: str, to_unit: str) -> float:
    """Return the factor that multiplies a value in one unit to give the value in another.

    The units of `_UNITS` convert within their kind, with SI prefixes from p to G. Any other unit, such as degrees
    Celsius, converts only to itself; an unknown unit, "", equals all.
    """
    old, new = _spelt(from_unit), _spelt(to_unit)
    if old == new or not old or not new:
        return 1.0
    found = [_parsed(unit) for unit in (old, new)]
    if found[0] is None or found[1] is None or found[0][0] != found[1][0]:
        raise ValueError(f"{from_unit} cannot be converted to {to_unit}")
    (_, size, exponent), (_, other_size, other_exponent) = found[0], found[1]
    return size / other_size * 10.0 ** (exponent - other_exponent)


def _spelt(unit: str) -> str:
    unit = unicodedata.normalize("NFKC", unit)  # one code point for micro, 2 for its superscript
    for given, written in _SPELLINGS.items():
        unit = unit.replace(given, written)
    return unit


def _parsed(unit: str) -> tuple[str, float, int] | None:
    """Return kind, size and exponent of the prefix; None if the unit is unknown."""
    for prefix, exponent in _EXPONENTS.items():
        if unit.startswith(prefix) and unit[len(prefix) :] in _UNITS:
            return *_UNITS[unit[len(prefix) :]], exponent
    return None


def convert_units(
    units: Sequence[Sequence[str]],
    channels: Sequence[str],
    names: Sequence[str],
    wanted: Sequence[str] | None,
    source: object,
) -> tuple[list[str], Float64[np.ndarray, "n C"] | None, str]:
    """Return the unit of each channel, the factors that convert every recording to it, and a line about them."""
    if wanted is not None and len(wanted) != len(channels):
        found = f"{source} has the channels {', '.join(channels)}"
        raise ValueError(f"{found}, but the model reads {len(wanted)}: set `channels`")
    firsts = [next((row for row, each in enumerate(units) if each[column]), None) for column in range(len(channels))]
    own = ["" if row is None else units[row][column] for column, row in enumerate(firsts)]
    targets = own if wanted is None else [given or unit for given, unit in zip(wanted, own, strict=True)]
    factors, converted = np.ones((len(units), len(channels))), Counter[str]()
    for row, each in enumerate(units):
        for column, (unit, target) in enumerate(zip(each, targets, strict=True)):
            try:
                factors[row, column] = conversion(unit, target)
            except ValueError as error:
                first = firsts[column]
                other = "the model reads" if target != own[column] or first is None else f"{names[first]} has"
                found = f"{names[row]} has the channel {channels[column]} in {unit}"
                raise ValueError(f"{source}: {found}, but {other} it in {target}, and {error}") from None
            if factors[row, column] != 1:
                converted[f"{channels[column]} from {unit} to {target}"] += 1
    if not converted:
        return targets, None, ""
    parts = [f"{what} ({num} of {len(units)} recordings)" for what, num in converted.most_common(4)]
    more = ", ..." if len(converted) > len(parts) else ""
    return targets, factors, f"converted {', '.join(parts)}{more}"
