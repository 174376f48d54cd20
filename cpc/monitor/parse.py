"""How lines of JSON become tables.

orjson takes a third of the time of Python's own json; reading many runs is mostly that. n records, K steps.
"""

import itertools
import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import orjson

from cpc.monitor.record_types import NUMBER, RecordType
from cpc.monitor.text import replace_surrogates
from cpc.monitor.table import Key, Table, mean_over_steps

DRAWN_BY_STEP = ("mi_bound_nats", "standard_error_nats")
_MOST_STEP = 2**53  # up to which floats count
# What lines raise that are not records: no JSON, other types, too deep, or numbers beyond any float.
_UNUSABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


class Parsed(NamedTuple):
    """Tables by key, in the order of the file, and what could not be used."""

    tables: dict[Key, Table]
    problems: list[str]  # line and reason
    newest_schema: int


def parse_lines(lines: Iterable[bytes], record_type: RecordType, first_line: int = 1) -> Parsed:
    """Sort lines of JSON into tables.

    A number that is missing, null or infinite becomes NaN: older and newer schemas are read as far as they go. A line
    that is not a record of this kind is left out and reported.
    """
    grouped: dict[Key, list[dict[str, Any]]] = {}
    keys: dict[Any, Key] = {}  # by header: few of them, training's and each held-out strategy's
    problems, newest = [], 0
    for number, line in enumerate(lines, start=first_line):
        try:
            record = _decode(line)
            width = len(record["mi_bound_nats"]) if record_type.per_step else None
            columns = (record.get("steps") or (), record.get("directions") or ()) if record_type.per_step else ((), ())
            header = (*map(tuple, columns), width, *[record[name] for name in record_type.key])
            if header not in keys:
                keys[header] = make_key(*header)
            if not abs(record["step"]) < _MOST_STEP:
                raise ValueError("the step is not finite, or beyond 2^53")
            newest = max(newest, int(record.get("schema", 1)))
            grouped.setdefault(keys[header], []).append(record)
        except _UNUSABLE as error:
            problems.append(replace_surrogates(f"{record_type.file}, line {number}: {type(error).__name__}: {error}"))
    return Parsed({key: _table(records, key, record_type) for key, records in grouped.items()}, problems, newest)


def _decode(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)  # which knows NaN and Infinity too


def make_key(steps: tuple[Any, ...], directions: tuple[Any, ...], width: int | None, *names: Any) -> Key:
    """What tells a table apart; ValueError if its columns are none. `width`: number of steps k, None without them."""
    words = tuple(map(replace_surrogates, names))
    if width is None:
        return Key(words, (0,), ("",))
    steps, directions = steps or tuple(range(1, width + 1)), directions or ("",) * width
    if not width == len(steps) == len(directions):
        raise ValueError(f"{width} values for {len(steps)} steps and {len(directions)} directions")
    if not width:
        raise ValueError("no step k")
    if not all(type(k) is int for k in steps) or not all(isinstance(each, str) for each in directions):
        raise ValueError("a step that is not an integer, or a direction that is not a word")
    directions = tuple(map(replace_surrogates, directions))
    if len(set(zip(directions, steps, strict=True))) < width:
        raise ValueError(f"the same step twice: {steps}")
    return Key(words, steps, directions)


@np.errstate(over="ignore")  # what float32 cannot hold is drawn as a gap
def _table(records: list[dict[str, Any]], key: Key, record_type: RecordType) -> Table:
    steps = {"step": np.array([record["step"] for record in records], np.float64)}
    last = cast_fields(records[-1], key, record_type)
    if not record_type.per_step:
        rows = [[record.get(name) for name in record_type.numbers] for record in records]
        values = dict(zip(record_type.numbers, _number_array(rows, len(record_type.numbers), np.float64).T, strict=True))
        columns = {n: _replace_infinite(column.astype("f8" if n.endswith("_seconds") else "f4")) for n, column in values.items()}
        return Table(key, steps | columns, {}, last)
    width = len(key.steps)
    numbers = ("num_rows", *record_type.numbers)
    columns = {name: _number_array([record.get(name) for record in records], width, np.float32) for name in numbers}
    means = {name: mean_over_steps(columns[name], columns["num_rows"]) for name in record_type.numbers}
    means["chance_accuracy"] = 1 / means["num_candidates"]
    return Table(key, steps | means, {name: columns[name] for name in DRAWN_BY_STEP}, last)


def _number_array(rows: list[Any], width: int, dtype: type) -> np.ndarray:
    """`[n, width]`; NaN where a value is null or not a number, or a row missing or of another length."""
    values: np.ndarray
    try:  # numbers alone: fastest by far
        if {type(row) for row in rows} == {list} and {len(row) for row in rows} == {width}:
            values = np.fromiter(itertools.chain.from_iterable(rows), dtype, len(rows) * width)
            return _replace_infinite(values).reshape(-1, width)
    except (TypeError, ValueError, OverflowError):
        pass
    values = np.full((len(rows), width), np.nan, dtype)
    for row, given in zip(values, rows, strict=True):
        if isinstance(given, list) and len(given) == width:
            row[:] = [math.nan if (number := _finite(value)) is None else number for value in given]
    return _replace_infinite(values)


def _replace_infinite(values: np.ndarray) -> np.ndarray:
    """NaN in place of what is infinite, in the file or once it is rounded to float32."""
    values[np.isinf(values)] = np.nan
    return values


def cast_fields(record: dict[str, Any], key: Key, record_type: RecordType) -> dict[str, Any]:
    """The fields of a record that have the type of docs/records.md, so that whoever shows them can trust it.

    Numbers are finite or None. A field of another type, as a newer schema may have, is left out like a missing one.
    """
    found: dict[str, Any] = {}
    types = dict.fromkeys(record_type.numbers, (NUMBER, "per step" if record_type.per_step else "one")) | dict(record_type.last)
    for name, (element, shape) in types.items():
        if name not in record:
            continue
        values = [record[name]] if shape == "one" else record[name]
        if not isinstance(values, list) or (shape == "per step" and len(values) != len(key.steps)):
            continue
        if all(isinstance(value, element) for value in values):
            clean = {NUMBER: _finite, str: replace_surrogates}.get(element, bool)
            typed = [clean(value) for value in values]
            found[name] = typed[0] if shape == "one" else typed
    return found


def _finite(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:  # an integer of hundreds of digits
        return None
