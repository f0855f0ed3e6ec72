"""The ledger: one SQLite file that remembers every effect and every request.

An effect is durable before it is answered (WAL with a sync at each commit). One connection behind
one lock: SQLite has a single writer anyway, and several processes may share the file.
"""

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["SHOWN", "Ledger", "Used"]

SHOWN = 1000
"""So many effects, the latest, are listed in one answer."""

_BUSY_TIMEOUT_S = 10.0

_SCHEMA = """
create table if not exists effects (
    id integer primary key autoincrement,
    at text not null,
    kind text not null,
    subject text not null,
    body text not null,
    caller text not null,
    reference text
) strict;
create index if not exists effects_subject on effects (subject);
create table if not exists requests (
    id integer primary key autoincrement,
    at text not null,
    request text not null,
    caller text not null
) strict;
"""


class Used(Exception):
    """The reference names another effect; nothing was done."""


class Ledger:
    """Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(
            path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = full")
        self._db.executescript(_SCHEMA)
        columns = [row[1] for row in self._db.execute("pragma table_info(effects)")]
        if "reference" not in columns:  # a file of an older copy
            self._db.execute("alter table effects add column reference text")
        self._db.execute("create index if not exists effects_reference on effects (reference)")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def note_request(self, request: str, caller: str) -> None:
        """Remember that a request arrived, whatever comes of it."""
        with self._transaction() as db:
            db.execute(
                "insert into requests (at, request, caller) values (?, ?, ?)",
                (_now(), request, caller),
            )

    def append(
        self,
        kind: str,
        subject: str,
        body: Mapping[str, Any],
        caller: str,
        reference: str | None,
        *,
        once: bool = False,
    ) -> int:
        """Do the thing: one more effect, never undone. Its number. ``reference``: whatever the
        caller calls it; it is kept, and twice the same is two effects. With ``once`` it is the
        first one's number instead. Raises ``Used`` where that was something else."""
        wanted = (kind, subject, json.dumps(body, sort_keys=True))
        with self._transaction() as db:
            if once and reference is not None:
                first = db.execute(
                    "select id, kind, subject, body from effects where reference = ? order by id",
                    (reference,),
                ).fetchone()
                if first is not None and tuple(first[1:]) != wanted:
                    raise Used
                if first is not None:
                    return int(first[0])
            done = db.execute(
                "insert into effects (at, kind, subject, body, caller, reference)"
                " values (?, ?, ?, ?, ?, ?)",
                (_now(), *wanted, caller, reference),
            )
            assert done.lastrowid is not None
            return done.lastrowid

    def effects(
        self, subject: str | None = None, *, reference: str | None = None
    ) -> list[dict[str, Any]]:
        """The latest effects, oldest first; of one subject or reference, or all."""
        with self._lock:
            rows = self._db.execute(
                "select id, at, kind, subject, body, caller, reference from effects"
                " where (?1 is null or subject = ?1) and (?2 is null or reference = ?2)"
                " order by id desc limit ?3",
                (subject, reference, SHOWN),
            ).fetchall()
        names = ("id", "at", "kind", "subject", "body", "caller", "reference")
        found = [dict(zip(names, row, strict=True)) for row in reversed(rows)]
        return [{**effect, "body": json.loads(effect["body"])} for effect in found]

    def counts(self) -> dict[str, int]:
        """Effects by kind."""
        with self._lock:
            return dict(self._db.execute("select kind, count(*) from effects group by kind"))

    def requests(self) -> int:
        """How many requests for an effect have arrived."""
        with self._lock:
            return int(self._db.execute("select count(*) from requests").fetchone()[0])

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("begin immediate")
            try:
                yield self._db
            except BaseException:
                self._db.execute("rollback")
                raise
            self._db.execute("commit")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
