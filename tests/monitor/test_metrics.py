"""What Prometheus scrapes, and that the Grafana board asks for nothing else."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="the extra 'dashboard' is not installed")

from prometheus_client.parser import text_string_to_metric_families

from cpc.data.records import read_records
from cpc.monitor.library import Library
from cpc.monitor.metrics import exposition

BOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


def values(library: Library) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(exposition(library).decode())
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
    labels = {name for _, pairs in values(library) for name, _ in pairs}
    used = {
        name
        for query in queries
        for group in re.findall(r"\{(.*?)\}", query)
        for name in re.findall(r"(\w+)[=!]", group)
    }
    assert used <= labels
