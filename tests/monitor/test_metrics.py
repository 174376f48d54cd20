"""What Prometheus scrapes, and that the Grafana board asks for nothing else."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="the extra 'dashboard' is not installed")

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.synthetic_runs import bound_record
from cpc.data.store.atomic import append_record, read_records
from cpc.monitor.library import Library
from cpc.monitor.metrics import prometheus_text
from cpc.monitor.view import View

BOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


def values(library: Library) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(prometheus_text(library).decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def test_the_latest_values_of_every_run_are_there(library: Library) -> None:
    found = values(library)
    last = read_records(library.runs["first"].folder / "bound.jsonl")[-1]
    for k, bound in zip(last["steps"], last["mi_bound_nats"], strict=True):
        labels = {"run": "first", "split": "valid", "strategy": "mixed_excluding", "direction": "", "k": str(k)}
        assert found["cpc_mi_bound_nats", frozenset(labels.items())] == bound
    of_run = frozenset({"run": "deeper/second"}.items())
    assert found["cpc_step", of_run] == 2000
    assert found["cpc_z_effective_rank", of_run] == 40
    badge = {"run": "first", "badge": "saturated"}
    assert found["cpc_badge", frozenset(badge.items())] == 0


def test_the_board_queries_only_what_is_exported(library: Library) -> None:
    exported = {name for name, _ in values(library)}
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    asked = {name for query in queries for name in re.findall(r"\bcpc_\w+", query)}
    assert len(asked) > 10
    assert asked <= exported, f"not exported: {asked - exported}"
    labels: dict[str, set[str]] = {}
    for metric, pairs in values(library):
        labels.setdefault(metric, set()).update(name for name, _ in pairs)
    used = [(metric, group) for query in queries for metric, group in re.findall(r"\b(cpc_\w+)\{(.*?)\}", query)]
    assert len(used) > 10
    for metric, group in used:
        assert set(re.findall(r"(\w+)(?:=|!)", group)) <= labels[metric], (metric, group)


def test_a_change_of_strategy_or_steps_leaves_one_sample_per_label_set(library: Library) -> None:
    path = library.runs["first"].folder / "bound.jsonl"
    append_record(path, bound_record(2050, num_steps=2))
    append_record(path, bound_record(2100, num_steps=3, strategy="mixed_excluding"))
    append_record(path, bound_record(2100, "valid", num_steps=3))
    library.read_all()
    families = text_string_to_metric_families(prometheus_text(library).decode())
    samples = [(sample.name, frozenset(sample.labels.items())) for family in families for sample in family.samples]
    assert len(samples) == len(set(samples))
    assert values(library)["cpc_step", frozenset({"run": "first"}.items())] == 2100
    bounds = [dict(pairs) for name, pairs in samples if name == "cpc_mi_bound_nats"]
    trained = [each for each in bounds if (each["run"], each["split"]) == ("first", "train")]
    assert {(each["strategy"], each["k"]) for each in trained} == {("mixed_excluding", k) for k in "123"}
    of_first = library.runs["first"].bound(View())
    assert (of_first.key.names, of_first.last_mean("step")) == (("train", "mixed_excluding"), 2100)
