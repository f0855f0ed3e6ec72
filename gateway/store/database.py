"""The connection pool, and what a database error proves.

An error does not mean "not done": of transactions whose backend was killed, about half had
committed. So every failure is told apart by whether the statement can have taken effect.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from gateway.errors import AnswerLost, StoreUnavailable
from gateway.store.history import History

__all__ = [
    "LOCKED",
    "READ_ONLY",
    "STATEMENT_TIMEOUT_S",
    "TRANSPORT_ERRORS",
    "Database",
    "Moved",
    "describe",
]

STATEMENT_TIMEOUT_S = 2.0
"""Longest that the server works on one statement. Below every send deadline (2 s and the time to
connect), so an admit that is answered at all is answered while it can still be used."""

_CLIENT_MARGIN_S = 0.5
"""The client gives up this much after the server must have: then only silence is left."""

_ANSWER_S = STATEMENT_TIMEOUT_S + _CLIENT_MARGIN_S

_NEVER_S = 60
"""For asyncpg's own time-out, which must not come first."""

_CONNECT_TIMEOUT_S = 2.0

_FREE_S = 2.0
"""Longest wait until a connection of the pool is free. That none came says nothing of the server,
so it is told apart from one that cannot be made."""

# Where an earlier answer was lost, what stands there may be committed on this server and on no
# standby yet. A transaction that writes to the log is answered only when all before it are as
# durable as was asked for.
_FLUSH = "select pg_logical_emit_message(true, 'fencegate', '')"

_WAIT_CANCELLED = "SyncRepWaitForLSN"

_REHEARSAL_IDLE_S = 1
"""Longest that a rehearsal may hold its locks between its statement and its rollback."""

# One message, so that the transaction never stands open without its limit.
_BEGIN_REHEARSAL = f"begin; set local idle_in_transaction_session_timeout = '{_REHEARSAL_IDLE_S}s'"

_NO_LINGER = struct.pack("ii", 1, 0)

TRANSPORT_ERRORS = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)

# The connection or server went away under the statement: it may have committed.
_LOST = frozenset({"57P01", "57P02", "40003"})

READ_ONLY = "the database is read-only; point FENCEGATE_DATABASE_URL at the primary"

LOCKED = "55P03"
"""Code of a ``StoreUnavailable``: a statement that does not wait met a lock."""

_MENDS = {
    "25006": READ_ONLY,
    "3F000": "the schema is missing; run: fencegate migrate",
    "42P01": "a table is missing; run: fencegate migrate",
    "42883": "a function is missing; run: fencegate migrate",
    "42501": "the database user lacks a privilege on schema gateway",
    "28P01": "the database does not take the password of FENCEGATE_DATABASE_URL",
    "28000": "the database does not let the user of FENCEGATE_DATABASE_URL in",
}

_ALL_BUSY = "all connections to the database are busy; FENCEGATE_POOL_SIZE says how many there are"

_SAID_LIMIT = 300
"""Characters of the server's own words: a sentence, not a value that somebody put into it."""


class Moved(Exception):
    """The statement was not begun: something has happened since the generation it was meant for."""


class _Connection(asyncpg.Connection):
    """A pooled connection without asyncpg's reset round trip: we never change session state.

    It also notes the one warning that matters: a commit was answered although no standby has it.
    """

    unreplicated = False

    def get_reset_query(self) -> str:
        return ""

    def _process_log_message(self, fields: Any, last_query: str) -> None:
        # By the place in the server: its text may be in any language. asyncpg's listeners would do,
        # but the pool takes them away with every release.
        if fields.get("R") == _WAIT_CANCELLED:
            self.unreplicated = True
        super()._process_log_message(fields, last_query)  # type: ignore[misc]


