"""Looks at a database as `core.diagnosis` wants to know it. It changes nothing."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from datetime import datetime
from uuid import uuid4

import asyncpg

from gateway.core.diagnosis import Observed, Pooling, Standby
from gateway.errors import StoreUnavailable
from gateway.store.database import Database
from gateway.store.migrations import Current
from gateway.store.queries import load
from gateway.store.session import Connection, own_connection, schema_status

__all__ = ["examine"]

_SQL = load("examine")

_NAMES = (
    *("fsync", "full_page_writes", "data_checksums", "synchronous_commit"),
    *("synchronous_standby_names", "wal_level", "default_transaction_isolation"),
    *("default_transaction_read_only", "statement_timeout", "lock_timeout"),
    *("transaction_timeout", "idle_session_timeout", "autovacuum"),
)

_READINGS = 5
"""Of the clock; the one with the shortest round trip counts."""


async def examine(dsn: str, *, pool_size: int, statement_cache_size: int) -> Observed:
    """Look at the database, through connections of the gateway's kind and of any other.

    Raises ``StoreUnavailable``.
    """
    # Without prepared statements: whether those work is one of the questions.
    database = await Database.open(dsn, size=1, statement_cache_size=0)
    try:
        (server,) = await database.fetch(_SQL["server"])
        status = await schema_status(database)
        session = {r["name"]: r["setting"] for r in await database.fetch(_SQL["settings"], _NAMES)}
        standbys = await database.fetch(_SQL["standbys"])
        unvacuumed = await database.fetch(_SQL["unvacuumed"])
        offset_s, error_s = await _offset(database)
    finally:
        await database.close()
    return Observed(
        version=server["version"],
        schema=None if isinstance(status, Current) else status.message,
        in_recovery=server["in_recovery"],
        session=session,
        defaults=await _defaults(dsn),
        standbys=tuple(Standby(row["name"], row["state"], row["sync_state"]) for row in standbys),
        pooling=await _pooling(dsn),
        statement_cache_size=statement_cache_size,
        offset_s=offset_s,
        offset_error_s=error_s,
        pool_size=pool_size,
        free_connections=server["free"],
        usable_connections=server["usable"],
        tables_without_autovacuum=tuple(row["name"] for row in unvacuumed),
    )


async def _offset(database: Database) -> tuple[float, float]:
    """The database's clock minus this machine's, and half the round trip; seconds."""
    best: tuple[float, float] | None = None
    for _ in range(_READINGS):
        before, began = time.time(), time.monotonic()
        rows = await database.fetch("select clock_timestamp()")
        half_s = (time.monotonic() - began) / 2
        there: datetime = rows[0][0]
        if best is None or half_s < best[1]:
            best = (there.timestamp() - before - half_s, half_s)
    assert best is not None
    return best


async def _defaults(dsn: str) -> dict[str, str]:
    async with own_connection(dsn, "fencegate doctor") as connection:
        rows = await connection.fetch(_SQL["settings"], _NAMES)
    return {row["name"]: row["setting"] for row in rows}


async def _pooling(dsn: str) -> Pooling:
    """A pooler gives each client a number of its own in place of the backend's. In transaction mode
    two clients that are both connected use one backend in turn."""
    async with AsyncExitStack() as held:
        first = await held.enter_async_context(own_connection(dsn, "fencegate doctor"))
        second = await held.enter_async_context(own_connection(dsn, "fencegate doctor"))
        backends = [await c.fetchval("select pg_backend_pid()") for c in (first, second)]
        if backends[0] == first.get_server_pid():
            return "none"
        if backends[0] != backends[1]:
            return "session"
        return await _prepared(first, second)


async def _prepared(first: Connection, second: Connection) -> Pooling:
    """Prepare on one backend, then have another client take that one and run it elsewhere."""
    try:
        statement = await first.prepare("select pg_backend_pid()", name=f"doctor_{uuid4().hex}")
        await first.execute("select 1")
        async with second.transaction():
            await second.fetchval("select pg_backend_pid()")
            await statement.fetchval()
    except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError):
        return "transaction-without-prepared"
    except asyncpg.PostgresError as error:
        raise StoreUnavailable(str(error), code=error.sqlstate) from error
    return "transaction"
