"""Retention: each kind by its own clock, what is unsettled never, beside everything else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.command import Command, Hold, Release, Settle
from gateway.core.decide import (
    Forward,
    RejectExpired,
    RejectNotRetained,
    RejectStale,
    RejectUnknown,
    RejectUnresolved,
    Replay,
    WaitForKey,
    decide,
)
from gateway.core.fingerprint import key_digest
from gateway.core.issuing import Issued
from gateway.core.jobs import Complete, Enqueued, NewJob
from gateway.store.commands import CommandStore
from gateway.store.database import Database
from gateway.store.fences import FenceStore
from gateway.store.jobs import JobStore
from gateway.store.retention import Days, Forgotten, Retainer, Retention
from gateway.store.unknowns import UnknownStore
from tests.kit.commands import OK, attempt, command, digest, response
from tests.kit.db import Server
from tests.kit.jobs import terms
from tests.kit.operating import fencegate, move_clock

T = TypeVar("T")

DAY = 86_400
DAYS = Days(audit=400, jobs=30, job_keys=400)


class World:
    """A database whose clock is set by hand, a pool, and everything that writes."""

    def __init__(self, dsn: str, runner: asyncio.Runner) -> None:
        self.dsn = dsn
        self._runner = runner
        self.database = self.run(Database.open(dsn, size=4))
        self.store = CommandStore(self.database)
        self.jobs = JobStore(self.database)

    def run(self, work: Awaitable[T]) -> T:
        async def main() -> T:
            return await asyncio.wait_for(work, 60)

        return self._runner.run(main())

    def at_day(self, day: float) -> None:
        move_clock(self.dsn, int(day * DAY))

    def rows(self, sql: str, *args: object) -> list[asyncpg.Record]:
        return list(self.run(self.database.fetch(sql, *args)))

    def count(self, table: str) -> int:
        return int(self.rows(f"select count(*) from gateway.{table}")[0][0])

    def admit(self, made: Command) -> object:
        return decide(self.run(self.store.admit([made]))[0])

    def settle(self, made: Command, body: bytes = b"{}") -> None:
        assert self.run(self.store.settle([Settle(made, response(201, body), True)])) == ["settled"]

    def settled(self, number: int, **more: object) -> Command:
        about = {"entity": f"invoice:{number}", **more}
        made = command(f"k{number}", by=attempt(number), **about)  # type: ignore[arg-type]
        assert isinstance(self.admit(made), Forward)
        self.settle(made)
        return made

    def again(self, made: Command) -> object:
        return self.admit(replace(made, attempt=uuid4()))

    def served_with(self, key_days: int) -> None:
        self.rows("update gateway.retention set longest_key_days = $1", key_days)

    def round(self, days: Days = DAYS) -> dict[str, int]:
        """Everything that is due goes; what went."""

        async def work() -> Forgotten:
            total = Forgotten()
            async for gone in Retention(self.database, days).round():
                total += gone
            return total

        return {name: count for name, count in asdict(self.run(work())).items() if count}


@pytest.fixture
def world(database: str) -> Iterator[World]:
    with asyncio.Runner() as runner:
        made = World(database, runner)
        try:
            yield made
        finally:
            made.run(made.database.close())


# -- clocks


def test_the_body_goes_before_the_key_and_the_key_in_its_time(world: World) -> None:
    made = world.settled(1)
    world.at_day(29.9)
    assert world.round() == {}
    assert isinstance(world.again(made), Replay)
    world.at_day(30.1)
    assert world.round() == {"bodies": 1}
    assert world.again(made) == RejectNotRetained(201, "answer", True)
    world.at_day(399.9)
    assert world.round() == {}
    world.at_day(400.1)
    assert world.round() == {"keys": 1}
    assert isinstance(world.again(made), Forward)


def test_each_policys_days_are_its_own(world: World) -> None:
    short = replace(command("short", by=attempt(1), entity="a:1"), response_days=1, key_days=2)
    assert isinstance(world.admit(short), Forward)
    world.settle(short)
    long = world.settled(2)
    world.at_day(2.1)
    assert world.round() == {"keys": 1}
    assert isinstance(world.again(long), Replay)


def test_what_is_unknown_or_in_flight_never_expires(world: World) -> None:
    """IDEM-09: a purge that deletes by age alone removes the only guard of a running command."""
    held = command("held", by=attempt(1), entity="a:1")
    assert isinstance(world.admit(held), Forward)
    world.run(world.store.hold([Hold(held, "status 502", response(502, b"evidence"))]))
    slow = replace(command("slow", by=attempt(2), entity="a:2"), deadline_ms=2_000_000_000)
    assert isinstance(world.admit(slow), Forward)  # its deadline is 23 days ahead
    world.served_with(1)
    world.at_day(20)

    world.round(Days(audit=1, jobs=1, job_keys=1))

    assert isinstance(world.again(held), RejectUnknown)
    assert isinstance(world.again(slow), WaitForKey)
    world.at_day(4000)
    world.round(Days(audit=1, jobs=1, job_keys=1))
    assert isinstance(world.again(held), RejectUnknown)
    assert world.rows("select evidence from gateway.commands where key = 'held'")[0][0]
    assert isinstance(world.again(slow), RejectUnknown)
    # Settlement finds its row, and only from then on does time run.
    assert world.run(world.store.settle([Settle(slow, OK, True)])) == ["late"]
    assert world.round() == {}
    world.at_day(4000 + 401)
    assert world.round()["keys"] == 1


def test_a_response_that_comes_late_is_kept_for_its_whole_time(world: World) -> None:
    made = command("late", by=attempt(1))
    assert isinstance(world.admit(made), Forward)
    world.at_day(1000)
    assert world.run(world.store.settle([Settle(made, OK, True)])) == ["late"]
    assert world.round() == {}
    world.at_day(1029)
    assert world.round() == {}
    assert isinstance(world.again(made), Replay)


def test_a_key_that_was_given_back_is_remembered_as_long_as_a_settled_one(world: World) -> None:
    """So long counts the window of what is admitted under it again (``unknown = "resend"``)."""
    for number, sent in enumerate(["fg-0", "fg-1", None]):
        made = command(f"k{number}", by=attempt(number), upstream_key=sent, serial=False)
        assert isinstance(world.admit(made), Forward)
        assert world.run(world.store.release([Release(made, "why", heard=number != 1)])) == [True]
    assert world.count("given_back") == 1, "only what was heard of, under a key of its own"
    world.at_day(399.9)
    world.round()
    assert world.count("given_back") == 1
    world.at_day(400.1)
    world.round()
    assert world.count("given_back") == 0


def test_when_an_unknown_command_was_first_sent_is_remembered_as_long_as_it(world: World) -> None:
    def made(number: int) -> Command:
        about = command(
            "k", by=attempt(number), unknown="resend", upstream_key="fg-1", serial=False
        )
        return replace(about, key_days=1, response_days=1, resend_within_ms=40 * DAY * 1000)

    assert isinstance(world.admit(made(1)), Forward)
    assert world.run(world.store.release([Release(made(1), "status 429", heard=True)])) == [True]
    world.at_day(0.9)
    assert isinstance(world.admit(made(2)), Forward)
    world.at_day(41)
    world.round()
    assert world.count("given_back") == 1
    assert isinstance(world.admit(made(3)), RejectUnknown), "sent again after its window"
    assert world.run(world.store.settle([Settle(made(2), OK, True)])) == ["late"]
    world.round()
    assert world.count("given_back") == 0


def test_the_audit_goes_by_its_own_clock(world: World) -> None:
    made = world.settled(1)
    assert isinstance(world.admit(replace(made, attempt=uuid4(), fence=0)), RejectStale)
    world.at_day(399)
    assert "audit" not in world.round()
    world.at_day(401)
    assert world.round()["audit"] == 1
    assert world.count("audit") == 0


def test_of_every_tenant(world: World) -> None:
    world.rows("insert into gateway.tenants (name) values ('b'), ('c')")
    tenants = [row[0] for row in world.rows("select tenant from gateway.tenants order by 1")]
    for tenant in tenants:
        made = command("k", by=attempt(tenant), tenant=tenant)
        assert isinstance(world.admit(made), Forward)
        world.settle(made)
        stale = command("z", by=attempt(100 + tenant), tenant=tenant, fence=0)
        assert isinstance(world.admit(stale), RejectStale)
    world.at_day(401)
    assert world.round() == {"keys": 3, "audit": 3}


def test_ties_and_ends_of_chunks_lose_and_skip_nothing(world: World) -> None:
    """1,203 commands, most of which were admitted at the same moment as others."""
    for start in range(0, 1203, 100):
        batch = [
            command(f"k{n}", by=attempt(n), entity=f"invoice:{n}")
            for n in range(start, min(start + 100, 1203))
        ]
        world.run(world.store.admit(batch))
        world.run(world.store.settle([Settle(each, OK, True) for each in batch]))
    world.rows("update gateway.commands set key_days = 1, response_days = 1")
    world.at_day(31)
    assert world.round() == {"bodies": 1203}
    world.at_day(401)
    assert world.round() == {"keys": 1203}


# -- entities


def forget_entities(world: World, day: float) -> int:
    world.at_day(day)
    return world.round().get("entities", 0)


def test_an_entity_is_forgotten_when_nobody_touched_it_for_the_longest_key_days(
    world: World,
) -> None:
    world.settled(1)
    assert forget_entities(world, 10_000) == 0, "nobody has served yet"
    world.at_day(0)
    world.served_with(400)
    world.settled(2)
    assert forget_entities(world, 399) == 0
    assert forget_entities(world, 401) == 2
    assert world.count("entities") == 0


def test_an_entity_with_an_unknown_command_stays_serial_or_not(world: World) -> None:
    world.served_with(1)
    for number, serial in enumerate((True, False)):
        made = command(f"k{number}", by=attempt(number), entity=f"a:{number}", serial=serial)
        assert isinstance(world.admit(made), Forward)
    world.settled(7)
    assert forget_entities(world, 5000) == 1
    blocked = command("next", by=attempt(9), entity="a:0", fence=2)
    assert isinstance(world.admit(blocked), RejectUnresolved)
    stale = command("next", by=attempt(9), entity="a:1", fence=0, serial=False)
    assert isinstance(world.admit(stale), RejectStale)


def test_a_mark_outlives_every_key_that_came_with_it(world: World) -> None:
    """It is touched once a day at most, so the last touch may be a day before the last command."""
    world.served_with(1)
    about = {"entity": "a:1", "serial": False}
    made = [
        replace(command(f"k{n}", by=attempt(n), fence=5, **about), key_days=1)  # type: ignore[arg-type]
        for n in range(2)
    ]
    for each, day in zip(made, (0, 0.99), strict=True):
        world.at_day(day)
        assert isinstance(world.admit(each), Forward)
        world.settle(each)
    assert forget_entities(world, 1.5) == 0
    assert [row[0] for row in world.rows("select key from gateway.commands")] == ["k1"]
    stale = command("next", by=attempt(9), fence=4, **about)  # type: ignore[arg-type]
    assert isinstance(world.admit(stale), RejectStale)  # which touches it once more
    assert forget_entities(world, 3.4) == 0
    assert forget_entities(world, 3.6) == 1


@pytest.mark.parametrize("fence", [5, None])
def test_an_entity_with_a_young_unsettled_command_stays(world: World, fence: int | None) -> None:
    """One without a fence or a slot touches nothing itself."""
    world.served_with(1)
    world.settled(1, entity="a:1", fence=5, serial=False)
    world.at_day(0.99 if fence else 2.1)
    young = command("young", by=attempt(2), entity="a:1", fence=fence, serial=False)
    assert isinstance(world.admit(young), Forward)
    assert forget_entities(world, 2.2 if fence is None else 1.98) == 0
    stale = command("next", by=attempt(9), entity="a:1", fence=4, serial=False)
    assert isinstance(world.admit(stale), RejectStale)


@pytest.mark.parametrize("of", ["command", "job"])
def test_an_entity_that_could_not_be_touched_is_not_forgotten_in_that_round(
    world: World, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody holds its row while the round comes by, changes nothing, and lets go of it."""
    world.served_with(1)
    if of == "command":
        made = command("held", by=attempt(1), entity="a:1", serial=False)
        assert isinstance(world.admit(made), Forward)
    else:
        job = NewJob(id=uuid4(), key="k", tool="t", payload=b"{}", entity="a:1")
        world.run(world.jobs.enqueue(1, [job]))
        world.run(FenceStore(world.database).issue(1, "a:1"))
    world.settled(2)
    world.at_day(5)
    real = Retention._entities

    async def work() -> int:
        async with world.database.connection() as other:
            held = other.transaction()
            await held.start()
            await other.fetch("select from gateway.entities where entity = 'a:1' for update")

            async def let_go(self: Retention, days: int) -> AsyncIterator[int]:
                await held.rollback()
                async for count in real(self, days):
                    yield count

            monkeypatch.setattr(Retention, "_entities", let_go)
            total = Forgotten()
            async for gone in Retention(world.database, DAYS).round():
                total += gone
            if other.is_in_transaction():
                await held.rollback()
            return total.entities

    world.run(work())
    assert "a:1" in [row[0] for row in world.rows("select entity from gateway.entities")]
    monkeypatch.undo()
    assert world.round()["entities"] == 1
    assert [row[0] for row in world.rows("select entity from gateway.entities")] == ["a:1"]


