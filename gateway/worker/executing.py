"""Where handlers run: async ones as tasks of one loop in a thread of its own, others in a thread
each. The worker's own loop, which claims, ends and hears signals, runs none of their code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Protocol

from gateway.observe.log import event
from gateway.worker.clock import now_mono_s
from gateway.worker.crossing import Crossing
from gateway.worker.endings import Gone, Outcome, Raised, Returned
from gateway.worker.job import Job

__all__ = ["Execution", "HandlerLoop", "in_thread"]

Out = Callable[[], None]
"""Called as the handler is out, before anybody else can know it."""


class Execution(Protocol):
    """One handler at work. ``done``: what it did, once it is really out. ``alive``: it is out, or
    what runs it is still there."""

    @property
    def done(self) -> Future[Outcome]: ...
    def cancel(self) -> None: ...
    def alive(self) -> bool: ...


class HandlerLoop:
    """The event loop of the async handlers. Its thread ends with the process: a handler that blocks
    it for good must not keep the process. What asyncio lets through, ``sys.exit()`` in a task of a
    handler's, and ``loop.stop()``, do not end it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="handlers", daemon=True)
        self._crossing = Crossing(self.loop)
        self._asked_mono_s: float | None = None
        self._running: set[_Task] = set()
        self._closing = False
        self._ended = False

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self._closing:
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt) as error:
                    # The task that raised it has it as its result; what is ready runs next time.
                    event("handlers_interrupted", level="error", error=type(error).__name__)
        except Exception:
            # Not by the thread's own hook, whose lines would fall between those of the log.
            logging.getLogger(__name__).exception("the event loop of the async handlers has ended")
        finally:
            # A task that did not let itself be cancelled ends here, without a word of asyncio's.
            self.loop.set_exception_handler(lambda _loop, _context: None)
            self._ended = True
            for each in list(self._running):
                each.gone("the event loop of the async handlers has ended")
            with contextlib.suppress(Exception):  # where a handler broke it
                self.loop.close()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def lag_s(self) -> float:
        """For how long it has not come round, as far as it was asked: 0 where it answers."""
        asked = self._asked_mono_s
        if asked is not None:
            return now_mono_s() - asked
        self._asked_mono_s = now_mono_s()
        with contextlib.suppress(RuntimeError):  # it has ended: ``alive`` says so
            self.loop.call_soon_threadsafe(self._answer)
        return 0.0

    def _answer(self) -> None:
        self._asked_mono_s = None

    def begin(self, handler: Callable[[Job], Awaitable[object]], job: Job, out: Out) -> Execution:
        """Start it. From any thread but its own. Raises ``RuntimeError`` where the loop is gone."""
        execution = _Task(self, out)
        # Before it is known whether the loop takes it: a loop that ends now looks here afterwards.
        self._running.add(execution)
        execution.done.add_done_callback(lambda _: self._running.discard(execution))
        if self._ended:
            raise RuntimeError("the event loop of the async handlers has ended")
        # Where it ended just now, it has looked, or will.
        self._crossing.call(lambda: execution.start(handler, job))
        return execution

    async def shut(self, last: Callable[[], Awaitable[None]], within_s: float) -> None:
        """Cancel what is left in it, run ``last`` and stop it, unless it is blocked."""

        async def closing() -> None:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for each in left:
                each.cancel()
            if left:
                await asyncio.wait(left, timeout=within_s / 2)
            await last()

        if not self.alive():
            return
        closed = asyncio.run_coroutine_threadsafe(closing(), self.loop)
        done, _ = await asyncio.wait({asyncio.wrap_future(closed)}, timeout=within_s)
        self._closing = True
        if done:
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.loop.stop)
            await asyncio.to_thread(self._thread.join, within_s)


class _Task:
    def __init__(self, loop: HandlerLoop, out: Out) -> None:
        self.done: Future[Outcome] = Future()
        self._loop = loop
        self._out = out
        self._task: asyncio.Task[None] | None = None

    def start(self, handler: Callable[[Job], Awaitable[object]], job: Job) -> None:
        self._task = self._loop.loop.create_task(self._execute(handler, job), name=f"job {job.id}")
        self._task.add_done_callback(self._ended)

    async def _execute(self, handler: Callable[[Job], Awaitable[object]], job: Job) -> None:
        try:
            value = await handler(job)
        except BaseException as error:  # noqa: BLE001 - told as a value; sys.exit() ends a job, no more
            self._settle(Raised(error))
        else:
            self._settle(Returned(value))

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._settle(Raised(asyncio.CancelledError()))  # cancelled before its first step

    def gone(self, why: str) -> None:
        self._settle(Gone(why))

    def _settle(self, outcome: Outcome) -> None:
        if not self.done.done():
            self._out()
            self.done.set_result(outcome)

    def cancel(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the task with it
            self._loop.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def alive(self) -> bool:
        return self.done.done() or self._loop.alive()


class _Thread:
    def __init__(self, handler: Callable[[Job], object], job: Job, out: Out) -> None:
        self.done: Future[Outcome] = Future()
        self._out = out
        self._handler = handler
        self._job = job
        self._thread = threading.Thread(target=self._execute, name=f"job {job.id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _execute(self) -> None:
        try:
            outcome: Outcome = Returned(self._handler(self._job))
        except BaseException as error:  # noqa: BLE001 - told as a value; sys.exit() ends a job, no more
            outcome = Raised(error)
        self._out()
        self.done.set_result(outcome)

    def cancel(self) -> None:
        """A thread cannot be cancelled: ``job.http`` and ``job.check`` tell it."""

    def alive(self) -> bool:
        return self.done.done() or self._thread.is_alive()


def in_thread(handler: Callable[[Job], object], job: Job, out: Out) -> Execution:
    """Start it in a thread of its own. The worker's slots bound how many there are. Raises
    ``RuntimeError`` where no thread can be started."""
    execution = _Thread(handler, job, out)
    execution.start()
    return execution
