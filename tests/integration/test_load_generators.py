"""Both generators of load send the same requests, byte for byte but for the keys' prefix."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "load" / "requests.lua"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
PREFIX, SEEDS = "0000001n00001k", ("0000001n00000k", 2)
KINDS = ("fresh", "replay", "stale", "reused")


class Recorder:
    """A server that keeps the first requests of its one connection."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/bench-200"
        self.requests: list[bytes] = []
        self.enough = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # closed
                return
            with contextlib.suppress(OSError), connection, connection.makefile("rb") as lines:
                while (request := self._read(lines)) is not None:
                    if len(self.requests) < 3:
                        self.requests.append(request)
                    else:
                        self.enough.set()
                    connection.sendall(ANSWER)

    def _read(self, lines: BinaryIO) -> bytes | None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = lines.readline()
            if not line:
                return None
            head += line
        length = re.search(rb"Content-Length: (\d+)", head)
        assert length is not None
        return head + bytes(lines.read(int(length[1])))

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(5)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    yield made
    made.close()


def ours(kind: str, url: str) -> list[str]:
    spec = {
        "kind": kind,
        "connections": 1,
        "seconds": 0.1,
        "size": 200,
        "seeds": SEEDS,
        "url": url,
        "token": "fg_t",
        "prefix": PREFIX,
    }
    return [sys.executable, "-m", "benchmarks.load.small", json.dumps(spec)]


def wrks(kind: str, url: str) -> list[str]:
    origin, _, path = url.rpartition("/")
    own = (kind, "200", f"/{path}", "fg_t", PREFIX, SEEDS[0], str(SEEDS[1]))
    how = ("--threads", "1", "--connections", "1", "--duration", "1s", "--script", str(SCRIPT))
    return ["wrk", *how, origin, "--", *own]


@pytest.mark.parametrize("kind", KINDS)
def test_both_send_the_same_whole_requests_and_ours_counts_them(
    kind: str, recorder: Recorder
) -> None:
    done = subprocess.run(
        ours(kind, recorder.url), cwd=ROOT, capture_output=True, text=True, check=True
    )
    seen = json.loads(done.stdout)
    assert seen["answered"] == seen["issued"] > 3
    assert seen["errors"] == seen["refused"] == 0
    first, second, third = (request.decode() for request in recorder.requests)
    body = first.partition("\r\n\r\n")[2]
    assert len(body) == 200
    assert json.loads(body)["amount"] == (1300 if kind == "reused" else 1200)
    keys = [re.search(r'Idempotency-Key: "(\w+)"', each) for each in (first, second, third)]
    again = keys[0] and keys[2] and keys[0][1] == keys[2][1]
    assert again == (kind in ("replay", "reused"))  # of two seeded keys, the third is the first
    if shutil.which("wrk") is not None:
        mine, recorder.requests = recorder.requests, []
        recorder.enough.clear()
        wrk = subprocess.Popen(
            wrks(kind, recorder.url), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        assert recorder.enough.wait(10)
        wrk.kill()
        wrk.wait()
        assert recorder.requests == mine
