"""What the SQL does, as pure functions over ``Store``; ``test_agreement`` compares it with the SQL.

A method that is named for one predicate is one of the statement's guards. Mutants override them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from tests.model.state import (
    NOBODY,
    Entity,
    Lease,
    Mode,
    Row,
    SettledBy,
    Store,
    Terms,
    Watched,
)

__all__ = ["FIRST_ISSUED", "Ended", "Rules", "empty", "replaced"]

FIRST_ISSUED = 2**20 + 1
"""By how much the first fence that is issued here is above the mark."""

Ended = Literal["resolved", "missing", "changed", "settled", "in-flight", "too-early"]
T = TypeVar("T")


def empty(entities: int, keys: int) -> Store:
    return Store(
        *((Entity(),) * entities, (None,) * keys, (None,) * keys, (None,) * entities),
        (NOBODY,) * keys,
    )


def replaced(items: tuple[T, ...], at: int, item: T) -> tuple[T, ...]:
    return (*items[:at], item, *items[at + 1 :])


class Rules:
    """``entity_of``: the entity of each key; every command is of a serial policy."""

    def __init__(self, terms: Terms, entity_of: tuple[int, ...], mode: Mode) -> None:
        self.terms = terms
        self.entity_of = entity_of
        self.mode = mode

    # Guards.

    def is_not_stale(self, fence: int, mark: int) -> bool:
        return fence >= mark

    def is_held(self, fence: int, held: int | None) -> bool:
        return held is None or fence == held

    def slot_is_free(self, entity: Entity) -> bool:
        return entity.open_key == NOBODY

    def remembers(self, inserted: bool) -> bool:
        """A good fence, whatever else is decided."""
        return True

    def may_settle(self, row: Row, attempt: int) -> bool:
        return attempt == row.attempt or attempt in row.earlier

    def may_release(self, row: Row, attempt: int) -> bool:
        return attempt == row.attempt and not row.held and not row.earlier

    def may_hold(self, row: Row, attempt: int) -> bool:
        return attempt == row.attempt and not row.held

    def has_passed_settle_delay(self, row: Row) -> bool:
        return row.deadline + self.terms.settle_delay <= 0

    def judged_still_stands(self, row: Row, judged: int) -> bool:
        return row.attempt == judged and self.state(row) == "unknown"

    def is_within(self, row: Row) -> bool:
        return row.age < self.terms.within

    def age_at_admission(self, given_back: int) -> int:
        """The window of what is admitted under a key that was given back goes on."""
        return max(given_back, 0)

    def absence_counts(self, row: Row, age: int) -> bool:
        return row.deadline + self.terms.settle_delay + age <= 0

    def is_second_absence(self, watched: Watched, age: int) -> bool:
        return watched.absent != NOBODY and age + self.terms.interval <= watched.absent

    def lease_lasts(self, lease: Lease) -> bool:
        return lease.left > 0

    def entity_is_leased(self, lease: Lease | None) -> bool:
        return lease is not None

    def mark_after_an_end(self, mark: int, held: int | None) -> tuple[int, int | None]:
        return mark + 1, 0

    # Admit.

    def state(self, row: Row) -> Literal["settled", "unknown", "in-flight"]:
        if row.by is not None:
            return "settled"
        return "in-flight" if row.deadline > 0 else "unknown"

    def fence_is_good(self, fence: int, entity: Entity) -> bool:
        return self.is_not_stale(fence, entity.mark) and self.is_held(fence, entity.held)

    def admit(self, store: Store, key: int, fence: int, attempt: int) -> Store:
        """What it answers is read from the rows afterwards."""
        at = self.entity_of[key]
        entity, row = store.entities[at], store.rows[key]
        if not self.fence_is_good(fence, entity):
            return store
        inserted = row is None and self.slot_is_free(entity)
        if entity.held is None and self.remembers(inserted):
            entity = entity._replace(mark=max(entity.mark, fence))
        rows = store.rows
        if inserted:
            age = self.age_at_admission(store.given_back[key])
            rows = replaced(rows, key, Row(attempt, deadline=self.terms.deadline, age=age))
            entity = entity._replace(open_key=key, open_attempt=attempt)
        return store._replace(rows=rows, entities=replaced(store.entities, at, entity))

    # The ends of an attempt.

    def settle(self, store: Store, key: int, attempt: int) -> tuple[Store, str]:
        row = store.rows[key]
        if row is None:
            return self._put(store, key, _settled(Row(attempt), "late")), "contradicts"
        if row.by is None and self.may_settle(row, attempt):
            own = attempt == row.attempt and not row.held and row.deadline > 0
            done = self._put(store, key, _settled(row, "answer" if own else "late"))
            return self._free(done, key, row.attempt), "settled" if own else "late"
        if attempt != row.attempt and attempt not in row.earlier:
            return store, "duplicate"
        return store, "resolved" if row.by in ("resolved", "probe", "report") else "already"

    def release(
        self, store: Store, key: int, attempt: int, heard: bool = True
    ) -> tuple[Store, bool]:
        row = store.rows[key]
        if row is None or row.by is not None or not self.may_release(row, attempt):
            return store, False
        given = self._given_back(store, key, row) if heard else store
        return self._free(self._put(given, key, None), key, row.attempt), True

    def hold(self, store: Store, key: int, attempt: int) -> tuple[Store, bool]:
        row = store.rows[key]
        if row is None or row.by is not None or not self.may_hold(row, attempt):
            return store, False
        return self._put(store, key, row._replace(held=True, deadline=min(row.deadline, 0))), True

    # Unknown outcomes.

    def conclude(
        self, store: Store, key: int, judged: int, executed: bool, by: SettledBy
    ) -> tuple[Store, Ended]:
        row = store.rows[key]
        if row is None:
            return store, "missing"
        if row.attempt != judged:
            return store, "changed"
        state = self.state(row)
        if state != "unknown":
            return store, state
        if not executed and not self.has_passed_settle_delay(row):
            return store, "too-early"
        given = store if executed else self._given_back(store, key, row)
        done = self._put(given, key, _settled(row, by) if executed else None)
        done = done._replace(watched=replaced(done.watched, key, None))
        return self._free(done, key, judged), "resolved"

    def take_over(
        self, store: Store, key: int, fence: int, judged: int, attempt: int
    ) -> tuple[Store, Literal["taken", "changed", "refused"]]:
        row, at = store.rows[key], self.entity_of[key]
        if row is None:
            return store, "changed"
        if row.attempt == attempt and self.state(row) == "in-flight":
            return store, "taken"
        entity = store.entities[at]
        if (
            not self.judged_still_stands(row, judged)
            or row.by is not None
            or not self.fence_is_good(fence, entity)
            or entity.open_key not in (NOBODY, key)
        ):
            return store, "changed"
        if (
            self.mode != "resend"
            or not self.is_within(row)
            or len(row.earlier) >= self.terms.takeovers
        ):
            return store, "refused"
        taken = Row(attempt, (*row.earlier, row.attempt), self.terms.deadline, row.age)
        entity = entity._replace(open_key=key, open_attempt=attempt)
        entities = replaced(store.entities, at, entity)
        return self._put(store, key, taken)._replace(entities=entities), "taken"

    def ask(self, store: Store, key: int, judged: int) -> tuple[Store, bool]:
        row, watched = store.rows[key], store.watched[key]
        if row is None or row.attempt != judged or self.state(row) != "unknown":
            return store, False
        if self.mode != "probe" or (watched is not None and watched.busy > 0):
            return store, False
        absent = watched.absent if watched is not None and watched.attempt == judged else NOBODY
        asked = Watched(judged, self.terms.busy, absent)
        return store._replace(watched=replaced(store.watched, key, asked)), True

    def probed(
        self, store: Store, key: int, judged: int, verdict: str, age: int
    ) -> tuple[Store, Ended | Literal["asked", "absent-once"]]:
        """``age``: ticks since it was asked."""
        row, watched = store.rows[key], store.watched[key]
        if watched is not None and watched.attempt != judged:
            watched = None
        if verdict == "applied":
            return self.conclude(store, key, judged, True, "probe")
        counts = (
            verdict == "absent"
            and row is not None
            and row.attempt == judged
            and row.by is None
            and self.absence_counts(row, age)
        )
        if counts and watched is not None and self.is_second_absence(watched, age):
            return self.conclude(store, key, judged, False, "probe")
        first = counts and (watched is None or watched.absent == NOBODY)
        if watched is not None:
            watched = watched._replace(busy=0, absent=0 if first else watched.absent)
            store = store._replace(watched=replaced(store.watched, key, watched))
        return store, "absent-once" if first else "asked"

    # Leases.

    def next_fence(self, entity: Entity) -> int:
        return entity.mark + (FIRST_ISSUED if entity.held is None else 1)

    def issue(self, store: Store, at: int) -> tuple[Store, int | None]:
        """A fence to somebody outside; ``None``: the entity is leased."""
        if store.leases[at] is not None:
            return store, None
        return self._issued(store, at)

    def claim(self, store: Store, at: int) -> tuple[Store, int | None]:
        """The fence of the new lease; ``None``: the entity has one."""
        if self.entity_is_leased(store.leases[at]):
            return store, None
        store, fence = self._issued(store, at)
        lease = Lease(fence, self.terms.lease)
        return store._replace(leases=replaced(store.leases, at, lease)), fence

    def renew(self, store: Store, at: int, fence: int) -> tuple[Store, int | None]:
        """The ticks that remain; ``None``: refused."""
        lease = store.leases[at]
        if lease is None or lease.fence != fence or not self.lease_lasts(lease):
            return store, None
        lease = lease._replace(left=self.terms.lease)
        return store._replace(leases=replaced(store.leases, at, lease)), lease.left

    def end(self, store: Store, at: int, fence: int) -> tuple[Store, bool]:
        lease = store.leases[at]
        if lease is None or lease.fence != fence or not self.lease_lasts(lease):
            return store, False
        return self._close(store, at), True

    def reap(self, store: Store, at: int) -> tuple[Store, bool]:
        lease = store.leases[at]
        if lease is None or self.lease_lasts(lease):
            return store, False
        return self._close(store, at), True

    def _issued(self, store: Store, at: int) -> tuple[Store, int]:
        fence = self.next_fence(store.entities[at])
        entity = store.entities[at]._replace(mark=fence, held=fence)
        return store._replace(entities=replaced(store.entities, at, entity)), fence

    def _close(self, store: Store, at: int) -> Store:
        entity = store.entities[at]
        mark, held = self.mark_after_an_end(entity.mark, entity.held)
        entities = replaced(store.entities, at, entity._replace(mark=mark, held=held))
        return store._replace(entities=entities, leases=replaced(store.leases, at, None))

    # Time.

    def tick(self, store: Store) -> Store:
        return Store(
            store.entities,
            tuple(row and self.later(row) for row in store.rows),
            tuple(each and self._watched_later(each) for each in store.watched),
            tuple(each and each._replace(left=max(each.left - 1, 0)) for each in store.leases),
            tuple(
                each if each == NOBODY else min(each + 1, self.terms.within)
                for each in store.given_back
            ),
        )

    def later(self, row: Row) -> Row | None:
        if row.by is not None:
            return row
        terms = self.terms
        least = -terms.settle_delay - (terms.look if self.mode == "probe" else 0)
        age = min(row.age + 1, terms.within) if self.mode == "resend" else 0
        return row._replace(deadline=max(row.deadline - 1, least), age=age)

    def _watched_later(self, watched: Watched) -> Watched:
        absent = watched.absent
        if absent != NOBODY:
            absent = min(absent + 1, self.terms.look + self.terms.interval)
        return watched._replace(busy=max(watched.busy - 1, 0), absent=absent)

    def _put(self, store: Store, key: int, row: Row | None) -> Store:
        if row is not None and row.by is not None:
            store = store._replace(given_back=replaced(store.given_back, key, NOBODY))
        return store._replace(rows=replaced(store.rows, key, row))

    def _given_back(self, store: Store, key: int, row: Row) -> Store:
        """Only where it counts: the key of what is sent again."""
        if self.mode != "resend":
            return store
        first = max(store.given_back[key], row.age)
        return store._replace(given_back=replaced(store.given_back, key, first))

    def _free(self, store: Store, key: int, attempt: int) -> Store:
        at = self.entity_of[key]
        entity = store.entities[at]
        if entity.open_attempt != attempt:
            return store
        entity = entity._replace(open_key=NOBODY, open_attempt=NOBODY)
        return store._replace(entities=replaced(store.entities, at, entity))


def _settled(row: Row, by: SettledBy) -> Row:
    """What no rule asks of a settled row is left out."""
    return Row(row.attempt, row.earlier, by=by)


MakeRules = Callable[[Terms, tuple[int, ...], Mode], Rules]
