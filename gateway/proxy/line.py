"""The line before the database: who may admit now.

Commands of one entity are admitted one after the other anyway, by its row lock. Without a line
a thousand of them would hold every connection while they wait for that lock, and nobody else would
get one. So one of each entity (or of each key, where the entity is not locked) asks at a time,
tenants get turns one after the other, and the rest wait here, which costs no connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass

from gateway.core.command import Command
from gateway.proxy.shares import Flight, Several, Share, alone
from gateway.proxy.waiting import Entity, Full, Key, Topic

__all__ = ["Late", "Line"]


class Late(Exception):
    """No turn came in time."""


@dataclass(eq=False, slots=True)
class _Waiter:
    about: Topic
    turn: asyncio.Future[bool]  # false: there is none, the process is stopping


class Line:
    """``at_once`` may ask together. ``limit`` and ``limit_per_topic``: who waits at most. The
    places are shared between tenants; ``several``: whether there are any."""

    def __init__(
        self, at_once: int, *, limit: int, limit_per_topic: int, several: Several = alone
    ) -> None:
        self._free = at_once
        self._places = Share(limit, several)
        self._limit_per_topic = limit_per_topic
        self._waiting: Counter[Topic] = Counter()
        self._behind: dict[Topic, deque[_Waiter]] = {}  # whoever asks, or is next: who follows
        self._next: OrderedDict[int, deque[_Waiter]] = OrderedDict()  # by tenant

    @property
    def count(self) -> int:
        """How many wait."""
        return self._places.used

    def at_once(self, command: Command) -> Topic | None:
        """A turn, where nobody is before; who got one leaves it."""
        about = _about(command)
        if not self._free or about in self._behind or self._next:
            return None
        self._free -= 1
        self._behind[about] = deque()
        return about

    async def wait(self, command: Command, flight: Flight, until: float) -> Topic:
        """A turn behind the others. While it waits, the call is not in flight. ``until``: on the
        loop's clock. Raises ``Late``, and ``Full``."""
        about = _about(command)
        flight.rest()
        try:
            await self._wait(about, until)
        finally:
            flight.go_on()
        return about

    def leave(self, about: Topic) -> None:
        """Whoever had a turn has asked."""
        self._free += 1
        self._follow(about)

    async def _wait(self, about: Topic, until: float) -> None:
        if not self._places.fits(about.tenant):
            raise Full(f"{self._places.taken(about.tenant)} callers wait to be admitted already")
        if self._waiting[about] >= self._limit_per_topic:
            raise Full(f"{self._limit_per_topic} callers wait to be admitted for it already")
        waiter = _Waiter(about, asyncio.get_running_loop().create_future())
        if about in self._behind:
            self._behind[about].append(waiter)
        else:
            self._behind[about] = deque()
            self._stand(waiter)
        self._waiting[about] += 1
        self._places.charge(about.tenant)
        self._give()
        try:
            async with asyncio.timeout_at(until):
                has_turn = await waiter.turn
        except BaseException as error:
            if waiter.turn.done() and not waiter.turn.cancelled() and waiter.turn.result():
                self._free += 1  # its turn and its end came together
                self._follow(about)
            else:
                waiter.turn.cancel()
                self._give()  # it may have been the next
            if isinstance(error, TimeoutError):
                raise Late("too many callers wait to be admitted for it") from None
            raise
        finally:
            self._places.give_back(about.tenant)
            self._waiting[about] -= 1
            if not self._waiting[about]:
                del self._waiting[about]
        if not has_turn:
            raise Late("this gateway process is stopping, and another or the next takes it")

    def close(self) -> None:
        """Nobody who waits gets a turn any more: the process is stopping."""
        for line in [*self._next.values(), *self._behind.values()]:
            for waiter in line:
                if not waiter.turn.done():
                    waiter.turn.set_result(False)

    def _stand(self, waiter: _Waiter) -> None:
        self._next.setdefault(waiter.about.tenant, deque()).append(waiter)

    def _follow(self, about: Topic) -> None:
        """Whoever asked about it is done."""
        self._advance(about)
        self._give()

    def _advance(self, about: Topic) -> None:
        """The next that waits for it, and did not leave, stands in line."""
        behind = self._behind[about]
        while behind:
            waiter = behind.popleft()
            if not waiter.turn.done():
                self._stand(waiter)
                return
        del self._behind[about]

    def _give(self) -> None:
        while self._free and self._next:
            tenant, line = self._next.popitem(last=False)
            waiter = line.popleft()
            if line:
                self._next[tenant] = line  # behind the other tenants
            if waiter.turn.done():  # it left
                self._advance(waiter.about)
            else:
                self._free -= 1
                waiter.turn.set_result(True)


def _about(command: Command) -> Topic:
    if command.serial or command.fence is not None:
        return Entity(command.tenant, command.entity)
    return Key(command.tenant, command.key_digest)
