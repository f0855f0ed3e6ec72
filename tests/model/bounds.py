"""What a scenario has in it, and what its steps report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.model.state import DEFAULT, NOBODY, Mode, Terms, World

__all__ = ["Bounds", "Event", "Step"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What there is.

    ``entity_of``: the entity of each key. ``asks``: the (key, fence) of requests that may come at
    any time, as often as anybody likes. With ``workers``, each sends any key under the last fence
    it got, lease or no lease, and somebody else under one that nobody was given; with ``beats``
    they send heartbeats too. ``lost``: answers of the database may be lost, and statements take
    effect late. ``looks``: status queries at once. ``wrong``: an operator may say anything.
    ``remembers_acts``: the upstream counts its memory of a key anew when it acts, else from when it
    first heard of it. ``conflict_to_all``: the upstream may call a key in use to a first request as
    well, while its socket is read on, else only to one that came later.
    """

    name: str
    entity_of: tuple[int, ...] = (0,)
    asks: tuple[tuple[int, int], ...] = ()
    mode: Mode = "hold"
    gateways: int = 2
    workers: int = 0
    beats: bool = False
    lost: bool = True
    looks: int = 0
    wrong: bool = False
    conflict_to_all: bool = False
    remembers_acts: bool = False
    terms: Terms = DEFAULT

    @property
    def entities(self) -> int:
        return max(self.entity_of) + 1


class Event(NamedTuple):
    """What a step did that a property asks about. ``age``: of the attempt."""

    kind: str
    key: int = NOBODY
    attempt: int = NOBODY
    fence: int = NOBODY
    age: int = 0
    resent: bool = False


Step = tuple[str, World, Event | None]
"""In words, what is then, and what a property asks about."""
