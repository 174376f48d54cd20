"""A web server for the page: only for this machine, or with a token for other machines."""

import ipaddress
import logging
import re
import secrets
import socket

import flask
from werkzeug.serving import make_server

COOKIE = "cpc_monitor_token"  # the port is appended, because all ports of a host share their cookies
TOKEN_VARIABLE = "CPC_MONITOR_TOKEN"
MIN_TOKEN_CHARACTERS = 16
# The policy makes the browser refuse to load or send anything outside the page.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
logging.getLogger("werkzeug").setLevel(logging.ERROR)  # the page sends more than one request per second


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
        if token is not None and not re.fullmatch(rf"[A-Za-z0-9_-]{{{MIN_TOKEN_CHARACTERS},}}", token):
            raise ValueError(
                f"the token has {len(token)} characters or an invalid one: set {TOKEN_VARIABLE} to at least "
                f"{MIN_TOKEN_CHARACTERS} of the characters A-Z a-z 0-9 _ -, or leave it out"
            )
        self.token = None if token is None and is_loopback(host) else token or secrets.token_urlsafe(24)
        try:
            listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            raise ValueError(
                f"cannot serve at {host}, port {port}: {error}; name another --port (0: any free port) or --host"
            ) from error
        with listening:  # the server duplicates the socket
            self.port: int = listening.getsockname()[1]
            self.http = make_server(host, self.port, app, threaded=True, fd=listening.fileno())
        name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self.port}/" + (f"?token={self.token}" if self.token else "")
        guard(app, self.token, f"{COOKIE}_{self.port}")
        if self.token is None:
            # The name of a foreign page may resolve to this machine, but its requests have that name as Host.
            app.config["TRUSTED_HOSTS"] = ["localhost", "127.0.0.1", "[::1]", name]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def guard(app: flask.Flask, token: str | None, cookie: str) -> None:
    """Reject requests without the token, and set headers that forbid pages to load anything from other sites.

    The token comes first in the address and later in a cookie; programs can send `Authorization: Bearer`.
    """

    @app.before_request
    def reject_strangers() -> flask.Response | None:
        request = flask.request
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        candidates = (request.args.get("token", ""), request.cookies.get(cookie, ""), bearer)
        if token is None or any(secrets.compare_digest(each.encode(), token.encode()) for each in candidates):
            return None
        reason = "403: open the address with ?token=... that `cpc monitor` printed\n"
        return flask.Response(reason, status=403, mimetype="text/plain")

    @app.after_request
    def set_headers(response: flask.Response) -> flask.Response:
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"  # the address may contain the token
        if token is not None and flask.request.args.get("token") == token:
            response.set_cookie(cookie, token, httponly=True, samesite="Strict")
        return response
