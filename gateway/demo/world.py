"""What the story is played on: two copies of the API, the database and the gateway."""

from __future__ import annotations

import os
import random
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from gateway.demo import ledger
from gateway.demo.processes import Crew, DemoError, environment
from gateway.resources import examples_dir, policies_dir
from gateway.store.embedded import start
from gateway.store.embedded.layout import Layout

__all__ = ["MOUNT", "Api", "World", "build", "start_api"]

MOUNT = "/legacy"

_READY_TIMEOUT_S = 60.0
_POLL_S = 0.05
# Below the range that systems take ports of outgoing connections from.
_PORTS = range(20_000, 32_000)


@dataclass(frozen=True, slots=True)
class Api:
    """One copy of the legacy API with a ledger of its own."""

    url: str
    ledger: Path
    token: str = field(repr=False)

    def misbehave(self, behaviour: str) -> None:
        """Set a switch for the next request."""
        answer = httpx.post(
            f"{self.url}/_switches",
            json={"behaviour": behaviour},
            headers={"Authorization": f"Bearer {self.token}"},
            trust_env=False,
        )
        answer.raise_for_status()

    def requests(self) -> int:
        return ledger.requests(self.ledger)


@dataclass(frozen=True, slots=True)
class World:
    """Everything that runs. `direct` is called by the workers, `behind` by the gateway alone."""

    folder: Path
    crew: Crew
    direct: Api
    behind: Api
    gateway_url: str
    gateway: subprocess.Popen[str] = field(repr=False)
    operator_env: Mapping[str, str] = field(repr=False)


def build(folder: Path, crew: Crew) -> World:
    """Start all of it in `folder`; `crew` stops it."""
    direct, behind = start_api("api-direct", folder, crew), start_api("api-behind", folder, crew)
    operator_env = environment(FENCEGATE_DATABASE_URL=_start_database(folder, crew))
    migrated = crew.run("migrate", _cli("migrate"), operator_env)
    if migrated.code != 0:
        raise DemoError(f"fencegate migrate failed:\n{migrated.output}")
    policies = _write_policies(folder, behind.url)
    url, process = _start_gateway(crew, policies, {**operator_env, "LEGACY_TOKEN": behind.token})
    return World(folder, crew, direct, behind, url, process, operator_env)


def start_api(name: str, folder: Path, crew: Crew) -> Api:
    """One copy of the example API, with a ledger of its own in `folder`."""
    token, book = secrets.token_urlsafe(16), folder / f"{name}.sqlite3"
    script = str(examples_dir() / "legacy_api")
    command = [sys.executable, script, "--port", "0", "--ledger", str(book)]
    process = crew.start(name, command, environment(LEGACY_TOKEN=token))
    assert process.stdout is not None
    said = process.stdout.readline()
    found = re.search(r"listening on (http://\S+)", said)
    if found is None:
        raise DemoError(f"the example API did not start:\n{said}{process.stdout.read()}")
    return Api(found[1], book, token)


def _start_database(folder: Path, crew: Crew) -> str:
    """Its DSN. Not the gateway's own embedded database: that outlives the gateway, on purpose."""
    explicit = os.environ.get("FENCEGATE_POSTGRES_BIN")
    bin_dir = Path(explicit) if explicit else None
    with crew.undisturbed():
        cluster = start(folder / "database", bin_dir=bin_dir, watchdog=True)
        # Its folder goes as well, so no checkpoint is needed.
        crew.at_end(lambda: cluster.stop(immediate=True))
        crew.watch(cluster.pid)
        if (state := Layout(cluster.data_dir).read_state()) is not None:
            crew.remove(Path(state.socket_dir))  # elsewhere, where the folder's path is long
    return cluster.dsn


def _write_policies(folder: Path, upstream: str) -> Path:
    """The shipped policy with this run's address."""
    shipped = (policies_dir() / "legacy.toml").read_text()
    text, count = re.subn(r"(?m)^upstream\s*=.*$", f'upstream = "{upstream}"', shipped)
    if count != 1:
        raise DemoError("policies/legacy.toml does not have exactly one line for its upstream")
    policies = folder / "policies"
    policies.mkdir()
    (policies / "legacy.toml").write_text(text)
    return policies


def _start_gateway(
    crew: Crew, policies: Path, env: Mapping[str, str]
) -> tuple[str, subprocess.Popen[str]]:
    port = _free_port()
    command = _cli("serve", "--policies", str(policies), "--host", "127.0.0.1", "--port", str(port))
    process = crew.start("gateway", command, env, to_log=True)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not _ready(url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise DemoError(f"the gateway did not become ready:\n{crew.tail('gateway')}")
        time.sleep(_POLL_S)
    return url, process


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _free_port() -> int:
    for port in random.sample(_PORTS, 50):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the gateway will
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise DemoError("no free port between 20000 and 32000")


def _cli(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gateway.cli", *arguments]
