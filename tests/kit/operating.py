"""What operators' tests need: commands in every state, a clock to move, and the command line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from uuid import UUID, uuid4

from gateway.core.command import Command, Hold, Release, Settle
from gateway.core.fingerprint import key_digest
from gateway.core.model import Response
from gateway.store.commands import CommandStore
from gateway.store.database import Database
from gateway.store.tenants import list_tenants
from tests.kit.db import execute
from tests.kit.typed import Done, type_in

__all__ = ["Done", "Made", "fencegate", "move_clock", "on", "settled", "unknown"]

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]


def on(dsn: str, work: Callable[[Database], Awaitable[T]]) -> T:
    """Run ``work`` on a pool of its own. Call it outside of any event loop."""

    async def run() -> T:
        database = await Database.open(dsn, size=2)
        try:
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(run())


def move_clock(dsn: str, seconds: int) -> None:
    """Set the database's clock so many seconds ahead of the machine's."""
    execute(
        dsn,
        "create or replace function gateway.clock() returns timestamptz language sql volatile "
        f"return clock_timestamp() + interval '{seconds} s'",
    )


@dataclass(frozen=True, slots=True)
class Made:
    """An admitted command and its end."""

    command: Command

    @property
    def digest(self) -> str:
        return self.command.key_digest.hex()

    @property
    def attempt(self) -> UUID:
        return self.command.attempt


def in_flight(dsn: str, key: str = "k-1", **values: object) -> Made:
    """A command that is admitted and nothing more."""

    async def work(database: Database) -> Made:
        made = Made(await _command(database, key, **values))
        await CommandStore(database).admit([made.command])
        return made

    return on(dsn, work)


def unknown(dsn: str, key: str = "k-1", evidence: bytes = b"bad gateway", **values: object) -> Made:
    """A command whose upstream answered 502: nobody knows what happened."""

    async def work(database: Database) -> Made:
        command = await _command(database, key, **values)
        store = CommandStore(database)
        await store.admit([command])
        assert await store.hold([Hold(command, "status 502", Response(502, (), evidence))]) == [
            True
        ]
        return Made(command)

    return on(dsn, work)


def settled(dsn: str, key: str = "k-1", body: bytes = b"{}", **values: object) -> Made:
    """A command that was answered 201."""

    async def work(database: Database) -> Made:
        command = await _command(database, key, **values)
        store = CommandStore(database)
        await store.admit([command])
        response = Response(201, ((b"Content-Type", b"application/json"),), body)
        assert await store.settle([Settle(command, response, keep_body=True)]) == ["settled"]
        return Made(command)

    return on(dsn, work)


def released(dsn: str, key: str = "k-1", **values: object) -> Made:
    """A command that was given back: nothing was sent."""

    async def work(database: Database) -> Made:
        command = await _command(database, key, **values)
        store = CommandStore(database)
        await store.admit([command])
        assert await store.release([Release(command, "not sent: refused")]) == [True]
        return Made(command)

    return on(dsn, work)


async def _command(database: Database, key: str, **values: object) -> Command:
    tenant_name = values.pop("tenant", "default")
    (tenant,) = [each for each in await list_tenants(database) if each.name == tenant_name]
    defaults: dict[str, object] = {
        "tenant": tenant.number,
        "key_digest": key_digest(tenant.salt, key),
        "key": key,
        "policy": "payments/capture",
        "entity": "invoice:1",
        "fingerprint": bytes(32),
        "rules": bytes(8),
        "fence": 7,
        "attempt": uuid4(),
        "principal": "worker",
        "request_id": "r-1",
        "serial": True,
        "unknown": "hold",
        "upstream_key": None,
        "upstream_digest": bytes(16),
        "deadline_ms": 30_000,
        "settle_delay_s": 300,
        "response_days": 30,
        "key_days": 400,
        "outline": b"",
        "issuer_here": False,
    }
    return Command(**{**defaults, **values})  # type: ignore[arg-type]


def fencegate(
    *arguments: str, dsn: str | None = None, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> Done:
    """Type a command. Of this process's ``FENCEGATE_`` variables it sees none."""
    own = {k: v for k, v in os.environ.items() if not k.upper().startswith("FENCEGATE_")}
    if dsn is not None:
        own["FENCEGATE_DATABASE_URL"] = dsn
    done = type_in(arguments, {**own, **(env or {})}, cwd)
    assert "Traceback" not in done.err, done.err
    return done