def test_an_entity_with_a_lease_or_an_unfinished_job_stays(world: World) -> None:
    world.served_with(1)
    leased = NewJob(id=uuid4(), key="leased", tool="t", payload=b"{}", entity="a:1")
    waits = NewJob(id=uuid4(), key="waits", tool="t", payload=b"{}", entity="a:2")
    world.run(world.jobs.enqueue(1, [leased, waits]))
    store = FenceStore(world.database)
    assert isinstance(world.run(store.issue(1, "a:2")), Issued)
    assert isinstance(world.run(store.issue(1, "a:3")), Issued)
    world.run(world.jobs.claim(1, 1, "w", uuid4(), [terms("t")]))
    assert forget_entities(world, 900) == 1
    left = [row[0] for row in world.rows("select entity from gateway.entities order by 1")]
    assert left == ["a:1", "a:2"]


def test_an_entity_with_a_lease_and_no_job_stays(world: World) -> None:
    """A lease keeps it by itself, should its job not be seen."""
    job = NewJob(id=uuid4(), key="leased", tool="t", payload=b"{}", entity="a:1")
    world.run(world.jobs.enqueue(1, [job]))
    world.run(world.jobs.claim(1, 1, "w", uuid4(), [terms("t")]))
    world.rows("delete from gateway.jobs")
    world.served_with(1)
    assert forget_entities(world, 900) == 0


