"""Lines of JSON as tables; n is the number of records, K the number of steps.

orjson is used because it takes a third of the time of Python's json, and parsing takes most of the time of reading many
runs.
"""

import itertools
import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import orjson

from cpc.monitor.record_types import NUMBER, RecordType
from cpc.monitor.table import Key, Table, mean_over_steps, replace_surrogates

FIELDS_BY_STEP = ("mi_bound_nats", "standard_error_nats")  # fields that are plotted for every step k
_MAX_STEP = 2**53  # beyond this number, float64 does not represent every integer
# Errors on lines that are not records: not JSON, values of other types, nested too deeply, or numbers out of range.
_UNUSABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


def parse_lines(
    lines: Iterable[bytes], record_type: RecordType, first_line: int = 1
) -> tuple[dict[Key, Table], list[str], int]:
    """Return tables by key in the order of the lines, the lines that are no records with reasons, the newest schema.

    A number that is missing, null or infinite becomes NaN, so that older and newer schemas are read as far as possible.
    """
    grouped: dict[Key, list[dict[str, Any]]] = {}
    keys: dict[Any, Key] = {}  # tables by header; a file has few headers (training, held-out strategies)
    problems, newest = [], 0
    for number, line in enumerate(lines, start=first_line):
        try:
            record = _decode(line)
            width = len(record["mi_bound_nats"]) if record_type.per_step else None
            columns = (record.get("steps") or (), record.get("directions") or ()) if record_type.per_step else ((), ())
            header = (*map(tuple, columns), width, *[record[name] for name in record_type.key])
            if header not in keys:
                keys[header] = _make_key(*header)
            if not abs(record["step"]) < _MAX_STEP:
                raise ValueError("the step is not finite, or beyond 2^53")
            newest = max(newest, int(record.get("schema", 1)))
            grouped.setdefault(keys[header], []).append(record)
        except _UNUSABLE as error:
            problems.append(replace_surrogates(f"{record_type.file}, line {number}: {type(error).__name__}: {error}"))
    return {key: _table(records, key, record_type) for key, records in grouped.items()}, problems, newest


def _decode(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)  # json also accepts NaN and Infinity


def _make_key(steps: tuple[Any, ...], directions: tuple[Any, ...], width: int | None, *names: Any) -> Key:
    """Return the key of a table; `width` is the number of steps k, or None for records without lists."""
    names = tuple(map(replace_surrogates, names))
    if width is None:
        return Key(names, (0,), ("",))
    steps, directions = steps or tuple(range(1, width + 1)), directions or ("",) * width
    is_typed = all(type(k) is int for k in steps) and all(isinstance(each, str) for each in directions)
    if not is_typed or not 0 < width == len(steps) == len(directions) == len({*zip(directions, steps, strict=False)}):
        raise ValueError(f"{width} values, but not one for each of the steps {steps} and directions {directions}")
    directions = tuple(map(replace_surrogates, directions))
    return Key(names, steps, directions)


@np.errstate(over="ignore")  # values that overflow float32 become gaps
def _table(records: list[dict[str, Any]], key: Key, record_type: RecordType) -> Table:
    columns = {}
    for name in ("num_rows", *record_type.numbers):
        rows = [record.get(name) if record_type.per_step else [record.get(name)] for record in records]
        columns[name] = _number_array(rows, len(key.steps), np.float64 if name.endswith("_seconds") else np.float32)
    means = {"step": np.array([record["step"] for record in records], np.float64)}
    means |= {name: mean_over_steps(columns[name], columns["num_rows"]) for name in record_type.numbers}
    last = _last_fields(records[-1], key, record_type)
    if not record_type.per_step:
        return Table(key, means, {}, last)
    means["chance_accuracy"] = 1 / means["num_candidates"]
    return Table(key, means, {name: columns[name] for name in FIELDS_BY_STEP}, last)


def _number_array(rows: list[Any], width: int, dtype: type) -> np.ndarray:
    """Return rows as an array `[n, width]`; NaN for values that are not numbers and rows of another length."""
    values: np.ndarray = np.full((len(rows), width), np.nan, dtype)
    try:  # if all values are numbers, this is by far the fastest way
        if {type(row) for row in rows} == {list} and {len(row) for row in rows} == {width}:
            values = np.fromiter(itertools.chain.from_iterable(rows), dtype, values.size).reshape(-1, width)
            rows = []
    except (TypeError, ValueError, OverflowError):
        pass
    for target, row in zip(values, rows, strict=False):
        if isinstance(row, list) and len(row) == width:
            target[:] = [math.nan if (number := _finite(value)) is None else number for value in row]
    values[np.isinf(values)] = np.nan  # infinite in the file, or after rounding to float32
    return values


def _last_fields(record: dict[str, Any], key: Key, record_type: RecordType) -> dict[str, Any]:
    """Return the fields of a record that have the types of docs/records.md.

    Numbers are finite or None. A field of another type, which a newer schema may have, is left out.
    """
    fields: dict[str, Any] = {}
    types = dict.fromkeys(record_type.numbers, (NUMBER, "per step" if record_type.per_step else "one"))
    for name, (element, shape) in (types | dict(record_type.last)).items():
        if name not in record:
            continue
        values = [record[name]] if shape == "one" else record[name]
        if not isinstance(values, list) or (shape == "per step" and len(values) != len(key.steps)):
            continue
        if all(isinstance(value, element) for value in values):
            clean = {NUMBER: _finite, str: replace_surrogates}.get(element, bool)
            typed = [clean(value) for value in values]
            fields[name] = typed[0] if shape == "one" else typed
    return fields


def _finite(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:  # an integer of hundreds of digits
        return None
