"""Which database a command works on, in one place.

``FENCEGATE_DATABASE_URL`` if it is set; else the embedded server of ``FENCEGATE_DATA_DIR``: the one
that is running, or one that is started for this command and stopped behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from gateway.errors import AnswerLost, ConfigurationError, FencegateError, StoreUnavailable
from gateway.observe.text import one_line
from gateway.settings import Settings, load_settings
from gateway.store.database import Database
from gateway.store.embedded import Cluster, attach, start
from gateway.store.migrations import Current
from gateway.store.session import is_shared, schema_status
from gateway.store.tenants import list_tenants

__all__ = [
    "check_tenant",
    "has_embedded",
    "no_tenant",
    "on_database",
    "operator_database",
    "operator_dsn",
]

T = TypeVar("T")


def on_database(work: Callable[[Database], Awaitable[T]]) -> T:
    """Run ``work`` on the operator's database, once its schema is known to be this release's.

    Never makes one: in a wrong folder that would answer for another database. Raises
    ``ConfigurationError``, ``StoreUnavailable`` and what ``work`` raises.
    """
    settings = load_settings()
    with operator_dsn(settings, create=False) as dsn:
        return asyncio.run(_use(settings, dsn, work))


async def check_tenant(database: Database, name: str | None) -> None:
    """Raise ``FencegateError`` where a tenant is named (not ``None``) and there is none of it."""
    if name is not None and all(each.name != name for each in await list_tenants(database)):
        raise FencegateError(no_tenant(name))


def no_tenant(name: str) -> str:
    """What to tell whoever names a tenant that does not exist."""
    return f"there is no tenant {one_line(name)!r}; name another one with --tenant"


@contextmanager
def operator_dsn(settings: Settings, *, create: bool) -> Iterator[str]:
    """The DSN of the operator's database, which is there until the block ends.

    Raises ``ConfigurationError`` where there is none and ``create`` does not ask for one.
    """
    with operator_database(settings, create=create) as (dsn, _):
        yield dsn


@contextmanager
def operator_database(settings: Settings, *, create: bool) -> Iterator[tuple[str, str]]:
    """As ``operator_dsn``, and for people which database that is, without a password."""
    if settings.database_url is not None:
        yield settings.database_url, _place(settings.database_url)
        return
    cluster = _cluster(settings, create)
    folder = one_line(str(settings.data_dir.absolute()))
    how = (
        "which is running"
        if cluster.attached
        else "which was started for this command and is stopped again behind it"
    )
    try:
        yield cluster.dsn, f"the embedded one of {folder}, {how}"
    finally:
        if not cluster.attached and not _taken_up(cluster):
            cluster.stop()


def _place(dsn: str) -> str:
    """``host:port/name``; of the query, which may hold a password, the host alone."""
    parts = urlsplit(dsn)
    host = parts.netloc.rpartition("@")[2] or ",".join(parse_qs(parts.query).get("host", ()))
    return one_line(f"{host or 'localhost'}{unquote(parts.path)}")


def has_embedded(settings: Settings) -> bool:
    """Whether the data folder holds an embedded database."""
    return (settings.data_dir / "pgdata").is_dir()


def _cluster(settings: Settings, create: bool) -> Cluster:
    running = attach(settings.data_dir)
    if running is not None:
        return running
    if not create and not has_embedded(settings):
        raise ConfigurationError(
            f"there is no database: FENCEGATE_DATABASE_URL is not set and "
            f"{settings.data_dir.absolute()} holds no embedded one; go to the folder where the "
            "gateway runs, or set FENCEGATE_DATA_DIR or FENCEGATE_DATABASE_URL, or make one there: "
            "fencegate migrate"
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