def test_an_entity_that_is_being_used_is_left_alone_and_nobody_waits(world: World) -> None:
    world.settled(1)
    world.served_with(1)
    world.at_day(5)

    async def work() -> None:
        async with world.database.connection() as other, other.transaction():
            await other.fetch("select from gateway.entities for update")
            async for _ in Retention(world.database, DAYS).round():
                pass

    world.run(work())
    assert world.count("entities") == 1
    assert world.round()["entities"] == 1


FORGET = "select * from gateway.forget_entities(0, '', 1, 10)"
LOCK = "select from gateway.entities for update"


@pytest.mark.parametrize("step", [FORGET, LOCK], ids=["deleted", "locked"])
def test_an_admit_that_waits_for_an_entity_that_goes_is_never_judged_without_one(
    world: World, step: str
) -> None:
    """Behind the deleted row and behind a locked one that goes it makes one."""
    world.settled(1)
    world.served_with(1)
    world.at_day(5)
    made = command("next", by=attempt(50), entity="invoice:1", fence=3)
    first, again = world.run(_while_it_goes(world, step, lambda: world.store.admit([made])))
    assert decide(first[0]) == Forward(made.attempt)
    assert decide(again[0]) == Forward(made.attempt)
    assert world.rows("select fence, open_attempt from gateway.entities") == [(3, made.attempt)]


