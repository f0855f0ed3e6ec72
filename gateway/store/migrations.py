"""The schema's migrations: forward-only files `NNNN_name.sql`, each applied once and whole.

`gateway.migrations` remembers what was applied, with a checksum of the file. Every file runs in a
transaction of its own that first takes an advisory lock and then looks again at what is applied,
so two migrators at once share the work instead of doing it twice. The lock is the transaction's,
not the session's: that also holds behind a pooler that shares sessions.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import asyncpg

from gateway.errors import ConfigurationError

__all__ = [
    "Applied",
    "Behind",
    "Current",
    "Diverged",
    "Migration",
    "MigrationError",
    "Newer",
    "Status",
    "Unmigrated",
    "load",
    "migrate",
    "status",
]

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_FILE_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_LOCK = 0x66656E6365  # any constant of our own: "fence"
# How long to wait for another migrator or for a table in use; then the operator is told.
_LOCK_TIMEOUT_S = 60

# What a dead connection shows as: asyncpg often raises its InternalClientError (asyncpg#1069).
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)

_BOOKKEEPING = """
create table gateway.migrations (
    version    integer primary key,
    name       text not null,
    checksum   text not null,
    applied_at timestamptz not null default clock_timestamp()
);
comment on table gateway.migrations is
    'Applied migration files; checksum is the hex SHA-256 of the file with LF line ends.';
