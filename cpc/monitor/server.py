"""A web server for the page on a loopback address: only this machine can reach it."""

import logging
import socket

import flask
from werkzeug.serving import BaseWSGIServer, make_server

HOST = "127.0.0.1"
# The policy makes the browser refuse to load or send anything outside the page.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
logging.getLogger("werkzeug").setLevel(logging.ERROR)  # the page sends more than one request per second


def bind(app: flask.Flask, port: int = 8050) -> BaseWSGIServer:
    """Return a server bound to its port (0: any free port), whose pages load nothing from other sites."""
    try:
        listening = socket.create_server((HOST, port))
    except OSError as error:
        raise ValueError(f"cannot serve at {HOST}, port {port}: {error}; name another --port") from error
    # The name of a foreign page may resolve to this machine, but its requests have that name as Host.
    app.config["TRUSTED_HOSTS"] = ["localhost", HOST]

    @app.after_request
    def set_headers(response: flask.Response) -> flask.Response:
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    with listening:  # the server duplicates the socket
        return make_server(HOST, port, app, threaded=True, fd=listening.fileno())
