"""Records of a run, lines of JSON, as arrays; n is the number of records, K the number of steps.

orjson takes a third of the time of Python's json, and parsing takes most of the time of reading many runs.
"""

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson

from cpc.monitor.record_types import NUMBER, RecordType


def replace_surrogates(text: object) -> str:
    """Return text with a question mark for each surrogate, as names and records that are not UTF-8 contain.

    >>> replace_surrogates("run" + chr(0xDCFF)), replace_surrogates(3)
    ('run?', '3')
    """
    return str(text).encode("utf-8", "replace").decode("utf-8")


class Key(NamedTuple):
    """The values that all records of a table share: the key fields of the record type, and the columns."""

    names: tuple[str, ...]  # values of the key fields, such as split and strategy
    steps: tuple[int, ...]  # k of each column; (0,) for records without lists
    directions: tuple[str, ...]  # direction of each column; empty if there is only one

    @property
    def step_labels(self) -> list[str]:
        """The labels of the columns: `k = 3`, `down, k = 2`."""
        pairs = zip(self.directions, self.steps, strict=True)
        return [f"{direction}, k = {k}" if direction else f"k = {k}" for direction, k in pairs]


@dataclass
class Table:
    """Records with the same key, in the order of the file."""

    key: Key
    means: dict[str, np.ndarray]  # `[n]`: training step, and means over k; float32, but steps and times float64
    by_step: dict[str, np.ndarray]  # `[n, K]`: fields that are plotted for every k
    last: dict[str, Any]  # all fields of the last record, with the types of docs/records.md

    def extend(self, later: "Table") -> None:
        """Append the records of a later table."""
        for columns, more in ((self.means, later.means), (self.by_step, later.by_step)):
            columns.update({name: np.concatenate([values, more[name]]) for name, values in columns.items()})
        self.last = later.last

    def last_mean(self, name: str) -> float:
        """Return the last record's mean over the steps k."""
        return float(self.means[name][-1])


def mean_over_steps(values: np.ndarray, num_rows: np.ndarray) -> np.ndarray:
    """Return the mean `[n]` of values `[n, K]` over the steps that had rows; NaN if one of these values is not finite.

    If `num_rows` `[n, K]` is NaN, a value of NaN counts as a step without rows.
    """
    is_counted = ~np.isnan(values) | (np.nan_to_num(num_rows) > 0)
    count = is_counted.sum(1)
    total = np.where(is_counted, values, 0).sum(1, dtype=np.float64)
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0).astype(values.dtype)


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
