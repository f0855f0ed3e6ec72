"""Where a benchmark runs: a folder, servers, and their certain end, by the drill's own means."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.kit import sql
from gateway.crew import (
    Crew,
    CrewError,
    Interrupts,
    crew_in,
    environment,
    fencegate,
    free_port,
    open_folder,
    start_database,
)
from gateway.store.embedded import Cluster

__all__ = ["Gateway", "Stage", "stage"]

_READY_S = 60.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway. ``log``: the file of its lines. ``token``: a gateway key of its tenant."""

    url: str
    dsn: str = field(repr=False)
    token: str = field(repr=False)
    process: subprocess.Popen[str] = field(repr=False)
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass(slots=True)
class Stage:
    """Everything started here ends with it."""

    folder: Path
    crew: Crew

    def postgres(self, name: str = "database") -> Cluster:
        """A PostgreSQL server by our own launcher, with the settings that it ships with. ``name``:
        of its folder, where there are several."""
        folder = self.folder / name
        folder.mkdir(mode=0o711)
        return start_database(folder, self.crew)

    def database(self, cluster: Cluster, name: str) -> str:
        """The DSN of a new, empty database."""
        sql.execute(cluster.dsn, f'create database "{name}"')
        return sql.named(cluster.dsn, name)

    def migrated(self, cluster: Cluster, name: str) -> str:
        """The same with the gateway's schema in it."""
        dsn = self.database(cluster, name)
        self._run("migrate", fencegate("migrate"), environment(FENCEGATE_DATABASE_URL=dsn))
        return dsn

    def key(self, dsn: str, policies: Path) -> str:
        """A new gateway key of the tenant ``default``, allowed what a key is by default."""
        add = fencegate("keys", "add", "--tenant", "default", "--name", "bench")
        env = environment(FENCEGATE_DATABASE_URL=dsn)
        return _token(self._run("keys", [*add, "--policies", str(policies)], env))

    def gateway(
        self,
        name: str,
        dsn: str,
        policies: Path,
        token: str,
        settings: Mapping[str, str] | None = None,
    ) -> Gateway:
        """`fencegate serve` on a migrated database, as it ships but for ``settings`` (names with
        their prefix); its log lines go to a file."""
        port = free_port()
        where = ("--policies", str(policies), "--host", "127.0.0.1", "--port", str(port))
        env = environment(FENCEGATE_DATABASE_URL=dsn, **(settings or {}))
        url = f"http://127.0.0.1:{port}"
        process = self.server(name, fencegate("serve", *where), env, f"{url}/readyz")
        return Gateway(url, dsn, token, process, self.crew.log(name))

    def server(
        self, name: str, command: list[str], env: Mapping[str, str], ready: str
    ) -> subprocess.Popen[str]:
        """Start a server, and wait until ``ready`` answers 200. Raises ``CrewError``."""
        process = self.crew.start(name, command, env, to_log=True)
        deadline = time.monotonic() + _READY_S
        while not _answers(ready):
            if process.poll() is not None or time.monotonic() > deadline:
                raise CrewError(f"{name} did not become ready:\n{self.crew.tail(name)}")
            time.sleep(_POLL_S)
        return process

    def stop(self, process: subprocess.Popen[str]) -> None:
        """End one before the others."""
        process.terminate()
        self.crew.finish(process)

    def _run(self, name: str, command: list[str], env: Mapping[str, str]) -> str:
        done = self.crew.run(name, command, env)
        if done.code != 0:
            raise CrewError(f"{' '.join(command[-3:])} failed:\n{done.output}")
        return done.output


def _token(said: str) -> str:
    return next(word for word in said.split() if word.startswith("fg_"))


@contextlib.contextmanager
def stage(limit_s: int) -> Iterator[Stage]:
    """Open for ``limit_s`` seconds at most; then, and on Ctrl-C, ``gateway.crew.Interrupted`` ends
    the block."""
    interrupts = Interrupts()
    with (
        interrupts.caught(limit_s),
        open_folder("fencegate-bench-") as folder,
        crew_in(folder, interrupts) as crew,
    ):
        yield Stage(folder, crew)


def _answers(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False
