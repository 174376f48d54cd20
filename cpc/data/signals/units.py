"""Units of channels, and the factors from one to another. "" is an unknown unit.

n recordings, C channels.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import Float64

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

    Volts, amperes, ohms, siemens, teslas, pascals, newtons, watts, hertz, kelvins, metres, seconds, m/s, accelerations
    (`g`, `m/s2`), angles and angular velocities (`rad/s`, `deg/s`, `dps`) convert within their kind, with SI prefixes
    from p to G. Any other unit, such as degrees Celsius, converts only to itself; an unknown unit, "", equals all.

    Raises:
        ValueError: if the units are of different kinds, or one of them is not among these.
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
    """Return the unit of each channel, the factors that convert every recording to it, and a line about them.

    Raises:
        ValueError: if a unit cannot be converted (the message names channel, units and two recordings), or the model
            reads another number of channels.
    """
    if wanted is not None and len(wanted) != len(channels):
        raise ValueError(
            f"{source} has the channels {', '.join(channels)}, but the model reads {len(wanted)}: choose these by "
            "`channels`"
        )
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
                raise ValueError(
                    f"{source}: {names[row]} has the channel {channels[column]} in {unit}, but {other} it in {target}, "
                    f"and {error}: correct the header, or leave the file or the channel out"
                ) from None
            if factors[row, column] != 1:
                converted[f"{channels[column]} from {unit} to {target}"] += 1
    if not converted:
        return targets, None, ""
    parts = [f"{what} ({num} of {len(units)} recordings)" for what, num in converted.most_common(4)]
    more = ", ..." if len(converted) > len(parts) else ""
    return targets, factors, f"converted {', '.join(parts)}{more}"
