"""Many workers at once, on the real clock: who gets what is open, that each job is done once is
not."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID, uuid4

import asyncpg

from gateway.core.jobs import Complete, Ended, Fail, HandBack, Lease, NewJob, Terms
from gateway.errors import StoreUnavailable
from gateway.store.database import Database
from gateway.store.jobs import JobStore
from tests.kit.db import with_connection
from tests.kit.jobs import behind_nothing, terms

T = TypeVar("T")

WORKERS = 10
JOBS = 1_000
MAX_RUNNING = 12
MAX_PER_USER = 4
ON: list[Terms] = [
    terms("plain", attempts=100),
    terms("limited", attempts=100, max_running=MAX_RUNNING, max_per_user=MAX_PER_USER),
]

Interval = tuple[datetime, datetime]


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """As whoever works does it: the loser of a deadlock did nothing and tries again."""
    while True:
        try:
            return await call()
        except StoreUnavailable as error:
            if error.code != "40P01":
                raise


async def work(dsn: str, number: int, store: JobStore, left: set[UUID], done: list[UUID]) -> None:
    chance = random.Random(number)
    while left:
        wish, limit = uuid4(), chance.choice([1, 1, 5, 20])
        leases = await insist(lambda w=wish, n=limit: store.claim(1, n, f"w{number}", w, ON))
        if not leases:
            await asyncio.sleep(0)
            continue
        await insist(lambda held=leases: store.renew(1, [lease.held for lease in held]))
        ends = [_end(lease, chance) for lease in leases]
        answers = await insist(lambda sent=ends: store.end(1, f"w{number}", sent))
        for lease, answer in zip(leases, answers, strict=True):
            assert isinstance(answer, Ended), (lease, answer)
            if answer.state == "succeeded":
                done.append(lease.job)
                left.discard(lease.job)


def _end(lease: Lease, chance: random.Random) -> Complete | Fail | HandBack:
    match chance.randrange(10):
        case 0:
            return Fail(lease.held, "not today")
        case 1:
            return HandBack(lease.held)
        case _:
            return Complete(lease.held, b"1")


def test_ten_workers_do_a_thousand_jobs_once_each(database: str) -> None:
    do_once_each(database, JOBS)


def do_once_each(database: str, count: int) -> None:
    """Every third job shares one of 20 entities, half are of a limited tool and of five users."""
    jobs = [
        NewJob(
            id=UUID(int=number + 1),
            key=str(number),
            tool="limited" if number % 2 else "plain",
            payload=b"{}",
            entity=f"shared:{number % 20}" if number % 3 == 0 else None,
            on_behalf=f"user:{number % 5}" if number % 2 else None,
        )
        for number in range(count)
    ]
    left, done = {job.id for job in jobs}, list[UUID]()

    async def main() -> None:
        pool = await Database.open(database, size=WORKERS)
        try:
            store = JobStore(pool)
            for first in range(0, count, 500):
                await store.enqueue(1, jobs[first : first + 500])
            workers = (work(database, number, store, left, done) for number in range(WORKERS))
            await asyncio.wait_for(asyncio.gather(*workers), 240)
        finally:
            await pool.close()

    asyncio.run(main())
    assert sorted(done) == sorted(job.id for job in jobs)
    runs, left_over = with_connection(database, _read)
    assert left_over == []
    completed = [run for run in runs if run["how"] == "completed"]
    assert len(completed) == len({run["job"] for run in completed}) == count
    _fences_rise(runs)
    limited = [run for run in runs if run["tool"] == "limited"]
    assert _at_once(limited) <= MAX_RUNNING
    for _, of_user in _grouped(limited, "on_behalf"):
        assert _at_once(of_user) <= MAX_PER_USER
    for _, of_entity in _grouped(runs, "entity"):
        assert _at_once(of_entity) == 1


async def _read(connection: asyncpg.Connection) -> tuple[list[Any], list[Any]]:
    runs = await connection.fetch(
        "select r.*, h.tool, h.on_behalf from gateway.job_runs r"
        " join gateway.job_history h on h.id = r.job order by r.granted_at"
    )
    unfinished = await connection.fetch("select id from gateway.jobs")
    return list(runs), [*unfinished, *await behind_nothing(connection)]


def _fences_rise(runs: list[Any]) -> None:
    for entity, of_entity in _grouped(runs, "entity"):
        fences = [run["fence"] for run in of_entity]
        assert fences == sorted(set(fences)), entity


def _grouped(runs: list[Any], name: str) -> list[tuple[str, list[Any]]]:
    groups: dict[str, list[Any]] = defaultdict(list)
    for run in runs:
        groups[run[name]].append(run)
    return list(groups.items())


def _at_once(runs: list[Any]) -> int:
    """The most leases that were held at one time; one that ends frees its place at that instant."""
    edges = [(run["granted_at"], 1) for run in runs] + [(run["ended_at"], -1) for run in runs]
    most = now = 0
    for _, change in sorted(edges):
        now += change
        most = max(most, now)
    return most
