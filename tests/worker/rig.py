"""Real workers between a real gateway and a recording upstream."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.kit.db import Server
from tests.kit.faults import until
from tests.kit.gateway import GatewayProcess, rows
from tests.kit.operating import move_clock
from tests.kit.upstream import RecordingUpstream

__all__ = ["POLICY", "TOOLS", "Rig", "WorkerProcess", "rig"]

_WAIT_S = 30.0

POLICY = """
name = "shop"
mount = "/shop"
upstream = "{upstream}"

[[commands]]
name = "act"
match = "POST /v1/{{what}}"
entity = "{{header.X-Execution-Entity}}"
issuer = "here"
timeout_s = 5
settle_delay_s = 1
"""

# The shortest leases that may be: 2 × 0.4 + 0.1 + 5 s for a request.
TOOLS = """
[[tools]]
name = "order"
lease_s = 6
heartbeat_s = 0.4
jitter_s = 0.1
misses = 3
stage_limit_s = 60
total_s = 120
attempts = 3
backoff_s = 0

[[tools]]
name = "brief"
lease_s = 6
heartbeat_s = 0.4
jitter_s = 0.1
stage_limit_s = 1
total_s = 120
backoff_s = 0
"""


class WorkerProcess:
    """``fencegate worker run``, with a module of its own."""

    def __init__(
        self,
        folder: Path,
        url: str,
        code: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        level: str = "debug",
    ) -> None:
        (folder / "shop.py").write_text(code, encoding="utf-8")
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("FENCEGATE_")
        }
        self._lines: list[str] = []
        self._grown = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli", "worker", "run", "shop:worker", *arguments],
            cwd=folder,
            env={
                **environment,
                "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
                "FENCEGATE_URL": url,
                "FENCEGATE_LOG_LEVEL": level,
                **(env or {}),
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._grown:
                self._lines.append(line)
                self._grown.notify_all()

    @property
    def said(self) -> str:
        return "".join(self._lines)

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in list(self._lines) if line.startswith("{")]

    def events(self, name: str, **values: object) -> list[dict[str, Any]]:
        wanted = {"event": name, **values}.items()
        return [line for line in self.log if wanted <= line.items()]

    def wait_for(self, name: str, count: int = 1, **values: object) -> dict[str, Any]:
        """Block until so many events of this kind are there; the last of them."""
        with self._grown:
            self._grown.wait_for(lambda: len(self.events(name, **values)) >= count, _WAIT_S)
        found = self.events(name, **values)
        assert len(found) >= count, f"no {name} {values}: {self.said[-4000:]}"
        return found[-1]

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(self.process.pid, os.WUNTRACED)[1])

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s: float = _WAIT_S) -> int:
        """SIGTERM, and its exit code."""
        self.process.terminate()
        return self.ended(timeout_s)

    def ended(self, timeout_s: float = _WAIT_S) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(_WAIT_S)
        assert self.process.stderr is not None
        self.process.stderr.close()


@dataclass
class Rig:
    """A gateway, an upstream that remembers, and workers."""

    gateway: GatewayProcess
    upstream: RecordingUpstream
    database: str
    folder: Path
    held: contextlib.ExitStack
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)
    _ahead_s: int = 0

    def worker(self, code: str, *arguments: str, url: str = "", **more: Any) -> WorkerProcess:
        folder = self.folder / f"w{next(self._numbers)}"
        folder.mkdir()
        made = WorkerProcess(folder, url or self.gateway.url, code, *arguments, **more)
        self.held.callback(made.close)
        return made

    def add(self, tool: str = "order", payload: object = None, **more: object) -> str:
        """Enqueue a job over HTTP; its id."""
        wish = {"tool": tool, "payload": payload, **more}
        answer = httpx.post(f"{self.gateway.url}/v1/jobs", json={"jobs": [wish]}, trust_env=False)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["jobs"][0]["job"])

    def job(self, job: str) -> dict[str, Any]:
        answer = httpx.get(f"{self.gateway.url}/v1/jobs/{job}", trust_env=False)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["job"]
        return found

    def wait_for_state(self, job: str, *states: str) -> dict[str, Any]:
        until(lambda: self.job(job)["state"] in states, f"{job} is {states}", _WAIT_S)
        return self.job(job)

    def cancel(self, job: str) -> None:
        url = f"{self.gateway.url}/v1/jobs/{job}/cancel"
        answer = httpx.post(url, json={"reason": "a test wants it"}, trust_env=False)
        assert answer.status_code == 200, answer.text

    def leases_end(self) -> None:
        """By the database's clock, every lease that is held now is over."""
        self._ahead_s += 300
        move_clock(self.database, self._ahead_s)

    def effects(self, what: str) -> list[dict[str, Any]]:
        """The bodies of what the upstream carried out."""
        wanted = f"/v1/{what}".encode()
        return [each.json() for each in self.upstream.effects if each.target == wanted]

    def audit(self, event: str) -> list[dict[str, Any]]:
        return rows(
            self.database, "select * from gateway.audit where event = $1 order by at", event
        )

    def runs(self, job: str) -> list[dict[str, Any]]:
        """How the leases of a job ended, in order."""
        return rows(
            self.database,
            "select * from gateway.job_runs where job = $1::text::uuid order by ended_at",
            job,
        )


@contextlib.contextmanager
def rig(postgres: Server) -> Iterator[Rig]:
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="fencegate-worker-")))
        database = held.enter_context(postgres.database())
        upstream = held.enter_context(RecordingUpstream())
        policy = POLICY.format(upstream=upstream.url)
        gateway = GatewayProcess(database, {"shop.toml": policy, "tools.toml": TOOLS})
        held.callback(gateway.close)
        gateway.start()
        workers = held.enter_context(contextlib.ExitStack())
        yield Rig(gateway, upstream, database, folder, workers)
