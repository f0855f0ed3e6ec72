"""Turns, fair between tenants: at the database for one kind of question, and at the event loop for
bodies that take long to read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

from gateway.limits import SLICE_S

__all__ = ["SMALL", "Lane", "Reading", "Slices"]

T = TypeVar("T")

SMALL = 16 * 1024
"""Bytes of a body that is read as it comes: the heartbeat of 100 leases, in 1 ms. The worst that
can be written into so many takes 8 ms on an idle machine, about a slice of the loop's turn."""


@dataclass(eq=False, slots=True)
class _Waiter:
    """Somebody who waits for a turn, or has one. ``own``: what the question is about."""

    own: frozenset[Hashable]
    turn: asyncio.Future[None]


@dataclass(eq=False, slots=True)
class _Line:
    """Those of one tenant. ``last``: the number of the turn that it was given last."""

    last: int
    waiting: dict[_Waiter, None] = field(default_factory=dict)  # in order
    busy: set[Hashable] = field(default_factory=set)
    running: int = 0


class Lane:
    """Turns for one kind of question, so that no kind takes every connection, and none waits for
    another.

    A turn goes to the tenant whose last one is longest ago, so whoever floods this one keeps
    another tenant waiting for one turn. Of that tenant's questions it goes to the first that is
    about nothing which one with a turn is about already: it would wait for the same lock in the
    database, and take the turn from others. ``wait_s``: longest wait for a turn.
    """

    def __init__(self, at_once: int, wait_s: float) -> None:
        self.wait_s = wait_s
        self._free = at_once
        self._given = 0
        self._lines: dict[Hashable, _Line] = {}

    async def run(
        self,
        work: Callable[[], Awaitable[T]],
        tenant: Hashable,
        own: frozenset[Hashable] = frozenset(),
        until: float | None = None,
    ) -> T | None:
        """What comes of ``work``, or ``None`` where no turn came in time: ``until`` on the loop's
        clock, else ``wait_s`` from now. ``own``: what the question is about, within the tenant."""
        waiter = await self.take(tenant, own, until)
        if waiter is None:
            return None
        try:
            return await work()
        finally:
            self.give_back(tenant, waiter)

    async def take(
        self, tenant: Hashable, own: frozenset[Hashable], until: float | None = None
    ) -> _Waiter | None:
        """A turn, to be given back; ``None`` where none came in time."""
        loop = asyncio.get_running_loop()
        # A tenant that comes anew stands before the one that has just had its turn, but not before
        # those who had theirs earlier: else many who come and go would keep somebody out for good.
        line = self._lines.setdefault(tenant, _Line(self._given - 1))
        waiter = _Waiter(own, loop.create_future())
        line.waiting[waiter] = None
        self._give()
        try:
            async with asyncio.timeout_at(loop.time() + self.wait_s if until is None else until):
                await waiter.turn
        except BaseException as error:
            if waiter in line.waiting:
                del line.waiting[waiter]
                self._forget(tenant)
            else:  # its turn and its end came together
                self.give_back(tenant, waiter)
            if isinstance(error, TimeoutError):
                return None
            raise
        return waiter

    def give_back(self, tenant: Hashable, waiter: _Waiter) -> None:
        """The end of a turn that was taken."""
        line = self._lines[tenant]
        line.running -= 1
        line.busy -= waiter.own
        self._free += 1
        self._give()
        self._forget(tenant)

    def _give(self) -> None:
        while self._free and (found := self._next()) is not None:
            line, waiter = found
            del line.waiting[waiter]
            line.running += 1
            line.busy |= waiter.own
            self._free -= 1
            self._given += 1
            line.last = self._given
            waiter.turn.set_result(None)

    def _next(self) -> tuple[_Line, _Waiter] | None:
        for line in sorted(self._lines.values(), key=lambda line: line.last):
            for waiter in line.waiting:
                # One whose future is done has been cancelled, and is about to leave.
                if not waiter.turn.done() and line.busy.isdisjoint(waiter.own):
                    return line, waiter
        return None

    def _forget(self, tenant: Hashable) -> None:
        line = self._lines.get(tenant)
        if line is not None and not line.waiting and not line.running:
            del self._lines[tenant]


