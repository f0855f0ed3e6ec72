"""Natural batching: what is asked while a batch is on its way goes together in the next.

No timer gathers anything. Whoever finds the lane idle is sent at once, alone, by its own task;
where the last batch held several, with those who come in the same turn of the event loop. A commit
costs the database about the same for one command as for a hundred, so the busier it is, the less
each costs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Generic, TypeVar

from gateway.core.command import Command, Settle
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.limits import BATCH_BYTES, BATCH_S, BATCHES
from gateway.proxy.background import Background
from gateway.store.database import LOCKED

__all__ = ["Batcher", "about_admit", "about_settle", "weight_of_settle"]

T = TypeVar("T")
R = TypeVar("R")

_TURN_S = 2.0
"""Longest wait for a place to be asked alone, as for a connection of the pool."""

_OF_ONE = ("22", "23", "40", "54", "P0", "XX")
"""Classes of SQLSTATE that one command of a batch can cause for all: data, constraint, deadlock,
size, a raised error, a damaged row. Others (no server, no room, not
writable, no such function, out of time) concern whoever asks."""


@dataclass(eq=False, slots=True)
class _Member(Generic[T, R]):
    item: T
    answer: asyncio.Future[R]


class Batcher(Generic[T, R]):
    """``send``: carries a batch out, with one answer for each item in their order, or raises for
    all of them; ``None`` for an item that has to wait for somebody, which others need not.
    ``alone``: carries one out, however long it has to wait. ``about``: names of which no two items
    of a batch may share any; who shares one with an earlier item comes behind it. ``weight``: bytes
    of an item. ``limit``: items of a batch; 1 batches nothing. ``beside``: items that are asked
    alone at the same time at most."""

    def __init__(
        self,
        send: Callable[[Sequence[T]], Awaitable[Sequence[R | None]]],
        alone: Callable[[T], Awaitable[R]],
        about: Callable[[T], Collection[Hashable]],
        *,
        limit: int,
        beside: int,
        weight: Callable[[T], int] = lambda _: 0,
    ) -> None:
        self._send = send
        self._alone = alone
        self._about = about
        self._limit = limit
        self._weight = weight
        self._beside = asyncio.Semaphore(beside)
        self._waiting: deque[_Member[T, R]] = deque()
        self._holder: object | None = None  # the batch, or turn of the loop, that others wait for
        self._last = 1  # how many the last batch held
        self._on_their_way = 0
        self._tasks = Background()

    def ask(self, item: T) -> Awaitable[R]:
        """The answer to ``item``, sent with others where others are on their way.

        To be awaited at once. Raises what ``send`` does; where that can be another item's fault,
        ``item`` was asked again alone before. Who is cancelled before its batch has left was never
        sent.
        """
        if self._limit == 1 or self._weight(item) > BATCH_BYTES:
            return self.alone(item)
        idle = self._idle
        if idle and self._last == 1:
            return self._lead(item)
        return self._stand(item, idle=idle)

    def begin(self, item: T) -> asyncio.Future[R]:
        """As ``ask``, for who has no task to spare: mostly a place in the next batch is all that it
        takes. What was begun goes on whether anybody waits for it or not."""
        idle = self._idle
        if self._limit == 1 or self._weight(item) > BATCH_BYTES or (idle and self._last == 1):
            return self._tasks.spawn(self._asked(item))
        return self._stand(item, idle=idle)

    async def _asked(self, item: T) -> R:
        return await self.ask(item)

    @property
    def _idle(self) -> bool:
        return self._holder is None and not self._waiting and self._on_their_way < BATCHES

    def _stand(self, item: T, *, idle: bool) -> asyncio.Future[R]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[R] = loop.create_future()
        self._waiting.append(_Member(item, answer))
        if idle:
            # Callers were answered together, so they come together: the first must not leave alone.
            self._holder = loop.call_soon(self._pass_on)
        return answer

    async def alone(self, item: T) -> R:
        """The answer to ``item``, beside the lane: a repeat, so that what made its first try fail
        is never shared, and so that nobody waits for it."""
        try:
            async with asyncio.timeout(_TURN_S):
                await self._beside.acquire()
        except TimeoutError:
            raise StoreUnavailable("too many others ask the database one by one") from None
        try:
            return await self._alone(item)
        finally:
            self._beside.release()

    async def _lead(self, item: T) -> R:
        overdue = self._leave(1)
        try:
            (answer,) = await self._send([item])
        except StoreUnavailable as error:
            if error.code != LOCKED:
                raise
            answer = None
        finally:
            self._arrived(overdue)
        return await self.alone(item) if answer is None else answer

    async def stop(self) -> None:
        """Cut what is on its way."""
        await self._tasks.cancel()

    def _leave(self, count: int) -> asyncio.TimerHandle:
        self._on_their_way += 1
        self._last = count
        self._holder = overdue = asyncio.get_running_loop().call_later(BATCH_S, self._pass_on)
        return overdue

    def _arrived(self, overdue: asyncio.TimerHandle) -> None:
        self._on_their_way -= 1
        overdue.cancel()
        if self._holder is overdue:
            self._holder = None
        self._go_on()

    def _pass_on(self) -> None:
        self._holder = None
        self._go_on()

    def _go_on(self) -> None:
        if self._holder is None and self._waiting and self._on_their_way < BATCHES:
            batch = self._form()
            if batch:
                self._tasks.spawn(self._carry(batch, self._leave(len(batch))))

    def _form(self) -> list[_Member[T, R]]:
        """The next batch: in the order of their coming, what fits together."""
        batch: list[_Member[T, R]] = []
        kept: list[_Member[T, R]] = []
        names: set[Hashable] = set()
        left = BATCH_BYTES
        while self._waiting and len(batch) < self._limit:
            member = self._waiting.popleft()
            if member.answer.done():  # it left
                continue
            own, size = self._about(member.item), self._weight(member.item)
            if names.isdisjoint(own) and size <= left:
                batch.append(member)
                left -= size
            else:
                kept.append(member)
            names.update(own)  # of those that are kept too: whoever comes behind them stays behind
        self._waiting.extendleft(reversed(kept))
        return batch

    async def _carry(self, batch: list[_Member[T, R]], overdue: asyncio.TimerHandle) -> None:
        try:
            error = await self._ask_for(batch)
            if error is None:
                return
            if len(batch) == 1 or not (_is_cut_off(error) or _may_be_of_one(error)):
                self._tell(batch, error)
                return
            overdue.cancel()
            if self._holder is overdue:
                self._pass_on()  # nobody else waits while these are asked one by one
            for member in batch:
                if not member.answer.done() and (own := await self._ask_for([member])) is not None:
                    self._tell([member], own)
        except asyncio.CancelledError:
            for member in batch:
                member.answer.cancel()
            raise
        finally:
            self._arrived(overdue)

    async def _ask_for(self, batch: list[_Member[T, R]]) -> Exception | None:
        """Answer them, or say why not."""
        try:
            answers = await self._send([member.item for member in batch])
        except Exception as error:  # noqa: BLE001 - whoever asked hears of it
            return error
        for member, answer in zip(batch, answers, strict=True):
            if answer is None:
                self._tasks.spawn(self._apart(member))
            elif not member.answer.done():
                member.answer.set_result(answer)
        return None

    def _tell(self, batch: list[_Member[T, R]], error: Exception) -> None:
        for member in batch:
            if _is_cut_off(error):
                self._tasks.spawn(self._apart(member))
            elif not member.answer.done():
                # Each its own, for a traceback grows where it is raised.
                member.answer.set_exception(copy(error))

    async def _apart(self, member: _Member[T, R]) -> None:
        try:
            answer = await self.alone(member.item)
        except asyncio.CancelledError:
            member.answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - whoever asked hears of it
            if not member.answer.done():
                member.answer.set_exception(error)
        else:
            if not member.answer.done():
                member.answer.set_result(answer)


def _is_cut_off(error: Exception) -> bool:
    return isinstance(error, StoreUnavailable) and error.code == LOCKED


def _may_be_of_one(error: Exception) -> bool:
    if isinstance(error, StoreUnavailable):
        return (error.code or "").startswith(_OF_ONE)
    # A lost answer each repeats by itself. Anything else is a mistake in what carries them out,
    # which the values of one may have led to.
    return not isinstance(error, AnswerLost)


def about_admit(command: Command) -> tuple[Hashable, ...]:
    """What no two commands of a batch may share: the key, and the entity where it is locked."""
    key = (command.tenant, command.key_digest)
    return (key, (command.tenant, command.entity)) if command.has_entity_row else (key,)


def about_settle(settle: Settle) -> tuple[Hashable, ...]:
    """As ``about_admit``."""
    return ((settle.command.tenant, settle.command.key_digest),)


def weight_of_settle(settle: Settle) -> int:
    """Bytes of the body that is recorded."""
    return len(settle.response.body) if settle.keep_body else 0
