"""The implementations of the command store that keep its contract, each behind one handle."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from gateway.core.command import Command
from gateway.core.issuing import Issued
from gateway.proxy.admitting import Admitting
from gateway.proxy.settling import Settling
from gateway.store.fences import FenceStore
from tests.integration.test_store_model import Bench
from tests.kit.model import FakeStore

T = TypeVar("T")

__all__ = ["Fake", "Postgres", "Store", "Subject"]


class Store(Admitting, Settling, Protocol):
    """The whole port."""

    async def ready(
        self, keys: list[tuple[int, bytes]], entities: list[tuple[int, str]]
    ) -> tuple[list[int], list[int]]: ...


class Subject(Protocol):
    """A store, its clock and what it remembers."""

    store: Any
    tenant: int

    def run(self, work: Coroutine[Any, Any, T]) -> T: ...
    def advance(self, by_ms: int) -> None: ...
    def resolve(self, command: Command, *, executed: bool) -> str: ...
    def events(self, command: Command) -> list[str]:
        """The audit of one attempt, sorted."""

    def mark(self, entity: str) -> int: ...
    def issue(self, entity: str) -> int: ...


class Fake:
    """The naive model."""

    tenant = 1

    def __init__(self) -> None:
        self.store = FakeStore()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    def advance(self, by_ms: int) -> None:
        self.store.model.advance(by_ms)

    def resolve(self, command: Command, *, executed: bool) -> str:
        return self.store.model.resolve(command, executed=executed)

    def events(self, command: Command) -> list[str]:
        rows = self.store.model.audit
        return sorted(row.event for row in rows if row.attempt == command.attempt)

    def mark(self, entity: str) -> int:
        return self.store.model.entities[(self.tenant, entity)].mark

    def issue(self, entity: str) -> int:
        return self.store.model.issue(self.tenant, entity)


class Postgres:
    """The real one, in a tenant of its own, on a clock that is moved by hand."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.store = bench.store
        self.tenant = next(bench.tenants)
        self.run = bench.run
        self.advance = bench.advance

    def resolve(self, command: Command, *, executed: bool) -> str:
        return str(
            self._value(
                "select result from gateway.resolve($1, $2, $3, $4, 'asked', 'operator:o')",
                *(command.tenant, command.key_digest, command.attempt, executed),
            )
        )

    def events(self, command: Command) -> list[str]:
        return list(
            self._value(
                "select coalesce(array_agg(event order by event), '{}') from gateway.audit"
                " where tenant = $1 and attempt = $2",
                *(command.tenant, command.attempt),
            )
        )

    def mark(self, entity: str) -> int:
        return int(
            self._value(
                "select fence from gateway.entities where tenant = $1 and entity = $2",
                *(self.tenant, entity),
            )
        )

    def issue(self, entity: str) -> int:
        issued = self.run(FenceStore(self._bench.database).issue(self.tenant, entity))
        assert isinstance(issued, Issued)
        return issued.fence

    def _value(self, sql: str, *args: Any) -> Any:
        return self._bench.run(self._bench.watch.fetchval(sql, *args))
