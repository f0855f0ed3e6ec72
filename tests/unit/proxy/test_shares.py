"""Shares: nothing is counted twice or for ever, and who floods is refused before others are."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.problems import Problem
from gateway.limits import ANSWERS_PART, SMALL_BODY, SMALL_PART, WEIGHT
from gateway.proxy.shares import Flight, Flights, Memory, Share, Untaken

TENANTS = st.integers(1, 4)
MIB = 2**20


def several() -> bool:
    return True


@given(st.lists(st.tuples(TENANTS, st.integers(1, 40), st.booleans()), max_size=80))
def test_a_share_holds_what_was_taken_and_never_more_than_there_is(
    steps: list[tuple[int, int, bool]],
) -> None:
    share, held = Share(100, several), Counter[int]()
    for tenant, size, gives_back in steps:
        if gives_back and held[tenant] >= size:
            share.give_back(tenant, size)
            held[tenant] -= size
        elif share.take(tenant, size):
            held[tenant] += size
            assert held[tenant] == size or held[tenant] <= WEIGHT * (100 - held.total())
        assert share.used == held.total() <= 100
    for tenant, size in held.items():
        if size:
            share.give_back(tenant, size)
    assert share.used == 0
    assert all(share.fits(tenant, 100) for tenant in range(1, 5))


@given(st.integers(1, 4), st.integers(1, 2_000))
def test_however_many_flood_one_that_holds_nothing_gets_something(
    floods: int, capacity: int
) -> None:
    # Each leaves the next a quarter of what it found, down to a place.
    share = Share(capacity + (WEIGHT + 1) ** (floods + 1), several)
    for tenant in range(floods):
        while share.take(tenant):
            pass
    assert share.take(99)
    assert not any(share.take(tenant) for tenant in range(floods))


def test_where_there_is_one_tenant_it_may_have_all() -> None:
    share = Share(10)
    assert [share.take(1) for _ in range(11)] == [True] * 10 + [False]


def test_a_flood_of_one_tenant_is_refused_while_another_is_served() -> None:
    share = Share(100, several)
    while share.take(1):
        pass
    assert share.used == 75
    assert [share.take(2) for _ in range(10)] == [True] * 10
    assert not share.take(1)


# -- memory


def memory() -> Memory:
    return Memory(16 * MIB, several)


def test_the_parts_are_the_whole() -> None:
    made = memory()
    parts = [made.small.capacity, made.large.capacity, made.answers.capacity]
    assert (sum(parts), parts[0], parts[2]) == (16 * MIB, 2 * MIB, 4 * MIB)
    assert (SMALL_PART, ANSWERS_PART) == (8, 4)


@given(st.lists(st.integers(1, 3 * MIB), min_size=1, max_size=30))
def test_a_body_counts_as_it_grows_and_not_once_it_is_over(sizes: list[int]) -> None:
    made = memory()
    held = made.hold(1)
    size = 0
    for more in sizes:
        before = made.small.used + made.large.used
        if held.grow(size + more):
            size += more
            assert made.small.used + made.large.used == size
        else:
            # What was there stays counted until it is let go, unless it had to move and could not.
            assert made.small.used + made.large.used in (before, 0)
            break
    held.close()
    held.close()
    assert (made.small.used, made.large.used) == (0, 0)


def test_large_bodies_leave_room_for_small_ones_of_everybody() -> None:
    made = memory()
    floods = [made.hold(tenant) for tenant in (1, 1, 1, 2, 2, 2)]
    sizes = [3 * MIB] * 6
    grown = [held.grow(size) for held, size in zip(floods, sizes, strict=True)]
    assert grown.count(False) >= 3
    small = made.hold(1)
    assert made.full(1, SMALL_BODY) is None
    assert small.grow(SMALL_BODY)
    assert isinstance(made.full(1, 6 * MIB), Problem)


def test_what_is_announced_and_not_sent_takes_nothing() -> None:
    made = memory()
    for _ in range(1_000):
        assert made.full(1, 8 * MIB) is None
        assert made.hold(1).grow(10)
    assert made.small.used == 10_000


def test_a_tenant_whose_callers_do_not_read_is_refused_and_others_are_not() -> None:
    made = memory()
    untaken = [Untaken(made.answers, 1) for _ in range(10)]
    for each in untaken:
        each.waits(MIB)
        each.waits(MIB)  # the same MiB
    assert made.answers.used == 10 * MIB  # they are there, whatever the limit says
    full = made.full(1, 10)
    assert isinstance(full, Problem)
    assert full.type == "overloaded"
    assert made.full(2, 10) is None
    for each in untaken[2:]:
        each.waits(0)
    assert made.full(1, 10) is None
    assert made.full(2, 10) is None


# -- attempts


def fly(flights: Flights, tenant: int, policy: str = "pay/charge", limit: int = 100) -> Flight:
    flight = flights.take(tenant, policy, limit)
    assert isinstance(flight, Flight)
    return flight


def test_attempts_are_limited_in_all_and_by_policy() -> None:
    flights = Flights(5)
    held = [fly(flights, 1, limit=2) for _ in range(2)]
    full = flights.full(1, "pay/charge", 2)
    assert full is not None
    assert "max_in_flight of pay/charge" in full.detail
    held += [fly(flights, 1, "pay/other") for _ in range(3)]
    assert isinstance(flights.take(1, "pay/third", 9), Problem)
    held[0].rest()
    held[0].rest()
    assert flights.full(1, "pay/charge", 2) is None
    assert flights.full(1, "pay/third", 9) is None


def test_who_waits_has_no_place_and_gets_it_back_whatever_is_free() -> None:
    flights = Flights(1)
    waiter = fly(flights, 1)
    waiter.rest()
    other = fly(flights, 1)
    waiter.go_on()
    waiter.go_on()
    assert flights.full(1, "pay/charge", 100) is not None
    other.rest()
    assert flights.full(1, "pay/charge", 100) is not None
    waiter.rest()
    assert flights.full(1, "pay/charge", 100) is None


@pytest.mark.parametrize("limit", [4, 100])
def test_a_tenant_that_floods_is_refused_before_others_are(limit: int) -> None:
    flights = Flights(200, several)
    while isinstance(flights.take(1, "pay/charge", limit), Flight):
        pass
    assert isinstance(flights.take(2, "pay/charge", limit), Flight)
    assert isinstance(flights.take(1, "pay/charge", limit), Problem)
