"""The reaper: records the ends of leases that ran out, and gives overdue jobs up.

One task in each process, and any of them does all of the work: there is no leader who could fail
to come back. Two that look at once pass over what the other has locked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from gateway.core.leases import backoff_ms
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.jobs.journal import Journal
from gateway.jobs.values import Store
from gateway.observe import crash, log
from gateway.policy.tools import Tools

__all__ = ["BATCH", "INTERVAL_S", "Reaper"]

INTERVAL_S = 1.0
"""Between two looks: how long a lease that is over may still pass for held at the gateway (G7)."""

_JITTER = 0.2
"""Share by which a pause may be shorter, so that processes which started together spread out."""

BATCH = 100
"""Leases, and jobs, of one look: what closing takes stays far below a statement's 2 s."""


class Reaper:
    """``start`` and ``stop`` it within one event loop. ``chance``: 0 to below 1, at each call."""

    def __init__(
        self, store: Store, tools: Tools, journal: Journal, chance: Callable[[], float]
    ) -> None:
        self._store = store
        self._tools = tools
        self._journal = journal
        self._chance = chance
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="reaper")

    async def stop(self) -> None:
        """What it was just doing is committed or not; the next look of any process goes on."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def look(self) -> bool:
        """One look; whether there is more to do at once. Raises as the store does."""
        expired = await self._store.expired(BATCH)
        reaped = {}
        if expired:
            batch = [
                (
                    each,
                    backoff_ms(
                        self._tools.lease_class(each.tool), each.attempts or 1, self._chance()
                    ),
                )
                for each in expired
            ]
            reaped = {(r.job, r.fence): r for r in await self._store.reap(batch)}
        for each in expired:
            found = reaped.get((each.lease.job, each.lease.fence))
            if found is not None:
                self._journal.reaped(each, found)
        given_up = await self._store.give_up(BATCH)
        for tenant, job in given_up:
            self._journal.given_up(tenant, job)
        # Only where something was done: what cannot be reaped now must not make a busy loop.
        return (len(expired) == BATCH and bool(reaped)) or len(given_up) == BATCH

    async def _run(self) -> None:
        while True:
            if not await self._survived():
                await asyncio.sleep(INTERVAL_S * (1 - _JITTER * self._chance()))

    async def _survived(self) -> bool:
        """One look that may fail; whether there is more to do at once."""
        try:
            more = await self.look()
        except (StoreUnavailable, AnswerLost) as error:
            self._note(str(error))
            return False
        except Exception as error:  # noqa: BLE001  the outermost loop: without it nothing is reaped
            self._note(crash.brief(error))
            return False
        if self._failing:
            self._failing = False
            log.event("reaper_works_again")
        return more

    def _note(self, reason: str) -> None:
        """Say it once, not each second."""
        if not self._failing:
            self._failing = True
            log.event("reaper_failed", level="warning", reason=reason)