Aside = Callable[[Callable[[], T]], Awaitable[T]]
"""Runs something beside the event loop."""


class Slices:
    """How long small bodies may keep the event loop in one of its turns: once ``SLICE_S`` of it are
    gone, the rest wait for the next, and whatever else is ready comes between. Tenants that wait
    are let in one after the other: whoever floods keeps another waiting for one of its bodies."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._spent = 0.0
        self._ticking = False
        self._line: dict[
            Hashable, deque[asyncio.Future[None]]
        ] = {}  # by tenant, the next one first

    async def run(self, read: Callable[[], T], tenant: Hashable) -> T:
        if not self.free:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._line.setdefault(tenant, deque()).append(waiter)
            self._tick()
            try:
                await waiter
            except BaseException:
                if waiter.done() and not waiter.cancelled():
                    self._let_in()  # its turn and its end came together
                raise
        return self.read(read)

    @property
    def free(self) -> bool:
        """Whether one more may be read at once."""
        return not self._line and self._spent < SLICE_S

    def read(self, read: Callable[[], T]) -> T:
        began = self._clock()
        try:
            return read()
        finally:
            self._spent += self._clock() - began
            self._tick()
            if self._line and self._spent < SLICE_S:
                self._let_in()

    def _tick(self) -> None:
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """A new turn of the loop has begun."""
        self._ticking = False
        self._spent = 0.0
        self._let_in()
        if self._line:
            self._tick()

    def _let_in(self) -> None:
        while self._line:
            tenant, line = next(iter(self._line.items()))
            waiter = line.popleft()
            del self._line[tenant]
            if line:
                self._line[tenant] = line  # behind the others
            if not waiter.done():  # else it was cancelled
                waiter.set_result(None)
                return


class Reading:
    """Reads bodies. One that is not ``SMALL`` waits for a turn, of which there is one, and is read
    ``aside``: in a thread, so that the event loop goes on. Python runs one thread at a time, so the
    two share a core, and what is one call of C (decoding 8 MiB: 20 ms, 64 MiB: 200) still stops the
    loop. Hence the next turn comes when as much time again has gone by, in which the loop has all.
    Small ones are read as they come, a slice of each turn of the loop (see ``Slices``)."""

    def __init__(self, aside: Aside[Any] | None = None) -> None:
        self._lane = Lane(1, 0)
        self._slices = Slices()
        self._aside = aside

    @classmethod
    def in_a_thread(cls) -> Reading:
        """As it ships. One thread, since there is one turn."""
        threads = ThreadPoolExecutor(1, thread_name_prefix="bodies")

        def aside(read: Callable[[], T]) -> Awaitable[T]:
            return asyncio.get_running_loop().run_in_executor(threads, read)

        return cls(aside)

    def free(self, size: int) -> bool:
        """Whether a body of ``size`` bytes may be read at once, by :meth:`read`."""
        return size <= SMALL and self._slices.free

    def read(self, read: Callable[[], T]) -> T:
        """What ``read`` makes of a body, for which this turn of the loop is :meth:`free`."""
        return self._slices.read(read)

    async def run(
        self, size: int, tenant: Hashable, read: Callable[[], T], until: float
    ) -> T | None:
        """What ``read`` makes of a body of ``size`` bytes; ``None`` where no turn came ``until``
        then, on the loop's clock. ``read`` touches nothing that others change."""
        if size <= SMALL:
            return await self._slices.run(read, tenant)
        turn = await self._lane.take(tenant, frozenset(), until)
        if turn is None:
            return None
        loop = asyncio.get_running_loop()
        begun = loop.time()

        def over(_: object = None) -> None:
            loop.call_later(loop.time() - begun, self._lane.give_back, tenant, turn)

        if self._aside is None:
            try:
                return read()
            finally:
                over()
        # A caller that is cancelled leaves the thread at work; the turn is its.
        work = asyncio.ensure_future(self._aside(read))
        work.add_done_callback(over)
        found: T = await asyncio.shield(work)
        return found
