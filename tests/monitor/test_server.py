"""Who is let in, on which port, and what the page may load."""

import http.client
import json
from collections.abc import Iterator

import pytest

pytest.importorskip("flask", reason="the extra 'dashboard' is not installed")

import flask

from benchmarks.monitor import running
from cpc.monitor.charts import NAMES as CHARTS
from cpc.monitor.library import Library
from cpc.monitor.server import COOKIE, Server, is_loopback


@pytest.fixture
def app() -> flask.Flask:
    app = flask.Flask("page")
    app.add_url_rule("/", "page", lambda: "hello")
    return app


@pytest.fixture
def local(app: flask.Flask) -> Iterator[Server]:
    server = Server(app, port=0)
    with running(server):
        yield server


@pytest.fixture
def open_to_others(app: flask.Flask) -> Iterator[Server]:
    server = Server(app, "0.0.0.0", 0)
    with running(server):
        yield server


def asked(port: int, path: str = "/", **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), dict(answer.getheaders())
    connection.close()
    return found


def test_loopback_serves_this_machine_without_a_token(local: Server) -> None:
    assert local.url == f"http://127.0.0.1:{local.port}/"
    status, text, headers = asked(local.port)
    assert (status, text) == (200, "hello")
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert "default-src 'none'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize("name", ["example.org", "example.org:80", "127.0.0.1.example.org", "10.0.0.1", ""])
def test_a_name_that_was_made_to_point_here_is_refused(local: Server, name: str) -> None:
    assert asked(local.port, Host=name)[0] in (400, 403)
    assert asked(local.port, Host=f"localhost:{local.port}")[0] == 200


def test_other_addresses_ask_for_a_token_once(open_to_others: Server) -> None:
    port, token = open_to_others.port, open_to_others.token
    assert token is not None
    assert open_to_others.url.endswith(f"/?token={token}")
    status, text, _ = asked(port)
    assert status == 403
    assert token not in text
    assert asked(port, "/?token=wrong")[0] == 403
    status, _, headers = asked(port, f"/?token={token}")
    assert status == 200
    cookie = f"{COOKIE}_{port}"  # of this port alone: another monitor on the machine keeps its own
    assert headers["Set-Cookie"].startswith(f"{cookie}={token};")
    assert "HttpOnly" in headers["Set-Cookie"]
    assert asked(port, Cookie=f"{cookie}={token}")[0] == 200
    assert asked(port, Cookie=f"{cookie}=wrong")[0] == 403
    assert asked(port, Authorization=f"Bearer {token}")[0] == 200


def test_a_token_can_be_set_and_is_asked_for_on_loopback_too(app: flask.Flask) -> None:
    token = "sixteen-or-longer"
    server = Server(app, port=0, token=token)
    with running(server):
        assert server.url.endswith(f"/?token={token}")
        assert asked(server.port)[0] == 403
        assert asked(server.port, Authorization=f"Bearer {token}")[0] == 200
    for weak in ("short", "with spaces, and long enough"):
        with pytest.raises(ValueError, match=f"the token has {len(weak)} characters or an invalid one: set"):
            Server(app, port=0, token=weak)


def test_a_port_in_use_is_a_clear_message(local: Server, app: flask.Flask) -> None:
    with pytest.raises(ValueError, match=rf"cannot serve at 127.0.0.1, port {local.port}: .*; name another --port"):
        Server(app, port=local.port)


def test_loopback_addresses() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org", "localhost.example.org")))


@pytest.fixture
def monitor(library: Library) -> Iterator[Server]:
    """The real page."""
    from cpc.monitor.app import build_app

    server = Server(build_app(library).server, port=0)
    with running(server):
        yield server


@pytest.mark.parametrize("path", ["../..", "dash/../../x", "dash/nothing.js", "nothing/x.js", "%ff/x.js"])
def test_paths_of_no_file_are_not_found(monitor: Server, path: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, text, headers = asked(monitor.port, f"/_dash-component-suites/{path}")
    assert (status, text) == (404, "404: no such file\n")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert capfd.readouterr().err == ""


def call_of(monitor: Server, part: str, values: dict[str, object]) -> dict[str, object]:
    """A browser's call of the callback that writes `part`; `values` by the component's id, else None."""
    callbacks = json.loads(asked(monitor.port, "/_dash-dependencies")[1])
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


def called(monitor: Server, body: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", monitor.port, timeout=10)
    connection.request("POST", "/_dash-update-component", body, {"Content-Type": "application/json"})
    status = connection.getresponse().status
    connection.close()
    return status


LISTED: dict[str, object] = {"hidden": [], "unit": "nats", "tick": 0}
DRAWN: dict[str, object] = {"revision": 1, "hidden": [], "split": "training", "strategy": "as trained", "unit": "nats"}
DRAWN |= {"smoothing": 1, "log_x": [], "log_y": [], "in-view": [], "drawn": {}, "table-of": "bound"}


def test_a_call_of_no_callback_is_refused_and_the_others_answered(
    monitor: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    for body in ("", "{", "[]", "null", "{}", '{"output": []}', '{"output": "of.an-older-page", "inputs": []}'):
        assert called(monitor, body) in (400, 415), body
    assert "Traceback" not in capfd.readouterr().err
    assert called(monitor, json.dumps(call_of(monitor, "runs.rowData", LISTED))) == 200
    assert called(monitor, json.dumps(call_of(monitor, "values.rowData", DRAWN))) == 200
    assert capfd.readouterr().err == ""


def test_values_that_no_page_sends_are_refused_and_hurt_no_run(
    monitor: Server, library: Library, capfd: pytest.CaptureFixture[str]
) -> None:
    malformed: list[tuple[str, dict[str, object]]] = [
        ("runs.rowData", {"hidden": 5}),
        ("runs.rowData", {"listed": 7, "hidden": None}),
        ("values.rowData", {"hidden": None}),
        ("values.rowData", {"split": []}),
        ("values.rowData", {"smoothing": 4}),
        ("values.rowData", {"smoothing": "many"}),
        ("values.rowData", {"zoom": ["a", "b"]}),
        ("values.rowData", {"zoom": [1]}),
        ("values.rowData", {"drawn": 1}),
        ("values.rowData", {"table-of": []}),
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
