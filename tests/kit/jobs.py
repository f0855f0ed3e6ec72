"""Jobs for tests: a store on a clock that is moved by hand, with one word for each thing done."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

import asyncpg

from gateway.core.jobs import (
    Complete,
    End,
    Ended,
    Enqueued,
    Fail,
    HandBack,
    Lease,
    Lost,
    NewJob,
    NextStage,
    Reaped,
    Rejected,
    Renewed,
    Terms,
)
from gateway.store.database import Database
from gateway.store.jobs import JobStore
from tests.kit.db import Server

__all__ = [
    "LEASE_MS",
    "MANUAL_CLOCK",
    "TOTAL_MS",
    "Yard",
    "behind_nothing",
    "sibling",
    "terms",
    "yard",
]

T = TypeVar("T")

LEASE_MS = 60_000
TOTAL_MS = 600_000

MANUAL_CLOCK = """
create table gateway.manual_clock as select timestamptz '2026-01-01 00:00:00+00' as at;
create or replace function gateway.clock() returns timestamptz
    language sql volatile
    return (select at from gateway.manual_clock);
"""

# What the two states "behind" rest on: whoever is behind has a lease or a ready job in front.
_BEHIND_NOTHING = """
select j.id from gateway.jobs j
 where j.state = 'behind-entity'
   and not exists (select from gateway.job_leases l
                    where (l.tenant, l.entity) = (j.tenant, j.entity))
   and not exists (select from gateway.jobs o
                    where (o.tenant, o.entity, o.tool, o.state)
                        = (j.tenant, j.entity, j.tool, 'ready'))
union all
select j.id from gateway.jobs j
 where j.state = 'behind-user'
   and not exists (select from gateway.job_leases l
                    where (l.tenant, l.tool, l.on_behalf) = (j.tenant, j.tool, j.on_behalf))
   and not exists (select from gateway.jobs o
                    where (o.tenant, o.tool, o.on_behalf, o.state)
                        = (j.tenant, j.tool, j.on_behalf, 'ready'))
"""


async def behind_nothing(connection: asyncpg.Connection) -> list[UUID]:
    """Jobs that nothing would ever make ready again: lost, so there must be none."""
    return [row["id"] for row in await connection.fetch(_BEHIND_NOTHING)]


def terms(
    tool: str = "t",
    *,
    lease_ms: int = LEASE_MS,
    total_ms: int = TOTAL_MS,
    attempts: int = 3,
    max_running: int | None = None,
    max_per_user: int | None = None,
) -> Terms:
    """On which terms a tool is claimed, when nothing else is said."""
    return Terms(tool, lease_ms, total_ms, attempts, max_running, max_per_user)


class Yard:
    """One tenant's jobs. ``now_ms`` counts from when the clock was stopped."""

    _tenants = itertools.count(1)
    _jobs = itertools.count(1)

    def __init__(self, dsn: str, runner: asyncio.Runner) -> None:
        self._runner = runner
        self.tenant = next(self._tenants)
        self.dsn = dsn
        self.database: Database = self.run(Database.open(dsn, size=4))
        self.store = JobStore(self.database)
        self.watch: asyncpg.Connection = self.run(asyncpg.connect(dsn))
        self.terms = terms()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(work, 30))

    def close(self) -> None:
        self.run(self.database.close())
        self.run(self.watch.close())

    # The clock.

    def now(self) -> datetime:
        return self.run(self.watch.fetchval("select gateway.clock()"))

    def advance(self, by_ms: int) -> None:
        self.sql("update gateway.manual_clock set at = at + $1", timedelta(milliseconds=by_ms))

    # What is done.

    def new(self, key: str | None = None, **about: Any) -> NewJob:
        job = UUID(int=self.tenant << 64 | next(self._jobs))
        return NewJob(**{"id": job, "key": key or str(job), "tool": "t", "payload": b"{}", **about})

    def enqueue(self, *jobs: NewJob) -> list[Enqueued]:
        return self.run(self.store.enqueue(self.tenant, jobs))

    def add(self, key: str | None = None, **about: Any) -> UUID:
        (done,) = self.enqueue(self.new(key, **about))
        return done.job

    def claim(
        self, limit: int = 1, *on: Terms, owner: str = "w1", claim: UUID | None = None
    ) -> list[Lease]:
        return self.run(
            self.store.claim(self.tenant, limit, owner, claim or uuid4(), on or [self.terms])
        )

    def one(self, **how: Any) -> Lease:
        leases = self.claim(**how)
        assert len(leases) == 1, leases
        return leases[0]

    def beat(self, lease: Lease) -> Renewed | Lost:
        (answer,) = self.run(self.store.renew(self.tenant, [lease.held]))
        return answer

    def end(self, *ends: End) -> list[Ended | Rejected]:
        return self.run(self.store.end(self.tenant, "w1", ends))

    def complete(
        self, lease: Lease, result: bytes = b'"ok"', following: NextStage | None = None
    ) -> Ended | Rejected:
        (answer,) = self.end(Complete(lease.held, result, following))
        return answer

    def fail(
        self, lease: Lease, error: str = "broken", *, retry: bool = True, delay_ms: int = 0
    ) -> Ended | Rejected:
        (answer,) = self.end(Fail(lease.held, error, retry, delay_ms))
        return answer

    def hand_back(self, lease: Lease) -> Ended | Rejected:
        (answer,) = self.end(HandBack(lease.held))
        return answer

    def reap(self, delay_ms: int = 0) -> list[Reaped]:
        """As a reaper does it: look, then record."""
        found = [e for e in self.run(self.store.expired(1_000)) if e.tenant == self.tenant]
        return self.run(self.store.reap([(each, delay_ms) for each in found]))

    # What is there.

    def sql(self, text: str, *args: Any) -> list[asyncpg.Record]:
        return self.run(self.watch.fetch(text, *args))

    def state(self, job: UUID) -> str:
        found = self.run(self.store.find(self.tenant, job))
        assert found is not None, f"job {job} is lost"
        return found.job.state

    def stored(self, job: UUID) -> str:
        """The state as it is stored, e.g. "behind-entity"."""
        (row,) = self.sql(
            "select state from gateway.jobs where tenant = $1 and id = $2", self.tenant, job
        )
        return str(row["state"])

    def counter(self, entity: str) -> tuple[int, int | None]:
        """Mark and held."""
        (row,) = self.sql(
            "select fence, held from gateway.entities where tenant = $1 and entity = $2",
            *(self.tenant, entity),
        )
        return row["fence"], row["held"]

    def nothing_is_lost(self) -> None:
        """Nobody is behind nothing."""
        assert self.run(behind_nothing(self.watch)) == []

    def audit(self, *events: str) -> list[asyncpg.Record]:
        return self.sql(
            "select * from gateway.audit where tenant = $1 and event = any ($2) order by at",
            *(self.tenant, list(events)),
        )


@contextmanager
def yard(server: Server) -> Iterator[Yard]:
    """A database of its own, whose clock stands still until it is moved."""
    with server.database() as dsn, asyncio.Runner() as runner:
        made = Yard(dsn, runner)
        made.sql(MANUAL_CLOCK.split(";\n", 1)[0])
        made.sql(MANUAL_CLOCK.split(";\n", 1)[1])
        try:
            yield made
        finally:
            made.close()


def sibling(of: Yard) -> Yard:
    """Another tenant in the same database."""
    made = object.__new__(Yard)
    made.__dict__.update(of.__dict__)
    made.tenant = next(Yard._tenants)
    return made
