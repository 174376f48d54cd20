"""The page in a real Chromium: what a reader sees and does; what would leave the machine is blocked, and counted."""

import contextlib
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.monitor import running
from benchmarks.synthetic_runs import NUM_CANDIDATES, add_step, write_run
from cpc.data.store.atomic import read_records

pytest.importorskip("dash", reason="the extra 'dashboard' is not installed")
pytest.importorskip("playwright.sync_api", reason="the group 'dev' is not installed")

from playwright.sync_api import Browser, Locator, Page, Route, expect, sync_playwright

from cpc.monitor import app as app_module
from cpc.monitor import library as library_module
from cpc.monitor.app import build_app
from cpc.monitor.export import write_export
from cpc.monitor.figure import MANY
from cpc.monitor.library import Library
from cpc.monitor.server import bind

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
SECONDS = 1000  # of playwright's milliseconds
TICK_SECONDS = 0.3
PATIENCE = 120 * SECONDS  # for a machine that is busy with other things

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        # The sandbox needs privileges that a container lacks; the pages are our own.
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield started
        started.close()


def two_runs(folder: Path) -> Path:
    write_run(folder / "one", level=1.0)
    write_run(folder / "two", level=2.0)
    return folder


@contextlib.contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[str]:
    library = Library([folder])
    library.read_all()
    server = bind(build_app(library).server, port)
    library.start()
    with running(server):
        yield f"http://127.0.0.1:{server.port}/"
    library.close()


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_runs(tmp_path_factory.mktemp("browser") / "runs")


@pytest.fixture(scope="module")
def address(unchanged: Path) -> Iterator[str]:
    with serving(unchanged) as address:
        yield address


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page asks, and runs are looked for, more often than a reader needs."""
    monkeypatch.setattr(app_module, "TICK_SECONDS", TICK_SECONDS)
    monkeypatch.setattr(library_module, "FIND_SECONDS", TICK_SECONDS)


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Page]]:
    """A page that may reach its own address alone; what it tried besides, and every error, fails the test."""
    outside: list[str] = []
    errors: list[str] = []
    contexts = []

    def open_page(address: str, **options: Any) -> Page:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)

        def let_through(route: Route) -> None:
            if route.request.url.startswith((address, "data:", "blob:")):
                route.continue_()
            else:
                outside.append(route.request.url)
                route.abort()

        context.route("**/*", let_through)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(address)
        until(page, "document.querySelectorAll('.js-plotly-plot .main-svg').length > 0")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert outside == []
    assert errors == []


def rows(page: Page) -> Locator:
    return page.locator("#runs .ag-center-cols-container [role=row]")


def show(page: Page, name: str) -> Locator:
    return page.locator(f'#runs [row-id="{name}"] input')


def figure(name: str) -> str:
    """JavaScript for a chart's figure; Dash writes its ids as JSON."""
    return f"""document.getElementById('{{"name":"{name}","type":"chart"}}').querySelector('.js-plotly-plot')"""


def drawn(page: Page, name: str) -> dict[str, list[float | None]]:
    """y of every line by its name, as Plotly has it in the browser."""
    return page.evaluate(
        f"""() => Object.fromEntries({figure(name)}._fullData.filter(t => t.fill !== 'toself')
            .map(t => [t.name, Array.from(t.y)]))"""
    )


def x_range(page: Page, name: str) -> list[float]:
    return page.evaluate(f"() => {figure(name)}._fullLayout.xaxis.range.map(Number)")


def until(page: Page, javascript: str, patience: float = PATIENCE) -> None:
    """Wait; not by `wait_for_function`, whose eval the page's policy forbids."""
    deadline = time.monotonic() + patience / SECONDS
    while not page.evaluate(f"() => {{ try {{ return {javascript}; }} catch (error) {{ return false; }} }}"):
        assert time.monotonic() < deadline, f"in vain: {javascript}"
        page.wait_for_timeout(50)


def zoom_in(page: Page, name: str, change: str, until_it_is: str) -> None:
    """Zoom one chart until another has followed: Dash does not listen yet to a chart that has only just been drawn."""
    for _ in range(60):
        page.evaluate(f"() => Plotly.relayout({figure(name)}, {change})")
        with contextlib.suppress(AssertionError):
            until(page, until_it_is, patience=PATIENCE / 60)
            return
    raise AssertionError(f"in vain: {until_it_is}")


