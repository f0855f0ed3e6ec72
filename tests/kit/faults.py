"""What fault tests share: a stack whose database is reached through a wire proxy, and probes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import asyncpg

from tests.kit.client import Caller
from tests.kit.db import Server, with_connection
from tests.kit.gateway import GatewayProcess, Scene, Stack, gateway, policy, rows
from tests.kit.operating import move_clock
from tests.kit.pgproxy import PgProxy
from tests.kit.upstream import RecordingUpstream

__all__ = [
    "ADMIT",
    "CHARGE",
    "HOLD",
    "LOAD",
    "QUICK",
    "RELEASE",
    "SETTLE",
    "Rig",
    "entities_locked",
    "entity_locked",
    "every_deadline_passes",
    "pass_s",
    "rig",
    "second_gateway",
    "stopped",
    "terminate_backends",
    "until",
    "wait_for_lock_waits",
]

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

ADMIT = "gateway.admit_batch("
SETTLE = "gateway.settle_batch("
RELEASE = "gateway.release("
HOLD = "gateway.hold("

CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 20
settle_delay_s = 1
"""
"""Room for whatever a test does between two steps."""

QUICK = """
name = "quick"
match = "POST /v1/accounts/{account}/quick"
entity = "account:{path.account}"
timeout_s = 1
settle_delay_s = 300
"""
"""First byte within 3 s, last within 1 s of it, unknown after 6 s."""

LOAD = """
name = "load"
match = "POST /v1/loads/{account}"
entity = "load:{path.account}"
fence = "off"
timeout_s = 20
settle_delay_s = 1
"""
"""For many callers at once, whose fences would only come in an order of no meaning."""

_POLL_S = 0.02


@dataclass
class Rig:
    """A stack and one test's corner of it. ``proxy`` stands between gateway and database; what
    the test itself asks of the database goes past it."""

    stack: Stack
    scene: Scene
    proxy: PgProxy

    @property
    def gateway(self) -> GatewayProcess:
        return self.stack.gateway

    @property
    def upstream(self) -> RecordingUpstream:
        return self.stack.upstream

    @property
    def database(self) -> str:
        return self.stack.database

    def restart_killed(self) -> None:
        """``kill -9`` the gateway and start it again on its port."""
        self.gateway.kill()
        self.gateway.start()


@contextlib.contextmanager
def rig(
    postgres: Server, *commands: str, env: Mapping[str, str] | None = None, head: str = ""
) -> Iterator[Rig]:
    """A gateway behind a wire proxy, over a database and an upstream of its own."""
    with contextlib.ExitStack() as held:
        dsn = held.enter_context(postgres.database())
        upstream = held.enter_context(RecordingUpstream())
        proxy = held.enter_context(PgProxy(dsn))
        text = policy(upstream.url, *(commands or (CHARGE, QUICK, LOAD)), head=head)
        process = held.enter_context(gateway(proxy.dsn, text, env=env))
        stack = Stack(process, upstream, dsn)
        yield Rig(stack, stack.scene(), proxy)


@contextlib.contextmanager
def second_gateway(first: Rig) -> Iterator[Scene]:
    """Another gateway over the same database and upstream; the same corner, seen through it."""
    text = policy(first.upstream.url, CHARGE, QUICK, LOAD)
    with gateway(first.database, text) as process:
        stack = Stack(process, first.upstream, first.database)
        yield Scene(stack, Caller(process.url), first.scene.account)


def every_deadline_passes(dsn: str) -> None:
    """Set the database's clock past the deadline of everything admitted so far."""
    move_clock(dsn, 3600)


def until(reached: Callable[[], Any], what: str, timeout_s: float = 15.0) -> None:
    """Ask until it is so."""
    end = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < end, f"not within {timeout_s} s: {what}"
        time.sleep(_POLL_S)


def pass_s(since_mono: float, seconds: float) -> None:
    """Let real time pass, where time itself is the fault: so many seconds after ``since_mono``."""
    while (left := since_mono + seconds - time.monotonic()) > 0:
        time.sleep(left)


def wait_for_lock_waits(dsn: str, count: int, text: str) -> None:
    """Until so many backends that run ``text`` wait for a lock."""

    def waiting() -> bool:
        found = rows(
            dsn,
            "select count(*) as n from pg_stat_activity where wait_event_type = 'Lock'"
            " and datname = current_database() and position($1 in query) > 0",
            text,
        )
        return bool(found[0]["n"] >= count)

    until(waiting, f"{count} backends in {text} wait for a lock")


@contextlib.contextmanager
def stopped(process: GatewayProcess) -> Iterator[float]:
    """SIGSTOP until the block ends; gives the monotonic time at which it was sent."""
    process.signal(signal.SIGSTOP)
    try:
        yield time.monotonic()
    finally:
        process.signal(signal.SIGCONT)


@contextlib.contextmanager
def entity_locked(dsn: str, entity: str) -> Iterator[Callable[[], None]]:
    """Somebody else's transaction holds the entity's row; gives the way to end it early."""
    with entities_locked(dsn, entity) as unlock:
        yield unlock


@contextlib.contextmanager
def entities_locked(dsn: str, *entities: str) -> Iterator[Callable[[], None]]:
    """One transaction of somebody else holds the rows of all of them."""
    locked, done = threading.Event(), threading.Event()

    async def hold(conn: Connection) -> None:
        async with conn.transaction():
            sql = "select from gateway.entities where entity = any ($1) for update"
            await conn.fetch(sql, list(entities))
            locked.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=with_connection, args=(dsn, hold), daemon=True)
    thread.start()

    def unlock() -> None:
        done.set()
        thread.join(10)

    try:
        assert locked.wait(10), "the lock was not taken"
        yield unlock
    finally:
        unlock()


def terminate_backends(dsn: str, text: str) -> int:
    """End the gateways' backends that run, or last ran, ``text``; returns once they are gone."""
    found = rows(
        dsn,
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where datname = current_database() and application_name = 'fencegate'"
        " and position($1 in query) > 0",
        text,
    )
    return len(found)
