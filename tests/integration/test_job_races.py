"""What two transactions do to one lease at the same time, window by window.

One connection holds a row; the other is seen to wait for it in ``pg_stat_activity``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar
from uuid import uuid4

import asyncpg
import pytest

from gateway.core.jobs import Complete, Ended, Lost, Rejected, Renewed
from gateway.errors import StoreUnavailable
from gateway.store.jobs import JobStore
from tests.integration.test_store_model import OneConnection
from tests.kit.db import Server
from tests.kit.jobs import LEASE_MS, TOTAL_MS, Yard, sibling, terms, yard

T = TypeVar("T")

_WAITERS = "select count(*) from pg_stat_activity where $1 = any (pg_blocking_pids(pid))"


@pytest.fixture(scope="module")
def opened(postgres: Server) -> Iterator[Yard]:
    with yard(postgres) as made:
        yield made


@pytest.fixture
def jobs(opened: Yard) -> Yard:
    return sibling(opened)


async def beside(
    jobs: Yard,
    first: Callable[[JobStore, asyncpg.Connection], Awaitable[Any]],
    second: Callable[[JobStore], Awaitable[T]],
    meanwhile: Callable[[], Awaitable[Any]] | None = None,
) -> T:
    """Begin ``first``; have ``second`` wait for it; do ``meanwhile``; commit the first."""
    holder = await asyncpg.connect(jobs.dsn)
    try:
        transaction = holder.transaction()
        await transaction.start()
        await first(JobStore(OneConnection(holder)), holder)  # type: ignore[arg-type]
        task = asyncio.ensure_future(second(jobs.store))
        while not await jobs.watch.fetchval(_WAITERS, holder.get_server_pid()):
            assert not task.done(), f"it did not wait: {task.result()}"
        if meanwhile is not None:
            await meanwhile()
        await transaction.commit()
        return await task
    finally:
        await holder.close()


def lock(sql: str, *args: object) -> Callable[[JobStore, asyncpg.Connection], Awaitable[Any]]:
    return lambda _, holder: holder.execute(sql, *args)


def passes(jobs: Yard, by_ms: int) -> Callable[[], Awaitable[Any]]:
    """Time passes while somebody waits."""
    sql = "update gateway.manual_clock set at = at + $1 * interval '1 ms'"
    return lambda: jobs.watch.execute(sql, by_ms)


LEASE_ROW = "select from gateway.job_leases where tenant = $1 for update"
JOB_ROW = "select from gateway.jobs where tenant = $1 for update"
ENTITY_ROW = "select from gateway.entities where tenant = $1 for no key update"
ONE_ENTITY = "select gateway.issue_fence($1::int, $2::text)"
"""What somebody's own transaction does: a fence, and the entity's row locked until it ends."""


async def while_held(jobs: Yard, sql: str, args: tuple[object, ...], work: Awaitable[T]) -> T:
    """Do ``work`` while another transaction holds what ``sql`` locks. It does not wait for it: the
    holder ends only after the work is done."""
    holder = await asyncpg.connect(jobs.dsn)
    try:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute(sql, *args)
        done = await work
        await transaction.rollback()
        return done
    finally:
        await holder.close()


def test_a_renewal_that_waited_past_the_lease_is_refused(jobs: Yard) -> None:
    """Acceptance 4, TIME-02: asked in time, and over when the row came free."""
    jobs.add()
    lease = jobs.one()

    async def renew(store: JobStore) -> object:
        return await store.renew(jobs.tenant, [lease.held])

    work = beside(jobs, lock(LEASE_ROW, jobs.tenant), renew, passes(jobs, LEASE_MS))
    assert jobs.run(work) == [Lost("expired")]


def test_a_renewal_that_waited_within_the_lease_counts_from_when_it_got_the_row(
    jobs: Yard,
) -> None:
    jobs.add()
    lease = jobs.one()

    async def renew(store: JobStore) -> list[Any]:
        return await store.renew(jobs.tenant, [lease.held])

    work = beside(jobs, lock(LEASE_ROW, jobs.tenant), renew, passes(jobs, LEASE_MS - 1))
    (renewed,) = jobs.run(work)
    assert renewed.remaining_ms == LEASE_MS


@pytest.mark.parametrize("row", [ENTITY_ROW, LEASE_ROW, JOB_ROW], ids=["entity", "lease", "job"])
def test_a_result_that_waited_past_the_lease_is_rejected(jobs: Yard, row: str) -> None:
    jobs.add()
    lease = jobs.one()

    async def complete(store: JobStore) -> object:
        return await store.end(jobs.tenant, "w1", [Complete(lease.held, b"1")])

    work = beside(jobs, lock(row, jobs.tenant), complete, passes(jobs, LEASE_MS))
    assert jobs.run(work) == [Rejected("expired")]
    assert jobs.state(lease.job) == "running"
    assert len(jobs.audit("result_rejected")) == 1


@pytest.mark.parametrize("seen", [True, False], ids=["known", "fresh"])
@pytest.mark.parametrize("limit", [1, 5])
def test_a_locked_entity_keeps_no_claim_from_the_others(jobs: Yard, seen: bool, limit: int) -> None:
    """Nor a backlog of it, nor a row that the other transaction is just making."""
    if seen:
        jobs.add(entity="e")
        jobs.complete(jobs.one())
    held = jobs.add(entity="e", priority=1)
    jobs.enqueue(*[jobs.new(entity="e", priority=2) for _ in range(600)])
    others = [jobs.add() for _ in range(5)]
    work = jobs.store.claim(jobs.tenant, limit, "w", uuid4(), [terms(max_running=9)])
    leases = jobs.run(while_held(jobs, ONE_ENTITY, (jobs.tenant, "e"), work))
    assert [lease.job for lease in leases] == others[:limit]
    assert jobs.stored(held) == "ready"
    jobs.advance(5_000)
    first = jobs.one()
    assert (first.job, first.remaining_ms) == (held, LEASE_MS)
    jobs.nothing_is_lost()


def test_a_claim_repeated_while_the_first_still_commits_waits_for_its_leases(jobs: Yard) -> None:
    for _ in range(3):
        jobs.add()
    wish = uuid4()
    first: list[Any] = []

    async def claim(store: JobStore, *_: object) -> list[Any]:
        leases = await store.claim(jobs.tenant, 2, "w", wish, [terms()])
        first.append(leases)
        return leases

    again = jobs.run(beside(jobs, claim, claim))
    assert again == first[0]
    assert len(jobs.claim(5)) == 1


def test_a_claim_of_another_tenant_with_the_same_uuid_does_not_wait(jobs: Yard) -> None:
    other, wish = sibling(jobs), uuid4()
    jobs.add()
    job = other.add()

    async def work() -> list[Any]:
        holder = await asyncpg.connect(jobs.dsn)
        transaction = holder.transaction()
        await transaction.start()
        store = JobStore(OneConnection(holder))  # type: ignore[arg-type]
        assert len(await store.claim(jobs.tenant, 1, "w", wish, [terms()])) == 1
        leases = await other.store.claim(other.tenant, 1, "w", wish, [terms()])
        await transaction.rollback()
        await holder.close()
        return leases

    assert [lease.job for lease in jobs.run(work())] == [job]


def test_claims_of_a_limited_tool_come_one_after_the_other(jobs: Yard) -> None:
    on = terms(max_running=1)
    jobs.add()
    jobs.add()

    async def claim(store: JobStore, *_: object) -> list[Any]:
        return await store.claim(jobs.tenant, 1, "w", uuid4(), [on])

    assert jobs.run(beside(jobs, claim, claim)) == []


def test_two_claims_that_meet_on_one_entity_lease_it_once(jobs: Yard) -> None:
    """The second does not wait for the first: its job stays ready, and is put behind later."""
    first, second = jobs.add(entity="e"), jobs.add(entity="e")

    async def work() -> list[Any]:
        holder = await asyncpg.connect(jobs.dsn)
        transaction = holder.transaction()
        await transaction.start()
        store = JobStore(OneConnection(holder))  # type: ignore[arg-type]
        (lease,) = await store.claim(jobs.tenant, 1, "w", uuid4(), [terms()])
        assert lease.job == first
        met = await jobs.store.claim(jobs.tenant, 1, "w", uuid4(), [terms()])
        await transaction.commit()
        await holder.close()
        return met

    assert jobs.run(work()) == []
    assert (jobs.state(first), jobs.stored(second)) == ("running", "ready")
    assert jobs.claim() == []
    assert jobs.stored(second) == "behind-entity"
    jobs.nothing_is_lost()


@pytest.mark.parametrize("seen", [True, False], ids=["known", "fresh"])
def test_a_claim_gives_a_lease_only_with_its_entity_locked(jobs: Yard, seen: bool) -> None:
    if seen:
        jobs.add(entity="e")
        jobs.complete(jobs.one())
    jobs.add(entity="e")

    async def claim(store: JobStore, *_: object) -> list[Any]:
        return await store.claim(jobs.tenant, 1, "w", uuid4(), [terms()])

    async def work() -> None:
        holder = await asyncpg.connect(jobs.dsn)
        transaction = holder.transaction()
        await transaction.start()
        assert len(await claim(JobStore(OneConnection(holder)))) == 1  # type: ignore[arg-type]
        probe = (
            "select from gateway.entities where tenant = $1 and entity = 'e'"
            " for no key update skip locked"
        )
        assert await jobs.watch.fetch(probe, jobs.tenant) == []
        await transaction.commit()
        await holder.close()

    jobs.run(work())


def test_a_heartbeat_does_not_wait_for_an_end_that_waits_for_its_entity(jobs: Yard) -> None:
    jobs.add(entity="e")
    jobs.add()
    leases = jobs.claim(2)
    answers: list[Any] = []

    async def complete(store: JobStore) -> object:
        return await store.end(jobs.tenant, "w1", [Complete(leases[0].held, b"1")])

    async def beat() -> None:
        answers.extend(await jobs.store.renew(jobs.tenant, [lease.held for lease in leases]))

    row = "select from gateway.entities where tenant = $1 and entity = 'e' for no key update"
    ended = jobs.run(beside(jobs, lock(row, jobs.tenant), complete, beat))
    assert ended == [Ended("succeeded", again=False)]
    assert answers == [Renewed(LEASE_MS, TOTAL_MS)] * 2


def test_one_locked_entity_keeps_no_other_result_of_a_batch(jobs: Yard) -> None:
    for name in "abc":
        jobs.add(entity=name)
    leases = jobs.claim(3)
    ends = [Complete(lease.held, b"1") for lease in leases]

    async def work() -> None:
        with pytest.raises(StoreUnavailable, match="timeout"):
            await jobs.store.end(jobs.tenant, "w1", ends)

    row = "select from gateway.entities where tenant = $1 and entity = 'b' for no key update"
    jobs.run(while_held(jobs, row, (jobs.tenant,), work()))
    assert [jobs.state(lease.job) for lease in leases] == ["succeeded", "running", "succeeded"]
    assert jobs.end(*ends) == [
        Ended("succeeded", again=True),
        Ended("succeeded", again=False),
        Ended("succeeded", again=True),
    ]


def test_the_loser_of_a_deadlock_is_repeated(jobs: Yard) -> None:
    jobs.add(entity="e")
    lease = jobs.one()

    async def work() -> list[Any]:
        holder = await asyncpg.connect(jobs.dsn)
        await holder.execute("set deadlock_timeout = '20s'")  # the other one finds it
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute(JOB_ROW, jobs.tenant)
        end = jobs.store.end(jobs.tenant, "w1", [Complete(lease.held, b"1")])
        task = asyncio.ensure_future(end)
        while not await jobs.watch.fetchval(_WAITERS, holder.get_server_pid()):
            assert not task.done()
        await holder.execute(ENTITY_ROW, jobs.tenant)
        await transaction.commit()
        await holder.close()
        return await task

    assert jobs.run(work()) == [Ended("succeeded", again=False)]


def test_one_tenant_that_cannot_be_reaped_stops_no_other(jobs: Yard) -> None:
    other = sibling(jobs)
    jobs.add(entity="e")
    jobs.one()
    stuck = jobs.add(entity="e")
    assert jobs.claim() == []
    other.add()
    free = other.one()
    jobs.advance(LEASE_MS)
    row = "select from gateway.jobs where tenant = $1 and id = $2 for update"

    async def work() -> list[Any]:
        found = await jobs.store.expired(1_000)
        mine = [(each, 0) for each in found if each.tenant in (jobs.tenant, other.tenant)]
        assert len(mine) == 2
        return await jobs.store.reap(mine)

    reaped = jobs.run(while_held(jobs, row, (jobs.tenant, stuck), work()))
    assert [each.job for each in reaped] == [free.job]
    assert len(jobs.reap()) == 1
    jobs.nothing_is_lost()


def test_an_end_waits_for_who_is_put_behind_its_lease(jobs: Yard) -> None:
    """The window in which a job could be lost: put behind a lease that is gone already."""
    jobs.add(entity="e")
    lease = jobs.one()
    behind = jobs.add(entity="e")

    async def claim(store: JobStore, *_: object) -> list[Any]:
        return await store.claim(jobs.tenant, 1, "w", uuid4(), [terms()])

    async def complete(store: JobStore) -> object:
        return await store.end(jobs.tenant, "w1", [Complete(lease.held, b"1")])

    assert jobs.run(beside(jobs, claim, complete)) == [Ended("succeeded", again=False)]
    assert jobs.stored(behind) == "ready"
    jobs.nothing_is_lost()


def test_a_job_is_not_put_behind_a_lease_that_is_being_ended(jobs: Yard) -> None:
    jobs.add(entity="e")
    lease = jobs.one()
    other = jobs.add(entity="e")

    async def work() -> list[Any]:
        holder = await asyncpg.connect(jobs.dsn)
        transaction = holder.transaction()
        await transaction.start()
        store = JobStore(OneConnection(holder))  # type: ignore[arg-type]
        await store.end(jobs.tenant, "w1", [Complete(lease.held, b"1")])
        claimed = await jobs.store.claim(jobs.tenant, 1, "w", uuid4(), [terms()])
        await transaction.commit()
        await holder.close()
        return claimed

    assert jobs.run(work()) == []
    assert jobs.stored(other) == "ready"
    assert jobs.one().job == other
    jobs.nothing_is_lost()


def test_an_end_frees_the_next_where_the_best_behind_is_just_cancelled(jobs: Yard) -> None:
    jobs.add(entity="e")
    lease = jobs.one()
    best, next_best = jobs.add(entity="e", priority=1), jobs.add(entity="e")
    assert jobs.claim() == []

    async def cancel(store: JobStore, *_: object) -> object:
        return await store.cancel(jobs.tenant, best, "operator:o", "no")

    async def complete(store: JobStore) -> object:
        return await store.end(jobs.tenant, "w1", [Complete(lease.held, b"1")])

    assert jobs.run(beside(jobs, cancel, complete)) == [Ended("succeeded", again=False)]
    assert jobs.stored(next_best) == "ready"
    jobs.nothing_is_lost()


def test_a_result_that_waited_for_a_cancel_is_rejected(jobs: Yard) -> None:
    """QUEUE-03."""
    job = jobs.add()
    lease = jobs.one()

    async def cancel(store: JobStore, *_: object) -> object:
        return await store.cancel(jobs.tenant, job, "operator:o", "no")

    async def complete(store: JobStore) -> object:
        return await store.end(jobs.tenant, "w1", [Complete(lease.held, b"1")])

    assert jobs.run(beside(jobs, cancel, complete)) == [Rejected("cancelled")]
    assert jobs.state(job) == "cancelled"


def test_a_cancel_that_waited_for_the_result_finds_it_finished(jobs: Yard) -> None:
    job = jobs.add()
    lease = jobs.one()

    async def complete(store: JobStore, *_: object) -> object:
        return await store.end(jobs.tenant, "w1", [Complete(lease.held, b"1")])

    async def cancel(store: JobStore) -> Any:
        return await store.cancel(jobs.tenant, job, "operator:o", "no")

    assert jobs.run(beside(jobs, complete, cancel)).state == "succeeded"


@pytest.mark.parametrize("row", ["entity", "lease", "job"])
def test_one_row_that_is_stuck_stops_no_reaper(jobs: Yard, row: str) -> None:
    """LEASE-10: nor does it hide the others behind the reaper's limit."""
    for _ in range(3):
        jobs.add()
    leases = jobs.claim(3)
    jobs.advance(LEASE_MS)
    of, where, value = {
        "entity": ("entities", "entity", leases[0].entity),
        "lease": ("job_leases", "job", leases[0].job),
        "job": ("jobs", "id", leases[0].job),
    }[row]

    async def work() -> set[Any]:
        holder = await asyncpg.connect(jobs.dsn)
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute(f"select from gateway.{of} where {where} = $1 for update", value)
        reaped = set()
        for _ in range(1_000):
            found = await jobs.store.expired(1)
            reaped |= {each.job for each in await jobs.store.reap([(each, 0) for each in found])}
        await transaction.rollback()
        await holder.close()
        return reaped

    assert jobs.run(work()) >= {leases[1].job, leases[2].job}
    assert [each.job for each in jobs.reap()] == [leases[0].job]


