"""What the records of docs/records.md hold, and how a line of JSON becomes a row.

orjson takes a third of the time of Python's own json; a first index of many runs is nothing but that.

n records, K steps (1 where a record has no lists).
"""

import itertools
import json
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import orjson

from cpc.monitor.legible import legible


class Kind(NamedTuple):
    """One kind of record.

    Attributes:
        file: its name in a run's folder.
        key: fields that tell curves apart.
        numbers: fields drawn over training, and what each is.
        per_step: whether those hold a value per step k.
        last: fields shown of the last record only: the type of an element, and `one`, `per step` or `list`.
        schema: the newest version known here.
    """

    file: str
    key: tuple[str, ...]
    numbers: dict[str, str]
    per_step: bool = False
    last: Mapping[str, tuple[Any, str]] = MappingProxyType({})
    schema: int = 1


_NUMBER = int | float | None
BOUND = Kind(
    "bound.jsonl",
    ("split", "strategy"),
    {
        "loss_nats": "InfoNCE loss L",
        "num_candidates": "N, the positive included",
        "mi_ceiling_nats": "log N, which log N - L cannot exceed",
        "mi_bound_nats": "log N - L; cpc_num_candidates is its N, the strategy says whether it is a bound",
        "standard_error_nats": "standard error of log N - L over batches",
        "accuracy": "rate at which no negative scores higher than the positive",
        "num_rows": "rows averaged",
    },
    per_step=True,
    last={
        "information_for_gaussians_nats": (_NUMBER, "per step"),
        "saturated": (bool, "per step"),
        "biased": (bool, "per step"),
        "reading": (str, "one"),
    },
)
PROBE = Kind(
    "probe.jsonl",
    ("task", "features"),
    {
        "accuracy": "accuracy of the online probe",
        "majority_accuracy": "accuracy of always naming the most frequent class",
        "label_entropy_nats": "H(Y) of the labels tested on",
        "cross_entropy_nats": "cross entropy of the online probe",
        "label_information_nats": "H(Y) - CE of the online probe",
    },
)
HEALTH = Kind(
    "health.jsonl",
    (),
    {
        "time_unix_seconds": "when the last line of health.jsonl was written",
        "trained_seconds": "wall time of training so far",
        "windows_per_second": "examples trained on per second",
        "learning_rate": "of the optimiser's last step",
        "gradient_norm": "mean norm of the gradient before clipping, since the record before",
        "gradient_norm_max": "largest norm of the gradient before clipping, since the record before",
        "z_variance": "variance of the latents, mean over dimensions",
        "c_variance": "variance of the contexts, mean over dimensions",
        "z_effective_rank": "dimensions that the latents fill",
        "c_effective_rank": "dimensions that the contexts fill",
        "z_dim": "width of the latents",
        "c_dim": "width of the contexts",
    },
    last={"collapsed": (str, "list")},
)
KINDS = (BOUND, PROBE, HEALTH)
EVENTS_FILE = "events.jsonl"
# What lines raise that are no records: no JSON, other types, too deep, or numbers beyond any float.
_UNUSABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


class Key(NamedTuple):
    """What one table holds: records of a kind with the same values of its key fields and the same columns."""

    file: str
    names: tuple[str, ...]
    steps: tuple[int, ...]  # k of each column; (0,) of records without lists
    directions: tuple[str, ...]  # of each column; empty in sequences

    @property
    def step_words(self) -> list[str]:
        """The columns in words: `k = 3`, `down, k = 2`."""
        pairs = zip(self.directions, self.steps, strict=True)
        return [f"{direction}, k = {k}" if direction else f"k = {k}" for direction, k in pairs]


class Parsed(NamedTuple):
    """Rows by table, in the order of the file, and what could not be used."""

    rows: dict[Key, dict[str, np.ndarray]]  # the step `[n]`, each field `[n, K]`; float32 except for steps and clocks
    last: dict[Key, dict[str, Any]]  # the last record, as `known` gives it
    problems: list[str]  # line and reason
    newest_schema: int


@np.errstate(over="ignore")  # what float32 cannot hold is drawn as a gap
def parse_lines(lines: Iterable[bytes], kind: Kind, first_line: int = 1) -> Parsed:
    """Sort lines of JSON into columns.

    A field that is missing or null becomes NaN: older and newer schemas are read as far as they go. A line that is no
    record of this kind is left out and reported.
    """
    grouped: dict[Key, list[dict[str, Any]]] = {}
    problems, newest = [], 0
    key, header = Key(kind.file, (), (), ()), None
    keys: list[tuple[list[Any], Key]] = []  # by header, few of them: training's and each held-out strategy's
    for number, line in enumerate(lines, start=first_line):
        try:
            record = _decoded(line)
            own = [record.get(name) for name in ("steps", "directions", *kind.key)]
            own.append(len(record["mi_bound_nats"]) if kind.per_step else 0)
            if own != header:  # neighbours mostly share theirs
                met = next((key for header, key in keys if header == own), None)
                if met is None:
                    met = _key_of(record, kind)
                    keys.append((own, met))
                key, header = met, own
            if not math.isfinite(record["step"]):
                raise ValueError("the step is not finite")
            newest = max(newest, int(record.get("schema", 1)))
            grouped.setdefault(key, []).append(record)
        except _UNUSABLE as error:
            problems.append(legible(f"{kind.file}, line {number}: {type(error).__name__}: {error}"))
    rows = {key: _columns(records, key, kind) for key, records in grouped.items()}
    return Parsed(rows, {key: known(records[-1], key, kind) for key, records in grouped.items()}, problems, newest)


