"""A web server for the page: only for this machine, or with a token for other machines."""

import ipaddress
import re
import secrets
import socket
import sys
import threading
from urllib.parse import urlsplit

import flask
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

COOKIE = "cpc_monitor_token"  # the port is appended, because all ports of a host share their cookies
TOKEN_VARIABLE = "CPC_MONITOR_TOKEN"
MIN_TOKEN_CHARACTERS = 16
# The policy makes the browser refuse to load or send anything outside the page.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Server:
    """A web server bound to its port. A loopback host serves only this machine; any other host requires a token.

    Args:
        app: application to serve.
        host: address to bind to.
        port: port to bind to; 0: any free port.
        token: token that every request must have; None: a new token, or no token if the host is a loopback address.

    Raises:
        ValueError: if the address cannot be bound (the port may be in use), or the token is too short.
    """

    def __init__(self, app: flask.Flask, host: str = "127.0.0.1", port: int = 8050, token: str | None = None) -> None:
        self.host = host
        if token is not None and not re.fullmatch(rf"[A-Za-z0-9_-]{{{MIN_TOKEN_CHARACTERS},}}", token):
            raise ValueError(
                f"the token has {len(token)} characters or an invalid one: set {TOKEN_VARIABLE} to at least "
                f"{MIN_TOKEN_CHARACTERS} of the characters A-Z a-z 0-9 _ -, or leave it out"
            )
        self.token = None if token is None and is_loopback(host) else token or secrets.token_urlsafe(24)
        if not 0 <= port <= 65535:
            raise ValueError(f"port={port} must be from 1 to 65535, or 0 for any free port")
        try:
            listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            raise ValueError(
                f"cannot serve at {host}, port {port}: {error}; name another --port (0: any free port) or --host"
            ) from error
        with listening:  # the server duplicates the socket
            self.port: int = listening.getsockname()[1]
            guard(app, self.token, f"{COOKIE}_{self.port}")
            self._server: BaseWSGIServer = make_server(
                host, self.port, app, threaded=True, request_handler=_Quiet, fd=listening.fileno()
            )

    @property
    def url(self) -> str:
        """The address of the page, including the token."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        if self.host in ("0.0.0.0", "::"):
            name = socket.gethostname()
        return f"http://{name}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    def serve(self) -> None:
        """Serve until `close` or Ctrl-C, which free the port."""
        self._server.serve_forever()

    def start(self) -> None:
        """Serve in a background thread."""
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the background thread, and free the port."""
        self._server.shutdown()
        self._thread.join()  # the thread closes the socket a moment after the shutdown


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def guard(app: flask.Flask, token: str | None, cookie: str) -> None:
    """Reject requests without access, and set headers that forbid pages to load anything from other sites.

    Without a token, the request's Host must be a loopback host. This blocks DNS rebinding: the name of a foreign web
    page then resolves to this machine, but its requests have the foreign name as Host. With a token, the request must
    have the token, first in the address and later in a cookie; programs can send `Authorization: Bearer`.
    """

    @app.before_request
    def reject_strangers() -> flask.Response | None:
        request = flask.request
        if token is None:
            name = urlsplit(f"//{request.host}").hostname or ""
            return None if is_loopback(name) else _forbidden("this page is only served to localhost")
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        candidates = (request.args.get("token", ""), request.cookies.get(cookie, ""), bearer)
        if not any(secrets.compare_digest(candidate.encode(), token.encode()) for candidate in candidates):
            return _forbidden("open the address with ?token=... that `cpc monitor` printed")
        return None

    @app.after_request
    def set_headers(response: flask.Response) -> flask.Response:
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"  # the address may contain the token
        if token is not None and flask.request.args.get("token") == token:
            response.set_cookie(cookie, token, httponly=True, samesite="Strict")
        return response


def _forbidden(reason: str) -> flask.Response:
    return flask.Response(f"403: {reason}\n", status=403, mimetype="text/plain")


class _Quiet(WSGIRequestHandler):
    """A request handler that does not log successful requests, because the page sends more than one per second."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass

    def log(self, type: str, message: str, *args: object) -> None:
        print(f"cpc monitor: {message % args}", file=sys.stderr)