@pytest.mark.slow
def test_what_a_reader_sees_and_does_with_two_runs(address: str, opened: Callable[..., Page], unchanged: Path) -> None:
    page = opened(address)
    until(page, f"{figure('bound')}._fullData.length >= 3")
    lines = drawn(page, "bound")
    for name in ("one", "two"):
        records = [r for r in read_records(unchanged / name / "bound.jsonl") if r["split"] == "train"]
        expected = [sum(r["mi_bound_nats"]) / 4 for r in records]
        assert lines[name] == pytest.approx(expected, rel=1e-4)
    assert lines["ceiling log N = 4.85"] == pytest.approx([math.log(NUM_CANDIDATES)] * 40, rel=1e-4)
    assert list(drawn(page, "steps"))[:4] == ["k = 1", "k = 2", "k = 3", "k = 4"]
    assert page.evaluate(f"() => {figure('heat')}._fullData[0].type") == "heatmap"
    assert page.evaluate(f"() => {figure('heat')}._fullData[0].z.length") == 4
    values = page.get_by_role("region", name="Values of the chosen chart")
    expect(values.get_by_role("row", name=re.compile("^two 2000 1.04"))).to_be_visible()
    expect(rows(page)).to_have_count(2)
    expect(rows(page).first).to_contain_text("stalled")
    # A zoom between two records is not a dead end.
    zoom = "{'xaxis.range[0]': 1010, 'xaxis.range[1]': 1020, 'yaxis.range[0]': 50, 'yaxis.range[1]': 60}"
    zoom_in(page, "loss", zoom, f"{figure('bound')}._fullLayout.xaxis.range[0] === 1010")
    until(page, f"{figure('bound')}._fullData.find(t => t.name === 'one').x.length === 2")
    assert page.locator(".is-empty").get_attribute("data-name") == "return"  # no agent
    page.get_by_role("button", name="show all steps").click()
    for name in ("loss", "bound"):
        until(page, f"{figure(name)}._fullLayout.xaxis.range[0] < 900")
        until(page, f"{figure(name)}._fullData.find(t => t.name === 'one').x.length === 40")
    until(page, f"{figure('loss')}._fullLayout.yaxis.range[1] < 50")
    # Settings, search, order, and runs hidden.
    nats = drawn(page, "bound")["two"][-1]
    page.get_by_text("bits", exact=True).click()
    until(page, f"{figure('bound')}._fullLayout.yaxis.title.text === 'log N - L (bits)'")
    assert drawn(page, "bound")["two"][-1] == pytest.approx(nats / math.log(2), rel=1e-4)
    page.get_by_text("values", exact=True).first.click()
    until(page, f"{figure('loss')}._fullLayout.yaxis.type === 'log'")
    assert page.evaluate(f"() => {figure('bound')}._fullLayout.yaxis.type") == "linear"
    page.get_by_text("held-out", exact=True).first.click()
    until(page, f"{figure('bound')}._fullData.find(t => t.name === 'two').x.length === 4")
    page.get_by_text("21", exact=True).click()
    show(page, "one").click()
    until(page, f"!{figure('bound')}._fullData.some(t => t.name === 'one')")
    expect(show(page, "one")).not_to_be_checked()
    page.get_by_role("columnheader", name="step", exact=True).click()
    expect(page.get_by_role("columnheader", name="step", exact=True)).to_have_attribute("aria-sort", "ascending")
    page.get_by_placeholder("search names and badges").fill("on")
    expect(rows(page)).to_have_count(1)
    page.get_by_role("button", name="show all found").click()
    until(page, f"{figure('bound')}._fullData.some(t => t.name === 'one')")
    page.get_by_text("dark", exact=True).click()
    until(page, "getComputedStyle(document.documentElement).backgroundColor === 'rgb(20, 23, 28)'")
    page.locator("#table-of").click()
    page.get_by_text("options that differ").click()
    expect(values.get_by_role("row", name="model.learning_rate 0.001 0.002")).to_be_visible()


