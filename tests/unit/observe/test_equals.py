"""Equal commands under different keys: what is remembered, for how long, and how much."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gateway.observe.equals import EqualCommands
from tests.kit.commands import digest

A, B = digest("key-a"), digest("key-b")
F, G = digest("body-f", 32), digest("body-g", 32)


def test_another_key_is_told_and_the_same_key_is_not() -> None:
    seen = EqualCommands()
    assert seen.add("p/c", F, A, 0) is None
    assert seen.add("p/c", F, A, 1) is None
    assert seen.add("p/c", F, B, 2) == A
    assert seen.add("p/c", F, A, 3) == B


def test_another_fingerprint_or_policy_is_another_command() -> None:
    seen = EqualCommands()
    seen.add("p/c", F, A, 0)
    assert seen.add("p/c", G, B, 0) is None
    assert seen.add("sandbox/c", F, B, 0) is None


def test_a_generation_ends_by_age_and_by_number() -> None:
    seen = EqualCommands(count=3, age_s=10)
    seen.add("p/c", F, A, 0)
    assert seen.add("p/c", F, B, 19.9) == A, "remembered for one age at least"
    seen.add("p/c", F, A, 100)
    assert seen.add("p/c", F, B, 120) is None, "and for two at most"
    for number in range(6):
        seen.add("p/c", digest(str(number), 32), A, 121)
    assert seen.add("p/c", F, A, 121) is None, "a busy process forgets sooner"


@given(
    count=st.integers(1, 5),
    steps=st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from([A, B]), st.integers(0, 12)), max_size=60
    ),
)
def test_it_tells_what_is_young_and_nothing_that_is_old(
    count: int, steps: Sequence[tuple[int, bytes, int]]
) -> None:
    age_s, now_s = 10, 0
    seen = EqualCommands(count=count, age_s=age_s)
    history: list[tuple[int, int, bytes]] = []
    for body, key, later_s in steps:
        now_s += later_s
        told = seen.add("p/c", digest(str(body), 32), key, now_s)
        before = [each for each in history if each[0] == body]
        behind = len(history) - history.index(before[-1]) if before else 0
        if told is not None:
            assert before, "nothing is told of what never was"
            assert told == before[-1][2] != key
            assert now_s - before[-1][1] < 2 * age_s
        elif before and before[-1][2] != key:
            assert now_s - before[-1][1] >= age_s or behind >= count
        history.append((body, now_s, key))
        assert len(seen) <= 2 * count


def test_the_garbage_collector_has_nothing_to_look_at() -> None:
    seen = EqualCommands()
    for number in range(1000):
        seen.add("p/c", digest(str(number), 32), A, 0)
    inside = gc.get_referents(seen)
    dicts = [each for each in inside if isinstance(each, dict)]
    assert len(dicts) == 2
    assert not any(isinstance(x, tuple | list) for each in dicts for x in gc.get_referents(each))
