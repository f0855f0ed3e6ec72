"""A small HTTP server to say what is to break, and to ask what has come."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gateway.errors import ConfigurationError

__all__ = ["Control", "Route"]

Route = Callable[[Mapping[str, object]], object]
"""Takes the request's JSON object (empty without a body), gives what is answered as JSON."""

_BODY_LIMIT = 1 << 20
"""Bytes; a rule or an answer is some hundred."""

_LENGTH_DIGITS = 18
"""More are no length, and Python reads some thousand only."""


class Control:
    """``routes``: by ``"GET /rules"``. Whoever reaches it may break things: listen on loopback."""

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        self._server = _Server((host, port), _Handler)
        self._server.routes = routes
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="control", daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> Control:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    routes: Mapping[str, Route]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: it is asked for what it knows."""

    def _serve(self) -> None:
        route = self.server.routes.get(f"{self.command} {self.path}")
        body = self._body()
        if body is None:
            return
        if route is None:
            self._answer(404, {"error": f"there are {', '.join(self.server.routes)}"})
            return
        try:
            self._answer(200, route(_object(body)))
        except ConfigurationError as error:
            self._answer(400, {"error": str(error)})

    def _body(self) -> bytes | None:
        """``None`` where the request was refused: where it ends is not known, or too far away."""
        length = self.headers.get("Content-Length") or "0"
        if not (length.isascii() and length.isdigit()):
            self.close_connection = True
            self._answer(400, {"error": "send the body with its Content-Length in bytes"})
        elif len(length) > _LENGTH_DIGITS or int(length) > _BODY_LIMIT:
            self.close_connection = True
            self._answer(413, {"error": f"send at most {_BODY_LIMIT} bytes"})
        else:
            return self.rfile.read(int(length))
        return None

    def _answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _object(body: bytes) -> Mapping[str, object]:
    try:
        document = json.loads(body) if body else {}
    except (ValueError, RecursionError):  # the second: too many levels
        document = None
    if not isinstance(document, dict):
        raise ConfigurationError("send a JSON object")
    return document
