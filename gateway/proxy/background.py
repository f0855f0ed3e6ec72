"""Tasks that outlive the request that started them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["Background", "first_of"]

T = TypeVar("T")


async def first_of(*futures: asyncio.Future[Any], within_s: float | None = None) -> None:
    """Wait until one of them is done, or the time is up; ``asyncio.wait`` takes ten times as long
    to say so."""
    for future in futures:
        if future.done():
            return
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = None if within_s is None else loop.call_later(within_s, wake)
    for future in futures:
        future.add_done_callback(wake)
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()
        for future in futures:
            future.remove_done_callback(wake)


class Background:
    """A set of tasks that a shutdown can wait for.

    asyncio keeps only weak references to tasks, so somebody has to hold them.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` detached from the caller."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self, timeout_s: float) -> int:
        """Wait until every task is done, those spawned meanwhile included; returns how many are
        left after ``timeout_s``."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while self._tasks and (left := until - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left)
        return len(self._tasks)

    async def cancel(self) -> None:
        """Cut what is left: whatever it had not recorded becomes unknown by time."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