@pytest.mark.slow
def test_runs_come_grow_and_go_under_a_reader_whose_zoom_stays(opened: Callable[..., Page], tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    with serving(folder) as address:
        page = opened(address)
        expect(page.get_by_role("status")).to_contain_text("No run below")
        two_runs(folder)
        until(page, f"{figure('loss')}._fullData.length >= 2")
        page.evaluate("window.isSamePage = true")
        zoom = "{'xaxis.range[0]': 1000, 'xaxis.range[1]': 3000}"
        zoom_in(page, "loss", zoom, f"{figure('bound')}._fullLayout.xaxis.range[0] === 1000")  # every chart follows
        button = show(page, "two")
        button.focus()
        for step in (2050, 2100, 2150):
            add_step(folder / "one", step)
            until(page, f"{figure('bound')}._fullData.find(t => t.name === 'one').x.at(-1) === {step}")
        assert page.evaluate("window.isSamePage")
        assert x_range(page, "bound") == x_range(page, "loss") == [1000, 3000]
        expect(button).to_be_focused()  # the table was drawn anew under a reader who uses the keyboard
        expect(page.locator('#runs [row-id="one"]')).to_contain_text("2150")
        write_run(folder / "before")  # and with a row above
        expect(rows(page)).to_have_count(3)
        expect(page.locator('#runs [row-index="0"]')).to_contain_text("before")
        expect(button).to_be_focused()
        box = page.evaluate(f"() => {{ const r = {figure('bound')}.getBoundingClientRect(); return [r.left, r.top]; }}")
        page.mouse.dblclick(box[0] + 200, box[1] + 120)
        until(page, f"{figure('loss')}._fullLayout.xaxis.range[0] < 900")
        shutil.rmtree(folder / "two")
        expect(page.locator(".badge.deleted")).to_be_visible()
        assert len(drawn(page, "bound")["two"]) == 40
        page.close()  # before its server: no answer is an error


@pytest.mark.slow
def test_a_page_whose_server_is_gone_says_so(browser: Browser, unchanged: Path) -> None:
    page = browser.new_page()
    page.clock.install()
    alarm = page.get_by_role("alert")
    with serving(unchanged) as address:
        page.goto(address)
        expect(rows(page)).to_have_count(2)
        expect(alarm).to_be_hidden()
    page.clock.run_for(app_module.PATIENCE_TICKS * TICK_SECONDS * SECONDS + 1)
    expect(alarm).to_contain_text("No answer from cpc monitor since")
    with serving(unchanged, int(address.split(":")[2][:-1])):
        page.clock.run_for(2 * SECONDS)
        expect(alarm).to_be_hidden()
        page.close()


@pytest.mark.slow
def test_of_many_runs_the_charts_in_sight_are_drawn(opened: Callable[..., Page], tmp_path: Path) -> None:
    for number in range(MANY + 1):
        write_run(tmp_path / "runs" / f"run{number:02}", num_records=4)
    with serving(tmp_path / "runs") as address:
        page = opened(address)
        until(page, f"{figure('bound')}._fullData.length === {MANY + 2}")  # and the ceiling
        page.wait_for_timeout(1 * SECONDS)  # several ticks
        assert page.evaluate(f"() => {figure('rate')}._fullData.length") == 0
        page.evaluate(f"() => {figure('rate')}.scrollIntoView()")
        until(page, f"{figure('rate')}._fullData.length === {MANY + 1}")
        show(page, "run03").click()
        until(page, f"{figure('rate')}._fullData.length === {MANY}")
        until(page, f"{figure('bound')}._fullData.length === {MANY + 1}")  # few enough: all, wherever they are
        page.close()  # before its server: no answer is an error


@pytest.mark.slow
def test_a_phone_in_the_dark(address: str, opened: Callable[..., Page]) -> None:
    page = opened(address, viewport={"width": 390, "height": 800}, color_scheme="dark", has_touch=True)
    until(page, f"getComputedStyle({figure('bound')}.querySelector('text')).fill === 'rgb(230, 232, 236)'")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(f"() => {figure('bound')}.getBoundingClientRect().width") < 390


def test_the_export_opens_from_a_file(opened: Callable[..., Page], unchanged: Path, tmp_path: Path) -> None:
    library = Library([unchanged])
    library.read_all()
    write_export(tmp_path / "page.html", library)
    library.close()
    page = opened((tmp_path / "page.html").as_uri(), color_scheme="dark")
    plot = "document.getElementById('bound-training')"
    last = page.evaluate(f"() => {plot}._fullData.find(t => t.name === 'two').y.at(-1)")
    assert last == pytest.approx(2 * (1 - math.exp(-2000 / 300)) * (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4, rel=1e-4)
    page.evaluate(f"() => Plotly.relayout({plot}, {{'xaxis.range[0]': 500, 'xaxis.range[1]': 900}})")
    until(page, "document.getElementById('loss-training')._fullLayout.xaxis.range[0] === 500")
    assert page.evaluate("document.getElementById('heat-training-1').data === undefined")  # drawn when opened
    page.get_by_text("every step k of two").first.click()
    until(page, "document.getElementById('heat-training-1').data[0].z.length === 4")
    assert page.evaluate("() => document.getElementById('bound-held-out-mixed_excluding')._fullData.length") >= 3
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(20, 23, 28)"
    expect(page.get_by_role("region", name="Table of runs").get_by_role("row")).to_have_count(3)
