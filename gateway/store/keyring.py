"""The keys in force, kept in process: asking the database for every request would cost a round
trip, and a refusal must not.

The snapshot is read again every ``RELOAD_S``; one older than ``MAX_AGE_S`` authenticates nobody, so
a gateway that lost its database cannot honour a revoked key for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from gateway.core.auth import Snapshot
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.observe import crash
from gateway.observe.log import event
from gateway.store.database import Database
from gateway.store.tenants import load_snapshot

__all__ = ["MAX_AGE_S", "RELOAD_S", "KeyRing"]

RELOAD_S = 5.0
"""Between two reads: how long a new or revoked key takes at most to be known."""

MAX_AGE_S = 60.0
"""A short restart of the database goes unnoticed; a longer outage fails closed."""


class KeyRing:
    """``clock``: seconds, monotonic, counting suspend; a machine that slept must not believe an
    old snapshot."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._snapshot: Snapshot | None = None
        self._read_at = 0.0
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    def current(self) -> Snapshot | None:
        """The keys to judge by; ``None`` where nobody can be authenticated, because they are not
        known or not recent enough (503 ``store-unavailable``)."""
        age_s = self.age_s
        return self._snapshot if age_s is not None and age_s <= MAX_AGE_S else None

    @property
    def age_s(self) -> float | None:
        """Seconds since the snapshot was asked for; ``None`` before the first."""
        return None if self._snapshot is None else self._clock() - self._read_at

    async def refresh(self) -> Snapshot:
        """Read the keys now. Raises ``StoreUnavailable`` or ``AnswerLost``; the old stay then."""
        asked_at = self._clock()  # before the question: what changes on the way is not in it
        fresh = await load_snapshot(self._database)
        if self._snapshot is not None and self._snapshot.anonymous is None:
            # Keys existed: an emptier database (restored, or another one) must not open the gate.
            fresh = fresh.closed()
        if self._snapshot is None or asked_at >= self._read_at:
            self._snapshot, self._read_at = fresh, asked_at
        return self._snapshot

    def start(self) -> None:
        """Go on reading in the background, at once and then every ``RELOAD_S``."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="key ring")

    async def stop(self) -> None:
        """End the background reading."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            try:
                await self.refresh()
            except (StoreUnavailable, AnswerLost) as error:
                self._note(str(error))
            except Exception as error:  # noqa: BLE001 - the outermost loop: it must go on
                self._note(crash.brief(error))
            else:
                self._note(None)
            await asyncio.sleep(RELOAD_S)

    def _note(self, failure: str | None) -> None:
        """Log when reading begins to fail and when it works again, not every time between."""
        if failure is not None and not self._failing:
            event("keys_not_reloaded", level="warning", reason=failure)
        elif failure is None and self._failing:
            event("keys_reloaded")
        self._failing = failure is not None
