"""Lines `label,label feature:value feature:value` as arrays, many at once.

Python would spend a microsecond on every number. Here the bytes between two separators are a piece, what stands on
either side says what the piece is, and eight of its digits are read by one 64-bit load.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

_DIGIT, _SIGN, _POINT, _COMMA, _COLON, _SPACE, _NEWLINE, _ILLEGAL = range(8)
_NUM_KINDS = 8
_KINDS = {
    b"0123456789": _DIGIT,
    b"+-eE": _SIGN,
    b".": _POINT,
    b",": _COMMA,
    b":": _COLON,
    b" \t\r": _SPACE,
    b"\n": _NEWLINE,
}
_KIND_OF = bytearray([_ILLEGAL]) * 256
for _characters, _kind in _KINDS.items():
    for _character in _characters:
        _KIND_OF[_character] = _kind

_WRONG, _NOTHING, _FIRST_LABEL, _LABEL, _FEATURE, _VALUE, _WHOLE_PART, _FRACTION = range(8)
_ROLE_OF = np.full((_NUM_KINDS, _NUM_KINDS), _WRONG, np.uint8)  # by the separators before and behind
for _gap in (_SPACE, _NEWLINE):
    _ROLE_OF[_gap, [_SPACE, _NEWLINE, _COMMA]] = _FIRST_LABEL
    _ROLE_OF[_COMMA, [_COMMA, _gap]] = _LABEL
    _ROLE_OF[_gap, _COLON] = _FEATURE
    _ROLE_OF[_COLON, _gap] = _VALUE
    _ROLE_OF[_POINT, _gap] = _FRACTION
_ROLE_OF[_COLON, _POINT] = _WHOLE_PART

_MOST_DIGITS = 15  # a float64 holds them exactly
_LOAD = 8
_TENS = 10.0 ** np.arange(_MOST_DIGITS + 1)


class Lines(NamedTuple):
    """Points of a block of lines.

    Attributes:
        num_labels: how many each line has.
        labels: of all lines, one after the other.
        num_features: how many each line has.
        features: of all lines.
        values: of those features, float64.
    """

    num_labels: Int[np.ndarray, " P"]
    labels: Int[np.ndarray, " _"]
    num_features: Int[np.ndarray, " P"]
    features: Int[np.ndarray, " _"]
    values: Float[np.ndarray, " _"]


class MalformedLineError(ValueError):
    """A line of another form; `row` counts from the first line of the block."""

    def __init__(self, row: int, line: str) -> None:
        super().__init__(f"{line!r} is not of the form `label,label feature:value feature:value`")
        self.row = row


def parse_lines(block: bytes) -> Lines:
    """Read whole lines, the last of which ends with a newline.

    Raises:
        MalformedLineError: naming the first line that is not of this form, or has a value that is not finite.
    """
    kinds = np.frombuffer(block.translate(bytes(_KIND_OF)), np.uint8)
    stops = np.flatnonzero(kinds >= _POINT)
    after = kinds[stops]
    before = np.concatenate([np.array([_NEWLINE], np.uint8), after[:-1]])
    starts = np.concatenate([np.zeros(1, np.intp), stops[:-1] + 1])
    widths = stops - starts
    rows = np.cumsum(before == _NEWLINE) - 1
    roles = _ROLE_OF[before, after]
    roles[(widths == 0) & (roles == _FIRST_LABEL) & (after != _COMMA)] = _NOTHING
    has_sign = np.zeros(len(stops), bool)
    has_sign[np.searchsorted(stops, np.flatnonzero(kinds == _SIGN))] = True

    wrong = _wrong_pieces(roles, widths, rows, has_sign)
    if wrong.any():
        raise _malformed(block, int(rows[np.argmax(wrong)]))
    numbers = _digits(block, stops, widths)
    is_label = (roles == _FIRST_LABEL) | (roles == _LABEL)
    is_feature = roles == _FEATURE
    num_rows = int(rows[-1]) + 1
    return Lines(
        num_labels=np.bincount(rows[is_label], minlength=num_rows),
        labels=numbers[is_label].astype(np.int64),
        num_features=np.bincount(rows[is_feature], minlength=num_rows),
        features=numbers[is_feature].astype(np.int64),
        values=_values(block, roles, numbers, starts, widths, rows, has_sign),
    )


def _wrong_pieces(
    roles: UInt8[np.ndarray, " P"],
    widths: Int[np.ndarray, " P"],
    rows: Int[np.ndarray, " P"],
    has_sign: Bool[np.ndarray, " P"],
) -> Bool[np.ndarray, " P"]:
    is_whole_number = (roles == _FIRST_LABEL) | (roles == _LABEL) | (roles == _FEATURE)
    wrong = roles == _WRONG
    wrong |= is_whole_number & ((widths == 0) | (widths > _MOST_DIGITS) | has_sign)
    wrong |= (roles == _VALUE) & (widths == 0)
    fractions = np.flatnonzero(roles == _FRACTION)
    wrong[fractions] |= widths[fractions] + widths[fractions - 1] == 0  # a decimal point without digits
    # Labels come first: nothing but blanks may stand before the first of them.
    written = np.flatnonzero(roles != _NOTHING)
    opens_line = np.ones(len(written), bool)
    opens_line[1:] = rows[written[1:]] != rows[written[:-1]]
    wrong[written] |= (roles[written] == _FIRST_LABEL) & ~opens_line
    return wrong


def _malformed(block: bytes, row: int) -> MalformedLineError:
    line = block.split(b"\n", row + 1)[row].decode("utf-8", "replace")
    return MalformedLineError(row, line if len(line) <= 80 else f"{line[:77]}...")


def _digits(block: bytes, stops: Int[np.ndarray, " P"], widths: Int[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
    """Whole numbers that end before `stops`, of 16 digits at most; of others the last 16."""
    # The first piece may end within its first bytes: zeros before it keep every load inside.
    padded = b"0" * (2 * _LOAD) + block
    loads = np.ndarray((len(padded) - _LOAD + 1,), "<u8", padded, strides=(1,))
    numbers = _eight_digits(loads[stops + _LOAD], np.minimum(widths, _LOAD))
    longer = np.flatnonzero(widths > _LOAD)
    numbers[longer] += 1e8 * _eight_digits(loads[stops[longer]], np.minimum(widths[longer] - _LOAD, _LOAD))
    return numbers


def _eight_digits(loads: np.ndarray, widths: Int[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
    """The number in the last `widths` of eight ASCII characters, the first of which is the lowest byte.

    Neighbouring digits are joined to numbers below 100, those below 10^4, those below 10^8: three multiplications.
    """
    spare = ((_LOAD - widths) * 8).astype(np.uint64)
    kept = np.where(widths > 0, np.uint64(0xFFFFFFFFFFFFFFFF) << np.minimum(spare, np.uint64(63)), np.uint64(0))
    digits = (loads & kept) & np.uint64(0x0F0F0F0F0F0F0F0F)
    pairs = (digits * np.uint64(10) + (digits >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs * np.uint64(100) + (pairs >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    eight = (fours * np.uint64(10000) + (fours >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return eight.astype(np.float64)


def _values(
    block: bytes,
    roles: UInt8[np.ndarray, " P"],
    numbers: Float[np.ndarray, " P"],
    starts: Int[np.ndarray, " P"],
    widths: Int[np.ndarray, " P"],
    rows: Int[np.ndarray, " P"],
    has_sign: Bool[np.ndarray, " P"],
) -> Float[np.ndarray, " _"]:
    first = np.flatnonzero((roles == _VALUE) | (roles == _WHOLE_PART))
    has_fraction = roles[first] == _WHOLE_PART
    last = first + has_fraction
    num_decimals = np.where(has_fraction, widths[last], 0)
    is_plain = ~(has_sign[first] | has_sign[last]) & (widths[first] + num_decimals <= _MOST_DIGITS)
    scale = _TENS[np.minimum(num_decimals, _MOST_DIGITS)]
    # Both numbers are exact, and so the quotient is the float64 nearest to what is written.
    values = (numbers[first] * np.where(has_fraction, scale, 1) + np.where(has_fraction, numbers[last], 0)) / scale
    for each in np.flatnonzero(~is_plain):
        written = block[starts[first[each]] : starts[last[each]] + widths[last[each]]]
        try:
            values[each] = float(written)
        except ValueError:
            raise _malformed(block, int(rows[first[each]])) from None
    if not np.isfinite(values).all():
        raise _malformed(block, int(rows[first[np.argmin(np.isfinite(values))]]))
    return values