@pytest.mark.parametrize("step", [FORGET, LOCK], ids=["deleted", "locked"])
def test_a_fence_is_issued_for_an_entity_that_goes_meanwhile(world: World, step: str) -> None:
    world.settled(1)
    world.served_with(1)
    world.at_day(5)
    store = FenceStore(world.database)
    first, again = world.run(_while_it_goes(world, step, lambda: store.issue(1, "invoice:1")))
    assert isinstance(first, Issued)
    assert again == Issued(first.fence + 1)


async def _while_it_goes(world: World, step: str, ask: Callable[[], Awaitable[T]]) -> tuple[T, T]:
    """What is answered where the entity is forgotten between the question and the answer, and what
    is answered then."""
    async with world.database.connection() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.fetch(step)
        asked = asyncio.ensure_future(ask())
        await _lock_waits(world.database, 1)
        await other.fetch(FORGET)
        await transaction.commit()
        return await asked, await ask()


async def _lock_waits(database: Database, count: int) -> None:
    sql = (
        "select count(*) from pg_stat_activity"
        " where wait_event_type = 'Lock' and datname = current_database()"
    )
    while (await database.fetch(sql))[0][0] < count:
        pass  # each question is a round trip


# -- jobs


def finish(world: World, key: str) -> UUID:
    job = NewJob(id=uuid4(), key=key, tool="t", payload=b'{"n":1}', entity=f"a:{key}")
    world.run(world.jobs.enqueue(1, [job]))
    (lease,) = world.run(world.jobs.claim(1, 1, "w", uuid4(), [terms("t")]))
    world.run(world.jobs.end(1, "worker", [Complete(lease.held, b'"done"')]))
    return job.id


def test_the_key_of_a_job_outlives_the_job(world: World) -> None:
    """QUEUE-06: a job that is done and purged is no new job when its key is enqueued again."""
    first = finish(world, "invoice-7:capture")
    again = NewJob(id=uuid4(), key="invoice-7:capture", tool="t", payload=b'{"n":1}', entity="a:1")
    other = replace(again, id=uuid4(), payload=b'{"n":2}')
    world.at_day(31)
    assert world.round() == {"jobs": 1}
    assert [world.count(table) for table in ("job_history", "job_runs", "job_keys")] == [0, 0, 1]

    (known,) = world.run(world.jobs.enqueue(1, [again]))
    assert (known.job, known.created, known.same, known.state) == (first, False, True, "succeeded")
    (known,) = world.run(world.jobs.enqueue(1, [other]))
    assert (known.created, known.same, known.state) == (False, False, "succeeded")
    # A batch with a new job and one of which nothing is left but its key.
    world.rows("insert into gateway.job_keys (tenant, key, job) values (1, 'bare', $1)", uuid4())
    batch = [replace(again, id=uuid4(), key=key) for key in ("new", again.key, "bare")]
    found = world.run(world.jobs.enqueue(1, batch))
    assert [(each.created, each.same, each.state) for each in found] == [
        (True, True, "queued"),
        (False, True, "succeeded"),
        (False, False, "forgotten"),
    ]
    world.rows("delete from gateway.job_keys where key in ('new', 'bare')")
    world.rows("delete from gateway.jobs")

    world.at_day(401)
    assert world.round() == {"job_keys": 1}
    (fresh,) = world.run(world.jobs.enqueue(1, [again]))
    assert fresh.created