def test_a_lease_that_was_renewed_meanwhile_is_not_reaped(jobs: Yard) -> None:
    """Between the reaper's look and its statement; here the clock stepped back as well."""
    job = jobs.add()
    lease = jobs.one()
    jobs.advance(LEASE_MS)
    found = [e for e in jobs.run(jobs.store.expired(1_000)) if e.lease.job == job]
    jobs.advance(-10)
    assert jobs.beat(lease) != Lost("expired")
    assert jobs.run(jobs.store.reap([(each, 0) for each in found])) == []
    assert jobs.state(job) == "running"


def test_a_renewal_of_a_lease_that_a_reaper_is_ending_is_refused(jobs: Yard) -> None:
    job = jobs.add()
    lease = jobs.one()
    jobs.advance(LEASE_MS)

    async def reap(store: JobStore, *_: object) -> object:
        found = [each for each in await store.expired(1_000) if each.lease.job == job]
        return await store.reap([(each, 0) for each in found])

    async def renew(store: JobStore) -> object:
        return await store.renew(jobs.tenant, [lease.held])

    assert jobs.run(beside(jobs, reap, renew, passes(jobs, -10))) == [Lost("expired")]


def test_two_enqueues_of_one_key_are_one_job(jobs: Yard) -> None:
    first, second = jobs.new("k"), jobs.new("k")

    async def enqueue(store: JobStore, *_: object) -> object:
        return await store.enqueue(jobs.tenant, [first])

    async def enqueue_second(store: JobStore) -> list[Any]:
        return await store.enqueue(jobs.tenant, [second])

    (answer,) = jobs.run(beside(jobs, enqueue, enqueue_second))
    assert (answer.job, answer.created, answer.state) == (first.id, False, "queued")


