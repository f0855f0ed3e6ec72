"""What operators read of jobs: lists, and the whole story of one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

import asyncpg

from gateway.core.jobs import Job, JobState, shown
from gateway.store import audit
from gateway.store.database import Database
from gateway.store.jobs import JobStore
from gateway.store.queries import load
from gateway.store.session import read
from gateway.store.tenants import Tenant, list_tenants

__all__ = [
    "JobFilter",
    "Listed",
    "NoJob",
    "NoTenant",
    "OpenCommand",
    "Run",
    "Story",
    "database_now",
    "job_holders",
    "job_of_key",
    "job_story",
    "list_jobs",
    "tenant_named",
]

_SQL = load("job_reads")

_PAGE = 500
"""Rows of one read: some 150 KB, with an error of average length."""

_TRAIL = 100
"""Audit rows shown beside one job."""

_HOLDERS = 10
"""Tenants named to somebody who looks under the wrong one."""

_QUEUED = ("ready", "scheduled", "behind-entity", "behind-user")


@dataclass(frozen=True, slots=True)
class Listed:
    """A job without its documents. ``place``: its state as it is stored, which of a queued job says
    what it waits for."""

    tenant: int
    tenant_name: str
    place: str
    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs; ``None`` is any. ``tenant`` is a name."""

    tenant: str | None = None
    state: JobState | None = None
    tool: str | None = None
    session: str | None = None
    entity: str | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A lease that ended. ``state``: what the job became by it. ``result``: of a stage that others
    follow."""

    stage: str | None
    stage_no: int
    entity: str
    fence: int
    owner: str
    granted_at: datetime
    ended_at: datetime
    how: Literal["completed", "failed", "handed-back", "cancelled", "expired"]
    state: str
    result: bytes | None
    error: str | None


@dataclass(frozen=True, slots=True)
class OpenCommand:
    """A command that holds an entity open: in flight for ``remaining_s`` at most, or unknown."""

    key: str
    policy: str
    entity: str
    attempt: UUID
    is_unknown: bool
    remaining_s: int


@dataclass(frozen=True, slots=True)
class Story:
    """One job with all that is recorded of it. ``place`` as in ``Listed``; ``holder``: the job that
    has the lease of its entity, with its worker. ``runs`` and ``trail``: oldest first.
    ``open_commands``: of its entities, also those of stages before; not all need be its own."""

    tenant_name: str
    job: Job
    place: str
    holder: UUID | None
    holder_owner: str | None
    payload: bytes
    result: bytes | None
    runs: tuple[Run, ...]
    open_commands: tuple[OpenCommand, ...]
    trail: tuple[audit.Row, ...]


@dataclass(frozen=True, slots=True)
class NoTenant:
    """No tenant has that name."""

    name: str


@dataclass(frozen=True, slots=True)
class NoJob:
    """The tenant has no such job. ``elsewhere``: some of the tenants that have one."""

    elsewhere: tuple[str, ...]


async def list_jobs(database: Database, wanted: JobFilter) -> AsyncIterator[Listed]:
    """Matching jobs, read page by page: the unfinished, the latest made first, then the finished,
    the latest finished first. A job that finishes between two pages may be missing or come twice.

    Raises ``StoreUnavailable``.
    """
    numbers = None
    if wanted.tenant is not None:
        tenants = await list_tenants(database)
        numbers = [each.number for each in tenants if each.name == wanted.tenant]
    left = wanted.limit
    for name in _parts(wanted.state):
        async for listed in _part(database, name, numbers, wanted, left):
            yield listed
            left = None if left is None else left - 1


def _parts(state: JobState | None) -> tuple[Literal["unfinished", "finished"], ...]:
    match state:
        case None:
            return ("unfinished", "finished")
        case "queued" | "running" | "waiting":
            return ("unfinished",)
        case "succeeded" | "failed" | "cancelled":
            return ("finished",)


async def _part(
    database: Database,
    name: Literal["unfinished", "finished"],
    numbers: list[int] | None,
    wanted: JobFilter,
    left: int | None,
) -> AsyncIterator[Listed]:
    states = None
    if wanted.state is not None:
        states = list(_QUEUED) if wanted.state == "queued" else [wanted.state]
    last: tuple[datetime | None, int | None, UUID | None] = (None, None, None)
    while left is None or left > 0:
        size = _PAGE if left is None else min(_PAGE, left)
        rows = await read(
            database,
            _SQL[name],
            *(numbers, states, wanted.tool, wanted.session, wanted.entity),
            *last,
            size,
            in_order=True,
        )
        for row in rows:
            listed = Listed(row["tenant"], row["tenant_name"], row["place"], _job(row))
            last = (listed.job.finished_at or listed.job.created_at, listed.tenant, listed.job.id)
            yield listed
        if len(rows) < size:
            return
        left = None if left is None else left - len(rows)


async def job_story(
    database: Database, tenant_name: str, *, job: UUID | None = None, key: str | None = None
) -> Story | NoTenant | NoJob:
    """One job, by its id or by its key. Raises ``StoreUnavailable``, ``AnswerLost``."""
    tenant = await tenant_named(database, tenant_name)
    if tenant is None:
        return NoTenant(tenant_name)
    if job is None and key is not None:
        job = await job_of_key(database, tenant.number, key)
    found = None if job is None else await JobStore(database).find(tenant.number, job)
    if found is None:
        return NoJob(await job_holders(database, job, key))
    runs = tuple(
        Run(**row) for row in await read(database, _SQL["runs"], tenant.number, found.job.id)
    )
    entities = [found.job.entity, *(run.entity for run in runs)]
    opened = await read(database, _SQL["open"], tenant.number, entities)
    standing = await read(database, _SQL["place"], tenant.number, found.job.id)
    return Story(
        tenant_name=tenant.name,
        job=found.job,
        place=standing[0]["place"] if standing else found.job.state,
        holder=standing[0]["holder"] if standing else None,
        holder_owner=standing[0]["owner"] if standing else None,
        payload=found.payload,
        result=found.result,
        runs=runs,
        open_commands=tuple(OpenCommand(**row) for row in opened),
        trail=await _trail(database, tenant, found.job, runs),
    )


async def _trail(
    database: Database, tenant: Tenant, job: Job, runs: tuple[Run, ...]
) -> tuple[audit.Row, ...]:
    fences = [(run.entity, run.fence) for run in runs] + [(job.entity, job.fence)]
    rows = await read(
        database,
        _SQL["trail"],
        *(tenant.number, job.id),
        [entity for entity, _ in fences],
        [fence for _, fence in fences],
        job.created_at,
        _TRAIL,
    )
    return tuple(audit.Row(**row) for row in reversed(rows))


async def job_of_key(database: Database, tenant: int, key: str) -> UUID | None:
    """The job that a key names, be it forgotten. Raises ``StoreUnavailable``."""
    rows = await read(database, _SQL["of_key"], tenant, key)
    return rows[0]["job"] if rows else None


async def job_holders(
    database: Database, job: UUID | None = None, key: str | None = None
) -> tuple[str, ...]:
    """Some of the tenants that have a job of that id or key. Raises ``StoreUnavailable``."""
    rows = await read(database, _SQL["holders"], job, key, _HOLDERS)
    return tuple(row["name"] for row in rows)


async def tenant_named(database: Database, name: str) -> Tenant | None:
    """The tenant of that name. Raises ``StoreUnavailable``."""
    return next((each for each in await list_tenants(database) if each.name == name), None)


async def database_now(database: Database) -> datetime:
    """The database's clock. Raises ``StoreUnavailable``."""
    rows = await read(database, _SQL["now"])
    now: datetime = rows[0][0]
    return now


def _job(row: asyncpg.Record) -> Job:
    about = {name: row[name] for name in Job.__slots__ if name != "state"}
    return Job(state=shown(row["place"]), **about)
