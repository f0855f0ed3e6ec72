"""How the hot statements run on a fresh table that nobody has analysed: by primary key, and every
settle as a HOT update."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from gateway.core.command import Command, Hold, Release, Settle
from gateway.core.model import Response
from gateway.core.outline import OUTLINE_LIMIT
from gateway.store.commands import CommandStore
from tests.integration.test_store_model import OneConnection
from tests.kit.commands import attempt, command
from tests.kit.db import Server

ROWS = 2_000
BATCH = 200
ANSWER = Response(200, ((b"Content-Type", b"application/json"),), b"x" * 400)

COUNTS = """
select 'seq ' || relname as what, seq_scan as n from pg_stat_user_tables
 where relname in ('commands', 'entities')
union all
select 'idx ' || indexrelname, idx_scan from pg_stat_user_indexes where relname = 'commands'
union all
select 'read ' || indexrelname, idx_tup_read from pg_stat_user_indexes where relname = 'commands'
union all
select 'updated', n_tup_upd from pg_stat_user_tables where relname = 'commands'
union all
select 'hot', n_tup_hot_upd from pg_stat_user_tables where relname = 'commands'
"""


def made(number: int, *, by: int | None = None) -> Command:
    return command(
        f"key-{number}", by=attempt(number if by is None else by), entity=f"invoice:{number}"
    )


def _outline(made: Command, size: int) -> bytes:
    return random.Random(made.key).randbytes(size)


class Table:
    """A store on one connection, whose statistics are exact once they are asked for."""

    def __init__(self, dsn: str, outline_bytes: int = 60) -> None:
        self._runner = asyncio.Runner()
        self.connection: asyncpg.Connection = self.run(asyncpg.connect(dsn))
        self.store = CommandStore(OneConnection(self.connection))  # type: ignore[arg-type]
        for start in range(0, ROWS, BATCH):
            batch = [made(number) for number in range(start, start + BATCH)]
            outlined = [replace(each, outline=_outline(each, outline_bytes)) for each in batch]
            self.run(self.store.admit(outlined))

    def run(self, work: Any) -> Any:
        return self._runner.run(work)

    def counts(self) -> dict[str, int]:
        self.run(self.connection.execute("select pg_stat_force_next_flush()"))
        self.run(self.connection.execute("select pg_stat_clear_snapshot()"))
        return {row["what"]: row["n"] for row in self.run(self.connection.fetch(COUNTS))}

    def during(self, work: Any) -> dict[str, int]:
        before = self.counts()
        self.run(work)
        after = self.counts()
        return {what: after[what] - before[what] for what in after}

    def close(self) -> None:
        self.run(self.connection.close())
        self._runner.close()


@pytest.fixture(scope="module")
def table(postgres: Server) -> Iterator[Table]:
    with postgres.database() as dsn:
        opened = Table(dsn)
        try:
            yield opened
        finally:
            opened.close()


def resolve(table: Table) -> Any:
    c = made(1_400)
    return table.connection.fetch(
        "select * from gateway.resolve($1, $2, $3, true, 'r', 'p')",
        *(c.tenant, c.key_digest, c.attempt),
    )


def ready(table: Table) -> Any:
    waited = [made(1_500 + number) for number in range(20)]
    return table.store.ready(
        [(c.tenant, c.key_digest) for c in waited], [(c.tenant, c.entity) for c in waited]
    )


def known(first: int, count: int) -> list[Command]:
    """Other attempts at commands that stand in the table."""
    return [made(number, by=10_000 + number) for number in range(first, first + count)]


def parallel(first: int, count: int, *, fence: int) -> list[Command]:
    """New commands that take no slot, on entities of their own."""
    return [
        command(
            f"parallel-{number}-{fence}",
            by=attempt(20_000 + 1_000 * fence + number),
            entity=f"parallel:{number}",
            fence=fence,
            serial=False,
        )
        for number in range(first, first + count)
    ]


def settles(first: int, count: int = 1, answer: Response = ANSWER) -> list[Settle]:
    return [Settle(made(number), answer, True) for number in range(first, first + count)]


# Each on rows in the middle of the table.
STATEMENTS: dict[str, Callable[[Table], Any]] = {
    "admit, new": lambda table: table.store.admit([made(ROWS + 1)]),
    "admit, known": lambda table: table.store.admit(known(1_000, 1)),
    "admit, a batch": lambda table: table.store.admit(known(1_000, 20)),
    "admit, a new batch": lambda table: table.store.admit(parallel(0, 20, fence=5)),
    "admit, old entities": lambda table: table.store.admit(parallel(0, 20, fence=6)),
    "admit, a stale batch": lambda table: table.store.admit(parallel(0, 20, fence=4)),
    "settle": lambda table: table.store.settle(settles(1_100)),
    "settle, a batch": lambda table: table.store.settle(settles(1_200, 20)),
    "settle, again": lambda table: table.store.settle(settles(1_200)),
    "release": lambda table: table.store.release([Release(made(1_300), "status 429")]),
    "settle, given back": lambda table: table.store.settle(settles(1_300)),
    "hold": lambda table: table.store.hold([Hold(made(1_400), "timeout", None)]),
    "resolve": resolve,
    "ready": ready,
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_hot_statement_finds_its_rows_by_primary_key(table: Table, name: str) -> None:
    """A secondary index led by the tenant was once preferred on fresh tables, and read them all."""
    did = table.during(STATEMENTS[name](table))
    assert (did["seq commands"], did["seq entities"]) == (0, 0)
    assert did["idx commands_admitted_idx"] == 0
    assert did["idx commands_pkey"] > 0
    assert did["read commands_pkey"] <= 100


@pytest.mark.parametrize(("first", "size"), [(0, 0), (100, 400), (200, 5_000)])
def test_every_settle_is_a_hot_update(table: Table, first: int, size: int) -> None:
    """A small body fits beside its row, a large one is stored elsewhere. Of those in between, from
    about 600 bytes to 1.9 KB, not all that share a page may fit, which costs index entries."""
    answer = Response(200, ANSWER.headers, random.Random(size).randbytes(size))  # not compressible
    did = table.during(_in_batches(table, first, answer))
    assert (did["updated"], did["hot"]) == (100, 100)


async def _in_batches(table: Table, first: int, answer: Response) -> None:
    for start in range(first, first + 100, 20):
        await table.store.settle(settles(start, 20, answer))


def test_every_settle_is_a_hot_update_beside_the_largest_outline(postgres: Server) -> None:
    with postgres.database() as dsn:
        table = Table(dsn, outline_bytes=OUTLINE_LIMIT)
        try:
            for first, size in ((0, 0), (100, 400), (200, 5_000)):
                body = random.Random(size).randbytes(size)
                answer = Response(200, ANSWER.headers, body)
                did = table.during(_in_batches(table, first, answer))
                assert (did["updated"], did["hot"]) == (100, 100), size
        finally:
            table.close()


def test_every_hold_is_a_hot_update(table: Table) -> None:
    evidence = Response(503, (), b"y" * 200)
    holds = [Hold(made(number), "status 503", evidence) for number in range(300, 400)]
    did = table.during(table.store.hold(holds))
    assert (did["updated"], did["hot"]) == (100, 100)


AUDIT_READS = """
select indexrelname as what, idx_tup_read as n from pg_stat_user_indexes where relname = 'audit'
"""


@pytest.mark.parametrize("serial", [True, False], ids=["slot held", "slot free"])
def test_a_refusal_reads_its_own_rows_of_the_audit(table: Table, serial: bool) -> None:
    """Indexes that begin with the tenant alike were once preferred, and read all that it had."""
    old = [replace(each, entity=f"{serial}-{each.entity}", serial=serial) for each in
           parallel(100, 20, fence=5)]  # fmt: skip
    stale = [replace(each, entity=f"{serial}-{each.entity}") for each in
             parallel(100, 20, fence=3 + serial)]  # fmt: skip
    table.run(table.store.admit(old))
    table.run(table.connection.execute(
        "insert into gateway.audit (tenant, id, at, event, entity)"
        " select 1, gen_random_uuid(), gateway.clock(), 'fence_stale', 'e' || i"
        " from generate_series(1, 2000) i"
    ))  # fmt: skip

    def reads() -> dict[str, int]:
        table.counts()
        return {row["what"]: row["n"] for row in table.run(table.connection.fetch(AUDIT_READS))}

    before = reads()
    table.run(table.store.admit(stale))
    after = reads()

    assert after["audit_at_idx"] == before["audit_at_idx"]
    assert sum(after.values()) - sum(before.values()) <= 2 * len(stale)
    count = "select count(*) from gateway.audit where attempt = any ($1)"
    attempts = [each.attempt for each in stale]
    assert table.run(table.connection.fetchval(count, attempts)) == len(stale)