@pytest.mark.parametrize(
    ("day", "forget", "expected"),
    [
        (31, "select gateway.forget_jobs(30, 10)", "succeeded"),
        (401, "select gateway.forget_jobs(30, 10), gateway.forget_job_keys(400, 10)", None),
    ],
    ids=["the job", "and its key"],
)
def test_a_key_whose_job_is_forgotten_while_it_is_enqueued_is_answered_as_before_or_behind(
    world: World, day: int, forget: str, expected: str | None
) -> None:
    """The enqueue has found its key known, and waits for another key that somebody is making."""
    first = finish(world, "a")
    world.at_day(day)
    batch = [NewJob(id=uuid4(), key=key, tool="t", payload=b'{"n":1}') for key in ("a", "z")]

    async def work() -> list[Enqueued]:
        async with world.database.connection() as other, world.database.connection() as round_:
            transaction = other.transaction()
            await transaction.start()
            await other.fetch("insert into gateway.job_keys values (1, 'z', $1)", uuid4())
            asked = asyncio.ensure_future(world.jobs.enqueue(1, batch))
            await _lock_waits(world.database, 1)
            await round_.fetch(forget)
            await transaction.rollback()
            return await asked

    known, made = world.run(work())
    assert made.created
    if expected is None:
        assert (known.job, known.created, known.state) == (batch[0].id, True, "queued")
    else:
        assert (known.job, known.created, known.same) == (first, False, True)
        assert known.state == expected


def test_the_id_of_a_forgotten_job_under_another_key_is_not_shown_under_the_old_one(
    world: World,
) -> None:
    first = finish(world, "old")
    world.at_day(31)
    assert world.round() == {"jobs": 1}
    reused = NewJob(id=first, key="new", tool="t", payload=b'{"n":1}', entity="a:1")
    (made,) = world.run(world.jobs.enqueue(1, [reused]))
    assert (made.created, made.state) == (True, "queued")

    other = replace(reused, id=uuid4(), key="old", payload=b'{"n":2}')
    (known,) = world.run(world.jobs.enqueue(1, [other]))
    assert (known.created, known.same, known.state) == (False, False, "succeeded")
    show = fencegate("jobs", "show", "--key", "new", dsn=world.dsn)
    assert (show.code, str(first) in show.out) == (0, True)
    # Nor is the new job what an operator means by the old key.
    for verb, *more in (("show",), ("cancel", "--reason", "wrong customer")):
        done = fencegate("jobs", verb, "--key", "old", *more, dsn=world.dsn)
        assert (done.code, "has no job of key old; see" in done.err) == (1, True), done
    assert world.run(world.jobs.find(1, first)).job.state == "queued"  # type: ignore[union-attr]


def test_unfinished_jobs_and_their_keys_stay(world: World) -> None:
    job = NewJob(id=uuid4(), key="k", tool="t", payload=b"{}", entity="a:1")
    world.run(world.jobs.enqueue(1, [job]))
    world.at_day(5000)
    world.round(Days(audit=1, jobs=1, job_keys=1))
    assert [world.count(table) for table in ("jobs", "job_keys")] == [1, 1]


# -- what is watched


def test_what_is_watched_and_decided_goes_though_nobody_serves_its_policy_any_more(
    world: World,
) -> None:
    """The prober lets go only of what it takes, and it takes only what it can ask about."""
    unknowns = UnknownStore(world.database)
    for number, key in enumerate(("late", "gone", "open", "soon")):
        made = command(
            key, by=attempt(number), entity=f"a:{number}", unknown="probe", probe_target=b"/f"
        )
        assert isinstance(world.admit(made), Forward)
    move_clock(world.dsn, 60)
    assert world.run(unknowns.sweep("near", 100)) == 4
    assert world.run(unknowns.take_due({}, 100, 10, 1000)) == []
    late = command("late", by=attempt(0), entity="a:0")
    assert world.run(world.store.settle([Settle(late, OK, True)])) == ["late"]
    world.rows("delete from gateway.commands where key in ('gone', 'soon')")
    assert world.count("watched") == 4
    world.at_day(0.9)
    world.round()
    assert world.count("watched") == 4

    world.at_day(1.1)
    world.rows(
        "update gateway.watched set due_at = gateway.clock() where key_digest = $1",
        digest("soon"),
    )
    world.round()
    left = {row["key_digest"] for row in world.rows("select key_digest from gateway.watched")}
    assert left == {digest("open"), digest("soon")}
    # Its policy is served again.
    (due,) = world.run(unknowns.take_due({late.policy: late.upstream_digest}, 100, 10, 1000))
    assert due.attempt == attempt(2)


