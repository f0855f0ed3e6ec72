"""Where handlers run: async ones as tasks of one loop in a thread of its own, others in a thread
each. The worker's own loop, which claims, ends and hears signals, runs none of their code."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Protocol

from gateway.worker.clock import now_mono_s
from gateway.worker.endings import Outcome, Raised, Returned
from gateway.worker.job import Job

__all__ = ["Execution", "HandlerLoop", "in_thread"]


class Execution(Protocol):
    """One handler at work. ``done``: what it did, once it is really out. ``alive``: it is out, or
    what runs it is still there."""

    @property
    def done(self) -> Future[Outcome]: ...
    def cancel(self) -> None: ...
    def alive(self) -> bool: ...


class HandlerLoop:
    """The event loop of the async handlers. Its thread ends with the process: a handler that blocks
    it for good must not keep the process."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="handlers", daemon=True)
        self._asked_mono_s: float | None = None

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def lag_s(self) -> float:
        """For how long it has not come round, as far as it was asked: 0 where it answers."""
        asked = self._asked_mono_s
        if asked is not None:
            return now_mono_s() - asked
        self._asked_mono_s = now_mono_s()
        self.loop.call_soon_threadsafe(self._answer)
        return 0.0

    def _answer(self) -> None:
        self._asked_mono_s = None

    def begin(self, handler: Callable[[Job], Awaitable[object]], job: Job) -> Execution:
        """Start it. From any thread but its own."""
        execution = _Task(self)
        self.loop.call_soon_threadsafe(execution.start, handler, job)
        return execution

    async def shut(self, last: Callable[[], Awaitable[None]], within_s: float) -> None:
        """Run ``last`` in it and stop it, unless it is blocked."""

        async def closing() -> None:
            await last()

        if not self.alive():
            return
        closed = asyncio.run_coroutine_threadsafe(closing(), self.loop)
        done, _ = await asyncio.wait({asyncio.wrap_future(closed)}, timeout=within_s)
        if done:
            self.loop.call_soon_threadsafe(self.loop.stop)
            await asyncio.to_thread(self._thread.join, within_s)


class _Task:
    def __init__(self, loop: HandlerLoop) -> None:
        self.done: Future[Outcome] = Future()
        self._loop = loop
        self._task: asyncio.Task[None] | None = None

    def start(self, handler: Callable[[Job], Awaitable[object]], job: Job) -> None:
        self._task = self._loop.loop.create_task(self._execute(handler, job), name=f"job {job.id}")
        self._task.add_done_callback(self._ended)

    async def _execute(self, handler: Callable[[Job], Awaitable[object]], job: Job) -> None:
        try:
            value = await handler(job)
        except BaseException as error:  # noqa: BLE001 - told as a value; sys.exit() ends a job, no more
            self.done.set_result(Raised(error))
        else:
            self.done.set_result(Returned(value))

    def _ended(self, _: asyncio.Task[None]) -> None:
        if not self.done.done():  # cancelled before its first step
            self.done.set_result(Raised(asyncio.CancelledError()))

    def cancel(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the task with it
            self._loop.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def alive(self) -> bool:
        return self.done.done() or self._loop.alive()


class _Thread:
    def __init__(self, handler: Callable[[Job], object], job: Job) -> None:
        self.done: Future[Outcome] = Future()
        self._handler = handler
        self._job = job
        self._thread = threading.Thread(target=self._execute, name=f"job {job.id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _execute(self) -> None:
        try:
            value = self._handler(self._job)
        except BaseException as error:  # noqa: BLE001 - told as a value; sys.exit() ends a job, no more
            self.done.set_result(Raised(error))
        else:
            self.done.set_result(Returned(value))

    def cancel(self) -> None:
        """A thread cannot be cancelled: ``job.http`` and ``job.check`` tell it."""

    def alive(self) -> bool:
        return self.done.done() or self._thread.is_alive()


def in_thread(handler: Callable[[Job], object], job: Job) -> Execution:
    """Start it in a thread of its own. The worker's slots bound how many there are."""
    execution = _Thread(handler, job)
    execution.start()
    return execution
