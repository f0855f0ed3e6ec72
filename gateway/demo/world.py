"""What the story is played on: two copies of the API, the database and the gateway."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from gateway.crew import Crew, CrewError, environment, start_database, start_gateway
from gateway.demo import ledger
from gateway.resources import examples_dir, policies_dir

__all__ = ["MOUNT", "Api", "World", "build", "start_api"]

MOUNT = "/legacy"


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
    operator_env = environment(FENCEGATE_DATABASE_URL=start_database(folder, crew).dsn)
    policies = _write_policies(folder, behind.url)
    served = start_gateway(crew, policies, {**operator_env, "LEGACY_TOKEN": behind.token})
    return World(folder, crew, direct, behind, served.url, served.process, operator_env)


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
        raise CrewError(f"the example API did not start:\n{said}{process.stdout.read()}")
    return Api(found[1], book, token)


def _write_policies(folder: Path, upstream: str) -> Path:
    """The shipped policy with this run's address."""
    shipped = (policies_dir() / "legacy.toml").read_text()
    text, count = re.subn(r"(?m)^upstream\s*=.*$", f'upstream = "{upstream}"', shipped)
    if count != 1:
        raise CrewError("policies/legacy.toml does not have exactly one line for its upstream")
    policies = folder / "policies"
    policies.mkdir()
    (policies / "legacy.toml").write_text(text)
    return policies
