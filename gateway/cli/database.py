"""Which database a command works on, in one place.

``FENCEGATE_DATABASE_URL`` if it is set; else the embedded server of ``FENCEGATE_DATA_DIR``: the one
that is running, or one that is started for this command and stopped behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from gateway.errors import AnswerLost, ConfigurationError, StoreUnavailable
from gateway.settings import Settings, load_settings
from gateway.store.database import Database
from gateway.store.embedded import Cluster, attach, start
from gateway.store.migrations import Current
from gateway.store.session import is_shared, migrate_database, schema_status

__all__ = ["on_database", "operator_dsn"]

T = TypeVar("T")


def on_database(work: Callable[[Database], Awaitable[T]], *, create: bool = False) -> T:
    """Run ``work`` on the operator's database, once its schema is known to be this release's.

    ``create``: an embedded database is made and migrated where there is none yet. Raises
    ``ConfigurationError``, ``StoreUnavailable`` and what ``work`` raises.
    """
    settings = load_settings()
    with operator_dsn(settings, create=create) as dsn:
        if create and settings.database_url is None:
            asyncio.run(migrate_database(dsn))
        return asyncio.run(_use(settings, dsn, work))


@contextmanager
def operator_dsn(settings: Settings, *, create: bool) -> Iterator[str]:
    """The DSN of the operator's database, which is there until the block ends.

    Raises ``ConfigurationError`` where there is none and ``create`` does not ask for one.
    """
    if settings.database_url is not None:
        yield settings.database_url
        return
    cluster = _cluster(settings, create)
    try:
        yield cluster.dsn
    finally:
        if not cluster.attached and not _taken_up(cluster):
            cluster.stop()


def _cluster(settings: Settings, create: bool) -> Cluster:
    running = attach(settings.data_dir)
    if running is not None:
        return running
    if not create and not (settings.data_dir / "pgdata").is_dir():
        raise ConfigurationError(
            f"there is no database: FENCEGATE_DATABASE_URL is not set and {settings.data_dir} "
            "holds no embedded one; set it, or name the folder in FENCEGATE_DATA_DIR"
        )
    return start(settings.data_dir, bin_dir=settings.postgres_bin)


def _taken_up(cluster: Cluster) -> bool:
    """Whether a gateway has attached to the server meanwhile; then it is no longer ours to stop."""
    try:
        return asyncio.run(is_shared(cluster.dsn))
    except (StoreUnavailable, AnswerLost):
        return False


async def _use(settings: Settings, dsn: str, work: Callable[[Database], Awaitable[T]]) -> T:
    # One command needs one connection at a time; a second is for the audit beside a list.
    database = await Database.open(dsn, size=2, statement_cache_size=settings.statement_cache_size)
    try:
        status = await schema_status(database)
        if not isinstance(status, Current):
            raise ConfigurationError(status.message)
        return await work(database)
    finally:
        await database.close()
