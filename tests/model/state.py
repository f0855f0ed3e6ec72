"""What the model remembers: plain tuples, so that two equal states are one.

Times are whole ticks counted from *now*: what remains, or how long ago. Every rule compares
differences, so states that differ only in what the clock says are the same state, and time may go
on without end. A difference that can decide nothing any more stands still at its bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = [
    "DEFAULT",
    "NOBODY",
    "Beat",
    "Call",
    "Entity",
    "Ghost",
    "Lease",
    "Look",
    "Mode",
    "Phase",
    "Request",
    "Row",
    "SettledBy",
    "Store",
    "Terms",
    "Truth",
    "Watched",
    "Worker",
    "World",
]

NOBODY = -1
"""In place of the number of an attempt or a worker, or of an age, where there is none."""

Mode = Literal["hold", "resend", "probe"]
SettledBy = Literal["answer", "late", "resolved", "probe", "report"]


@dataclass(frozen=True, slots=True)
class Terms:
    """What the policy and the lease class say, in ticks; and when the attempt itself stops.

    ``first_byte``, ``last``: counted from before the admit left, as the attempt counts;
    ``deadline`` from the admit, as the database does. ``settle_delay``: how long the upstream may
    still act on what was given up. ``interval``: between two answers that say "absent". ``busy``:
    nobody else asks. ``lag``: an effect may be missing from the answers to queries for so long.
    ``look``: a query whose answer is not recorded by then is not explored. ``within``, ``memory``:
    how long a command may be sent again, and how long the upstream knows its key. ``takeovers``:
    attempts of a command that were taken over, at most; where the model is explored, of those that
    may still be heard of.
    """

    first_byte: int = 1
    last: int = 1
    deadline: int = 2
    settle_delay: int = 1
    interval: int = 2
    busy: int = 1
    lag: int = 2
    look: int = 2
    within: int = 3
    memory: int = 3
    takeovers: int = 16
    lease: int = 2


DEFAULT = Terms()


class Row(NamedTuple):
    """One command. ``deadline``: ticks to it, negative behind it. ``age``: since its key was first
    sent, at most ``within``. ``held``: that it is unknown was recorded by its attempt."""

    attempt: int
    earlier: tuple[int, ...] = ()
    deadline: int = 0
    age: int = 0
    held: bool = False
    by: SettledBy | None = None


class Entity(NamedTuple):
    """``held``: ``None`` while fences are issued outside, 0 is nobody's. ``open_key``: the command
    that has the slot, and its attempt."""

    mark: int = 0
    held: int | None = None
    open_key: int = NOBODY
    open_attempt: int = NOBODY


class Lease(NamedTuple):
    """``left``: ticks until it is over; 0: over, and its end not yet recorded."""

    fence: int
    left: int


class Watched(NamedTuple):
    """``busy``: ticks in which nobody else asks. ``absent``: how long ago the first "not executed"
    that counts was recorded."""

    attempt: int
    busy: int = 0
    absent: int = NOBODY


class Store(NamedTuple):
    """The database: entities and leases by entity, rows and watched by key; and how long ago the
    key was first sent that was given back though the upstream had heard of it, until its command is
    settled."""

    entities: tuple[Entity, ...]
    rows: tuple[Row | None, ...]
    watched: tuple[Watched | None, ...]
    leases: tuple[Lease | None, ...]
    given_back: tuple[int, ...]


Phase = Literal[
    "admit",  # the admit is about to leave, or its answer was lost
    "take",  # so is the take-over
    "admitted",  # nothing was sent yet
    "head",  # a first piece was sent
    "sent",  # all was
    "settle",
    "release",
    "hold",
    "hold-read",  # held, while the socket is read on
    "late",  # the socket is read on
    "abandon",  # given up, while an admit of it may still commit
    "abandon-take",
]


class Call(NamedTuple):
    """What one gateway is doing. ``age``: ticks since before its admit left, at most ``last``.
    ``doubt``: an answer of the admit, or of the take-over, was lost. ``resent``: it took over.
    ``heard``: where that counts, the upstream has refused it, and so may know its key."""

    phase: Phase
    key: int
    fence: int
    attempt: int
    age: int = 0
    doubt: bool = False
    resent: bool = False
    judged: int = NOBODY
    heard: bool = False


class Request(NamedTuple):
    """What arrived at the upstream. ``done``: it had its effect. ``left``: ticks in which it may
    still act; ``NOBODY`` while somebody reads, before the attempt's end. ``epoch``: requests of one
    epoch are one to an upstream that deduplicates."""

    attempt: int
    key: int
    done: bool = False
    left: int = NOBODY
    epoch: int = 0


class Ghost(NamedTuple):
    """A statement whose answer was lost and that may still take effect, for one tick."""

    kind: Literal["admit", "take", "settle", "release", "hold"]
    key: int
    fence: int
    attempt: int
    judged: int = NOBODY
    heard: bool = False


class Look(NamedTuple):
    """A status query that was answered, and is not recorded yet. ``age``: since it was asked."""

    key: int
    attempt: int
    verdict: Literal["applied", "absent", "nothing"]
    age: int = 0


class Beat(NamedTuple):
    """A heartbeat on its way. ``remaining``: what the store said, once it did."""

    age: int = 0
    remaining: int = NOBODY


class Worker(NamedTuple):
    """``fence`` 0: it had none yet. ``trust``: ticks for which it believes in its lease."""

    fence: int = 0
    trust: int = 0
    beat: Beat | None = None


class Truth(NamedTuple):
    """What really happened, which nobody in the model may look at but the upstream and the
    properties. By key: ``effects``, at most 2; ``shown``: ticks since the first, at most ``lag``;
    ``epoch`` and ``memory``: the upstream's memory of the key, ``NOBODY`` while it has none;
    ``acted``: whether this epoch had its effect. By entity: the highest fence that was presented or
    issued, and the highest that arrived."""

    effects: tuple[int, ...]
    shown: tuple[int, ...]
    epoch: tuple[int, ...]
    memory: tuple[int, ...]
    acted: tuple[bool, ...]
    highest: tuple[int, ...]
    arrived: tuple[int, ...]


class World(NamedTuple):
    """Everything. ``calls``: one of each gateway, in no order; ``None``: idle."""

    store: Store
    calls: tuple[Call | None, ...]
    requests: tuple[Request, ...]
    ghost: Ghost | None
    looks: tuple[Look, ...]
    workers: tuple[Worker, ...]
    truth: Truth