def test_what_others_have_locked_of_the_watched_is_left_and_nobody_waits(world: World) -> None:
    world.rows(
        "insert into gateway.watched (tenant, key_digest, attempt, policy, due_at)"
        " select 1, int4send(n), gen_random_uuid(), 'gone', gateway.clock()"
        " from generate_series(1, 1203) n"
    )
    world.at_day(2)

    async def work() -> None:
        async with world.database.connection() as other, other.transaction():
            await other.fetch(
                "select from gateway.watched where key_digest = int4send(700) for update"
            )
            async for _ in Retention(world.database, DAYS).round():
                pass

    world.run(work())
    assert world.count("watched") == 1
    world.round()
    assert world.count("watched") == 0


# -- many at once, and beside the work


def test_many_at_once_forget_each_row_once(world: World) -> None:
    for number in range(60):
        world.settled(number)
    world.served_with(400)
    world.at_day(401)

    async def work() -> Forgotten:
        async def one() -> Forgotten:
            total = Forgotten()
            async for gone in Retention(world.database, DAYS).round():
                total += gone
            return total

        return sum(await asyncio.gather(*(one() for _ in range(4))), Forgotten())

    total = world.run(work())
    assert (total.keys, world.count("commands")) == (60, 0)
    assert total.entities + world.count("entities") == 60


def test_one_process_at_a_time_holds_the_round_and_not_again_within_the_hour(world: World) -> None:
    world.settled(1)
    heard: list[Forgotten] = []

    def retainer() -> Retainer:
        return Retainer(
            world.database, DAYS, key_days=700, clock=_clock(), on_forgotten=heard.append
        )

    async def both() -> list[bool]:
        return list(await asyncio.gather(*(retainer().round_if_due() for _ in range(2))))

    world.at_day(31)
    assert sorted(world.run(both())) == [False, True]
    assert sum(gone.bodies for gone in heard) == 1
    assert world.rows("select longest_key_days from gateway.retention")[0][0] == 700
    assert world.run(retainer().round_if_due()) is False
    world.at_day(31.05)  # 72 minutes later
    assert world.run(retainer().round_if_due()) is True


def test_a_round_whose_process_died_is_taken_over(world: World) -> None:
    world.rows("select * from gateway.begin_retention($1, 1, 3600, 60)", uuid4())
    made = Retainer(world.database, DAYS, key_days=1, clock=_clock(), on_forgotten=lambda _: None)
    assert world.run(made.round_if_due()) is False
    move_clock(world.dsn, 61)
    assert world.run(made.round_if_due()) is True


def _clock() -> Callable[[], float]:
    return time.monotonic


# -- keys that tell their age


def uuid7(at: datetime, tail: int = 1) -> str:
    """RFC 9562 §5.7."""
    ms = int(at.timestamp() * 1000)
    return str(UUID(int=(ms << 80) | (7 << 76) | (2 << 62) | tail))


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (timedelta(days=-3), Forward),  # a caller's clock may run ahead
        (timedelta(), Forward),
        (timedelta(days=399, hours=23), Forward),
        (timedelta(days=400, hours=1), RejectExpired),
        (timedelta(days=9000), RejectExpired),
    ],
)
def test_a_key_older_than_memory_is_not_taken_for_a_new_one(
    world: World, age: timedelta, expected: type
) -> None:
    key = uuid7(datetime.now(UTC) - age)
    for number, spelled in enumerate((key, key.upper())):
        made = command(spelled, by=attempt(number), entity=f"a:{number}")
        assert type(world.admit(made)) is expected
    assert world.count("commands") == (2 if expected is Forward else 0)


@pytest.mark.parametrize(
    "key",
    [
        "018f2c5e-7b3a-4c00-8000-000000000000",  # version 4
        "018f2c5e-7b3a-7c00-0000-000000000000",  # not the variant
        "018f2c5e7b3a7c008000000000000000",
        "{018f2c5e-7b3a-7c00-8000-00000000000}",
        "capture-018f2c5e-7b3a-7c00-8000-000000000000",
        "018f2c5e-7b3a-7c00-8000-00000000000g",
    ],
)
def test_what_is_no_uuid7_tells_no_age(world: World, key: str) -> None:
    assert isinstance(world.admit(command(key, by=attempt(1))), Forward)


def test_the_age_is_told_by_the_databases_clock(world: World) -> None:
    made = command(uuid7(datetime.now(UTC)), by=attempt(1))
    world.at_day(401)
    assert isinstance(world.admit(made), RejectExpired)
    world.at_day(0)
    assert isinstance(world.admit(made), Forward)


