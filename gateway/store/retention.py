"""Forgetting: responses, keys, audit, finished jobs and entities, each by a clock of its own.

All of it is bounded chunks, each a transaction of its own; which rows are due is decided by the
database's clock, behind its locks. What is unsettled is never due. Any number of processes may do
it at once; a round is held by one at a time only to spare the others the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from gateway.errors import AnswerLost, StoreUnavailable
from gateway.observe import crash, log
from gateway.store.database import Database
from gateway.store.queries import load
from gateway.store.session import read

__all__ = ["CHUNK", "Days", "Forgotten", "Retainer", "Retention"]

_SQL = load("retention")

CHUNK = 500
"""Rows that one statement looks at: some milliseconds of its 2 s. Where bodies are so large that it
takes longer, the chunk is halved."""

_LEAST_CHUNK = 4
_TIMED_OUT = "57014"

_EVERY_S = 3600
"""From the end of a round to the next: of things that are kept for days."""

_HOLD_S = 60
"""So long is a round held without a sign of life; then another process begins one."""

_LOOK_S = 300.0
"""Between two looks whether a round is due."""

_SHARE = 4
"""A pause is so many times as long as the statement before it, so forgetting takes at most a fifth
of one connection, whatever the machine."""

_LEAST_PAUSE_S = 0.01

_FIRST = datetime(1970, 1, 1, tzinfo=UTC)
_NO_JOB = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Days:
    """How long is kept what no policy says: audit rows, finished jobs, and their keys."""

    audit: int
    jobs: int
    job_keys: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many rows. ``bodies``: responses of which digests and status stay. ``given_back``: that a
    key was given back though its upstream had heard of it. What is watched and decided is not
    counted: it says nothing that the commands do not."""

    bodies: int = 0
    keys: int = 0
    audit: int = 0
    jobs: int = 0
    job_keys: int = 0
    given_back: int = 0
    entities: int = 0

    def __add__(self, other: Forgotten) -> Forgotten:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return replace(self, **sums)


class Retention:
    """One database's. Every method raises ``StoreUnavailable`` or ``AnswerLost``; all may be
    repeated."""

    def __init__(self, database: Database, days: Days) -> None:
        self._database = database
        self._days = days
        self._chunk = CHUNK
        self._missed = False

    async def due(self) -> Forgotten:
        """What a round would forget now; it only reads. Raises ``StoreUnavailable``."""
        longest = await self.longest_key_days()
        days = self._days
        rows = await read(
            self._database, _SQL["due"], days.audit, days.jobs, days.job_keys, longest
        )
        return Forgotten(**rows[0])

    async def longest_key_days(self) -> int:
        """For how long entities are remembered; 0 where no process served yet, and none is
        forgotten."""
        return int((await self._database.fetch(_SQL["longest"]))[0][0])

    async def round(self) -> AsyncIterator[Forgotten]:
        """Forget everything that is due, chunk by chunk."""
        self._missed = False
        async for gone in self._commands():
            yield gone
        for name, days in (
            ("audit", self._days.audit),
            ("jobs", self._days.jobs),
            ("job_keys", self._days.job_keys),
        ):
            async for count in self._oldest(name, days):
                yield Forgotten(**{name: count})
        # Behind the commands, of which some have gone.
        async for _ in self._watched():
            yield Forgotten()
        async for count in self._oldest("given_back"):
            yield Forgotten(given_back=count)
        # Behind all commands and jobs, which touch the entities that they keep.
        async for _ in self._touch():
            yield Forgotten()
        longest = await self.longest_key_days()
        if longest > 0 and not self._missed:  # else in the next round
            async for count in self._entities(longest):
                yield Forgotten(entities=count)

    async def _commands(self) -> AsyncIterator[Forgotten]:
        place: tuple[Any, ...] | None = (_FIRST, 0, b"")
        while place is not None:
            row = await self._next("commands", *place)
            self._missed |= row["missed"]
            yield Forgotten(bodies=row["bodies"], keys=row["keys"])
            last = (row["last_at"], row["last_tenant"], row["last_digest"])
            place = None if row["last_at"] is None else last

    async def _oldest(self, name: str, *args: int) -> AsyncIterator[int]:
        gone = 1
        while gone:
            gone = (await self._next(name, *args))["gone"]
            yield gone

    async def _watched(self) -> AsyncIterator[None]:
        place: tuple[Any, ...] | None = (0, b"")
        while place is not None:
            row = await self._next("watched", *place)
            yield None
            last = (row["last_tenant"], row["last_digest"])
            place = None if row["last_tenant"] is None else last

    async def _touch(self) -> AsyncIterator[None]:
        place: tuple[Any, ...] | None = (0, _NO_JOB)
        while place is not None:
            row = await self._next("touch", *place)
            self._missed |= row["missed"]
            yield None
            place = None if row["last_job"] is None else (row["last_tenant"], row["last_job"])

    async def _entities(self, days: int) -> AsyncIterator[int]:
        place: tuple[Any, ...] | None = (0, "")
        while place is not None:
            row = await self._next("entities", *place, days)
            yield row["entities"]
            last = (row["last_tenant"], row["last_entity"])
            place = None if row["last_entity"] is None else last

    async def _next(self, statement: str, *args: Any) -> Any:
        while True:
            try:
                rows = await self._database.fetch(_SQL[statement], *args, self._chunk)
                return rows[0]
            except StoreUnavailable as error:
                if error.code != _TIMED_OUT or self._chunk <= _LEAST_CHUNK:
                    raise
                self._chunk //= 2


class Retainer:
    """Rounds in the background of a process. ``key_days``: the longest of its policies.
    ``on_forgotten`` hears what each chunk forgot."""

    def __init__(
        self,
        database: Database,
        days: Days,
        *,
        key_days: int,
        clock: Callable[[], float],
        on_forgotten: Callable[[Forgotten], None],
    ) -> None:
        self._database = database
        self._retention = Retention(database, days)
        self._key_days = key_days
        self._clock = clock
        self._on_forgotten = on_forgotten
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="retention")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def round_if_due(self) -> bool:
        """One round, if none is held and the last one is old enough; whether it came to its end.

        Raises ``StoreUnavailable``, ``AnswerLost``; what was forgotten by then stays so.
        """
        holder = uuid4()
        due = (holder, self._key_days, _EVERY_S, _HOLD_S)
        if not await self._database.fetch(_SQL["begin"], *due):
            return False
        began = asked = held = self._clock()
        total = Forgotten()
        async for gone in self._retention.round():
            total += gone
            self._on_forgotten(gone)
            now = self._clock()
            if now - held > _HOLD_S / 3:
                held = now
                if not await self._database.fetch(_SQL["hold"], holder, _HOLD_S, False):
                    return False
            await asyncio.sleep(max(_LEAST_PAUSE_S, _SHARE * (now - asked)))
            asked = self._clock()
        await self._database.fetch(_SQL["hold"], holder, _HOLD_S, True)
        counts = {f.name: getattr(total, f.name) for f in fields(total)}
        log.event("retained", **counts, duration_s=round(self._clock() - began, 3))
        return True

    async def _run(self) -> None:
        while True:
            try:
                await self.round_if_due()
            except (StoreUnavailable, AnswerLost) as error:
                log.event("retention_interrupted", level="warning", reason=str(error))
            except Exception as error:  # noqa: BLE001 - the outermost loop: it must go on
                log.event("retention_failed", level="error", error=crash.brief(error))
            await asyncio.sleep(_LOOK_S)
