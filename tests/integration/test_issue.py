"""Fences issued to somebody else's queue: one counter per entity, raised under its row lock."""

from __future__ import annotations

import asyncio
from uuid import UUID

import asyncpg
import pytest

from gateway.core.decide import Forward, RejectNotHeld, decide
from gateway.core.issuing import EntityLeased, Issued
from gateway.store.commands import CommandStore
from gateway.store.database import Database
from gateway.store.fences import FenceStore
from tests.integration.test_store_model import MANUAL_CLOCK
from tests.kit.commands import attempt, command
from tests.kit.db import execute, with_connection

JOB = UUID(int=7)
LEASE = """
insert into gateway.job_leases (
    tenant, entity, job, fence, owner, claim, tool, lease_ms, granted_at, beat_at, lease_until,
    total_until)
select 1, $1, $2, 1, 'w', $2, 't', 5000, c, c, c + interval '5 s', c + interval '1 h'
  from gateway.clock() as c
"""
BY_NAME = "select gateway.issue_fence('default', 'invoice:1')"


def issue(dsn: str, times: int) -> list[Issued | EntityLeased]:
    async def main() -> list[Issued | EntityLeased]:
        database = await Database.open(dsn)
        try:
            store = FenceStore(database)
            return await asyncio.gather(*(store.issue(1, "invoice:1") for _ in range(times)))
        finally:
            await database.close()

    return asyncio.run(main())


def test_many_at_once_get_each_a_fence_of_its_own(database: str) -> None:
    issued = issue(database, 50)
    assert {each.fence for each in issued if isinstance(each, Issued)} == set(range(1, 51))


def test_an_entity_with_a_lease_is_not_issued(database: str) -> None:
    execute(database, MANUAL_CLOCK)
    with_connection(database, lambda conn: conn.execute(LEASE, "invoice:1", JOB))
    assert issue(database, 1) == [EntityLeased(JOB, 5000)]
    with pytest.raises(asyncpg.ObjectInUseError, match="entity-leased") as caught:
        with_connection(database, lambda conn: conn.fetchval(BY_NAME))
    assert "5000 ms" in (caught.value.hint or "")


def test_a_lease_counts_until_its_end_is_recorded(database: str) -> None:
    execute(database, MANUAL_CLOCK)
    with_connection(database, lambda conn: conn.execute(LEASE, "invoice:1", JOB))
    execute(database, "update gateway.manual_clock set at = at + interval '6 s'")
    assert issue(database, 1) == [EntityLeased(JOB, -1000)]


def test_it_is_part_of_the_callers_own_transaction(database: str) -> None:
    async def work(conn: asyncpg.Connection) -> list[object]:
        transaction = conn.transaction()
        await transaction.start()
        first = await conn.fetchval(BY_NAME)
        await transaction.rollback()
        return [first, await conn.fetchval(BY_NAME), await conn.fetchval(BY_NAME)]

    assert with_connection(database, work) == [1, 1, 2]


@pytest.mark.parametrize(
    ("call", "says", "hint"),
    [
        ("gateway.issue_fence('nobody', 'a')", "no tenant 'nobody'", "gateway key"),
        ("gateway.issue_fence(null::text, 'a')", "no tenant null", "gateway key"),
        ("gateway.issue_fence('default', '')", "1 to 255 characters", "as the policy does"),
        ("gateway.issue_fence('default', null)", "1 to 255 characters", "as the policy does"),
    ],
)
def test_a_mistake_names_its_mend(database: str, call: str, says: str, hint: str) -> None:
    with pytest.raises(asyncpg.PostgresError, match=says) as caught:
        execute(database, f"select {call}")
    assert hint in (caught.value.hint or "")


def test_the_release_before_admits_nothing_that_is_not_held(database: str) -> None:
    """Its overload of admit knows neither row 2 nor what the policy says of the issuer."""

    async def work(conn: asyncpg.Connection) -> tuple[list[int], str | None]:
        store = CommandStore(_Older(conn))  # type: ignore[arg-type]
        held = await conn.fetchval(BY_NAME)
        sent: list[int] = []
        for number, fence in enumerate((held + 1, held)):
            made = command(f"k{number}", by=attempt(number), fence=fence)
            (facts,) = await store.admit([made])
            if isinstance(decide(facts), Forward):
                sent.append(fence)
        return sent, await conn.fetchval("select string_agg(event, ' ') from gateway.audit")

    assert with_connection(database, work) == ([1], "fence_refused")


class _Older:
    """Calls the admit of the first release in place of today's."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        numbers = ", ".join(f"${number}" for number in range(1, 20))
        return await self._connection.fetch(
            "select ord, mark, null::bigint as held, known_attempt, known_state, known_same,"
            " known_remaining_ms, known_status, known_headers, known_body, known_settled_by,"
            " known_evidence_status, open_key, open_state, open_remaining_ms"
            f" from gateway.admit({numbers}) order by ord",
            *args[:19],
        )


def test_a_policy_that_issues_here_refuses_the_fences_of_others(database: str) -> None:
    async def work(conn: asyncpg.Connection) -> object:
        made = command(by=attempt(0), fence=9, issuer_here=True)

        class Direct:
            async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
                return await conn.fetch(sql, *args)

        (facts,) = await CommandStore(Direct()).admit([made])  # type: ignore[arg-type]
        mark = await conn.fetchval("select fence from gateway.entities")
        return decide(facts), mark

    assert with_connection(database, work) == (RejectNotHeld(9, 0, None), 0)
