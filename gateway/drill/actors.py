"""The drill's worker processes, seen from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.crew import Crew, fencegate

__all__ = ["Actor", "worker_command"]

Said = Mapping[str, Any]


class Actor:
    """One worker process: what it said, and what can be done to it."""

    def __init__(
        self, crew: Crew, name: str, command: Sequence[str], env: Mapping[str, str]
    ) -> None:
        self.name = name
        self._crew = crew
        self._process: subprocess.Popen[str] = crew.start(name, command, env, errors_to_log=True)
        self._said: list[Said] = []
        threading.Thread(target=self._read, name=name, daemon=True).start()

    def said(self, job: str, what: str, **more: object) -> Said | None:
        """The first line of this kind about a job, so far."""
        wanted = {"job": job, "say": what, **more}
        return next((each for each in list(self._said) if wanted.items() <= each.items()), None)

    def go_on(self, job: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it is gone, as its claims will show
            self._process.stdin.write(json.dumps({"job": job}) + "\n")
            self._process.stdin.flush()

    def stop(self) -> None:
        """SIGSTOP: for the process no time passes."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def ended(self) -> bool:
        return self._process.poll() is not None

    def tail(self) -> str:
        return self._crew.tail(self.name)

    def events(self) -> list[Said]:
        """What its library logged."""
        found: list[Said] = []
        for line in self._crew.log(self.name).read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                document = json.loads(line)
                if isinstance(document, dict):
                    found.append(document)
        return found

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # closed when everything is stopped
            for line in self._process.stdout:
                with contextlib.suppress(ValueError):
                    self._said.append(json.loads(line))


def worker_command(concurrency: int) -> list[str]:
    """As users start a worker."""
    where = "gateway.drill.worker:worker"
    return fencegate("worker", "run", where, "--concurrency", str(concurrency))
