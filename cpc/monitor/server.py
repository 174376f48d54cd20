"""Serving the page: on this machine alone, or, with a token, to others."""

import ipaddress
import re
import secrets
import socket
import sys
import threading
from urllib.parse import urlsplit

import flask
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

COOKIE = "cpc_monitor_token"  # and the port: cookies are one for all ports of a name
TOKEN_VARIABLE = "CPC_MONITOR_TOKEN"
MIN_TOKEN_CHARACTERS = 16
# The browser itself refuses whatever would leave this page.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Server:
    """A web server bound to its port: a loopback host answers this machine alone, any other asks for a token.

    Args:
        app: what it serves.
        host: address to bind to.
        port: 0 for any that is free.
        token: to ask for at any address; None: a new one where one is needed.

    Raises:
        ValueError: if the address cannot be bound (the port may be in use), or the token is short.
    """

    def __init__(self, app: flask.Flask, host: str = "127.0.0.1", port: int = 8050, token: str | None = None) -> None:
        self.host = host
        if token is not None and not re.fullmatch(rf"[A-Za-z0-9_-]{{{MIN_TOKEN_CHARACTERS},}}", token):
            raise ValueError(
                f"a token of {len(token)} characters will not do: set {TOKEN_VARIABLE} to at least "
                f"{MIN_TOKEN_CHARACTERS} of the characters A-Z a-z 0-9 _ -, or leave it out"
            )
        self.token = None if token is None and is_loopback(host) else token or secrets.token_urlsafe(24)
        if not 0 <= port <= 65535:
            raise ValueError(f"port {port} is none: name one from 1 to 65535, or 0 for any that is free")
        try:
            listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            raise ValueError(
                f"cannot serve at {host}, port {port}: {error}; name another --port (0: any that is free) or --host"
            ) from error
        with listening:  # the server works on a copy
            self.port: int = listening.getsockname()[1]
            guard(app, self.token, f"{COOKIE}_{self.port}")
            self._server: BaseWSGIServer = make_server(
                host, self.port, app, threaded=True, request_handler=_Quiet, fd=listening.fileno()
            )

    @property
    def url(self) -> str:
        """Where to point a browser, the token included."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        if self.host in ("0.0.0.0", "::"):
            name = socket.gethostname()
        return f"http://{name}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    def serve(self) -> None:
        """Serve until `close` or Ctrl-C, after which the port is free."""
        self._server.serve_forever()

    def start(self) -> None:
        """Serve in the background."""
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving in the background, and free the port."""
        self._server.shutdown()
        self._thread.join()  # it closes the socket, which may outlive the shutdown by a moment


def is_loopback(host: str) -> bool:
    """Whether an address answers this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def guard(app: flask.Flask, token: str | None, cookie: str) -> None:
    """Refuse strangers, and let pages load nothing from elsewhere.

    Without a token the request must name a loopback host: a foreign web page whose name was made to point here (DNS
    rebinding) names its own. With one, the request must bring it: in the address once, from then on in the cookie of
    that name; programs may send `Authorization: Bearer`.
    """

    @app.before_request
    def reject_strangers() -> flask.Response | None:
        request = flask.request
        if token is None:
            name = urlsplit(f"//{request.host}").hostname or ""
            return None if is_loopback(name) else _refusal("this page answers to localhost alone")
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        given = (request.args.get("token", ""), request.cookies.get(cookie, ""), bearer)
        if not any(secrets.compare_digest(each.encode(), token.encode()) for each in given):
            return _refusal("open the address with ?token=... that `cpc monitor` printed")
        return None

    @app.after_request
    def protect(response: flask.Response) -> flask.Response:
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"  # the address may hold the token
        if token is not None and flask.request.args.get("token") == token:
            response.set_cookie(cookie, token, httponly=True, samesite="Strict")
        return response


def _refusal(reason: str) -> flask.Response:
    return flask.Response(f"403: {reason}\n", status=403, mimetype="text/plain")


class _Quiet(WSGIRequestHandler):
    """Logs no request that went well: the page asks more than once a second."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass

    def log(self, type: str, message: str, *args: object) -> None:
        print(f"cpc monitor: {message % args}", file=sys.stderr)
