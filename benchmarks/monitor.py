"""Time and memory of `cpc monitor`: reading many runs, plotting them and showing a new record.

python -m benchmarks.monitor [--runs R] [--records n] [--steps K]

The runs are made up, in a temporary folder: n training records, n lines of health and n/5 held-out records each. Each
stage is a process of its own: first reading and drawing, then the page in Chromium: from a record's append to its point
in the browser, the median of several, with all runs shown and with one. Without Chromium and Playwright that stage is
left out.
"""

import argparse
import contextlib
import gc
import importlib.util
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.synthetic_runs import add_step, write_run

if TYPE_CHECKING:
    from werkzeug.serving import BaseWSGIServer

NUM_APPENDED = 5
PATIENCE_SECONDS = 120


def overview(folder: Path, figures: "multiprocessing.Queue[dict[str, float]]") -> None:
    """Read all runs, build the table and all charts like the page's first request, and measure an idle refresh."""
    from plotly.utils import PlotlyJSONEncoder

    from cpc.monitor import overview as table
    from cpc.monitor.app import build_app
    from cpc.monitor.charts import charts
    from cpc.monitor.library import Library
    from cpc.monitor.metrics import prometheus_text
    from cpc.monitor.view import View

    gc.freeze()  # as the command does
    start, start_cpu = time.perf_counter(), time.process_time()
    library = Library([folder])
    library.read_all()
    read, read_cpu = time.perf_counter(), time.process_time()
    build_app(library)
    runs = list(library.runs.values())
    begun = time.perf_counter()
    rows = table.overview(library)
    text = json.dumps([each.figure for each in charts(runs, View(focus=runs[0].name))], cls=PlotlyJSONEncoder)
    drawn = time.perf_counter()

    def seconds(of: Callable[[], object]) -> float:
        return min(timeit.repeat(of, number=1, repeat=20))

    figures.put(
        {
            "read_seconds": read - start,
            "read_cpu_seconds": read_cpu - start_cpu,
            "draw_seconds": drawn - begun,
            "look_microseconds_a_run": 1e6 * seconds(lambda: [run.refresh() for run in runs]) / len(runs),
            "metrics_milliseconds": 1e3 * seconds(lambda: prometheus_text(library)),
            "figures_mb": len(text) / 1e6,
            "num_rows": len(rows),
            "resident_mib": _resident_mib(),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 if sys.platform == "darwin" else 1024),
        }
    )


def latency(folder: Path, figures: "multiprocessing.Queue[dict[str, float]]") -> None:
    """Serve the page, append records, and wait until each record appears in the browser."""
    from playwright.sync_api import sync_playwright

    from cpc.monitor import record_types
    from cpc.monitor.app import build_app
    from cpc.monitor.library import Library
    from cpc.monitor.server import bind

    library = Library([folder])
    library.read_all()
    server = bind(build_app(library).server, port=0)
    library.start()
    name, run = next(iter(library.runs.items()))
    step = int(library.runs[name].tables(record_types.BOUND)[0].last_mean("step"))
    num_steps = len(library.runs[name].tables(record_types.BOUND)[0].key.steps)
    chart = """document.getElementById('{"name":"bound","type":"chart"}')?.querySelector('.js-plotly-plot')"""
    last = f"() => Number({chart}?._fullData?.find(trace => trace.name === '{name}')?.x.at(-1))"
    found = {}
    with running(server), sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]  # the sandbox needs privileges that a container lacks
        browser = driver.chromium.launch(executable_path=_chromium(), args=arguments)
        for words in ("all_runs", "one_run"):
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.port}/")
            _until(page, last, step)
            if words == "one_run":
                page.get_by_role("button", name="hide all found").click()
                page.locator(f'[row-id="{name}"] input').click()
                page.wait_for_timeout(5000)
            seconds = []
            for _ in range(NUM_APPENDED):
                page.wait_for_timeout(700)  # not a multiple of the polling intervals of page and server
                step += 50
                begun = time.perf_counter()
                add_step(run.folder, step, num_steps=num_steps)
                _until(page, last, step)
                seconds.append(time.perf_counter() - begun)
            found[f"append_to_drawn_seconds_{words}"] = statistics.median(seconds)
            page.close()
        browser.close()
    figures.put(found)
    library.close()


@contextlib.contextmanager
def running(server: "BaseWSGIServer") -> Iterator[None]:
    """Serve in a background thread."""
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield
    server.shutdown()
    thread.join()  # the thread closes the socket a moment after the shutdown


def _until(page: Any, javascript: str, step: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while page.evaluate(javascript) != step:
        if time.monotonic() > deadline:
            raise TimeoutError(f"step {step} is not drawn after {PATIENCE_SECONDS} s")
        page.wait_for_timeout(20)


def _chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def _resident_mib() -> float:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def measured(folder: Path) -> dict[str, float]:
    """Run all stages, and return their figures."""
    context = multiprocessing.get_context("spawn")
    figures: dict[str, float] = {}
    stages = [overview]
    if _chromium() is None or importlib.util.find_spec("playwright") is None:
        print("no Chromium or no Playwright: the time from append to drawn is not measured")
    else:
        stages.append(latency)
    for stage in stages:
        queue = context.Queue()
        process = context.Process(target=stage, args=(folder, queue))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(f"{stage.__name__} failed: see above")
        figures |= queue.get()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--folder", type=Path, help="folder of existing runs, instead of new ones")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["XDG_CACHE_HOME"] = f"{temporary}/cache"
        folder = options.folder or Path(temporary, "runs")
        if options.folder is None:
            first = write_run(folder / "run000", options.records, num_steps=options.steps, seed=0)
            for number in range(1, options.runs):
                shutil.copytree(first, folder / f"run{number:03}")
        figures = measured(folder)
    for name, value in figures.items():
        print(f"{name:32} {value:8.2f}")
    from benchmarks.machine import machine_state  # imports torch, which the stages' memory must not hold

    rounded = {name: round(value, 2) for name, value in figures.items()}
    print(json.dumps(rounded | {"machine": machine_state(allocator_keeps_memory=False)}))


if __name__ == "__main__":
    main()
