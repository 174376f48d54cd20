"""The command `cpc monitor`: serve the page, or write it into a file."""

import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cpc.config.argument_rules import Range, Writable, checked
from cpc.config.extras import install_hint

NEEDS = f"needs the extra 'dashboard': {install_hint('dashboard')}"


@checked
def monitor(
    runs: Sequence[Path],
    *,
    host: str | None = None,
    port: Annotated[int, Range(0, 65535)] | None = None,
    export: Annotated[Path, Writable(is_folder=False)] | None = None,
    prometheus: bool = False,
) -> None:
    """Serve a page of runs until Ctrl-C, or write it into a file and return.

    Args:
        runs: run folders, or folders that contain runs.
        host: address to serve at; 127.0.0.1 if not given. An address that other machines can reach (0.0.0.0) requires a
            token: CPC_MONITOR_TOKEN from the environment, or a new token. If CPC_MONITOR_TOKEN is set, 127.0.0.1 also
            requires the token.
        port: port to serve at; 8050 if not given, 0 for any free port.
        export: write the charts into this HTML file instead of serving them.
        prometheus: serve the latest values at /metrics as well.

    Raises:
        ValueError: if a root is not a folder, the port is in use, the token is too short, there is no run to export,
            or the extra is not installed.
    """
    if export is not None:
        given = {"`host`": host is not None, "`port`": port is not None, "`prometheus`": prometheus}
        if any(given.values()):
            unread = ", ".join(name for name, is_given in given.items() if is_given)
            raise ValueError(
                f"{unread} applies only to a page that is served, but `export` writes a file: leave one out"
            )
    try:
        from cpc.monitor.app import build_app
        from cpc.monitor.export import write_export
        from cpc.monitor.library import Library
        from cpc.monitor.server import TOKEN_VARIABLE, Server
        from cpc.monitor.text import replace_surrogates
    except ImportError as error:
        raise ValueError(f"cpc monitor {NEEDS} ({error})") from error

    gc.freeze()  # otherwise garbage collection of imported objects takes a quarter of the time of reading records
    library = Library(runs)
    if export is not None:
        library.read_all()
        write_export(export, library)
        for run in library.runs.values():
            if run.error_message:
                print(f"{run.name} {run.error_message}", file=sys.stderr)
        print(f"{len(library.runs)} runs written to {export}")
        return
    app = build_app(library).server
    if prometheus:
        from cpc.monitor.metrics import prometheus_text

        app.add_url_rule("/metrics", "metrics", lambda: (prometheus_text(library), {"Content-Type": "text/plain"}))
    server = Server(app, host or "127.0.0.1", 8050 if port is None else port, os.environ.get(TOKEN_VARIABLE) or None)
    library.start()
    print(f"watching {replace_surrogates(', '.join(map(str, runs)))} at {server.url}, until Ctrl-C", flush=True)
    if prometheus:
        how = f", with the header `Authorization: Bearer {server.token}`" if server.token else ""
        print(f"latest values for Prometheus at {server.url.split('?')[0]}metrics{how}", flush=True)
    try:
        server.http.serve_forever()
    finally:
        library.close()
