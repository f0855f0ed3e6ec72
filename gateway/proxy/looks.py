"""One look that everybody shares who asks at that moment: whoever needs no key may ask as often as
it likes, and what it costs the database stays the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["KEPT_S", "Looks"]

KEPT_S = 1.0
"""How long an answer is given again, good or bad: balancers ask every few seconds."""

_STOPPED = "the process is stopping"


class Looks:
    """``look`` says why not, or ``None``; it raises nothing. ``clock``: seconds, monotonic."""

    def __init__(
        self, look: Callable[[], Coroutine[Any, Any, str | None]], clock: Callable[[], float]
    ) -> None:
        self._look = look
        self._clock = clock
        self._task: asyncio.Task[str | None] | None = None
        self._until = 0.0

    async def reason(self) -> str | None:
        """What the look says that is on its way, or was over less than ``KEPT_S`` ago."""
        task = self._task
        if task is None or (task.done() and self._clock() >= self._until):
            task = self._task = asyncio.create_task(self._kept(), name="readiness")
        await asyncio.wait({task})  # whoever leaves takes it from nobody
        return _STOPPED if task.cancelled() else task.result()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _kept(self) -> str | None:
        reason = await self._look()
        self._until = self._clock() + KEPT_S
        return reason
