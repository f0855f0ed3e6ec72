"""The guarantees, as predicates over one step: what was, what happened, what is.

``tests.kit.invariants`` says the same of a history that was recorded from outside. Here the whole
truth is at hand, so most of it can be said of a single state.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.bounds import Bounds, Event
from tests.model.state import NOBODY, Row, World

__all__ = ["broken"]


def broken(before: World, event: Event | None, after: World, bounds: Bounds) -> Iterator[str]:
    """A sentence for each guarantee that this step breaks."""
    if event is not None:
        match event.kind:
            case "byte":
                yield from _first_byte(before, event, bounds)
            case "settle":
                yield from _settled(before, event, after)
            case "renew" | "end":
                yield from _lease_used(before, event)
            case _:
                pass
    if before.store.rows != after.store.rows:
        for key in range(len(after.store.rows)):
            yield from _row_changed(before, event, after, key, bounds)
    if not bounds.wrong:
        yield from _truth(after)
    yield from _owners(after)


def _first_byte(before: World, event: Event, bounds: Bounds) -> Iterator[str]:
    row = before.store.rows[event.key]
    if row is None or row.attempt != event.attempt:
        yield "G6: the first byte left, and the store has admitted no such attempt"
    elif row.by is None and row.deadline <= 0:
        yield "G6: the first byte left, and the store calls it unknown"
    elif row.by is not None and not event.resent:
        yield "G6: the first byte left, and the command was settled"
    if event.age >= bounds.terms.first_byte:
        yield "G2: the first byte left after its time"
    if event.fence < before.truth.arrived[bounds.entity_of[event.key]]:
        yield "G2: an older fence arrived at the upstream after a newer one"
    yield from _beside_others(before, event, bounds)


def _beside_others(before: World, event: Event, bounds: Bounds) -> Iterator[str]:
    """The first byte, and what else is at the upstream."""
    active = {each.key for each in before.requests if not each.done and each.left != 0}
    entity = bounds.entity_of[event.key]
    if any(key != event.key and bounds.entity_of[key] == entity for key in active):
        yield "G3: sent while another command of the entity may still act"
    if event.resent or bounds.wrong:
        return
    if event.key in active:
        yield "G1: sent while an earlier request of the key may still act"
    if before.truth.effects[event.key]:
        yield "G1: sent though an earlier request of the key had its effect"


def _settled(before: World, event: Event, after: World) -> Iterator[str]:
    """A response settles the attempt that it answers, or one that took over from it."""
    was, now = before.store.rows[event.key], after.store.rows[event.key]
    if was is None or now is None or was.by is not None or now.by is None:
        return
    if event.attempt not in (was.attempt, *was.earlier):
        yield "G5: the response of one attempt was recorded as that of another"


def _lease_used(before: World, event: Event) -> Iterator[str]:
    lease = before.store.leases[0]
    if lease is None or lease.fence != event.fence or lease.left == 0:
        yield f"G7: a lease was over, and its worker could still {event.kind} it"


def _row_changed(
    before: World, event: Event | None, after: World, key: int, bounds: Bounds
) -> Iterator[str]:
    was, now = before.store.rows[key], after.store.rows[key]
    entity = bounds.entity_of[key]
    if now is not None and now.by is None and (was is None or was.attempt != now.attempt):
        fence = event.fence if event is not None and event.attempt == now.attempt else NOBODY
        if fence < before.truth.highest[entity]:
            yield "G2: admitted under a fence below one that was seen before"
        lease = before.store.leases[entity]
        if before.workers and (lease is None or lease.fence != fence):
            yield "G7: admitted under a fence whose lease had ended"
    if was is not None and was.by is not None and now != was:
        yield "G1: what was settled was changed"
    if _is_unknown(was) and now is not None and was is not None:
        if now.attempt == was.attempt and not _is_unknown(now) and now.by in (None, "answer"):
            yield "G5: unknown became something else by itself"
        if now.attempt != was.attempt and was.attempt not in now.earlier:
            yield "G5: an unknown attempt was replaced, and nobody took over from it"


def _truth(after: World) -> Iterator[str]:
    """What the store says of a key fits what happened."""
    for key, row in enumerate(after.store.rows):
        effects = after.truth.effects[key]
        if effects > 1:
            yield "G1: a key had two effects"
        if row is None and effects:
            yield "G1: a key is free, and it had its effect"
        if row is None and any(
            each.key == key and not each.done and each.left != 0 for each in after.requests
        ):
            yield "G1: a key is free, and a request of it may still act"
        if row is not None and row.by is not None and not effects:
            yield "G5: settled as executed, and it was not"


def _owners(after: World) -> Iterator[str]:
    lease = after.store.leases[0]
    for worker in after.workers:
        if worker.trust and (lease is None or lease.fence != worker.fence or lease.left == 0):
            yield "G7: a worker trusts a lease that is over"


def _is_unknown(row: Row | None) -> bool:
    return row is not None and row.by is None and row.deadline <= 0
