"""The command `cpc monitor`: serve the page, or write it into a file."""

import gc
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
    port: Annotated[int, Range(0, 65535)] | None = None,
    export: Annotated[Path, Writable(is_folder=False)] | None = None,
    prometheus: bool = False,
) -> None:
    """Serve a page of runs at 127.0.0.1 until Ctrl-C, or write it into a file and return.

    Args:
        runs: run folders, or folders that contain runs.
        port: port to serve at; 8050 if not given, 0 for any free port.
        export: write the charts into this HTML file instead of serving them.
        prometheus: serve the latest values at /metrics as well.

    Raises:
        ValueError: if a root is not a folder, the port is in use, there is no run to export, or the extra is not
            installed.
    """
    unread = [name for name, value in (("`port`", port), ("`prometheus`", prometheus or None)) if value is not None]
    if export is not None and unread:
        raise ValueError(f"{', '.join(unread)} applies only to a page that is served, not to `export`")
    try:
        from cpc.monitor.app import build_app
        from cpc.monitor.export import write_export
        from cpc.monitor.library import Library
        from cpc.monitor.metrics import prometheus_text
        from cpc.monitor.server import HOST, bind
        from cpc.monitor.table import replace_surrogates
    except ImportError as error:
        raise ValueError(f"cpc monitor {NEEDS} ({error})") from error

    gc.freeze()  # otherwise garbage collection of imported objects takes a quarter of the time of reading records
    library = Library(runs)
    if export is not None:
        library.read_all()
        write_export(export, library)
        print(f"{len(library.runs)} runs written to {export}")
        return
    app = build_app(library).server
    if prometheus:
        app.add_url_rule("/metrics", "metrics", lambda: (prometheus_text(library), {"Content-Type": "text/plain"}))
    server = bind(app, 8050 if port is None else port)
    library.start()
    address = f"http://{HOST}:{server.port}/"
    print(f"watching {replace_surrogates(', '.join(map(str, runs)))} at {address}, until Ctrl-C", flush=True)
    if prometheus:
        print(f"latest values for Prometheus at {address}metrics", flush=True)
    try:
        server.serve_forever()
    finally:
        library.close()
