"""A bounded pool of connections to one origin.

A *slot* is the right to hold one connection. It is taken before dialling and given back when the
connection closes; an idle connection keeps its slot. Waiters are served first come, first served;
idle connections last in, first out, so that those not needed age and end.

Reuse saves a handshake and costs certainty: a connection that dies as the request is written leaves
that request unknown. So it happens only within ``idle_s`` and after a look at the socket.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Literal

from gateway.core.model import Fault
from gateway.upstream.connection import Connection

__all__ = ["Pool"]

_Grant = Connection | Literal["slot", "pool"]
"""A released connection, a bare slot, or word that there was none in time."""


class Pool:
    """``dial(timeout_s)`` makes a connection. All methods belong to one event loop."""

    def __init__(
        self,
        dial: Callable[[float], Awaitable[Connection | Fault]],
        *,
        max_connections: int,
        idle_s: float,
        clock: Callable[[], float],
    ) -> None:
        if max_connections < 1:
            raise ValueError("max_connections is at least 1")
        if idle_s < 0:
            raise ValueError("idle_s is 0 (always a fresh connection) or more")
        self._dial = dial
        self._max = max_connections
        self._idle_s = idle_s
        self._clock = clock
        self._slots = 0
        self._idle: list[Connection] = []
        self._waiters: OrderedDict[asyncio.Future[_Grant], None] = OrderedDict()
        self._lingering = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def slots(self) -> int:
        """Slots taken: connections in use, idle or being made."""
        return self._slots

    @property
    def idle(self) -> int:
        """Connections that wait to be used again."""
        return len(self._idle)

    @property
    def lingering(self) -> int:
        """Timed-out connections that are still read; they hold no slot."""
        return self._lingering

    # -- taking

    def take(self) -> Connection | None:
        """An idle connection that is young enough and alive, or ``None``. Does not wait."""
        while self._idle:
            connection = self._idle.pop()
            if self._clock() - connection.idle_since < self._idle_s and connection.alive():
                return connection
            self.drop(connection)
        return None

    async def acquire(self, deadline: float) -> Connection | Fault:
        """A connection with its slot, or why there is none by ``deadline`` (on the clock).

        Raises only on cancellation; then the slot is back."""
        connection = self.take()
        if connection is not None:
            return connection
        if self._slots < self._max:
            self._slots += 1
        else:
            grant = await self._wait(deadline)
            if grant == "pool":
                return "pool"
            if isinstance(grant, Connection):
                if grant.alive():
                    return grant
                grant.close()
        return await self._fresh(deadline)

    async def _fresh(self, deadline: float) -> Connection | Fault:
        """Dial on a slot that is already held."""
        try:
            made = await self._dial(deadline - self._clock())
        except BaseException:
            self._free_slot()
            raise
        if not isinstance(made, Connection):
            self._free_slot()
            return made
        if self._clock() >= deadline:  # a timer does not see a suspend, the clock does
            self.drop(made)
            return "connect-timeout"
        return made

    async def _wait(self, deadline: float) -> _Grant:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[_Grant] = loop.create_future()
        self._waiters[waiter] = None
        delay_s = max(0.0, deadline - self._clock())
        timer = loop.call_later(delay_s, _give_up, waiter)
        try:
            grant = await waiter
        except BaseException:
            # The grant and the cancellation can come in one turn of the loop.
            if waiter.done() and not waiter.cancelled():
                self._return(waiter.result())
            raise
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)
        if grant != "pool" and self._clock() >= deadline:
            self._return(grant)
            return "pool"
        return grant

    # -- giving back

    def put(self, connection: Connection) -> None:
        """Give a connection back after a complete exchange; it is kept if it can be used again."""
        if self._closed or self._idle_s == 0 or not connection.reusable:
            self.drop(connection)
            return
        connection.rest()
        connection.idle_since = self._clock()
        self._hand_on(connection)

    def drop(self, connection: Connection) -> None:
        """Close a connection and give its slot back. What was being written is thrown away."""
        connection.close()
        self._free_slot()

    def linger(self, connection: Connection) -> bool:
        """Give the slot back and leave the connection open, for a response that comes late.

        At most ``max_connections`` linger, so that an upstream which hangs neither blocks the pool
        nor piles up sockets. False: there are too many, and the connection is closed."""
        if self._lingering >= self._max:
            self.drop(connection)
            return False
        self._lingering += 1
        self._free_slot()
        return True

    def end_linger(self, connection: Connection) -> None:
        """Close a lingering connection."""
        self._lingering -= 1
        connection.close()

    def close(self) -> None:
        """Close the idle connections; those in use are closed when they come back."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        while self._idle:
            self.drop(self._idle.pop())

    # -- steps

    def _return(self, grant: _Grant) -> None:
        if isinstance(grant, Connection):
            self._hand_on(grant)
        elif grant == "slot":
            self._free_slot()

    def _hand_on(self, connection: Connection) -> None:
        if self._grant(connection):
            return
        if self._closed:
            self.drop(connection)
            return
        self._idle.append(connection)
        if self._sweeper is None:
            self._schedule_sweep()

    def _free_slot(self) -> None:
        if not self._grant("slot"):
            self._slots -= 1

    def _grant(self, what: Connection | Literal["slot"]) -> bool:
        while self._waiters:
            waiter, _ = self._waiters.popitem(last=False)
            if not waiter.done():
                waiter.set_result(what)
                return True
        return False

    def _schedule_sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(max(self._idle_s, 0.05), self._sweep)

    def _sweep(self) -> None:
        """Close what has been idle too long; the list is in the order of ``idle_since``."""
        self._sweeper = None
        oldest = self._clock() - self._idle_s
        while self._idle and self._idle[0].idle_since <= oldest:
            self.drop(self._idle.pop(0))
        if self._idle:
            self._schedule_sweep()


def _give_up(waiter: asyncio.Future[_Grant]) -> None:
    if not waiter.done():
        waiter.set_result("pool")
