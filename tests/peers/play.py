"""The unpleasant test with a queue of somebody else's: what happened, as values."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import procrastinate
from pgqueuer import AsyncpgDriver, Queries

from gateway.crew import Crew, Served, environment, start_gateway
from gateway.drill.actors import Actor
from gateway.drill.upstream import Upstream
from gateway.faultkit.proxy import FaultProxy
from gateway.store.embedded import Cluster
from tests.integrate.page import block
from tests.integrate.queues import IN_A_TRANSACTION
from tests.kit.db import dsn_of, execute, with_connection
from tests.kit.gateway import rows

__all__ = ["PEERS", "VARIANTS", "Outcome", "Stage", "play"]

VARIANTS = ("network-cut", "blocked-loop", "stopped", "killed", "database-restart")
ROOT = Path(__file__).resolve().parents[2]

_LIMIT_S = 60.0
_POLL_S = 0.05

_POLICY = """
name     = "provider"
mount    = "/provider"
upstream = "http://127.0.0.1:{port}"

[[commands]]
name   = "effect"
match  = "POST /effects/{{subject}}/{{step}}"
entity = "invoice:{{path.subject}}"
issuer = "here"
settle_delay_s = 1
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``accepted``: the queue took W1's success while W2 had the job; ``None`` where W1 was not
    there to report one. ``late``: W1's second effect reached the provider. ``effects``: how many
    the provider has in its ledger, of two that were meant."""

    accepted: bool | None
    late: bool
    effects: int


@dataclass(frozen=True, slots=True)
class Stage:
    """What all plays share. ``restart`` crashes the database server and brings it back."""

    crew: Crew
    folder: Path
    dsn: str
    restart: Callable[[], None]


class _Procrastinate:
    module = "tests.peers.procrastinate_worker"

    def install(self, dsn: str) -> None:
        async def apply() -> None:
            app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn))
            async with app.open_async():
                await app.schema_manager.apply_schema_async()

        asyncio.run(apply())

    def enqueue(self, dsn: str, subject: str) -> None:
        async def defer() -> None:
            app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn))
            async with app.open_async():
                await app.configure_task("effects", lock=f"invoice:{subject}").defer_async()

        asyncio.run(defer())

    def succeeded(self, dsn: str) -> bool:
        return rows(dsn, "select status::text from procrastinate_jobs") == [{"status": "succeeded"}]


class _PgQueuer:
    module = "tests.peers.pgqueuer_worker"

    def install(self, dsn: str) -> None:
        async def made(connection: asyncpg.Connection[Any]) -> None:
            await Queries(AsyncpgDriver(connection)).install()

        with_connection(dsn, made)

    def enqueue(self, dsn: str, subject: str) -> None:
        async def put(connection: asyncpg.Connection[Any]) -> None:
            headers = {"entity": f"invoice:{subject}"}
            await Queries(AsyncpgDriver(connection)).enqueue("effects", b"{}", headers=headers)

        with_connection(dsn, put)

    def succeeded(self, dsn: str) -> bool:
        gone = rows(dsn, "select 1 from pgqueuer") == []
        return gone and len(rows(dsn, "select 1 from pgqueuer_log where status = 'successful'")) > 0


PEERS = {"procrastinate": _Procrastinate(), "pgqueuer": _PgQueuer()}


@contextlib.contextmanager
def stage(crew: Crew, folder: Path, cluster: Cluster) -> Iterator[Stage]:
    def restart() -> None:
        with crew.undisturbed():
            crew.watch(cluster.restart(immediate=True).pid)

    yield Stage(crew, folder, cluster.dsn, restart)


def play(stage: Stage, peer: str, variant: str, *, fenced: bool) -> Outcome:
    """One variant with one queue; ``fenced``: with the recipe of docs/integrate.md."""
    return _Play(stage, peer, variant, fenced).outcome()


class _Play:
    def __init__(self, stage: Stage, peer: str, variant: str, fenced: bool) -> None:
        self.stage, self.peer, self.variant, self.fenced = stage, PEERS[peer], variant, fenced
        self.name = f"{peer}-{variant}-{'fenced' if fenced else 'alone'}"
        self.subject = self.name
        self.heading = peer
        self.dsn = dsn_of(stage.dsn, self.name.replace("-", "_"))

    def outcome(self) -> Outcome:
        execute(self.stage.dsn, f"create database {urlsplit(self.dsn).path.lstrip('/')}")
        self.peer.install(self.dsn)
        with contextlib.ExitStack() as closing:
            upstream = Upstream(self.name).start()
            closing.callback(upstream.stop)
            provider = f"http://127.0.0.1:{upstream.port}"
            if self.fenced:
                served = self._gateway(upstream.port)
                closing.callback(served.process.kill)
                execute(self.dsn, block(self.heading, "sql"))
                provider = f"{served.url}/provider"
            proxies = [_proxy(closing, each) for each in (self.dsn, provider)]
            if self.variant != "blocked-loop":
                upstream.hold(self.subject)
            self.peer.enqueue(self.dsn, self.subject)
            first = self._worker(
                "W1", *(_through(u, p) for u, p in zip((self.dsn, provider), proxies, strict=True))
            )
            closing.callback(first.kill)
            self._until(lambda: len(upstream.effects(self.subject)) == 1, "W1's capture", first)
            self._interrupt(first, proxies, upstream)
            second = self._worker("W2", self.dsn, provider)
            closing.callback(second.kill)
            self._until(lambda: second.said("job", "holds") is not None, "W2 to hold", second)
            accepted = self._go_on(first, proxies, upstream)
            effects = upstream.effects(self.subject)
            late = any(each.worker == "W1" and each.step == "notify" for each in effects)
            return Outcome(accepted, late, len(effects))

    def _gateway(self, port: int) -> Served:
        policies = self.stage.folder / f"{self.name}-policies"
        policies.mkdir()
        (policies / "provider.toml").write_text(_POLICY.format(port=port))
        return start_gateway(
            self.stage.crew, policies, environment(FENCEGATE_DATABASE_URL=self.dsn)
        )

    def _worker(self, role: str, dsn: str, provider: str) -> Actor:
        env = environment(
            PEER_NAME=role,
            PEER_VARIANT=self.variant,
            PEER_DSN=dsn,
            PEER_PROVIDER=provider,
            PEER_SUBJECT=self.subject,
        )
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env["PYTHONPATH"]])
        command = [sys.executable, "-m", self.peer.module]
        return Actor(self.stage.crew, f"{self.name}-{role}", command, env)

    def _interrupt(self, first: Actor, proxies: list[FaultProxy], upstream: Upstream) -> None:
        if self.variant == "blocked-loop":
            self._until(lambda: first.said("job", "blocked") is not None, "W1 to block", first)
            return
        if self.variant == "killed":
            # Its second effect is on its way when it dies.
            upstream.release(self.subject)
            self._until(lambda: first.said("job", "answered") is not None, "W1's answer", first)
        if self.variant == "stopped":
            self._between_transactions(first.stop, first.wake, first)
        else:
            self._between_transactions(
                lambda: [proxy.cut() for proxy in proxies],
                lambda: [proxy.restore() for proxy in proxies],
                first,
            )
        if self.variant == "killed":
            first.go_on("job")
            second_effect = f"/effects/{self.subject}/notify".encode()
            self._until(
                lambda: proxies[1].holds(second_effect), "W1's notify in the network", first
            )
            first.kill()
        if self.variant == "database-restart":
            self.stage.restart()
        upstream.release(self.subject)

    def _between_transactions(
        self, begin: Callable[[], object], undo: Callable[[], object], first: Actor
    ) -> None:
        """In the middle of one, W1's locks would keep W2 from the queue; that is another story."""

        def begun() -> bool:
            begin()
            if not rows(self.dsn, IN_A_TRANSACTION):
                return True
            undo()
            return False

        self._until(begun, "moment between W1's transactions", first)

    def _go_on(self, first: Actor, proxies: list[FaultProxy], upstream: Upstream) -> bool | None:
        """Whether the queue takes W1's result; ``None`` if there is none."""
        if self.variant == "killed":
            for proxy in proxies:
                proxy.restore()
            second_effect = f"/effects/{self.subject}/notify".encode()
            self._until(lambda: bool(proxies[1].answer_to(second_effect)), "an answer", None)
            return None
        first.go_on("job")
        if self.variant == "stopped":
            first.wake()
        elif self.variant != "blocked-loop":
            for proxy in proxies:
                proxy.restore()

        def over() -> bool:
            refused = first.said("job", "answered", step="notify", status=412)
            return refused is not None or self.peer.succeeded(self.dsn) or first.ended()

        self._until(over, "W1's end", None)
        if first.said("job", "answered", step="notify", status=412) is not None:
            return None
        return self.peer.succeeded(self.dsn)

    def _until(self, reached: Callable[[], bool], what: str, actor: Actor | None) -> None:
        deadline = time.monotonic() + _LIMIT_S
        while not reached():
            if actor is not None and actor.ended():
                raise AssertionError(f"{self.name}: {actor.name} has ended:\n{actor.tail()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.name}: no {what} within {_LIMIT_S:.0f} s")
            time.sleep(_POLL_S)


def _proxy(closing: contextlib.ExitStack, url: str) -> FaultProxy:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = FaultProxy(parts.hostname, parts.port).start()
    closing.callback(proxy.stop)
    return proxy


def _through(url: str, proxy: FaultProxy) -> str:
    parts = urlsplit(url)
    credentials = parts.netloc.rpartition("@")[0]
    prefix = f"{credentials}@" if credentials else ""
    return urlunsplit(parts._replace(netloc=f"{prefix}127.0.0.1:{proxy.port}"))