def test_an_old_key_that_is_known_is_answered_from_the_record(world: World) -> None:
    made = command(uuid7(datetime.now(UTC)), by=attempt(1), entity="a:1")
    assert isinstance(world.admit(made), Forward)
    world.at_day(401)
    assert isinstance(world.again(made), RejectUnknown)


def test_a_good_fence_is_remembered_and_a_stale_one_refused_before_the_age_is_told(
    world: World,
) -> None:
    old = uuid7(datetime.now(UTC) - timedelta(days=500))
    assert isinstance(world.admit(command(old, by=attempt(1), fence=9)), RejectExpired)
    assert isinstance(world.admit(command(old, by=attempt(2), fence=8)), RejectStale)
    new = command("new", by=attempt(3), fence=9)
    assert isinstance(world.admit(new), Forward), "no slot was taken by what was refused"


def test_the_answer_to_a_command_whose_old_key_was_given_back_is_recorded(world: World) -> None:
    made = command(uuid7(datetime.now(UTC) - timedelta(days=500)), by=attempt(1))
    assert world.run(world.store.settle([Settle(made, OK, True)])) == ["contradicts"]


# -- the command line


def test_the_command_line_counts_and_then_forgets(world: World) -> None:
    made = world.settled(1)
    world.settled(2)
    world.served_with(400)
    world.at_day(31)
    dry = fencegate("retention", "--dry-run", dsn=world.dsn)
    assert (dry.code, dry.out.splitlines()[0].split()[0]) == (0, "2")
    assert isinstance(world.again(made), Replay)
    done = fencegate("retention", dsn=world.dsn)
    assert (done.code, done.out.splitlines()[0].split()[0]) == (0, "2")
    assert isinstance(world.again(made), RejectNotRetained)
    world.at_day(500)
    for verb in (["--dry-run"], []):
        done = fencegate("retention", *verb, dsn=world.dsn)
        counts = [line.split()[0] for line in done.out.splitlines()]
        assert counts == ["0", "2", "0", "0", "0", "0", "2"]


OPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["settled", "unknown", "resolved", "given-back", "stale", "free", "job", "queued"]
        ),
        st.integers(0, 3),
        st.integers(0, 90),
    ),
    min_size=1,
    max_size=12,
)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(OPS, st.tuples(*(st.integers(1, 60) for _ in range(3))), st.integers(0, 3))
def test_what_a_dry_run_counts_is_what_the_round_forgets(
    world: World, ops: list[tuple[str, int, int]], days: tuple[int, ...], key_days: int
) -> None:
    world.rows(
        "truncate gateway.commands, gateway.entities, gateway.audit_repeats, gateway.audit,"
        " gateway.given_back, gateway.jobs, gateway.job_history, gateway.job_runs,"
        " gateway.job_keys, gateway.job_leases, gateway.watched"
    )
    world.rows("update gateway.retention set longest_key_days = $1", key_days * 20)
    kept = Days(*days)
    for number, (what, entity, day) in enumerate(sorted(ops, key=lambda each: each[2])):
        world.at_day(day)
        happen(world, what, number, f"a:{entity}")
    for day in (30, 61, 91.5, 125):
        world.at_day(day if day > max(each[2] for each in ops) else 95)
        due = world.run(Retention(world.database, kept).due())
        assert {name: count for name, count in asdict(due).items() if count} == world.round(kept)


def happen(world: World, what: str, number: int, entity: str) -> None:
    """One thing of which something is kept for a while."""
    if what in ("job", "queued"):
        job = NewJob(id=uuid4(), key=f"j{number}", tool="t", payload=b"{}", entity=entity)
        world.run(world.jobs.enqueue(1, [job]))
        if what == "job":
            world.run(world.jobs.cancel(1, job.id, "operator:o", "r"))
        return
    made = replace(
        command(
            f"k{number}",
            by=attempt(number),
            entity=entity,
            fence=None if what == "free" else 0 if what == "stale" else 5,
            serial=False,
            unknown="probe",
            upstream_key="fg-1",
            probe_target=b"/found",
        ),
        response_days=1 + number % 3 * 10,
        key_days=31 + number % 2 * 10,
        deadline_ms=1000,
    )
    world.admit(made)
    match what:
        case "settled" | "free":
            world.run(world.store.settle([Settle(made, OK, number % 2 == 0)]))
        case "given-back":
            world.run(world.store.release([Release(made, "status 429", heard=True)]))
        case "resolved":
            world.rows(
                "update gateway.commands set deadline = gateway.clock() where key = $1", made.key
            )
            world.rows(
                "select * from gateway.conclude(1, $1, null, true, 'resolved', 'r', 'operator:x',"
                " null, null, null)",
                made.key_digest,
            )


