"""Which server the pool talks to, and whether it is still the one that acknowledged things."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import asyncpg

__all__ = ["WHO", "History", "Server", "server_of"]

# All of it may be asked by an ordinary role. The timeline by the WAL's name: that of the last
# checkpoint is the old one for a while after a promotion. In recovery there is none to write on.
WHO = """
select pg_is_in_recovery() as standby,
       (select system_identifier from pg_control_system()) || '/'
           || case when pg_is_in_recovery() then 'standby'
                   else left(pg_walfile_name(pg_current_wal_lsn()), 8) end as history,
       extract(epoch from pg_postmaster_start_time())::text as started
"""


@dataclass(frozen=True, slots=True)
class Server:
    """``history``: system identifier and timeline, which a promotion or a restore changes.
    ``started``: when the server process was, which a restart changes."""

    history: str
    started: str
    standby: bool


class History:
    """Counts what may have cost rows: ``generation`` rises with each failure and each change."""

    def __init__(self) -> None:
        self.generation = 0
        self.server: Server | None = None

    def failed(self) -> None:
        """A statement or a connection failed: the next one may go to another server."""
        self.generation += 1

    def seen(self, server: Server) -> None:
        """A connection is to this server."""
        if self.server is not None and self.server != server:
            self.generation += 1
        self.server = server

    async def meet(self, connection: Any) -> None:
        """Ask a new connection whom it reaches. Where the server does not say, nothing is known,
        and only failures count."""
        try:
            row = await connection.fetchrow(WHO)
        except asyncpg.PostgresError as error:
            if (error.sqlstate or "")[:2] in ("08", "57"):
                raise
            return
        self.seen(server_of(row))


def server_of(row: asyncpg.Record) -> Server:
    return Server(row["history"], row["started"], row["standby"])
