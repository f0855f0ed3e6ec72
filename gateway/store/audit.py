"""The audit: append-only evidence of refusals, unknown outcomes and operators' acts.

What the admitting, settling and resolving statements decide they write themselves, in the same
commit. ``append`` is for what is refused before them; ``search`` is for people and exports.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID, uuid4

import asyncpg

from gateway.store.database import Database
from gateway.store.queries import load
from gateway.store.session import read

__all__ = ["EVENTS", "Entry", "Event", "Filter", "Row", "append", "search"]

Event = Literal[
    "fence_stale",
    "fence_refused",
    "entity_mismatch",
    "key_reused",
    "released",
    "outcome_unknown",
    "taken_over",
    "settled",
    "resolved",
    "late_evidence",
    "duplicate_effect_suspected",
    "heartbeat_lost",
    "lease_expired",
    "result_rejected",
    "operator",
]

EVENTS: tuple[Event, ...] = Event.__args__  # type: ignore[attr-defined]

_SQL = load("audit")

_PAGE = 1000
"""Rows of one read: some 300 KB, so an export of any size needs little memory and no long
transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A row to append. ``id`` makes repeating it harmless; where there is an attempt, the row is
    named by attempt and event instead, as every other statement does."""

    tenant: int
    event: Event
    reason: str
    principal: str | None = None
    policy: str | None = None
    entity: str | None = None
    key: str | None = None
    fence: int | None = None
    high_water_mark: int | None = None
    attempt: UUID | None = None
    job: str | None = None
    request_id: str | None = None
    fingerprint: bytes | None = None
    id: UUID = field(default_factory=uuid4)


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it stands. ``at`` is database time, in UTC. ``times``: the equal refusals that
    share it, ``last_at`` the last of them."""

    tenant: int
    tenant_name: str
    id: UUID
    at: datetime
    event: str
    principal: str | None
    policy: str | None
    entity: str | None
    key: str | None
    fence: int | None
    high_water_mark: int | None
    attempt: UUID | None
    job: str | None
    request_id: str | None
    fingerprint: bytes | None
    reason: str | None
    times: int
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What to look for; ``None`` is anything. ``tenant`` is a name. ``since`` (inclusive) and
    ``until`` (exclusive): a moment, or a time ago on the database's clock. ``limit`` ``None``:
    all of it."""

    tenant: str | None = None
    event: str | None = None
    entity: str | None = None
    key: str | None = None
    since: datetime | timedelta | None = None
    until: datetime | timedelta | None = None
    limit: int | None = None
    newest_first: bool = True


async def append(database: Database, entry: Entry, *, flush: bool = False) -> None:
    """Write one row, or count it where many equal ones came before. Raises ``StoreUnavailable``;
    after ``AnswerLost`` repeat the same entry, with ``flush`` (see ``Database.fetch``)."""
    e = entry
    await database.fetch(
        _SQL["append"],
        *(e.tenant, e.id, e.event, _text(e.principal), _text(e.policy), _text(e.entity)),
        *(_text(e.key), e.fence, e.high_water_mark, e.attempt, _text(e.job)),
        *(_text(e.request_id), e.fingerprint, _text(e.reason)),
        flush=flush,
    )


async def search(database: Database, wanted: Filter) -> AsyncIterator[Row]:
    """Matching rows, read page by page; nothing is held between pages, however slow the reader.

    Rows that are written meanwhile may or may not appear. Raises ``StoreUnavailable``.
    """
    wanted = await _with_moments(database, wanted)
    sql = _SQL["newest_first" if wanted.newest_first else "oldest_first"]
    left = wanted.limit
    last: Row | None = None
    while left is None or left > 0:
        size = _PAGE if left is None else min(_PAGE, left)
        rows = await read(
            database,
            sql,
            *(wanted.tenant, wanted.event, wanted.entity, wanted.key, wanted.since, wanted.until),
            *((last.at, last.tenant, last.id) if last else (None, None, None)),
            size,
        )
        for row in rows:
            last = _row(row)
            yield last
        if len(rows) < size:
            return
        left = None if left is None else left - len(rows)


async def _with_moments(database: Database, wanted: Filter) -> Filter:
    if not isinstance(wanted.since, timedelta) and not isinstance(wanted.until, timedelta):
        return wanted
    rows = await read(database, _SQL["now"])
    now: datetime = rows[0][0]

    def moment(value: datetime | timedelta | None) -> datetime | None:
        return now - value if isinstance(value, timedelta) else value

    return replace(wanted, since=moment(wanted.since), until=moment(wanted.until))


def _row(record: asyncpg.Record) -> Row:
    return Row(**record)


def _text(text: str | None) -> str | None:
    """``text`` as Postgres can store it: evidence must not fail for what it is evidence of."""
    if text is None:
        return None
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