def test_erasing_drops_the_answer_and_keeps_what_protects_its_key(world: World) -> None:
    made = world.settled(1)
    other = world.settled(2)
    salt = world.rows("select salt from gateway.tenants where name = 'default'")[0][0]
    # The kit's digests are stand-ins; the command line computes real ones.
    for each in (made, other):
        sql = "update gateway.commands set key_digest = $1 where key = $2"
        world.rows(sql, key_digest(salt, each.key), each.key)
    made, other = (replace(each, key_digest=key_digest(salt, each.key)) for each in (made, other))

    done = fencegate("commands", "erase", "k1", "--reason", "request 4711", dsn=world.dsn)
    assert done.code == 0
    assert world.again(made) == RejectNotRetained(201, "answer", True)
    assert isinstance(world.again(other), Replay)
    (row,) = world.rows("select * from gateway.commands where key = 'k1'")
    assert (row["body"], row["headers"], row["evidence"]) == (None, None, None)
    assert row["fingerprint"] == made.fingerprint
    (told,) = world.rows("select * from gateway.audit where event = 'operator'")
    assert told["reason"] == "response erased: request 4711"

    again = fencegate("commands", "erase", "k1", "--reason", "request 4711", dsn=world.dsn)
    assert (again.code, "nothing of its answer was kept" in again.out) == (0, True)
    assert len(world.rows("select from gateway.audit where event = 'operator'")) == 1


def test_what_a_probe_asks_goes_with_the_response(world: World) -> None:
    """It is made of the request, so it may name a person."""
    about = {"unknown": "probe", "probe_target": b"/found?mail=a%40b"}
    world.settled(1, **about)
    open_still = command("open", by=attempt(8), entity="invoice:8", **about)  # type: ignore[arg-type]
    assert isinstance(world.admit(open_still), Forward)
    # Where nothing but the target was kept: a person said "executed".
    world.rows("update gateway.commands set headers = null, body = null where key = 'k1'")
    world.at_day(31)
    assert world.round() == {"bodies": 1}
    kept = world.rows("select key from gateway.commands where probe_target is not null")
    assert [row["key"] for row in kept] == ["open"]


def test_erasing_drops_what_a_probe_asks(world: World) -> None:
    world.settled(1, entity="customer:7", unknown="probe", probe_target=b"/found?mail=a%40b")
    world.rows("update gateway.commands set headers = null, body = null")
    done = fencegate(
        *("commands", "erase", "--entity", "customer:7", "--reason", "4711"), dsn=world.dsn
    )
    assert (done.code, "1 answer of customer:7 erased" in done.out) == (0, True)
    assert world.rows("select from gateway.commands where probe_target is not null") == []


def test_erasing_by_entity_reaches_all_that_is_settled(world: World) -> None:
    for number in range(3):
        made = command(f"k{number}", by=attempt(number), entity="customer:7")
        assert isinstance(world.admit(made), Forward)
        world.settle(made)
    held = command("held", by=attempt(8), entity="customer:7")
    assert isinstance(world.admit(held), Forward)
    done = fencegate(
        *("commands", "erase", "--entity", "customer:7", "--reason", "4711"), dsn=world.dsn
    )
    assert (done.code, "3 answers of customer:7 erased" in done.out) == (0, True)
    assert "1 command of it is in flight or unknown, and keeps" in done.out
    assert "vacuum gateway.commands" in done.out
    assert world.rows("select count(*) from gateway.commands where body is not null")[0][0] == 0
    assert isinstance(world.again(held), WaitForKey)


def test_erasing_by_an_entity_that_has_nothing_says_so(world: World) -> None:
    """A misspelled one must not look as if it had been done."""
    world.settled(1)
    words = ("--entity", "invoice:l", "--reason", "4711")
    done = fencegate("commands", "erase", *words, dsn=world.dsn)
    assert (done.code, done.out) == (1, "")
    assert "has no command of entity invoice:l; see: fencegate commands list" in done.err
    for _ in range(2):  # what is erased already is done
        words = ("--entity", "invoice:1", "--reason", "4711")
        done = fencegate("commands", "erase", *words, dsn=world.dsn)
        assert (done.code, "are in flight or unknown" in done.out) == (0, False)


@pytest.mark.parametrize("key", ["nobody", "held"])
def test_what_is_not_settled_is_not_erased(world: World, key: str) -> None:
    salt = world.rows("select salt from gateway.tenants where name = 'default'")[0][0]
    held = replace(command("held", by=attempt(8)), key_digest=key_digest(salt, "held"))
    assert isinstance(world.admit(held), Forward)
    done = fencegate("commands", "erase", key, "--reason", "4711", dsn=world.dsn)
    assert done.code == 1
    assert ("is not there" if key == "nobody" else "is not settled") in done.err
    assert world.count("audit") == 0


def test_two_servers_are_not_needed(postgres: Server) -> None:
    """`retention` of a database on which no gateway served says so, and forgets no entity."""
    with postgres.database() as dsn:
        done = fencegate("retention", dsn=dsn)
        assert "no gateway has served" in done.err