class Database:
    """A pool of connections to one database. ``fetch`` is all that the hot path asks of it."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], history: History) -> None:
        self._pool = pool
        self._free = asyncio.Semaphore(pool.get_max_size())
        self.history = history

    @classmethod
    async def open(cls, dsn: str, *, size: int = 10, statement_cache_size: int = 100) -> Database:
        """Connect lazily: opening succeeds while the database is down. ``statement_cache_size``
        0 is for PgBouncer in transaction mode."""
        history = History()
        pool = await asyncpg.create_pool(
            dsn,
            init=history.meet,
            min_size=0,
            max_size=size,
            timeout=_CONNECT_TIMEOUT_S,
            command_timeout=_ANSWER_S,
            statement_cache_size=statement_cache_size,
            connection_class=_Connection,
            server_settings={
                "application_name": "fencegate",
                "statement_timeout": f"{int(STATEMENT_TIMEOUT_S * 1000)}",
                "idle_in_transaction_session_timeout": "10000",
                # Durability is the product: a role or database default must not weaken it.
                "synchronous_commit": "on",
                # What is judged under a row lock must be read after the lock was got.
                "default_transaction_isolation": "read committed",
            },
        )
        return cls(pool, history)

    async def fetch(
        self, sql: str, *args: Any, flush: bool = False, generation: int | None = None
    ) -> Sequence[asyncpg.Record]:
        """Run one statement in its own transaction.

        ``flush``: answer only when everything that it can have read is as durable as a commit; for
        a repeat after a lost answer. ``generation``: only as long as ``history`` is at it.

        Raises ``StoreUnavailable`` where it certainly did not take effect and ``AnswerLost``
        where that is not known; ``Moved``.
        """
        async with self._acquired() as connection:
            if generation is not None and generation != self.history.generation:
                raise Moved
            rows = await self._run(connection, sql, args)
            if flush:
                try:
                    await self._run(connection, _FLUSH, ())
                except StoreUnavailable as error:
                    raise AnswerLost(str(error)) from error
            return rows

    async def _run(
        self, connection: Any, sql: str, args: Sequence[Any]
    ) -> Sequence[asyncpg.Record]:
        # Our own clock and not asyncpg's: its time-out asks the server to cancel, and where a
        # commit waits for its standby, that would make it visible without one.
        silence = asyncio.get_running_loop().call_later(_ANSWER_S, _reset, connection)
        raw = connection._con  # the proxy loses it when the connection is closed, also by _reset
        try:
            rows: Sequence[asyncpg.Record] = await connection.fetch(sql, *args, timeout=_NEVER_S)
        except asyncpg.PostgresError as error:
            if _may_have_committed(error):
                raise self._lost(connection, error) from error
            raise StoreUnavailable(describe(error), code=error.sqlstate) from error
        except TRANSPORT_ERRORS as error:
            raise self._lost(connection, error) from error
        finally:
            silence.cancel()
        if raw is not None and raw.unreplicated:
            raw.unreplicated = False
            raise AnswerLost("the wait for the synchronous standby was cancelled")
        return rows

    def _lost(self, connection: Any, error: Exception) -> AnswerLost:
        self.history.failed()
        # After silence the protocol state is unknown: never reuse that connection.
        _reset(connection)
        return AnswerLost(describe(error))

    async def rehearse(self, sql: str, *args: Any) -> Sequence[asyncpg.Record]:
        """Run one statement and roll it back: what it would answer now. Nothing of it stays.

        It takes the locks that it would take, so others wait for it: as long as for the statement
        itself and a round trip, and at most ``_REHEARSAL_IDLE_S`` more if this process is stopped
        in between. Raises ``StoreUnavailable``.
        """
        async with self._acquired() as connection:
            try:
                await connection.execute(_BEGIN_REHEARSAL)
                try:
                    return await connection.fetch(sql, *args)
                finally:
                    await connection.execute("rollback")
            except asyncpg.QueryCanceledError as error:
                reason = (
                    f"another statement held a lock for over {STATEMENT_TIMEOUT_S:g} s; try again"
                )
                raise StoreUnavailable(reason, code=error.sqlstate) from error
            except asyncpg.PostgresError as error:
                raise StoreUnavailable(describe(error), code=error.sqlstate) from error
            except TRANSPORT_ERRORS as error:
                _reset(connection)
                raise StoreUnavailable(describe(error)) from error

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        """A plain connection, for operators' reads and for tests; errors are asyncpg's own."""
        async with self._free, self._pool.acquire() as connection:
            yield connection  # type: ignore[misc]

    @asynccontextmanager
    async def _acquired(self) -> AsyncIterator[asyncpg.Connection]:
        if self._free.locked():
            try:
                async with asyncio.timeout(_FREE_S):
                    await self._free.acquire()
            except TimeoutError as error:
                raise StoreUnavailable(_ALL_BUSY) from error
        else:
            await self._free.acquire()  # one is free: it waits for nothing
        try:
            connection = await self._pool.acquire(timeout=_CONNECT_TIMEOUT_S)
        except (asyncpg.PostgresError, *TRANSPORT_ERRORS) as error:
            self._free.release()
            self.history.failed()
            code = error.sqlstate if isinstance(error, asyncpg.PostgresError) else None
            raise StoreUnavailable(describe(error), code=code) from error
        except BaseException:
            self._free.release()
            raise
        try:
            yield connection  # type: ignore[misc]
        finally:
            # A connection that dies between its answer and its release makes asyncpg raise here,
            # with the slot already back. What the statement did is known; this must not hide it.
            with suppress(asyncpg.PostgresError, *TRANSPORT_ERRORS):
                await asyncio.shield(self._released(connection))

    async def _released(self, connection: Any) -> None:
        try:
            await self._pool.release(connection)
        finally:
            self._free.release()

    async def close(self) -> None:
        """Close every connection; statements that are still running are waited for, then cut."""
        try:
            await asyncio.wait_for(self._pool.close(), STATEMENT_TIMEOUT_S + 1)
        except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            self._pool.terminate()


def _reset(connection: Any) -> None:
    """Close at once, and have the kernel throw away what has not arrived. After an orderly close it
    would go on delivering for minutes: an admit could take effect long after its release."""
    raw = connection._con
    if raw is None:
        return  # asyncpg has given it up already, and its proxy now raises whatever it is asked
    with suppress(OSError, ValueError):  # uvloop: a closed socket's number is -1
        sock = raw._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    raw.terminate()


def _may_have_committed(error: asyncpg.PostgresError) -> bool:
    code = error.sqlstate or ""
    return code.startswith("08") or code in _LOST or not code


def describe(error: Exception) -> str:
    """One line for an operator: the mend where it is known, else the server's own words."""
    code = getattr(error, "sqlstate", None)
    if code in _MENDS:
        return _MENDS[code]
    if isinstance(error, OSError):
        # Not its own words: they name the server's address, and callers get to read this.
        return _of_system(error)
    text = str(error).splitlines()[0][:_SAID_LIMIT] if str(error) else type(error).__name__
    return f"{text} ({code})" if code else text


def _of_system(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "its name has no address"
    if isinstance(error.errno, int) and error.errno > 0:
        return os.strerror(error.errno)
    return "no answer in time" if isinstance(error, TimeoutError) else "no connection"
