"""One server a test run, one database a test.

A database with the product's schema is copied from a template that is migrated once (80 ms a copy,
instead of the migrations' time). All functions are synchronous and bring their own event loop, so
that they serve fixtures of tests of either kind.
"""

import asyncio
import itertools
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from gateway.resources import migrations_dir
from gateway.store.embedded import Cluster, start
from gateway.store.migrations import migrate

T = TypeVar("T")

_TEMPLATE = "template_fencegate"


def with_connection(
    dsn: str, use: Callable[["asyncpg.Connection[asyncpg.Record]"], Awaitable[T]]
) -> T:
    """Connect, use, close. Call it outside of any event loop."""

    async def run() -> T:
        conn = await asyncpg.connect(dsn)
        try:
            return await use(conn)
        finally:
            await conn.close()

    return asyncio.run(run())


def execute(dsn: str, sql: str) -> str:
    """Run a script; the last command's status."""
    return with_connection(dsn, lambda conn: conn.execute(sql))


def dsn_of(dsn: str, database: str) -> str:
    """The same server and role, another database."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{database}"))


@dataclass
class Server:
    """A server for tests and the databases made on it."""

    cluster: Cluster
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)
    _template_ready: bool = False

    @property
    def dsn(self) -> str:
        """Of the database for administration; nothing is stored in it."""
        return self.cluster.dsn

    def restart(self, *, immediate: bool = False) -> None:
        """A restart (`immediate`: a crash) that every open connection notices. Same port."""
        self.cluster = self.cluster.restart(immediate=immediate)

    def create(self, *, migrated: bool = True) -> str:
        """A new database's DSN."""
        name = f"test_{next(self._numbers)}"
        template = self._template() if migrated else "template1"
        execute(self.dsn, f"create database {name} template {template}")
        return dsn_of(self.dsn, name)

    def drop(self, dsn: str) -> None:
        """Drop a database, whoever is still connected to it."""
        name = urlsplit(dsn).path.lstrip("/")
        execute(self.dsn, f"drop database if exists {name} with (force)")

    @contextmanager
    def database(self, *, migrated: bool = True) -> Iterator[str]:
        dsn = self.create(migrated=migrated)
        try:
            yield dsn
        finally:
            self.drop(dsn)

    def _template(self) -> str:
        if not self._template_ready:
            execute(self.dsn, f"create database {_TEMPLATE}")
            template = dsn_of(self.dsn, _TEMPLATE)
            with_connection(template, lambda conn: migrate(conn, migrations_dir()))
            self._template_ready = True
        return _TEMPLATE


@contextmanager
def open_folder() -> Iterator[Path]:
    """A temporary folder that root's PostgreSQL, which runs as another account, can pass into.

    Temporary folders have mode 0700, and a container or a chroot often has no user namespaces,
    the way in which the product manages with that mode.
    """
    with tempfile.TemporaryDirectory(prefix="fencegate-test-") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            folder.chmod(0o711)
        yield folder


@contextmanager
def server(settings: dict[str, str] | None = None) -> Iterator[Server]:
    """A server in a temporary folder that ends with this process, whatever ends it."""
    with open_folder() as folder:
        cluster = start(folder / "db", watchdog=True, settings=settings)
        made = Server(cluster)
        try:
            yield made
        finally:
            made.cluster.stop(immediate=True)