def test_an_enqueue_whose_rival_rolled_back_is_the_first(jobs: Yard) -> None:
    mine = jobs.new("k")

    async def work() -> list[Any]:
        holder = await asyncpg.connect(jobs.dsn)
        transaction = holder.transaction()
        await transaction.start()
        store = JobStore(OneConnection(holder))  # type: ignore[arg-type]
        await store.enqueue(jobs.tenant, [jobs.new("k")])
        task = asyncio.ensure_future(jobs.store.enqueue(jobs.tenant, [mine]))
        while not await jobs.watch.fetchval(_WAITERS, holder.get_server_pid()):
            assert not task.done()
        await transaction.rollback()
        await holder.close()
        return await task

    (answer,) = jobs.run(work())
    assert (answer.job, answer.created) == (mine.id, True)


def test_a_statement_that_waits_too_long_did_nothing(jobs: Yard) -> None:
    """What a stuck row costs a worker: an error after the statement timeout, and no lease."""
    jobs.add()
    lease = jobs.one()

    async def work() -> None:
        holder = await asyncpg.connect(jobs.dsn)
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute(LEASE_ROW, jobs.tenant)
        with pytest.raises(StoreUnavailable, match="timeout"):
            await jobs.store.renew(jobs.tenant, [lease.held])
        await transaction.rollback()
        await holder.close()

    jobs.run(work())
    assert jobs.beat(lease) != Lost("expired")
