"""`cpc monitor`: serve the page, or write it into a file."""

from collections.abc import Sequence
from pathlib import Path

NEEDS = "needs the extra 'dashboard': `uv sync --extra dashboard` or `pip install 'cpc[dashboard]'`"


def monitor(
    roots: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8050,
    export: Path | None = None,
    prometheus: bool = False,
) -> None:
    """Serve the page of some runs until Ctrl-C, or write it into a file and return.

    Args:
        roots: run folders, or folders that hold some.
        host: address to serve at; all but loopback ones ask for a token.
        port: 0 for any that is free.
        export: write this HTML file instead of serving.
        prometheus: serve the latest values at /metrics too.

    Raises:
        ValueError: if a folder is none, the port in use, there is nothing to export, or the extra not installed.
    """
    try:
        from cpc.monitor.app import build_app
        from cpc.monitor.export import write_export
        from cpc.monitor.library import Library
        from cpc.monitor.server import Server
    except ImportError as error:
        raise ValueError(f"cpc monitor {NEEDS} ({error})") from error

    library = Library(roots)
    if export is not None:
        try:
            library.read_all(lambda progress: print(progress, flush=True) if progress else None)
            write_export(export, library)
        finally:
            library.close()
        print(f"{len(library.runs)} runs written to {export}")
        return
    app = build_app(library).server
    if prometheus:
        from cpc.monitor.metrics import exposition

        app.add_url_rule("/metrics", "metrics", lambda: (exposition(library), {"Content-Type": "text/plain"}))
    server = Server(app, host, port)
    library.start()
    print(f"watching {', '.join(map(str, roots))} at {server.url}, until Ctrl-C", flush=True)
    if prometheus:
        print(f"latest values for Prometheus at {server.url.split('?')[0]}metrics", flush=True)
    try:
        server.serve()
    finally:
        library.close()
