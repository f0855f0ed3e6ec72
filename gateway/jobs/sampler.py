"""What the gauges say of leases: read when somebody asks for metrics, and not more often than
every 5 s, so that nobody's scraping is felt by the database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gateway.core.jobs import LeaseStats
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.jobs.values import Store
from gateway.observe import log

__all__ = ["EVERY_S", "LEASES", "Sampler"]

EVERY_S = 5.0

LEASES = 10_000
"""Leases that one sample looks at: each costs a look-up of 3 µs for its model and provider."""

_PATIENCE_S = 1.0
"""Longest that metrics wait for a sample; a slow database must not hide the other metrics."""


class Sampler:
    """``show`` is told of each sample; of none where the database could not be asked."""

    def __init__(
        self,
        store: Store,
        show: Callable[[Sequence[LeaseStats]], None],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._show = show
        self._clock = clock
        self._at: float | None = None
        self._task: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Take a sample if the last one is old, and wait a moment for it."""
        if self._task is None or self._task.done():
            now = self._clock()
            if self._at is not None and now - self._at < EVERY_S:
                return
            self._at = now
            self._task = asyncio.create_task(self._sample(), name="lease gauges")
        await asyncio.wait({self._task}, timeout=_PATIENCE_S)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _sample(self) -> None:
        try:
            self._show(await self._store.leases(LEASES))
        except (StoreUnavailable, AnswerLost) as error:
            self._show(())  # an old value would look like a healthy one
            log.event("lease_gauges_not_read", level="warning", reason=str(error))
