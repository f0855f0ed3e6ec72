"""The process: arguments, the socket, uvicorn."""

import argparse
import os
import socket
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .app import HANG_UP, build
from .ledger import Ledger
from .switches import BadSwitch, Switches, parse

__all__ = ["main"]

_GRACE_S = 1  # of a stop, for answers that are being slow on purpose


class _Protocol(HttpToolsProtocol):
    """ASGI has no way to hang up without an answer, and that is a thing that APIs do."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: MutableMapping[str, Any] = self.scope  # type: ignore[assignment]
        scope[HANG_UP] = self.transport.close


def main(argv: list[str]) -> int:
    """Serve until SIGINT or SIGTERM. Prints one line with its address once it takes connections."""
    arguments = _arguments(argv)
    token = os.environ.get("LEGACY_TOKEN", "")
    switches = Switches()
    try:
        if not token:
            raise BadSwitch("set LEGACY_TOKEN: every caller has to send it as a bearer token")
        if preset := os.environ.get("LEGACY_BEHAVIOUR"):
            switches.set(parse(preset))
    except BadSwitch as error:
        print(f"legacy-api: {error}", file=sys.stderr)
        return 2
    listener = socket.create_server((arguments.host, arguments.port))
    app = build(Ledger(arguments.ledger), switches, token, deduplicates=arguments.deduplicate)
    host, port = listener.getsockname()[:2]
    print(f"legacy-api listening on http://{host}:{port} (ledger: {arguments.ledger})", flush=True)
    config = uvicorn.Config(
        app,
        http=_Protocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="legacy_api", description="An API without idempotency. Needs LEGACY_TOKEN."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9001, help="0: any free one")
    parser.add_argument(
        "--ledger", type=Path, default=Path("legacy-ledger.sqlite3"), help="the SQLite file"
    )
    parser.add_argument(
        "--deduplicate",
        action="store_true",
        help="answer a second POST with the same Client-Reference as the first, without an effect",
    )
    return parser.parse_args(argv)
