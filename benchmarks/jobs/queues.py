"""The queues that are compared: their schema, their jobs, and what became of those."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import asyncpg
from pgqueuer import AsyncpgDriver, Queries
from procrastinate import App, PsycopgConnector
from procrastinate.types import JSONValue

from gateway.core.jobs import NewJob
from gateway.store.database import Database
from gateway.store.jobs import JobStore

__all__ = ["QUEUES", "TENANT", "TOOL", "Queue", "empty", "fill", "install"]

TOOL = "noop"

TENANT = "select tenant from gateway.tenants where name = 'default'"


@dataclass(frozen=True, slots=True)
class Queue:
    """``span``: how many jobs are done, in how many seconds of the database's clock, and how many
    were claimed. By that clock, so that neither start nor stop of a process counts."""

    install: Callable[[str], Coroutine[Any, Any, None]]
    fill: Callable[[str, int], Coroutine[Any, Any, None]]
    tables: str
    span: str


async def _nothing(dsn: str) -> None:
    """``fencegate migrate`` was there before."""


async def _fill_fencegate(dsn: str, jobs: int) -> None:
    database = await Database.open(dsn, size=1)
    tenant = (await database.fetch(TENANT))[0][0]
    store = JobStore(database)
    for start in range(0, jobs, 100):
        ids = [uuid4() for _ in range(min(100, jobs - start))]
        await store.enqueue(tenant, [NewJob(each, str(each), TOOL, b"{}") for each in ids])
    await database.close()


async def _install_procrastinate(dsn: str) -> None:
    app = App(connector=PsycopgConnector(conninfo=dsn))
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def _fill_procrastinate(dsn: str, jobs: int) -> None:
    app = App(connector=PsycopgConnector(conninfo=dsn))
    async with app.open_async():
        task = app.configure_task(TOOL)
        wishes: list[dict[str, JSONValue]] = [{"number": number} for number in range(jobs)]
        await task.batch_defer_async(*wishes)


async def _install_pgqueuer(dsn: str) -> None:
    """With what its checklist says: the settings of autovacuum, and all that is done durable."""
    connection = await asyncpg.connect(dsn)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    await queries.optimize_autovacuum()
    await connection.close()


async def _fill_pgqueuer(dsn: str, jobs: int) -> None:
    connection = await asyncpg.connect(dsn)
    queries = Queries(AsyncpgDriver(connection))
    await queries.enqueue([TOOL] * jobs, [b"{}"] * jobs, [0] * jobs)
    await connection.close()


QUEUES = {
    "fencegate": Queue(
        _nothing,
        _fill_fencegate,
        "gateway.jobs, gateway.job_runs, gateway.job_history, gateway.job_keys,"
        " gateway.job_leases, gateway.entities",
        """
        select (select count(*) from gateway.job_history where state = 'succeeded') as done,
               extract(epoch from max(ended_at) - min(granted_at))::float8 as span_s,
               count(*) as claims
          from gateway.job_runs""",
    ),
    "procrastinate": Queue(
        _install_procrastinate,
        _fill_procrastinate,
        "procrastinate_jobs, procrastinate_events, procrastinate_periodic_defers",
        """
        select (select count(*) from procrastinate_jobs where status = 'succeeded') as done,
               extract(epoch from max(at) filter (where type = 'succeeded')
                                  - min(at) filter (where type = 'started'))::float8 as span_s,
               count(*) filter (where type = 'started') as claims
          from procrastinate_events""",
    ),
    "pgqueuer": Queue(
        _install_pgqueuer,
        _fill_pgqueuer,
        "pgqueuer, pgqueuer_log",
        """
        select count(*) filter (where status = 'successful') as done,
               extract(epoch from max(created) filter (where status = 'successful')
                                  - min(created) filter (where status = 'picked'))::float8
                   as span_s,
               count(*) filter (where status = 'picked') as claims
          from pgqueuer_log""",
    ),
}


def install(queue: str, dsn: str) -> None:
    asyncio.run(QUEUES[queue].install(dsn))


def empty(queue: str, dsn: str) -> None:
    asyncio.run(_run(dsn, f"truncate {QUEUES[queue].tables}"))


def fill(queue: str, dsn: str, jobs: int) -> None:
    """An empty queue with so many new jobs, vacuumed and analysed as a queue is that has run for a
    while."""
    empty(queue, dsn)
    asyncio.run(QUEUES[queue].fill(dsn, jobs))
    asyncio.run(_run(dsn, "vacuum analyze"))
    asyncio.run(_run(dsn, "checkpoint"))


async def _run(dsn: str, sql: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(sql)
    await connection.close()
