"""Fences issued to somebody else's queue: one counter per entity, raised under its row lock."""

from __future__ import annotations

import asyncio
from uuid import UUID

import asyncpg
import pytest

from gateway.core.decide import Facts, Forward, RejectNotHeld, decide
from gateway.core.issuing import EntityLeased, Issued
from gateway.core.template import check_value
from gateway.store.commands import CommandStore
from gateway.store.database import Database
from gateway.store.fences import FenceStore
from tests.integration.test_store_model import MANUAL_CLOCK
from tests.kit.commands import attempt, command
from tests.kit.db import execute, with_connection
from tests.kit.model import FIRST_ISSUED as FIRST

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
    assert {each.fence for each in issued if isinstance(each, Issued)} == set(
        range(FIRST, FIRST + 50)
    )


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

    assert with_connection(database, work) == [FIRST, FIRST, FIRST + 1]


@pytest.mark.parametrize(
    ("call", "says", "hint"),
    [
        ("gateway.issue_fence('nobody', 'a')", "no tenant 'nobody'", "gateway key"),
        ("gateway.issue_fence(null::text, 'a')", "no tenant null", "gateway key"),
        ("gateway.issue_fence('default', '')", "1 to 255 characters", "as the policy does"),
        ("gateway.issue_fence('default', null)", "1 to 255 characters", "as the policy does"),
        ("gateway.issue_fence('default', ' x')", "no blank", "as the policy does"),
        ("gateway.issue_fence('default', 'x ')", "no blank", "as the policy does"),
        ("gateway.issue_fence('default', ' ')", "no blank", "as the policy does"),
        ("gateway.issue_fence('default', 'é')", "printable ASCII", "as the policy does"),
        ("gateway.issue_fence('default', E'x\\n')", "printable ASCII", "as the policy does"),
        ("gateway.issue_fence('default', E'a\\nb')", "printable ASCII", "as the policy does"),
        ("gateway.issue_fence('default', E'a\\x7f')", "printable ASCII", "as the policy does"),
        ("gateway.issue_fence('default', repeat('x', 256))", "255", "as the policy does"),
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

    assert with_connection(database, work) == ([FIRST], "fence_refused")


def test_the_release_before_finds_no_key_where_the_fence_is_not_held(database: str) -> None:
    """Else it would answer from the record, e.g. 410, though the fence is refused."""

    async def work(conn: asyncpg.Connection) -> tuple[bool, bool, object, bool]:
        store = CommandStore(_Older(conn))  # type: ignore[arg-type]
        held = await conn.fetchval(BY_NAME)

        async def facts(number: int, fence: int | None) -> Facts:
            made = command("k", by=attempt(number), fence=fence)
            return (await store.admit([made]))[0]

        first = isinstance(decide(await facts(0, held)), Forward)
        again = (await facts(1, held)).known is not None
        not_held = (await facts(2, held + 1)).known
        await conn.execute("update gateway.entities set held = 0")
        own = (await facts(0, held)).known is not None
        return first, again, not_held, own

    assert with_connection(database, work) == (True, True, None, True)


@pytest.mark.parametrize("text", ["a", "a b", "!~", "x" * 255, "%", "\\"])
def test_sql_takes_the_entities_that_commands_can_have(database: str, text: str) -> None:
    assert check_value(text, "it") == text
    sql = "select gateway.issue_fence('default', $1)"
    assert with_connection(database, lambda conn: conn.fetchval(sql, text)) == FIRST


class _Older:
    """Calls the admit of the first release in place of today's."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        numbers = ", ".join(f"${number}" for number in range(1, 20))
        return await self._connection.fetch(
            "select ord, mark, null::bigint as held, known_attempt, known_state, known_same,"
            " known_remaining_ms, known_status, known_headers, known_body, known_settled_by,"
            " known_evidence_status, open_key, open_state, open_remaining_ms,"
            " 'hold', 0::bigint, null, false, false"  # what that release does not know
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


def test_the_isolation_of_the_gateways_transactions_is_pinned(database: str) -> None:
    """With another, what is judged under a row's lock would be what was there before the lock."""
    name = database.rpartition("/")[2]
    execute(
        database, f"alter database {name} set default_transaction_isolation = 'repeatable read'"
    )

    async def main() -> tuple[str, str]:
        pinned = await Database.open(database)
        try:
            (row,) = await pinned.fetch("select current_setting('transaction_isolation')")
            (facts,) = await CommandStore(pinned).admit([command(by=attempt(0))])
            return str(row[0]), type(decide(facts)).__name__
        finally:
            await pinned.close()

    assert asyncio.run(main()) == ("read committed", "Forward")


def test_admit_refuses_another_isolation_and_says_what_to_change(database: str) -> None:
    """Behind a pooler that drops what the gateway pins."""

    async def work(conn: asyncpg.Connection) -> None:
        class Direct:
            async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
                return await conn.fetch(sql, *args)

        async with conn.transaction(isolation="repeatable_read"):
            await CommandStore(Direct()).admit([command(by=attempt(0))])  # type: ignore[arg-type]

    with pytest.raises(asyncpg.FeatureNotSupportedError, match="default_transaction_isolation"):
        with_connection(database, work)
