"""Which of the claimed jobs run now, and how many are worth claiming ahead.

A job that takes a millisecond is done long before the next claim is answered, so a worker of such
jobs claims ahead what begins within ``AHEAD_S`` at the pace of the last ones. Where handlers take
longer, that is nothing. A job that waits here has a lease like any other, and is handed back where
it could not begin after all.
"""

from __future__ import annotations

import asyncio
from collections import deque

from gateway.worker.clock import now_mono_s

__all__ = ["AHEAD_S", "BEGIN_S", "Pace", "Slots"]

AHEAD_S = 0.1
"""What is claimed ahead begins within it: several answers to claims, and less than anybody notices
who waits for a job that another worker could have begun."""

BEGIN_S = 1.0
"""Longest that a claimed job waits for a slot, where a handler took longer than those before."""

_WEIGHT = 0.2
"""Of the last handler in the mean: five quick ones after a slow one say little yet."""


class Pace:
    """How long handlers take: a running mean, in seconds."""

    def __init__(self) -> None:
        self._mean_s: float | None = None

    def note(self, took_s: float) -> None:
        mean_s = took_s if self._mean_s is None else self._mean_s
        self._mean_s = mean_s + _WEIGHT * (took_s - mean_s)

    def ahead(self, slots: int, most: int) -> int:
        """How many jobs begin within ``AHEAD_S`` where all of ``slots`` are busy; at most ``most``,
        and none before a handler has been seen."""
        if self._mean_s is None:
            return 0
        begin_s = AHEAD_S * slots  # of handlers, while all slots are at work
        return most if self._mean_s * most <= begin_s else int(begin_s / self._mean_s)


class Slots:
    """Places for handlers at work, in the order in which they are asked for."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._shut = False
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._given_mono_s = now_mono_s()

    async def take(self, within_s: float) -> bool:
        """A slot, to be given back; false where none came in time, or the worker is to stop."""
        if self._shut:
            return False
        if self._free:
            self._give()
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(waiter)
        late = loop.call_later(within_s, _answer, waiter, False)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self.give_back()  # the slot and the end came together
            raise
        finally:
            late.cancel()

    def give_back(self) -> None:
        self._free += 1
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._give()
                waiter.set_result(True)
                return

    def shut(self) -> None:
        """No more slots: whoever waits is told so."""
        self._shut = True
        while self._waiting:
            _answer(self._waiting.popleft(), False)

    def held_up(self) -> bool:
        """All are busy, and none has begun for so long that nothing is worth claiming ahead."""
        return not self._free and now_mono_s() - self._given_mono_s > AHEAD_S

    def _give(self) -> None:
        self._free -= 1
        self._given_mono_s = now_mono_s()


def _answer(waiter: asyncio.Future[bool], given: bool) -> None:
    if not waiter.done():
        waiter.set_result(given)
