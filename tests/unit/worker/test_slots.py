"""Who may begin, and how many jobs are worth claiming ahead."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.worker import slots
from gateway.worker.slots import AHEAD_S, Pace, Slots


@given(
    took=st.lists(st.floats(0, 1_000), min_size=1, max_size=30),
    count=st.integers(1, 1_000),
)
def test_what_is_claimed_ahead_begins_in_time_at_the_pace_of_the_last(
    took: list[float], count: int
) -> None:
    pace = Pace()
    for each in took:
        pace.note(each)
    ahead = pace.ahead(count, 100)
    assert 0 <= ahead <= 100
    if len(set(took)) == 1:
        assert ahead == 100 or ahead * took[0] <= AHEAD_S * count * 1.001


def test_nothing_is_claimed_ahead_before_a_handler_was_seen_or_where_they_take_long() -> None:
    pace = Pace()
    assert pace.ahead(10, 100) == 0
    pace.note(0.001)
    assert pace.ahead(1, 100) == 100
    pace.note(10)
    assert pace.ahead(1, 100) == 0


def test_slots_go_in_the_order_in_which_they_are_asked_for() -> None:
    async def play() -> list[int]:
        made, began = Slots(1), list[int]()

        async def one(number: int) -> None:
            assert await made.take(60)
            began.append(number)
            await asyncio.sleep(0)
            made.give_back()

        await asyncio.gather(*map(one, range(5)))
        return began

    assert asyncio.run(play()) == [0, 1, 2, 3, 4]


def test_who_gets_no_slot_in_time_is_told_and_takes_none() -> None:
    async def play() -> None:
        made = Slots(1)
        assert await made.take(0)
        assert not await made.take(0)
        made.give_back()
        assert await made.take(0)

    asyncio.run(play())


def test_who_stops_waiting_as_a_slot_comes_gives_it_back() -> None:
    async def play() -> None:
        made = Slots(1)
        assert await made.take(60)
        waiting = asyncio.create_task(made.take(60))
        await asyncio.sleep(0)
        made.give_back()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await made.take(0)

    asyncio.run(play())


def test_a_worker_that_stops_has_no_more_slots() -> None:
    async def play() -> None:
        made = Slots(1)
        assert await made.take(60)
        waiting = asyncio.create_task(made.take(60))
        await asyncio.sleep(0)
        made.shut()
        assert not await waiting
        made.give_back()
        assert not await made.take(60)

    asyncio.run(play())


def test_nothing_is_worth_claiming_ahead_of_a_handler_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(slots, "now_mono_s", lambda: now)

    async def play() -> None:
        nonlocal now
        made = Slots(1)
        now += 60
        assert not made.held_up()  # a slot is free
        assert await made.take(0)
        assert not made.held_up()
        now += 2 * AHEAD_S
        assert made.held_up()
        made.give_back()
        assert not made.held_up()

    asyncio.run(play())
