"""What this process was told is committed: the admits, settles and marks that it may have acted on.

A database that lost its last commits lost a tail of them, so the latest are looked up first and say
*whether* something is gone; those of a minute say *what*. Hence all of the latest are kept, and of
what falls out one for each tenth of a second.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar
from uuid import UUID

from gateway.core.command import Command
from gateway.core.value import value

__all__ = ["MAX_AGE_S", "RECENT", "SAMPLED", "Acknowledged", "KeptCommand", "KeptMark", "Ring"]

RECENT = 4096
"""The latest that are all kept, of commands and of marks: a command is some 1.5 KB, so 6 MB."""

SAMPLED = 600
"""Of older ones: a minute's worth, one for each ``EVERY_S``. 1 MB."""

EVERY_S = 0.1

MAX_AGE_S = 3600.0
"""Longer than a standby lags that anybody would promote, shorter than anything is kept for: what is
gone after that may have been forgotten rightly."""

K = TypeVar("K")
V = TypeVar("V")


class Ring(Generic[K, V]):
    """The latest values by key, and a thin line of older ones. Times are seconds of one clock."""

    def __init__(self, recent: int = RECENT, sampled: int = SAMPLED, every_s: float = EVERY_S):
        self._recent: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._sampled: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._limits = (recent, sampled)
        self._every_s = every_s
        self._sampled_at: float | None = None

    def __len__(self) -> int:
        return len(self._recent) + len(self._sampled)

    def get(self, key: K) -> V | None:
        found = self._recent.get(key) or self._sampled.get(key)
        return None if found is None else found[1]

    def put(self, key: K, value: V, now: float) -> None:
        """Keep ``value`` as the latest."""
        recent = self._recent
        if key in recent:
            recent.move_to_end(key)
        elif key in self._sampled:
            del self._sampled[key]
        recent[key] = (now, value)
        if len(recent) > self._limits[0]:
            old, (at, what) = recent.popitem(last=False)
            self._thin_out(old, what, at)

    def drop(self, key: K) -> None:
        self._recent.pop(key, None)
        self._sampled.pop(key, None)

    def latest_first(self, now: float) -> Iterator[V]:
        """What is not older than ``MAX_AGE_S``."""
        for kept in (self._recent, self._sampled):
            for at, what in reversed(kept.values()):
                if now - at > MAX_AGE_S:
                    return
                yield what

    def _thin_out(self, key: K, value: V, at: float) -> None:
        if self._sampled_at is not None and at - self._sampled_at < self._every_s:
            return
        self._sampled_at = at
        self._sampled[key] = (at, value)
        if len(self._sampled) > self._limits[1]:
            self._sampled.popitem(last=False)


@value(frozen=True, slots=True)
class KeptCommand:
    """A command that was admitted here, or taken over from the attempts ``earlier``, the oldest
    first; ``status`` once it was settled."""

    command: Command
    status: int | None
    earlier: tuple[UUID, ...] = ()


@value(frozen=True, slots=True)
class KeptMark:
    """A high-water mark that was answered. ``issued``: it was issued here."""

    tenant: int
    entity: str
    fence: int
    issued: bool


class Acknowledged:
    """The memory of one process. ``now``: seconds, monotonic, counting suspend."""

    def __init__(self) -> None:
        # By the attempts' numbers: a UUID takes a call to be hashed, and one to be compared.
        self._commands: Ring[int, KeptCommand] = Ring()
        self._marks: Ring[tuple[int, str], KeptMark] = Ring()

    def __len__(self) -> int:
        return len(self._commands) + len(self._marks)

    def admitted(self, command: Command, now: float) -> None:
        self._commands.put(command.attempt.int, KeptCommand(command, None), now)

    def taken_over(self, command: Command, earlier: tuple[UUID, ...], now: float) -> None:
        """``command.attempt`` stands in place of the last of ``earlier``, whose row it is no more,
        and knows of those before it: whoever sent them may remember them only as their own."""
        for attempt in earlier:
            self._commands.drop(attempt.int)
        self._commands.put(command.attempt.int, KeptCommand(command, None, earlier), now)

    def settled(self, command: Command, status: int, now: float) -> None:
        known = self._commands.get(command.attempt.int)
        earlier = () if known is None else known.earlier
        self._commands.put(command.attempt.int, KeptCommand(command, status, earlier), now)

    def gone(self, attempt: UUID) -> None:
        """Its row is not this attempt's any more, rightly."""
        self._commands.drop(attempt.int)

    def mark(self, tenant: int, entity: str, fence: int, now: float, *, issued: bool) -> None:
        """A mark was answered; a lower one than is known was answered before it."""
        known = self._marks.get((tenant, entity))
        if known is not None:
            fence, issued = max(fence, known.fence), issued or known.issued
        self._marks.put((tenant, entity), KeptMark(tenant, entity, fence, issued), now)

    def commands(self, now: float) -> list[KeptCommand]:
        """The latest first."""
        return list(self._commands.latest_first(now))

    def marks(self, now: float) -> list[KeptMark]:
        """The latest first."""
        return list(self._marks.latest_first(now))
