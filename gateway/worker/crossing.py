"""Calls from other threads into an event loop. Those that come before it has come round wake it
once, together: a wake is a system call, and a thread that takes Python from the one at work."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["Crossing"]

T = TypeVar("T")


class Crossing:
    """The way into ``loop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._woken = False

    def call(self, what: Callable[[], object]) -> None:
        """From any thread. Where the loop is closed nothing is called."""
        self._calls.append(what)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._arrive)

    def _arrive(self) -> None:
        self._woken = False  # before the calls are taken: who comes later wakes it again
        while self._calls:
            self._calls.popleft()()

    async def result(self, of: Future[T]) -> T:
        """What another thread's future brings; in the loop. To be cancelled does not cancel it."""
        waiter: asyncio.Future[None] = self._loop.create_future()

        def told() -> None:
            if not waiter.done():
                waiter.set_result(None)

        of.add_done_callback(lambda _: self.call(told))
        await waiter
        return of.result()
