"""How operators talk to the database: reads that may take longer than the hot path's statements,
and connections of their own for migrations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import asyncpg

from gateway.errors import AnswerLost, StoreUnavailable
from gateway.resources import migrations_dir
from gateway.store import migrations
from gateway.store.database import TRANSPORT_ERRORS, Database, describe

__all__ = [
    "READ_TIMEOUT_S",
    "Connection",
    "is_shared",
    "migrate_database",
    "own_connection",
    "read",
    "schema_status",
]

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

READ_TIMEOUT_S = 60
"""Of one page: enough to look through some ten million rows for the few that match."""

_CONNECT_TIMEOUT_S = 5

# On tables without statistics every filter seems to leave a handful of rows: then all are read by
# another index, or by none, and sorted.
_IN_ORDER = "; ".join(
    f"set local enable_{node} = off"
    for node in ("seqscan", "bitmapscan", "sort", "incremental_sort", "hashjoin", "mergejoin")
)

_FAILURES = (asyncpg.PostgresError, *TRANSPORT_ERRORS)


async def read(
    database: Database, sql: str, *args: Any, in_order: bool = False
) -> Sequence[asyncpg.Record]:
    """Run one query in a read-only transaction; a standby will do. ``in_order``: by an index that
    has its order, so that a page costs a page.

    Raises ``StoreUnavailable``. Nothing is held once it returns, so a slow reader of what it
    returned holds up neither vacuum nor the pool.
    """
    async with _reading(database) as connection:
        if in_order:
            await connection.execute(_IN_ORDER)
        return await connection.fetch(sql, *args, timeout=READ_TIMEOUT_S + 1)


async def schema_status(database: Database) -> migrations.Status:
    """How the schema relates to this release. Raises ``StoreUnavailable``, ``MigrationError``."""
    async with _reading(database) as connection:
        return await migrations.status(connection, migrations_dir())


async def migrate_database(dsn: str) -> list[migrations.Applied]:
    """Bring the schema up to this release; what was applied is returned.

    Raises ``MigrationError``, and ``StoreUnavailable`` where no connection could be made.
    """
    async with own_connection(dsn) as connection:
        return await migrations.migrate(connection, migrations_dir())


async def is_shared(dsn: str) -> bool:
    """Whether anybody else is connected to the server. Raises ``StoreUnavailable``."""
    async with own_connection(dsn) as connection:
        return bool(
            await connection.fetchval(
                "select exists (select from pg_stat_activity"
                " where backend_type = 'client backend' and pid <> pg_backend_pid())"
            )
        )


@asynccontextmanager
async def _reading(database: Database) -> AsyncIterator[Connection]:
    try:
        async with database.connection() as connection, connection.transaction(readonly=True):
            # Every filter may be absent: only a plan for the ones that are there uses an index.
            await connection.execute(
                f"set local statement_timeout = '{READ_TIMEOUT_S}s';"
                "set local plan_cache_mode = force_custom_plan"
            )
            yield connection
    except asyncpg.QueryCanceledError as error:
        raise StoreUnavailable(
            f"the database took longer than {READ_TIMEOUT_S} s; ask for less (name the tenant, "
            "a time since)",
            code=error.sqlstate,
        ) from error
    except _FAILURES as error:
        raise _unavailable(error) from error


@asynccontextmanager
async def own_connection(dsn: str, name: str = "fencegate") -> AsyncIterator[Connection]:
    """A connection outside the pool, without its time limits; ``name`` as the server shows it.

    Raises ``StoreUnavailable``, ``AnswerLost``.
    """
    try:
        connection = await asyncpg.connect(
            dsn,
            timeout=_CONNECT_TIMEOUT_S,
            statement_cache_size=0,
            server_settings={"application_name": name},
        )
    except _FAILURES as error:
        raise _unavailable(error) from error
    try:
        yield connection
    except _FAILURES as error:
        raise AnswerLost(describe(error)) from error
    finally:
        await connection.close(timeout=_CONNECT_TIMEOUT_S)


def _unavailable(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(describe(error), code=getattr(error, "sqlstate", None))
