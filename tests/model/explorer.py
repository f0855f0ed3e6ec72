"""Breadth first through every state that can be reached, so the first way found to break a
guarantee is a shortest one.

Two states are one if they differ only in the names of attempts, in which gateway or worker is
which, in the numbers of fences that are issued here (of which only the order matters), or in what
nobody can refer to any more. Every rule treats such states alike, so that nothing is missed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.model.bounds import Bounds
from tests.model.properties import broken
from tests.model.state import NOBODY, Call, Request, Row, World
from tests.model.steps import Steps
from tests.model.store import Rules

__all__ = ["Explored", "canonical", "explore"]


@dataclass(frozen=True)
class Explored:
    """``trace``: the steps of a shortest way to break what ``violations`` say; empty where nothing
    breaks it."""

    states: int
    steps: int
    depth: int
    violations: tuple[str, ...] = ()
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        numbers = f"{self.states:,} states, {self.steps:,} steps, depth {self.depth}"
        if not self.violations:
            return numbers
        lines = [f"{at:3}. {text}" for at, text in enumerate(self.trace, 1)]
        return "\n".join([*lines, *(f"  => {each}" for each in self.violations)])


def explore(
    bounds: Bounds,
    steps: type[Steps] = Steps,
    rules: type[Rules] = Rules,
    at_most: int | None = None,
) -> Explored:
    """Every state of this scenario; stops at the first violation, and behind ``at_most`` states
    with an error, since a part proves nothing."""
    makes = steps(bounds, rules)
    first = canonical(makes.first())
    seen: dict[World, World | None] = {first: None}
    met: set[World] = set()
    layer, depth, count = [first], 0, 0
    while layer:
        following: list[World] = []
        for world in layer:
            for _, after, event in makes.of(world):
                count += 1
                found = tuple(broken(world, event, after, bounds))
                if found:
                    way = [*_way(seen, world), canonical(after)]
                    trace = tuple(_told(makes, way, found, bounds))
                    return Explored(len(seen), count, depth + 1, found, trace)
                if after in met:  # it was reached like this before
                    continue
                met.add(after)
                after = canonical(after)
                if after not in seen:
                    seen[after] = world
                    following.append(after)
        if at_most is not None and len(seen) > at_most:
            raise AssertionError(f"{bounds.name}: more than {at_most:,} states at depth {depth}")
        layer = following
        depth += bool(following)
    return Explored(len(seen), count, depth)


def _way(seen: dict[World, World | None], last: World) -> list[World]:
    way: list[World] = []
    at: World | None = last
    while at is not None:
        way.append(at)
        at = seen[at]
    return way[::-1]


def _told(makes: Steps, way: list[World], found: tuple[str, ...], bounds: Bounds) -> Iterator[str]:
    """The same way walked again without renaming, so that names stay what they are."""
    world = makes.first()
    for at, goal in enumerate(way[1:], 1):
        last = at == len(way) - 1
        for text, after, event in makes.of(world):
            if canonical(after) == goal and (
                not last or tuple(broken(world, event, after, bounds)) == found
            ):
                yield text
                world = after
                break
        else:
            raise AssertionError("the way cannot be walked again: a renaming is unsound")


def canonical(world: World) -> World:
    """The one that stands for all that are like it."""
    world = _forgotten(world)
    names = _names(world)
    rename = names.get
    store = world.store
    rows = tuple(
        row
        and row._replace(
            attempt=names[row.attempt],
            earlier=tuple(sorted(rename(each, NOBODY) for each in row.earlier)),
        )
        for row in store.rows
    )
    entities = tuple(
        each._replace(open_attempt=rename(each.open_attempt, NOBODY)) for each in store.entities
    )
    watched = tuple(w and w._replace(attempt=rename(w.attempt, NOBODY)) for w in store.watched)
    calls = sorted(
        (
            call and call._replace(attempt=names[call.attempt], judged=rename(call.judged, NOBODY))
            for call in world.calls
        ),
        key=lambda call: call or (),
    )
    requests = sorted(e._replace(attempt=names[e.attempt]) for e in world.requests)
    ghost = world.ghost
    if ghost is not None:
        ghost = ghost._replace(
            attempt=rename(ghost.attempt, NOBODY), judged=rename(ghost.judged, NOBODY)
        )
    looks = tuple(sorted(e._replace(attempt=names[e.attempt]) for e in world.looks))
    named = World(
        store._replace(rows=rows, entities=entities, watched=watched),
        tuple(calls),
        tuple(requests),
        ghost,
        looks,
        world.workers,
        world.truth,
    )
    return _fences(named) if world.workers else named


_READ = ("head", "sent", "hold-read", "late")
"""In these phases somebody reads what the upstream answers."""


def _forgotten(world: World) -> World:
    """Without what decides nothing any more: attempts of which nothing can be heard, who carries
    one out once it was sent, and readers of what was answered."""
    readers = {call.attempt for call in world.calls if call is not None and call.phase in _READ}
    requests = tuple(each for each in world.requests if each.left > 0 or each.attempt in readers)
    requested = {each.attempt for each in requests}
    calls = tuple(
        None
        if call is None or (call.phase == "late" and call.attempt not in requested)
        else _slim(call)
        for call in world.calls
    )
    live = {call.attempt for call in calls if call is not None}
    live |= {call.judged for call in calls if call is not None}
    live |= requested
    live |= {look.attempt for look in world.looks}
    if world.ghost is not None:
        live |= {world.ghost.attempt, world.ghost.judged}
    rows = tuple(row and _rest(row, live) for row in world.store.rows)
    if any(e.epoch for e in requests) or any(world.truth.epoch):
        requests, world = _epochs(requests, world)
    store = world.store._replace(rows=rows)
    return world._replace(store=store, calls=calls, requests=requests)


def _epochs(requests: tuple[Request, ...], world: World) -> tuple[tuple[Request, ...], World]:
    """0 is the present one of each key; 1 is over."""
    truth = world.truth
    now = tuple(each._replace(epoch=int(each.epoch != truth.epoch[each.key])) for each in requests)
    return now, world._replace(truth=truth._replace(epoch=(0,) * len(truth.epoch)))


@cache
def _slim(call: Call) -> Call:
    match call.phase:
        case "admit" | "take":
            return call
        case "admitted":
            return call._replace(judged=NOBODY)
        case "head" | "sent":
            return call._replace(judged=NOBODY, fence=0)
        case "release":
            return Call("release", call.key, 0, call.attempt, 0, call.doubt, heard=call.heard)
        case _:
            return Call(call.phase, call.key, 0, call.attempt)


def _rest(row: Row, live: set[int]) -> Row:
    if row.by is None and row.attempt not in live:
        row = row._replace(held=True)
    if row.earlier:
        left = tuple(each for each in row.earlier if each in live)
        row = row._replace(earlier=left or (NOBODY,))
    return row


def _names(world: World) -> dict[int, int]:
    """New names, in an order that does not depend on the old ones where that is cheap to find."""
    names = {NOBODY: NOBODY}
    for attempt in _attempts(world, names):
        if attempt not in names:
            names[attempt] = len(names) - 1
    return names


def _attempts(world: World, names: dict[int, int]) -> Iterator[int]:
    """``names``: those that were given so far."""
    rows = [row for row in world.store.rows if row is not None]
    yield from (row.attempt for row in rows)
    calls = [call for call in world.calls if call is not None]
    calls.sort(key=lambda c: (names.get(c.attempt, 99), c._replace(attempt=0, judged=0)))
    for call in calls:
        yield call.attempt
        yield call.judged
    yield from (each.attempt for each in sorted(world.requests, key=lambda e: e[1:]))
    if world.ghost is not None:
        yield world.ghost.attempt
        yield world.ghost.judged
    looks = sorted(world.looks, key=lambda e: (e.key, e.verdict, e.age))
    yield from (each.attempt for each in looks)
    for row in rows:
        yield from row.earlier


def _fences(world: World) -> World:
    """Fences by their order, and workers by their fences. 0 stays 0: it is nobody's."""
    found = {0}
    for entity in world.store.entities:
        found |= {entity.mark, entity.held or 0}
    found |= {lease.fence for lease in world.store.leases if lease is not None}
    found |= {call.fence for call in world.calls if call is not None}
    found |= {worker.fence for worker in world.workers}
    found |= {*world.truth.highest, *world.truth.arrived}
    if world.ghost is not None:
        found.add(world.ghost.fence)
    rank = {fence: at for at, fence in enumerate(sorted(found))}
    store, truth, ghost = world.store, world.truth, world.ghost
    return World(
        store._replace(
            entities=tuple(
                e._replace(mark=rank[e.mark], held=None if e.held is None else rank[e.held])
                for e in store.entities
            ),
            leases=tuple(e and e._replace(fence=rank[e.fence]) for e in store.leases),
        ),
        tuple(c and c._replace(fence=rank[c.fence]) for c in world.calls),
        world.requests,
        ghost and ghost._replace(fence=rank[ghost.fence]),
        world.looks,
        tuple(
            sorted(
                (w._replace(fence=rank[w.fence]) for w in world.workers),
                key=lambda w: (w.fence, w.trust, w.beat or ()),
            )
        ),
        truth._replace(
            highest=tuple(rank[each] for each in truth.highest),
            arrived=tuple(rank[each] for each in truth.arrived),
        ),
    )
