"""What is asked while a batch is on its way goes together in the next; nobody is forgotten, nobody
pays for another, and what is asked about one thing keeps its order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from gateway.errors import AnswerLost, StoreUnavailable
from gateway.limits import BATCH_BYTES
from gateway.proxy import batching
from gateway.proxy.background import first_of
from gateway.proxy.batching import Batcher
from tests.unit.proxy.rig import run, until


@dataclass(frozen=True)
class Item:
    number: int
    about: frozenset[str] = frozenset()
    size: int = 0


@dataclass
class Trip:
    """One statement on its way, ended by hand."""

    items: tuple[Item, ...]
    end: asyncio.Future[None] = field(default_factory=asyncio.Future)


class Desk:
    """A batcher and the statements that it has sent."""

    def __init__(self, *, limit: int = 4, beside: int = 2) -> None:
        self.sent: list[Trip] = []
        self.poisoned: set[int] = set()
        self.elsewhere: set[int] = set()
        self.batcher: Batcher[Item, int] = Batcher(
            self._send,
            self._alone,
            lambda item: item.about,
            limit=limit,
            beside=beside,
            weight=lambda item: item.size,
        )

    async def _send(self, items: Sequence[Item]) -> list[int | None]:
        trip = Trip(tuple(items))
        self.sent.append(trip)
        await trip.end
        if any(item.number in self.poisoned for item in items):
            raise StoreUnavailable("poison", code="22021")
        return [None if item.number in self.elsewhere else 10 * item.number for item in items]

    async def _alone(self, item: Item) -> int:
        (answer,) = await self._send([item])
        return 10 * item.number if answer is None else answer

    def ask(self, number: int, *about: str, size: int = 0) -> asyncio.Task[int]:
        return asyncio.ensure_future(asked(self.batcher, Item(number, frozenset(about), size)))

    def begin(self, number: int, *about: str) -> asyncio.Future[int]:
        return self.batcher.begin(Item(number, frozenset(about)))

    @property
    def open(self) -> list[Trip]:
        return [trip for trip in self.sent if not trip.end.done()]

    @property
    def numbers(self) -> list[list[int]]:
        return [[item.number for item in trip.items] for trip in self.sent]


async def asked(batcher: Batcher[Item, int], item: Item) -> int:
    """As a task of its own asks."""
    return await batcher.ask(item)


def end(trip: Trip, error: Exception | None = None) -> None:
    if error is None:
        trip.end.set_result(None)
    else:
        trip.end.set_exception(error)


async def settled() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def end_all(desk: Desk) -> None:
    await settled()
    while desk.open:
        end(desk.open[0])
        await settled()


def test_who_finds_the_lane_idle_is_sent_before_anything_else_runs() -> None:
    async def main() -> None:
        desk = Desk()
        step = asked(desk.batcher, Item(1))
        step.send(None)  # one step of the caller's own task
        assert desk.numbers == [[1]]
        step.close()

    run(main())


@pytest.mark.parametrize("limit", [1, 4])
def test_what_was_begun_goes_on_whoever_waits_for_it(limit: int) -> None:
    async def main() -> None:
        desk = Desk(limit=limit)
        begun = [desk.begin(number) for number in range(3)]
        first = asyncio.ensure_future(first_of(begun[2]))
        await settled()
        first.cancel()
        await end_all(desk)
        assert [await each for each in begun] == [0, 10, 20]
        assert sorted(number for trip in desk.numbers for number in trip) == [0, 1, 2]

    run(main())


def test_what_is_asked_meanwhile_goes_together_up_to_the_limit() -> None:
    async def main() -> None:
        desk = Desk(limit=4)
        asked = [desk.ask(number) for number in range(8)]
        await end_all(desk)
        assert desk.numbers == [[0], [1, 2, 3, 4], [5, 6, 7]]
        assert [await each for each in asked] == [10 * number for number in range(8)]

    run(main())


def test_who_come_together_behind_a_batch_of_several_leave_together() -> None:
    async def main() -> None:
        desk = Desk(limit=9)

        async def caller(number: int) -> None:
            for again in range(3):
                await desk.ask(10 * again + number)

        callers = [asyncio.ensure_future(caller(number)) for number in range(4)]
        await end_all(desk)
        await asyncio.gather(*callers)
        assert [len(trip.items) for trip in desk.sent] == [1, 3, 1, 3, 1, 3]

    run(main())


def test_a_limit_of_one_batches_nothing() -> None:
    async def main() -> None:
        desk = Desk(limit=1, beside=3)
        asked = [desk.ask(number) for number in range(3)]
        await settled()
        assert desk.numbers == [[0], [1], [2]]
        await end_all(desk)
        assert [await each for each in asked] == [0, 10, 20]

    run(main())


def test_who_shares_a_name_comes_behind_and_others_pass() -> None:
    async def main() -> None:
        desk = Desk()
        desk.ask(0)
        desk.ask(1, "a")
        desk.ask(2, "a", "b")  # behind 1
        desk.ask(3, "b")  # behind 2, though 2 is not sent yet
        desk.ask(4, "c")
        await end_all(desk)
        assert desk.numbers == [[0], [1, 4], [2], [3]]

    run(main())


def test_bytes_of_a_batch_are_bounded_and_a_large_item_goes_alone_at_once() -> None:
    half = BATCH_BYTES // 2

    async def main() -> None:
        desk = Desk()
        for number in range(4):
            desk.ask(number, size=half)
        large = desk.ask(9, size=BATCH_BYTES + 1)
        await settled()
        assert desk.numbers == [[0], [9]]
        await end_all(desk)
        assert desk.numbers == [[0], [9], [1, 2], [3]]
        assert await large == 90

    run(main())


def test_of_a_batch_with_poison_only_the_poisoned_fails_and_the_lane_goes_on() -> None:
    async def main() -> None:
        desk = Desk()
        desk.poisoned = {2}
        asked = [desk.ask(number) for number in range(4)]
        await settled()
        end(desk.open[0])
        await settled()
        later = desk.ask(5)
        end(desk.open[0])  # the batch of 1, 2, 3
        await settled()
        assert [5] in desk.numbers  # at once, however long the others are asked alone
        await end_all(desk)
        assert sorted(desk.numbers[2:]) == [[1], [2], [3], [5]]
        with pytest.raises(StoreUnavailable, match="poison"):
            await asked[2]
        assert [await each for each in (*asked[:2], asked[3], later)] == [0, 10, 30, 50]

    run(main())


def test_a_mistake_in_carrying_one_out_fails_that_one() -> None:
    async def main() -> None:
        async def send(items: Sequence[Item]) -> list[int | None]:
            await asyncio.sleep(0)
            return [10 // item.number for item in items]

        async def alone(item: Item) -> int:
            return 10 // item.number

        batcher: Batcher[Item, int] = Batcher(send, alone, lambda _: (), limit=9, beside=1)
        numbers = (1, 2, 0, 5)
        answers = [asyncio.ensure_future(asked(batcher, Item(number))) for number in numbers]
        found = await asyncio.gather(*answers, return_exceptions=True)
        assert (found[:2], found[3]) == ([10, 5], 2)
        assert isinstance(found[2], ZeroDivisionError)

    run(main())


def test_what_is_locked_elsewhere_is_asked_alone_and_the_others_are_answered() -> None:
    async def main() -> None:
        desk = Desk()
        desk.elsewhere = {2}
        asked = [desk.ask(number) for number in range(4)]
        await settled()
        end(desk.open[0])
        await settled()
        end(desk.open[0])
        await settled()
        assert [each.done() for each in asked] == [True, True, False, True]
        assert desk.numbers[2:] == [[2]]
        await end_all(desk)
        assert await asked[2] == 20

    run(main())


@pytest.mark.parametrize("count", [1, 4])
def test_what_is_cut_off_for_a_lock_is_asked_alone_and_the_lane_goes_on(count: int) -> None:
    async def main() -> None:
        desk = Desk()
        asked = [desk.ask(number) for number in range(count)]
        await settled()
        if count > 1:
            end(desk.open[0])
            await settled()
        end(desk.open[0], StoreUnavailable("locked", code="55P03"))
        await settled()
        later = desk.ask(9)
        await settled()
        assert [9] in desk.numbers
        await end_all(desk)
        assert [await each for each in (*asked, later)] == [*(10 * n for n in range(count)), 90]

    run(main())


@pytest.mark.parametrize(
    "error",
    [AnswerLost("reset"), StoreUnavailable("down", code="57P03"), StoreUnavailable("no line")],
    ids=["lost", "down", "away"],
)
def test_what_concerns_all_is_told_to_all_and_asked_by_nobody_again(error: Exception) -> None:
    async def main() -> None:
        desk = Desk()
        asked = [desk.ask(number) for number in range(4)]
        await settled()
        end(desk.open[0])
        await settled()
        end(desk.open[0], error)
        await settled()
        assert desk.numbers == [[0], [1, 2, 3]]
        told = await asyncio.gather(*asked[1:], return_exceptions=True)
        assert [(type(each), str(each)) for each in told] == [(type(error), str(error))] * 3
        assert len({id(each) for each in told}) == 3
        assert [getattr(each, "code", None) for each in told] == [getattr(error, "code", None)] * 3

    run(main())


def test_who_leaves_before_its_batch_was_never_sent_and_who_leaves_after_harms_nobody() -> None:
    async def main() -> None:
        desk = Desk()
        asked = [desk.ask(number) for number in range(5)]
        await settled()
        asked[1].cancel()
        await settled()
        end(desk.open[0])
        await settled()
        assert desk.numbers == [[0], [2, 3, 4]]
        asked[3].cancel()
        await end_all(desk)
        assert [await asked[2], await asked[4]] == [20, 40]

    run(main())


def test_the_leader_that_is_cancelled_passes_the_lane_on() -> None:
    async def main() -> None:
        desk = Desk()
        asked = [desk.ask(number) for number in range(3)]
        await settled()
        asked[0].cancel()
        await settled()
        assert desk.numbers == [[0], [1, 2]]
        await end_all(desk)
        assert await asked[2] == 20

    run(main())


def test_a_batch_that_takes_long_holds_up_nobody_and_there_are_never_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batching, "BATCH_S", 0.0)

    async def main() -> None:
        desk = Desk(limit=2)
        asked = [desk.ask(number) for number in range(9)]
        await until(lambda: len(desk.open) == 3)
        await settled()
        assert len(desk.open) == 3
        assert desk.numbers == [[0], [1, 2], [3, 4]]
        await end_all(desk)
        assert [await each for each in asked] == [10 * number for number in range(9)]

    run(main())


def test_who_waits_too_long_to_be_asked_alone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "_TURN_S", 0.01)

    async def main() -> None:
        desk = Desk(beside=1)
        first = asyncio.ensure_future(desk.batcher.alone(Item(1)))
        await settled()
        with pytest.raises(StoreUnavailable, match="one by one"):
            await desk.batcher.alone(Item(2))
        await end_all(desk)
        assert await first == 10

    run(main())


ERRORS: list[Callable[[], Exception | None]] = [
    lambda: None,
    lambda: None,
    lambda: None,
    lambda: AnswerLost("reset"),
    lambda: StoreUnavailable("down", code="57P01"),
    lambda: StoreUnavailable("deadlock", code="40P01"),
]


async def ask_many(desk: Desk, chance: random.Random, count: int) -> list[asyncio.Future[int]]:
    """Callers that come, leave and are answered at any moment."""
    asked: list[asyncio.Future[int]] = []
    ask = chance.choice((desk.ask, desk.begin))
    for number in range(count):
        asked.append(ask(number, *chance.sample("abcdef", chance.randint(0, 2))))
        for _ in range(chance.choice((0, 0, 1, 3))):
            await asyncio.sleep(0)
        if chance.random() < 0.1:
            chance.choice(asked).cancel()
        if desk.open and chance.random() < 0.4:
            end(chance.choice(desk.open), chance.choice(ERRORS)())
    await settled()
    while desk.open:
        end(chance.choice(desk.open), chance.choice(ERRORS)())
        await settled()
    await asyncio.gather(*asked, return_exceptions=True)
    return asked


def assert_in_order(desk: Desk) -> None:
    first_sent = dict.fromkeys(item for trip in desk.sent for item in trip.items)
    for name in "abcdef":
        own = [item.number for item in first_sent if name in item.about]
        assert own == sorted(own)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_fails_and_leaves_everybody_is_answered_in_order_and_in_bounds(seed: int) -> None:
    chance = random.Random(seed)

    async def main() -> None:
        limit = chance.randint(2, 5)
        desk = Desk(limit=limit, beside=chance.randint(1, 3))
        desk.poisoned = {number for number in range(80) if chance.random() < 0.05}
        desk.elsewhere = {number for number in range(80) if chance.random() < 0.1}
        asked = await ask_many(desk, chance, 80)

        for number, task in enumerate(asked):
            if not task.cancelled() and task.exception() is None:
                assert task.result() == 10 * number
        for trip in desk.sent:
            names = [name for item in trip.items for name in item.about]
            assert len(names) == len(set(names))
            assert len(trip.items) <= limit
        assert_in_order(desk)
        assert not desk.batcher._waiting
        assert (desk.batcher._holder, desk.batcher._on_their_way) == (None, 0)
        assert len(desk.batcher._tasks) == 0

    run(main())
