"""`cpc monitor` as a process, and its mistakes."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from cpc.cli import main

pytest.importorskip("dash", reason="the extra 'dashboard' is not installed")


def test_serves_until_ctrl_c_and_answers_prometheus(runs: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "cpc.cli", "monitor", str(runs), "--port", "0", "--prometheus"]
    server = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore Ctrl-C
    )
    try:
        told = server.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", told)
        assert address, told
        page = urllib.request.urlopen(address[0], timeout=30).read().decode()
        assert "<title>cpc monitor</title>" in page
        assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", page)
        metrics = urllib.request.urlopen(f"{address[0]}metrics", timeout=30).read().decode()
        assert "# TYPE cpc_mi_bound_nats gauge" in metrics
    finally:
        os.kill(server.pid, signal.SIGINT)
        _, errors = server.communicate(timeout=30)
    assert (server.returncode, errors) == (0, "")


def test_a_monitor_imports_no_torch() -> None:
    """It stays open for days beside the training that needs the memory."""
    modules = "cpc.monitor.app, cpc.monitor.command, cpc.monitor.export, cpc.monitor.metrics, cpc.monitor.server"
    code = f"import {modules}, sys; assert not {{'torch', 'lightning', 'scipy', 'pandas'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_mistakes_end_with_a_message(runs: Path, tmp_path: Path, refusal: Callable[..., str]) -> None:
    (tmp_path / "nothing").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, message in (
            ([str(tmp_path / "none")], "is not a folder"),
            ([str(runs), "--port", port], f"port {port}: .*in use.*name another --port"),
            ([str(tmp_path / "nothing"), "--export", str(tmp_path / "page.html")], "no run below .*nothing"),
        ):
            assert re.search(message, refusal(["monitor", *arguments]))
    assert not (tmp_path / "page.html").exists()


def test_export_holds_every_run_and_every_strategy_held_out_and_asks_for_nothing(runs: Path, tmp_path: Path) -> None:
    main(["monitor", str(runs), "--export", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for name in ("first", "deeper/second"):
        for chart in ("of every step k", "by step k and training step"):
            for records in ("training", "held-out-mixed", "held-out-mixed_excluding"):
                titles = re.findall(
                    rf"<h2>log N - L {chart}: {name}</h2>.*?class=\"plot\" id=\"(\w+)-([\w-]+)-\d\"", page, re.DOTALL
                )
                assert records in [found for _, found in titles]
        assert f"What N candidates can show: {name}" in page
    assert page.count('id="bound-') == 2 * 3  # of each section the chart and its figure
    assert "<h2>held-out records, negatives mixed_excluding</h2>" in page
    assert "model.learning_rate" in page  # options that differ
    without_plotly = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=", without_plotly)
