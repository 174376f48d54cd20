"""Who is let in, what the page may load, and which calls it answers."""

import http.client
import json
from collections.abc import Iterator

import pytest

pytest.importorskip("flask", reason="the extra 'dashboard' is not installed")

import flask

from benchmarks.monitor import running
from cpc.monitor.app import build_app
from cpc.monitor.charts import NAMES as CHARTS
from cpc.monitor.library import Library
from cpc.monitor.server import bind


def asked(port: int, path: str = "/", **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), dict(answer.getheaders())
    connection.close()
    return found


@pytest.fixture
def monitor(library: Library) -> Iterator[int]:
    server = bind(build_app(library).server, port=0)
    with running(server):
        yield server.port


def test_this_machine_is_served_and_may_load_nothing_else(monitor: int) -> None:
    for name in ("127.0.0.1", "localhost"):
        status, text, headers = asked(monitor, Host=f"{name}:{monitor}")
        assert (status, "<title>cpc monitor</title>" in text) == (200, True)
        assert "connect-src 'self'" in headers["Content-Security-Policy"]
        assert "default-src 'none'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize("name", ["example.org", "example.org:80", "127.0.0.1.example.org", "10.0.0.1", ""])
def test_a_name_that_was_made_to_point_here_is_refused(monitor: int, name: str) -> None:
    for path in ("/", "/_dash-layout", "/assets/monitor.css"):
        status, text, _ = asked(monitor, path, Host=name)
        assert status == 400
        assert "cpc monitor" not in text


def test_a_port_in_use_is_a_clear_message_and_a_closed_server_frees_it(library: Library) -> None:
    server = bind(flask.Flask("page"), port=0)
    with running(server), pytest.raises(ValueError, match=rf"127.0.0.1, port {server.port}: .*; name another"):
        bind(flask.Flask("page"), server.port)
    bind(flask.Flask("page"), server.port).server_close()


@pytest.mark.parametrize("path", ["../..", "dash/../../x", "dash/nothing.js", "nothing/x.js", "%ff/x.js"])
def test_paths_of_no_file_are_not_found(monitor: int, path: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, text, headers = asked(monitor, f"/_dash-component-suites/{path}")
    assert (status, text) == (404, "404: no such file\n")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert capfd.readouterr().err == ""


def call_of(monitor: int, part: str, values: dict[str, object]) -> dict[str, object]:
    """A browser's call of the callback that writes `part`; `values` by the component's id, else None."""
    callbacks = json.loads(asked(monitor, "/_dash-dependencies")[1])
    (wanted,) = [each for each in callbacks if part in each["output"] and not each["clientside_function"]]
    names = [output.rsplit(".", 1) for output in wanted["output"].strip(".").split("...")]
    return {
        "output": wanted["output"],
        "outputs": [
            {"id": name, "property": key}
            if "{" not in name
            else [{"id": {"type": json.loads(name)["type"], "name": chart}, "property": key} for chart in CHARTS]
            for name, key in names
        ],
        "inputs": [each | {"value": values.get(each["id"])} for each in wanted["inputs"]],
        "state": [each | {"value": values.get(each["id"])} for each in wanted["state"]],
        "changedPropIds": [f"{wanted['inputs'][0]['id']}.data"],
    }


def called(monitor: int, body: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", monitor, timeout=10)
    connection.request("POST", "/_dash-update-component", body, {"Content-Type": "application/json"})
    status = connection.getresponse().status
    connection.close()
    return status


LISTED: dict[str, object] = {"hidden": [], "unit": "nats", "tick": 0}
DRAWN: dict[str, object] = {"listed": [1, 0, [], "nats"], "split": "training", "strategy": "as trained", "unit": "nats"}
DRAWN |= {"smoothing": 1, "log": [], "in-view": [], "drawn": {}, "table-of": "bound"}


def test_a_call_of_no_callback_is_refused_others_answered(monitor: int, capfd: pytest.CaptureFixture[str]) -> None:
    for body in ("", "{", "[]", "null", "{}", '{"output": []}', '{"output": "of.an-older-page", "inputs": []}'):
        assert called(monitor, body) in (400, 415), body
    assert "Traceback" not in capfd.readouterr().err
    assert called(monitor, json.dumps(call_of(monitor, "runs.rowData", LISTED))) == 200
    assert called(monitor, json.dumps(call_of(monitor, "values.rowData", DRAWN))) == 200
    assert capfd.readouterr().err == ""


def test_values_that_no_page_sends_are_refused_and_hurt_no_run(
    monitor: int, library: Library, capfd: pytest.CaptureFixture[str]
) -> None:
    malformed: list[tuple[str, dict[str, object]]] = [
        ("runs.rowData", {"hidden": 5}),
        ("runs.rowData", {"listed": 7, "hidden": None}),
        ("values.rowData", {"split": []}),
        ("values.rowData", {"smoothing": 4}),
        ("values.rowData", {"zoom": ["a", "b"]}),
        ("values.rowData", {"drawn": 1}),
        ("hidden.data", {"hidden": 3}),
    ]
    for part, changes in malformed:
        call = call_of(monitor, part, (LISTED if "runs" in part else DRAWN) | changes)
        assert called(monitor, json.dumps(call)) == 400, changes
        del call["inputs"]
        assert called(monitor, json.dumps(call)) == 400, changes
    told = capfd.readouterr().err
    assert told.count("cpc monitor: a call of the page could not be answered") == 2 * len(malformed)
    assert "Traceback" not in told
    assert not any(run.error_message for run in library.runs.values())
