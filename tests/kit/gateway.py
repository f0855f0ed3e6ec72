"""The gateway as it ships, in a process of its own, on a free port."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["GatewayProcess", "gateway", "policy"]

_READY = re.compile(r"^Fencegate \S+ on (http://\S+)$")
_START_S = 30.0


def policy(
    upstream: str, *commands: str, name: str = "pay", mount: str = "/pay", head: str = ""
) -> str:
    """A policy file's text; each of ``commands`` is the body of a ``[[commands]]`` table."""
    tables = commands or (CAPTURE, CASE)
    return "\n".join(
        [
            f'name = "{name}"',
            f'mount = "{mount}"',
            f'upstream = "{upstream}"',
            head,
            *(f"[[commands]]\n{table}" for table in tables),
        ]
    )


CAPTURE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 2
settle_delay_s = 1
"""

CASE = """
name = "case"
match = "POST /v1/cases"
entity = "customer:{body./input/customer_id}"
timeout_s = 2
"""


class GatewayProcess:
    """One ``fencegate serve``. ``url`` is set once it listens; ``log`` is what it wrote so far."""

    def __init__(
        self,
        database: str,
        policies: Mapping[str, str],
        *,
        port: int = 0,
        env: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fencegate-policies-")
        for file, text in policies.items():
            (Path(self._folder.name) / file).write_text(text, encoding="utf-8")
        self.database = database
        self.port = port
        self._env = dict(env or {})
        self._arguments = arguments
        self._lines: list[str] = []
        self.url = ""
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> GatewayProcess:
        """Start it and wait until it listens; raises with its output where it does not."""
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("FENCEGATE_")
        }
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gateway.cli", "serve", "--policies", self._folder.name),
                *("--port", str(self.port), *self._arguments),
            ],
            env={**environment, "FENCEGATE_DATABASE_URL": self.database, **self._env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read_log, daemon=True).start()
        self.url = self._await_banner()
        self.port = int(self.url.rsplit(":", 1)[1])
        return self

    def _await_banner(self) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        until = time.monotonic() + _START_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, until - time.monotonic())):
                line = self.process.stdout.readline()
                if not line:
                    break
                match = _READY.match(line.strip())
                if match is not None:
                    threading.Thread(target=self._drain_stdout, daemon=True).start()
                    return match.group(1)
        self.process.kill()
        self.process.wait()
        raise AssertionError("the gateway did not start:\n" + "".join(self._lines))

    def _drain_stdout(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        for _ in self.process.stdout:
            pass

    def _read_log(self) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)

    @property
    def log(self) -> list[dict[str, Any]]:
        """The JSON lines so far."""
        return [json.loads(line) for line in list(self._lines) if line.startswith("{")]

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """``kill -9``, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s: float = 60.0) -> int:
        """SIGTERM, and its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout_s)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        self._folder.cleanup()


@contextlib.contextmanager
def gateway(
    database: str,
    *policies: str,
    env: Mapping[str, str] | None = None,
    arguments: tuple[str, ...] = (),
) -> Iterator[GatewayProcess]:
    """A running gateway over policy texts; killed at the end."""
    files = {f"policy{number}.toml": text for number, text in enumerate(policies)}
    made = GatewayProcess(database, files, env=env, arguments=arguments)
    try:
        yield made.start()
    finally:
        made.close()