def known(record: dict[str, Any], key: Key, kind: Kind) -> dict[str, Any]:
    """The fields of a record that have the type of docs/records.md, so that whoever shows them can trust it.

    Numbers are finite or None. A field of another type, as a newer schema may have, is left out like a missing one.
    """
    found: dict[str, Any] = {}
    types = dict.fromkeys(kind.numbers, (_NUMBER, "per step" if kind.per_step else "one")) | dict(kind.last)
    for name, (element, shape) in types.items():
        if name not in record:
            continue
        values = [record[name]] if shape == "one" else record[name]
        if not isinstance(values, list) or (shape == "per step" and len(values) != len(key.steps)):
            continue
        if all(isinstance(value, element) for value in values):
            typed = [_legible_or_finite(value) for value in values]
            found[name] = typed[0] if shape == "one" else typed
    return found


def parse_event(line: bytes) -> dict[str, Any]:
    """A line of events.jsonl.

    Raises:
        ValueError: if it is none.
    """
    try:
        event = _decoded(line)
        if not all(math.isfinite(event[name]) for name in ("step", "time_unix_seconds")):
            raise ValueError("step or time are not finite")
        found = {name: event[name] for name in ("step", "time_unix_seconds")}
        return found | {name: legible(event[name]) for name in ("event", "message")}
    except _UNUSABLE as error:
        raise ValueError(legible(f"{EVENTS_FILE}: {type(error).__name__}: {error}")) from error


def _decoded(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)  # which knows NaN and Infinity too


def _key_of(record: dict[str, Any], kind: Kind) -> Key:
    names = tuple(legible(record[name]) for name in kind.key)
    if not kind.per_step:
        return Key(kind.file, names, (0,), ("",))
    num_steps = len(record["mi_bound_nats"])
    steps = tuple(record.get("steps") or range(1, num_steps + 1))
    directions = tuple(record.get("directions") or [""] * num_steps)
    if not num_steps == len(steps) == len(directions):
        raise ValueError(f"{num_steps} values for {len(steps)} steps and {len(directions)} directions")
    if not num_steps:
        raise ValueError("no step k")
    if not all(type(k) is int for k in steps) or not all(isinstance(each, str) for each in directions):
        raise ValueError("a step that is no integer, or a direction that is no word")
    directions = tuple(map(legible, directions))
    if len(set(zip(directions, steps, strict=True))) < num_steps:
        raise ValueError(f"the same step twice: {steps}")
    return Key(kind.file, names, steps, directions)


def _columns(records: list[dict[str, Any]], key: Key, kind: Kind) -> dict[str, np.ndarray]:
    columns = {"step": np.array([record["step"] for record in records], np.float64)}
    if kind.per_step:
        for name in kind.numbers:
            columns[name] = _numbers([record.get(name) for record in records], len(key.steps), np.float32)
        return columns
    values = _numbers(
        [[record.get(name) for name in kind.numbers] for record in records], len(kind.numbers), np.float64
    )
    for name, column in zip(kind.numbers, values.T, strict=True):
        columns[name] = column[:, None].astype(np.float64 if name.endswith("_seconds") else np.float32)
    return columns


def _numbers(rows: list[Any], width: int, dtype: type) -> np.ndarray:
    """`[n, width]`; NaN where a value is null or no number, or a row missing or of another length."""
    values: np.ndarray
    try:
        if {type(row) for row in rows} == {list} and {len(row) for row in rows} == {width}:
            # Fastest, of numbers alone: a third less time than the next.
            return np.fromiter(itertools.chain.from_iterable(rows), dtype, len(rows) * width).reshape(-1, width)
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        values = np.array(rows, dtype)  # None becomes NaN
        if values.shape == (len(rows), width):
            return values
    except (TypeError, ValueError, OverflowError):
        pass  # some row has another shape, some value another type: one by one then
    values = np.full((len(rows), width), np.nan, dtype)
    for row, candidate in zip(values, rows, strict=True):
        if isinstance(candidate, list) and len(candidate) == width:
            row[:] = [math.nan if (number := _finite(value)) is None else number for value in candidate]
    return values


def _legible_or_finite(value: Any) -> Any:
    if isinstance(value, str):
        return legible(value)
    return value if isinstance(value, bool) else _finite(value)


def _finite(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:  # an integer of hundreds of digits
        return None