"""


class MigrationError(ConfigurationError):
    """The schema could not be migrated or judged; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file. `checksum` is the hex SHA-256 of its text with LF line ends."""

    version: int
    name: str
    sql: str
    checksum: str


@dataclass(frozen=True, slots=True)
class Applied:
    """A migration that this run applied."""

    version: int
    name: str


@dataclass(frozen=True, slots=True)
class Current:
    """Exactly the migrations of this release are applied."""

    version: int

    @property
    def message(self) -> str:
        return f"the database schema is current (version {self.version})"


@dataclass(frozen=True, slots=True)
class Behind:
    """Some migrations of this release are not applied yet: `missing` are their file names."""

    missing: tuple[str, ...]

    @property
    def message(self) -> str:
        return (
            f"the database schema is behind this release by {len(self.missing)} migration(s) "
            f"({', '.join(self.missing)}); run: fencegate migrate"
        )


@dataclass(frozen=True, slots=True)
class Unmigrated:
    """None is applied: a new database, or not the one that was meant."""

    @property
    def message(self) -> str:
        return (
            "the database has no Fencegate schema; if it is the right database, "
            "run: fencegate migrate"
        )


@dataclass(frozen=True, slots=True)
class Newer:
    """A later release migrated this database; `version` is its highest."""

    version: int

    @property
    def message(self) -> str:
        return (
            f"the database schema (version {self.version}) is newer than this release knows; "
            "migrations only go forward, so run the release that made it, or a later one"
        )


@dataclass(frozen=True, slots=True)
class Diverged:
    """The migration `name` was applied from a file that this release does not have."""

    name: str

    @property
    def message(self) -> str:
        return (
            f"the migration {self.name} was applied with another content than this release has; "
            "install the release that migrated the database (applied files must never be edited); "
            "`fencegate migrate` will not go on from here"
        )


Status: TypeAlias = Current | Behind | Newer | Diverged | Unmigrated


def load(directory: Path) -> tuple[Migration, ...]:
    """The migration files in order. Raises `MigrationError` where a name or number is wrong."""
    found: list[Migration] = []
    for path in sorted(directory.glob("*.sql")):
        match = _FILE_NAME.fullmatch(path.name)
        if match is None:
            raise MigrationError(f"{path}: a migration must be named NNNN_name.sql")
        # Line ends are the checkout's business, not the content's.
        sql = path.read_bytes().replace(b"\r\n", b"\n")
        checksum = hashlib.sha256(sql).hexdigest()
        found.append(Migration(int(match[1]), path.name, sql.decode(), checksum))
        if found[-1].version != len(found):
            raise MigrationError(f"{path}: expected number {len(found):04d} here, without gaps")
    if not found:
        raise MigrationError(f"{directory} holds no migrations; reinstall fencegate")
    return tuple(found)


async def status(conn: Connection, directory: Path) -> Status:
    """How the database's schema relates to this release. Changes nothing.

    Raises `MigrationError` where the role may not look.
    """
    files = load(directory)
    try:
        return _judge(files, await _read_applied(conn))
    except asyncpg.InsufficientPrivilegeError as error:
        raise MigrationError(
            f"this database role may not read gateway.migrations ({error}); "
            "grant it usage on schema gateway and select on its tables"
        ) from error


async def migrate(conn: Connection, directory: Path) -> list[Applied]:
    """Apply what is missing, in order; what this call applied is returned.

    `conn` should have no command timeout. Safe to run by many at once. Files applied before a
    failing one stay applied. Raises `MigrationError`: newer or diverged schema, read-only
    database, lacking privilege, failed file, lost connection.
    """
    files = load(directory)
    applied: list[Applied] = []
    while True:
        before = await status(conn, directory)
        match before:
            case Current():
                return applied
            case Newer() | Diverged():
                raise MigrationError(before.message)
            case Behind() | Unmigrated():
                done = await _apply_next(conn, files)
                if done is not None:
                    applied.append(Applied(done.version, done.name))


async def _apply_next(conn: Connection, files: Sequence[Migration]) -> Migration | None:
    """Apply the first missing file; None if somebody else was quicker."""
    running: Migration | None = None
    try:
        # Read committed: what is applied must be seen as it is after the lock was waited for.
        async with conn.transaction(isolation="read_committed"):
            await _enter(conn)
            known = await _read_applied(conn)
            running = next((file for file in files if file.version not in known), None)
            if running is None or not isinstance(_judge(files, known), Behind | Unmigrated):
                return None
            await conn.execute(running.sql)
            if not conn.is_in_transaction():
                raise MigrationError(f"{running.name} ends its transaction; it must not")
            await conn.execute(
                "insert into gateway.migrations (version, name, checksum) values ($1, $2, $3)",
                running.version,
                running.name,
                running.checksum,
            )
    except (asyncpg.PostgresError, *_LOST) as error:
        raise MigrationError(_explain(error, running)) from error
    return running


async def _enter(conn: Connection) -> None:
    """Inside a transaction: become the only migrator, and have the table of what is applied."""
    # A role's defaults are made for short statements, which migrations are not.
    await conn.execute(
        f"set local lock_timeout = '{_LOCK_TIMEOUT_S}s'; set local statement_timeout = 0"
    )
    await conn.execute("select pg_advisory_xact_lock($1)", _LOCK)
    # Asked first: `if not exists` needs the right to create even where there is nothing to do.
    if not await conn.fetchval("select to_regnamespace('gateway') is not null"):
        await conn.execute("create schema gateway")
    if not await _has_table(conn):
        await conn.execute(_BOOKKEEPING)


async def _has_table(conn: Connection) -> bool:
    return bool(await conn.fetchval("select to_regclass('gateway.migrations') is not null"))


async def _read_applied(conn: Connection) -> Mapping[int, tuple[str, str]]:
    """Version to (name, checksum)."""
    if not await _has_table(conn):
        return {}
    rows = await conn.fetch("select version, name, checksum from gateway.migrations")
    return {row["version"]: (row["name"], row["checksum"]) for row in rows}


def _judge(files: Sequence[Migration], applied: Mapping[int, tuple[str, str]]) -> Status:
    ours = {file.version: file for file in files}
    for version, (name, checksum) in sorted(applied.items()):
        if version in ours and ours[version].checksum != checksum:
            return Diverged(name)
    newest = max(applied, default=0)
    if newest > max(ours):
        return Newer(newest)
    missing = tuple(file.name for file in files if file.version not in applied)
    if not applied:
        return Unmigrated()
    return Behind(missing) if missing else Current(newest)


def _explain(error: Exception, running: Migration | None) -> str:
    """What failed and what to do."""
    match error:
        case asyncpg.ReadOnlySQLTransactionError():
            return (
                "the database is read-only (a standby?); point FENCEGATE_DATABASE_URL at the "
                "primary and run: fencegate migrate"
            )
        case asyncpg.InsufficientPrivilegeError():
            return (
                f"this database role may not change the schema ({error}); run `fencegate migrate` "
                "as the owner of the database"
            )
        case asyncpg.LockNotAvailableError():
            return (
                f"another session kept a lock for more than {_LOCK_TIMEOUT_S} s (another migration "
                "or a long transaction); end it or wait, then run: fencegate migrate"
            )
        case asyncpg.PostgresError() if not isinstance(error, _LOST):
            where = "preparing the migration" if running is None else _place(error, running)
            return f"{where} failed and was rolled back: {error}"
        case _:
            return (
                f"the connection to the database was lost ({error}); once it answers again, "
                "run: fencegate migrate (it goes on where it stopped)"
            )


def _place(error: asyncpg.PostgresError, running: Migration) -> str:
    """The file, and the line where the server names a position (in characters, from 1)."""
    position = str(getattr(error, "position", None))
    if not position.isdigit():
        return running.name
    return f"{running.name}, line {running.sql.count(chr(10), 0, int(position) - 1) + 1},"
