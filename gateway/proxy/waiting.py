"""Callers that wait for a key or an entity to come free.

A waiter is only ever *woken*; it then admits again, and the database decides. So a lost or a
spurious wake-up costs time, never correctness. Waking is in process where the change was made
here; for changes made by other processes one plain read every ``POLL_S`` asks for everything that
is waited for. Waiting holds no database connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.command import Command
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.observe import log
from gateway.proxy.shares import Several, Share, alone

__all__ = ["POLL_S", "Entity", "Full", "Key", "Ticket", "Topic", "WaitRoom"]

POLL_S = 0.1
"""Between two reads for changes made elsewhere: adds half of it to a wait on average, and one
cheap statement per process."""


# Tuples, whose hash costs no call: each command is looked up by them several times.
class Key(NamedTuple):
    """A waited-for key; a change of it wakes all who wait: each gets the recorded answer."""

    tenant: int
    digest: bytes


class Entity(NamedTuple):
    """A waited-for entity; a change of it wakes one: only one can take the slot."""

    tenant: int
    name: str


Topic = Key | Entity
Ready = Callable[
    [Sequence[tuple[int, bytes]], Sequence[tuple[int, str]]],
    Awaitable[tuple[list[int], list[int]]],
]


class Full(Exception):
    """No more waiters are taken; ``args[0]`` says which limit was reached."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One waiter's place."""

    topic: Topic
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class WaitRoom:
    """Who waits for what in this process. ``ready`` is the store's plain read. The places are
    shared between tenants; ``several``: whether there are any."""

    def __init__(
        self, ready: Ready, *, limit: int, limit_per_topic: int, several: Several = alone
    ) -> None:
        self._ready = ready
        self._places = Share(limit, several)
        self._limit_per_topic = limit_per_topic
        self._queues: dict[Topic, deque[Ticket]] = {}
        self._closing = asyncio.Event()
        self._occupied = asyncio.Event()

    @property
    def count(self) -> int:
        """How many wait."""
        return self._places.used

    @contextmanager
    def place(self, topic: Topic, *, front: bool = False) -> Iterator[Ticket]:
        """Take a place until the block ends. Raises ``Full``.

        ``front``: for one who was woken already and found the slot taken again. Whoever was woken
        for an entity and does not take its slot wakes the next, or the queue would stand still.
        """
        queue = self._queues.get(topic)
        places = self._places
        # One who is back had a place until now.
        if not (places.used < places.capacity if front else places.fits(topic.tenant)):
            raise Full(f"{places.taken(topic.tenant)} callers are waiting already")
        if queue is not None and len(queue) >= self._limit_per_topic:
            raise Full(f"{self._limit_per_topic} callers are waiting for the same one already")
        if queue is None:
            queue = self._queues[topic] = deque()
        ticket = Ticket(topic)
        queue.appendleft(ticket) if front else queue.append(ticket)
        places.charge(topic.tenant)
        self._occupied.set()
        if self._closing.is_set():
            ticket.woken.set()
        try:
            yield ticket
        finally:
            self._leave(ticket)

    def _leave(self, ticket: Ticket) -> None:
        self._places.give_back(ticket.topic.tenant)
        if not self.count:
            self._occupied.clear()
        queue = self._queues.get(ticket.topic)
        if queue is not None:
            with suppress(ValueError):
                queue.remove(ticket)
            if not queue:
                del self._queues[ticket.topic]

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    def changed(self, command: Command) -> None:
        """Wake whom a change of ``command`` concerns."""
        if self._queues:
            self.wake(Key(command.tenant, command.key_digest))
            self.wake(Entity(command.tenant, command.entity))

    def wake(self, topic: Topic) -> None:
        """A change of ``topic``: wake all who wait for a key, the first who waits for an entity."""
        queue = self._queues.get(topic)
        if not queue:
            return
        if isinstance(topic, Key):
            for ticket in queue:
                ticket.woken.set()
        else:
            queue[0].woken.set()

    def close(self) -> None:
        """Wake everybody, now and from now on: the process is stopping."""
        self._closing.set()
        for queue in self._queues.values():
            for ticket in queue:
                ticket.woken.set()

    async def poll(self) -> None:
        """Ask the database for changes made elsewhere, for ever; run it as a task."""
        while True:
            await self._occupied.wait()
            await asyncio.sleep(POLL_S)
            topics = list(self._queues)
            keys = [topic for topic in topics if isinstance(topic, Key)]
            entities = [topic for topic in topics if isinstance(topic, Entity)]
            try:
                ready_keys, ready_entities = await self._ready(
                    [(key.tenant, key.digest) for key in keys],
                    [(entity.tenant, entity.name) for entity in entities],
                )
            except (StoreUnavailable, AnswerLost):
                continue  # the waiters' own time runs on; they answer when it is over
            except Exception as error:  # noqa: BLE001 - the outermost loop: it must go on
                log.event("poll_failed", level="error", error=f"{type(error).__name__}: {error}")
                continue
            for index in ready_keys:
                self.wake(keys[index])
            for index in ready_entities:
                self.wake(entities[index])
