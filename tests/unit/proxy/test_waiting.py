"""Who is woken, in which order, and who is not let in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from gateway.errors import AnswerLost, StoreUnavailable
from gateway.proxy import waiting
from gateway.proxy.waiting import Entity, Full, Key, Ticket, Topic, WaitRoom
from tests.unit.proxy.rig import run

KEY, OTHER_KEY = Key(1, b"k"), Key(1, b"other")
ENTITY, OTHER_ENTITY = Entity(1, "e"), Entity(1, "other")


class Changes:
    """In place of the store's plain read: what it says is ready."""

    def __init__(self) -> None:
        self.ready: set[Topic] = set()
        self.failures: list[Exception] = []
        self.asked: list[tuple[int, int]] = []

    async def __call__(
        self, keys: Sequence[tuple[int, bytes]], entities: Sequence[tuple[int, str]]
    ) -> tuple[list[int], list[int]]:
        self.asked.append((len(keys), len(entities)))
        if self.failures:
            raise self.failures.pop(0)
        return (
            [at for at, key in enumerate(keys) if Key(*key) in self.ready],
            [at for at, entity in enumerate(entities) if Entity(*entity) in self.ready],
        )


def room(changes: Changes | None = None, *, limit: int = 10, per_topic: int = 10) -> WaitRoom:
    return WaitRoom(changes or Changes(), limit=limit, limit_per_topic=per_topic)


def woken(*tickets: Ticket) -> list[bool]:
    return [ticket.woken.is_set() for ticket in tickets]


def test_a_change_of_a_key_wakes_all_who_wait_for_it() -> None:
    made = room()
    with made.place(KEY) as a, made.place(KEY) as b, made.place(OTHER_KEY) as c:
        made.wake(KEY)
        assert woken(a, b, c) == [True, True, False]


def test_a_change_of_an_entity_wakes_the_one_that_waits_longest() -> None:
    made = room()
    with made.place(ENTITY) as a, made.place(ENTITY) as b, made.place(OTHER_ENTITY) as c:
        made.wake(ENTITY)
        assert woken(a, b, c) == [True, False, False]


def test_waiters_of_an_entity_are_woken_in_the_order_they_came() -> None:
    made, order = room(), []
    with ExitStack() as places:
        tickets = [(name, ExitStack()) for name in "abc"]
        held = {
            name: places.enter_context(stack).enter_context(made.place(ENTITY))
            for name, stack in tickets
        }
        for name, stack in tickets:
            made.wake(ENTITY)
            order += [each for each in held if held[each].woken.is_set() and each not in order]
            stack.close()  # woken, so it leaves and admits again
            assert order[-1] == name
    assert order == ["a", "b", "c"]


def test_one_that_was_woken_in_vain_goes_to_the_front() -> None:
    made = room()
    with made.place(ENTITY) as first, made.place(ENTITY, front=True) as back_again:
        made.wake(ENTITY)
        assert woken(first, back_again) == [False, True]


def test_one_that_leaves_is_not_woken_in_place_of_the_next() -> None:
    made = room()
    with made.place(ENTITY), made.place(ENTITY) as second:
        pass
    with made.place(ENTITY) as third:
        made.wake(ENTITY)
        assert woken(second, third) == [False, True]


def test_passing_on_wakes_the_next() -> None:
    """Who was woken for an entity and leaves without its slot wakes again."""
    made = room()
    with made.place(ENTITY) as second:
        with made.place(ENTITY, front=True) as first:
            made.wake(ENTITY)
        assert woken(first, second) == [True, False]
        made.wake(ENTITY)
        assert woken(second) == [True]


def test_a_change_that_nobody_waits_for_is_forgotten() -> None:
    made = room()
    made.wake(KEY)
    made.wake(ENTITY)
    with made.place(KEY) as a, made.place(ENTITY) as b:
        assert woken(a, b) == [False, False]


