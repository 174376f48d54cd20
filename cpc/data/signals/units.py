"""Units of channels, and the factor from one to another. "" is an unknown unit."""

import math
import unicodedata

_EXPONENTS = {"": 0, "p": -12, "n": -9, "u": -6, "m": -3, "c": -2, "k": 3, "M": 6, "G": 9}  # of SI prefixes
_SPELLINGS = {"\N{GREEK SMALL LETTER MU}": "u", "\N{GREEK CAPITAL LETTER OMEGA}": "Ohm", "°": "deg", "^": "", " ": ""}
_PER_DEGREE = math.pi / 180
# Kind and size of units that take a prefix. `g` is the acceleration of free fall, so `mg` is a thousandth of it.
_UNITS = {name: (name, 1.0) for name in ("V", "A", "Ohm", "S", "T", "Pa", "N", "W", "Hz", "K", "m", "m/s", "m/s2", "s")}
_UNITS |= {"v": ("V", 1.0), "ohm": ("Ohm", 1.0), "g": ("m/s2", 9.80665), "rad": ("rad", 1.0), "rad/s": ("rad/s", 1.0)}
_UNITS |= {"deg": ("rad", _PER_DEGREE), "deg/s": ("rad/s", _PER_DEGREE), "dps": ("rad/s", _PER_DEGREE)}


def conversion(from_unit: str, to_unit: str) -> float:
    """Return the factor that multiplies a value in one unit to give the value in another.

    Volts, amperes, ohms, siemens, teslas, pascals, newtons, watts, hertz, kelvins, metres, seconds, m/s, accelerations
    (`g`, `m/s2`), angles and angular velocities (`rad/s`, `deg/s`, `dps`) convert within their kind, with SI prefixes
    from p to G. Any other unit converts only to itself. That includes degrees Celsius, whose zero is another. An
    unknown unit, "", equals every unit.

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
