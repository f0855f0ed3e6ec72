"""The drill's own upstream: it cannot undo, and writes down what it did."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["WORKER_FIELD", "Effect", "Upstream"]

WORKER_FIELD = "X-Drill-Worker"
"""Who sent it. A field of its own: it is part of no fingerprint, so a retry of the other worker is
the same command."""

_HOLD_LIMIT_S = 60.0
"""After which a held answer is given all the same, whatever became of who asked for it."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that was done: a POST to ``/effects/{subject}/{step}``."""

    number: int
    subject: str
    step: str
    worker: str
    at_mono: float


class Upstream:
    """Listens on ``host:port`` in threads of its own. GET anything answers with ``run``."""

    def __init__(self, run: str, host: str = "127.0.0.1", port: int = 0) -> None:
        self.run = run
        self._effects: list[Effect] = []
        self._changed = threading.Condition()
        self._held: dict[str, threading.Event] = {}
        self._server = _Server((host, port), _Handler)
        self._server.upstream = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.daemon = True

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> Upstream:
        self._thread.start()
        return self

    def stop(self) -> None:
        for event in list(self._held.values()):
            event.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def hold(self, subject: str) -> None:
        """Do what is asked for ``subject``, but keep the answers back until ``release``."""
        self._held[subject] = threading.Event()

    def release(self, subject: str) -> None:
        self._held[subject].set()

    def effects(self, subject: str) -> list[Effect]:
        """In the order in which they happened."""
        with self._changed:
            return [each for each in self._effects if each.subject == subject]

    def perform(self, subject: str, step: str, worker: str) -> Effect:
        """Do it once more; returns when the answer may be given."""
        with self._changed:
            effect = Effect(len(self._effects) + 1, subject, step, worker, time.monotonic())
            self._effects.append(effect)
            self._changed.notify_all()
        if (event := self._held.get(subject)) is not None:
            event.wait(_HOLD_LIMIT_S)
        return effect


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    upstream: Upstream


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._answer(200, {"run": self.server.upstream.run})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = self.path.strip("/").split("/")
        if len(parts) != 3 or parts[0] != "effects":
            self._answer(404, {"error": "POST /effects/{subject}/{step}"})
            return
        worker = self.headers.get(WORKER_FIELD, "")
        effect = self.server.upstream.perform(parts[1], parts[2], worker)
        self._answer(201, {"id": f"{effect.step}_{effect.number}"})

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the ledger says it all."""

    def _answer(self, status: int, document: dict[str, str]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