@pytest.mark.parametrize(
    ("limit", "per_topic", "topics", "why"),
    [
        (2, 10, [KEY, ENTITY, OTHER_KEY], "2 callers are waiting already"),
        (10, 2, [ENTITY, ENTITY, ENTITY], "2 callers are waiting for the same one"),
    ],
)
def test_no_more_are_let_in_than_the_limits_say(
    limit: int, per_topic: int, topics: list[Topic], why: str
) -> None:
    made = room(limit=limit, per_topic=per_topic)
    with made.place(topics[0]), made.place(topics[1]):
        with pytest.raises(Full, match=why), made.place(topics[2]):
            pass
        assert made.count == 2
    with made.place(topics[2]):
        assert made.count == 1


def test_the_limit_of_one_topic_leaves_others_alone() -> None:
    made = room(per_topic=1)
    with made.place(ENTITY), made.place(OTHER_ENTITY):
        assert made.count == 2


def test_a_tenant_that_fills_the_room_leaves_places_to_others() -> None:
    made = WaitRoom(Changes(), limit=6, limit_per_topic=6, several=lambda: True)
    theirs = Entity(2, "e")
    with ExitStack() as places:
        for _ in range(4):
            places.enter_context(made.place(KEY))
        with pytest.raises(Full, match="4 of this tenant's callers"), made.place(OTHER_KEY):
            pass
        with made.place(theirs):
            # Who was woken and comes back had its place before.
            with made.place(KEY, front=True), pytest.raises(Full, match="6 callers"):
                places.enter_context(made.place(theirs, front=True))
            with pytest.raises(Full), made.place(KEY):
                pass
        assert made.count == 4
    assert made.count == 0


def test_a_place_is_given_back_when_its_waiter_fails() -> None:
    made = room()
    with pytest.raises(RuntimeError), made.place(KEY):
        raise RuntimeError
    assert made.count == 0


def test_closing_wakes_everybody_now_and_from_now_on() -> None:
    made = room()
    with made.place(KEY) as a, made.place(ENTITY) as b, made.place(ENTITY) as c:
        assert not made.closing
        made.close()
        assert made.closing
        with made.place(OTHER_KEY) as late:
            assert woken(a, b, c, late) == [True] * 4


# Changes made by other processes.


async def polled(made: WaitRoom, *tickets: Ticket) -> None:
    """Run the poll until all of them are woken."""
    poll = asyncio.ensure_future(made.poll())
    await asyncio.gather(*(ticket.woken.wait() for ticket in tickets))
    poll.cancel()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "POLL_S", 0)


def test_a_change_made_elsewhere_wakes_all_of_a_key_and_one_of_an_entity() -> None:
    async def main() -> None:
        changes = Changes()
        made = room(changes)
        with (
            made.place(KEY) as a,
            made.place(KEY) as b,
            made.place(OTHER_KEY) as c,
            made.place(ENTITY) as d,
            made.place(ENTITY) as e,
        ):
            changes.ready = {KEY, ENTITY}
            await polled(made, a, b, d)
            assert woken(a, b, c, d, e) == [True, True, False, True, False]
            assert changes.asked[0] == (2, 1)  # each topic once, however many wait for it

    run(main())


@pytest.mark.parametrize("failure", [StoreUnavailable("down"), AnswerLost("gone")])
def test_a_read_that_fails_is_repeated(failure: Exception) -> None:
    async def main() -> None:
        changes = Changes()
        changes.failures = [failure, failure]
        changes.ready = {KEY}
        made = room(changes)
        with made.place(KEY) as ticket:
            await polled(made, ticket)
        assert changes.failures == []
        assert len(changes.asked) > 2

    run(main())


def test_nothing_is_read_while_nobody_waits() -> None:
    async def main() -> None:
        changes = Changes()
        made = room(changes)
        poll = asyncio.ensure_future(made.poll())
        for _ in range(20):
            await asyncio.sleep(0)
        assert changes.asked == []
        changes.ready = {KEY}
        with made.place(KEY) as ticket:
            await ticket.woken.wait()
        poll.cancel()

    run(main())
