"""What one process remembers of what it was told is committed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.acknowledged import MAX_AGE_S, Acknowledged, KeptCommand, KeptMark, Ring
from tests.kit.commands import attempt, command

KEYS = st.lists(st.tuples(st.integers(0, 30), st.floats(0, 5)), max_size=120)


@given(KEYS)
def test_all_of_the_latest_are_kept_and_never_more_than_the_limits(
    steps: list[tuple[int, float]],
) -> None:
    ring: Ring[int, int] = Ring(recent=5, sampled=3, every_s=1)
    now, put = 0.0, []
    for key, later in steps:
        now += later
        ring.put(key, key * 10, now)
        put.append(key)
    latest = list(dict.fromkeys(reversed(put)))
    found = list(ring.latest_first(now))
    assert found[:5] == [key * 10 for key in latest[:5]]
    assert len(found) == len(set(found)) <= len(ring) <= 8


@given(st.integers(1, 400), st.floats(0.01, 0.5))
def test_of_what_falls_out_one_is_kept_for_each_span(count: int, step_s: float) -> None:
    ring: Ring[int, float] = Ring(recent=2, sampled=1000, every_s=1)
    for number in range(count):
        ring.put(number, number * step_s, number * step_s)
    older = list(ring.latest_first(count * step_s))[2:]
    assert all(one - other >= 1 for one, other in pairwise(older))
    if count > 2:
        assert older
        assert older[-1] == 0  # the line reaches back to the first


def test_what_is_dropped_or_too_old_is_not_looked_up() -> None:
    ring: Ring[str, str] = Ring()
    for name, at in (("a", 0.0), ("b", 10.0), ("c", 20.0)):
        ring.put(name, name, at)
    ring.drop("b")
    assert list(ring.latest_first(20)) == ["c", "a"]
    assert list(ring.latest_first(MAX_AGE_S + 1)) == ["c"]


def test_a_settlement_takes_the_place_of_its_admit() -> None:
    memory, made = Acknowledged(), command(by=attempt(1))
    memory.admitted(made, 1)
    memory.settled(made, 201, 2)
    (kept,) = memory.commands(2)
    assert (kept.command, kept.status) == (made, 201)
    memory.gone(made.attempt)
    assert memory.commands(2) == []


def test_an_attempt_that_took_over_takes_the_place_of_the_one_before() -> None:
    memory, first, second = Acknowledged(), command(by=attempt(1)), command(by=attempt(2))
    memory.admitted(first, 1)
    memory.taken_over(second, (attempt(7), first.attempt), 2)
    assert memory.commands(2) == [KeptCommand(second, None, (attempt(7), first.attempt))]
    memory.settled(second, 201, 3)
    assert memory.commands(3) == [KeptCommand(second, 201, (attempt(7), first.attempt))]


@pytest.mark.parametrize("order", [(7, 9), (9, 7)])
def test_a_mark_that_is_known_never_falls(order: tuple[int, int]) -> None:
    """Two answers of one entity may arrive in another order than they were committed in."""
    memory = Acknowledged()
    for fence in order:
        memory.mark(1, "invoice:1", fence, 1, issued=fence == 7)
    assert memory.marks(1) == [KeptMark(1, "invoice:1", 9, True)]
