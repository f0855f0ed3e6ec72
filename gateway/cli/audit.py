"""``audit``: refusals, unknown outcomes and operators' acts, as they were committed."""

from __future__ import annotations

import argparse

from gateway.cli.database import check_tenant, on_database
from gateway.cli.options import (
    Subparsers,
    add_command,
    add_format,
    add_limit,
    key,
    moment,
    text,
)
from gateway.cli.rows import Cells, Writer, conclude
from gateway.store.audit import EVENTS, Filter, Row, search
from gateway.store.database import Database

__all__ = ["BRIEF", "brief", "register"]

BRIEF = (
    *("at", "event", "tenant", "policy", "entity", "fence", "mark", "key", "principal", "times"),
    "reason",
)
_FULL = (
    *("at", "event", "tenant", "principal", "policy", "entity", "key", "fence"),
    *("high_water_mark", "attempt", "job", "request_id", "fingerprint", "reason", "id"),
    *("times", "last_at"),
)


_LATER = frozenset({"heartbeat_lost"})
"""An event that the schema has room for and that no part of this release writes: workers log it."""

_WRITTEN = tuple(event for event in EVENTS if event not in _LATER)


def register(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "audit",
        _audit,
        summary="show refusals, unknown outcomes and what operators did",
        details="Times are the database's, in UTC. jsonl and csv have every column. Equal refusals "
        "share a row once there are many of them: times says how many.",
        example="fencegate audit --event fence_stale --since 2h",
    )
    parser.add_argument("--event", choices=_WRITTEN, metavar="EVENT", help=f"one of {_names()}")
    parser.add_argument("--entity", type=text, help="e.g. invoice:123")
    parser.add_argument("--tenant", type=text, help="a tenant's name (default: all)")
    parser.add_argument("--key", type=key, help="the idempotency key, without quotes")
    when = "2026-01-31T12:00:00Z, or 15m, 2h, 1d ago"
    parser.add_argument("--since", type=moment, metavar="TIME", help=f"from then on: {when}")
    parser.add_argument("--until", type=moment, metavar="TIME", help="before then")
    parser.add_argument(
        "--oldest-first", action="store_true", help="in order of time (default: newest first)"
    )
    add_limit(parser)
    add_format(parser)


def brief(row: Row) -> Cells:
    """The columns of ``BRIEF``."""
    return (
        *(row.at, row.event, row.tenant_name, row.policy, row.entity, row.fence),
        *(row.high_water_mark, row.key, row.principal, row.times, row.reason),
    )


def _audit(options: argparse.Namespace) -> int:
    wanted = Filter(
        tenant=options.tenant,
        event=options.event,
        entity=options.entity,
        key=options.key,
        since=options.since,
        until=options.until,
        limit=options.limit,
        newest_first=not options.oldest_first,
    )
    people = options.format == "table"

    async def work(database: Database) -> int:
        await check_tenant(database, options.tenant)
        writer = Writer(options.format, BRIEF if people else _FULL)
        async for row in search(database, wanted):
            writer.add(brief(row) if people else _full(row))
        return writer.close()

    conclude(on_database(work), options.format, options.limit, nothing="no audit row matches")
    return 0


def _full(row: Row) -> Cells:
    return (
        *(row.at, row.event, row.tenant_name, row.principal, row.policy, row.entity, row.key),
        *(row.fence, row.high_water_mark, row.attempt, row.job, row.request_id, row.fingerprint),
        *(row.reason, row.id, row.times, row.last_at),
    )


def _names() -> str:
    return ", ".join(_WRITTEN)
