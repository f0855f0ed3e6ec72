"""Turns, fair between tenants: at the database for one kind of question, and at the event loop for
bodies that take long to read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar

__all__ = ["SMALL", "Lane", "Reading"]

T = TypeVar("T")

SMALL = 16 * 1024
"""Bytes of a body that is read as it comes: the heartbeat of 100 leases, in 1 ms. The worst that
can be written into so many takes 8 ms, so 200 connections that send it at once stop the loop for
less time than a worker waits for an answer (5 s); with 64 KiB it would be more."""


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


class Reading:
    """Reads bodies. One that is not ``SMALL`` waits for a turn, of which there is one: reading
    stops the event loop (for 160 ms at the worst, by ``canonical.MAX_VALUES``), so the longest stop
    is that of one body. The next turn comes when as much time again has gone by, in which the loop
    does everything else."""

    def __init__(self) -> None:
        self._lane = Lane(1, 0)

    async def run(
        self, size: int, tenant: Hashable, read: Callable[[], T], until: float
    ) -> T | None:
        """What ``read`` makes of a body of ``size`` bytes; ``None`` where no turn came ``until``
        then, on the loop's clock."""
        if size <= SMALL:
            return read()
        turn = await self._lane.take(tenant, frozenset(), until)
        if turn is None:
            return None
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            return read()
        finally:
            loop.call_later(loop.time() - begun, self._lane.give_back, tenant, turn)
