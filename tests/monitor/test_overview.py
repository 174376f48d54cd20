"""The table of runs: values, search, order, notes, and options that differ."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("orjson", reason="the extra 'dashboard' is not installed")

from cpc.data.store.atomic import read_records
from cpc.monitor.library import Library
from cpc.monitor.overview import COLUMNS, config_differences, overview


def test_values_are_the_latest_in_the_unit_asked_for(library: Library) -> None:
    (first,) = [row for row in overview(library, "bits") if row["name"] == "first"]
    records = read_records(library.runs["first"].folder / "bound.jsonl")
    last = {record["split"]: record for record in records if record["strategy"] == "mixed"}
    for column, split in (("bound", "train"), ("held_out", "valid")):
        expected = sum(last[split]["mi_bound_nats"]) / 4 / math.log(2)
        assert first[column] == pytest.approx(expected, rel=1e-5)
    assert first["step"] == 2000
    assert first["probe"] == pytest.approx(60 * (1 - math.exp(-4)), rel=1e-5)
    assert first["probe_text"] == "58.9 % phones/c"
    bound, held_out = (sum(last[split]["mi_bound_nats"]) / 4 / math.log(2) for split in ("train", "valid"))
    assert first["bound_text"] == f"{bound:.4g} \u00b1 0.072 of 7, mixed"  # 0.05 nats; log2 128
    assert first["held_out_text"] == f"{held_out:.4g} \u00b1 0.072 of 7, mixed"
    assert first["age_text"].endswith(" ago")


def test_a_run_that_has_only_begun_has_empty_cells(tmp_path: Path, read: Callable[..., Library]) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "events.jsonl").touch()
    (begun,) = overview(read(tmp_path))
    assert begun["name"] == "new"
    assert [column for column in COLUMNS if column in begun] == ["age"]


def test_only_options_that_differ_are_listed(library: Library) -> None:
    runs = [library.runs["first"], library.runs["deeper/second"]]
    (runs[1].folder / "config.yaml").write_text("model:\n  learning_rate: 0.002\n  negatives: mixed\n  new: 1\n")
    header, rows = config_differences(runs)[:2]
    assert header == ["option", "first", "deeper/second"]
    assert rows == [["model.learning_rate", "0.001", "0.002"], ["model.new", "", "1"]]
