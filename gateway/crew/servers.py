"""A database and a gateway of a show's own."""

from __future__ import annotations

import http.client
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.crew.processes import Crew, CrewError
from gateway.store.embedded import Cluster, attach, start
from gateway.store.embedded.layout import Layout

__all__ = ["Served", "fencegate", "free_port", "start_database", "start_gateway"]

_READY_TIMEOUT_S = 60.0
_POLL_S = 0.05
# Below the range that systems take ports of outgoing connections from.
_PORTS = range(20_000, 32_000)


@dataclass(frozen=True, slots=True)
class Served:
    """A running gateway."""

    url: str
    process: subprocess.Popen[str] = field(repr=False)


def start_database(folder: Path, crew: Crew) -> Cluster:
    """A PostgreSQL server in ``folder``, stopped by ``crew``. Not the gateway's own embedded one:
    that outlives the gateway, on purpose."""
    explicit = os.environ.get("FENCEGATE_POSTGRES_BIN")
    bin_dir = Path(explicit) if explicit else None
    with crew.undisturbed():
        cluster = start(folder / "database", bin_dir=bin_dir, watchdog=True)
        crew.at_end(lambda: _stop(cluster.data_dir))
        crew.watch(cluster.pid)
        if (state := Layout(cluster.data_dir).read_state()) is not None:
            crew.remove(Path(state.socket_dir))  # elsewhere, where the folder's path is long
    return cluster


def _stop(data_dir: Path) -> None:
    """By its folder, since it may have been restarted; that goes as well, so no checkpoint is
    needed."""
    if (running := attach(data_dir)) is not None:
        running.stop(immediate=True)


def start_gateway(crew: Crew, policies: Path, env: Mapping[str, str]) -> Served:
    """Migrate the database that ``env`` names and serve it, as ``gateway`` of the crew."""
    migrated = crew.run("migrate", fencegate("migrate"), env)
    if migrated.code != 0:
        raise CrewError(f"fencegate migrate failed:\n{migrated.output}")
    port = free_port()
    where = ("--policies", str(policies), "--host", "127.0.0.1", "--port", str(port))
    process = crew.start("gateway", fencegate("serve", *where), env, to_log=True)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not _ready(url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise CrewError(f"the gateway did not become ready:\n{crew.tail('gateway')}")
        time.sleep(_POLL_S)
    return Served(url, process)


def fencegate(*arguments: str) -> list[str]:
    """The command line of this very package."""
    return [sys.executable, "-m", "gateway.cli", *arguments]


def free_port() -> int:
    for port in random.sample(_PORTS, 50):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the gateway will
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise CrewError("no free port between 20000 and 32000")


def _ready(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False
