"""Turns: never too many, one for each lock, and fair between tenants."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import Any

import pytest

from gateway.proxy.lanes import SMALL, Lane, Reading, Slices

LONG_S = 60.0


class Desk:
    """Who asks a lane for turns, and ends them by hand. ``running``: names, in order."""

    def __init__(self, at_once: int = 1, wait_s: float = LONG_S) -> None:
        self.lane = Lane(at_once, wait_s)
        self.running: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[str | None]] = {}

    async def ask(self, name: str, *own: Hashable) -> None:
        """``name`` begins with its tenant's letter. Returns once it has a turn, or waits."""

        async def work() -> str:
            self.running[name] = asyncio.Event()
            await self.running[name].wait()
            del self.running[name]
            return name

        wish = self.lane.run(work, name[0], frozenset(own))
        self.tasks[name] = asyncio.create_task(wish)
        await settled()

    async def end(self, name: str) -> None:
        self.running[name].set()
        assert await self.tasks[name] == name
        await settled()

    async def order(self) -> list[str]:
        """End whoever has a turn until nobody has; who had one, in order."""
        had = []
        while self.running:
            had.append(next(iter(self.running)))
            await self.end(had[-1])
        return had


async def settled() -> None:
    """Until nothing is left to do that needs no one from outside."""
    for _ in range(10):
        await asyncio.sleep(0)


def run(work: Callable[[], Awaitable[Any]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(limited())


def test_a_tenant_that_comes_anew_has_the_next_turn() -> None:
    async def work() -> None:
        desk = Desk()
        for number in range(5):
            await desk.ask(f"a{number}")
        await desk.ask("b0")
        await desk.ask("b1")
        await desk.ask("c0")
        assert await desk.order() == ["a0", "b0", "c0", "a1", "b1", "a2", "a3", "a4"]

    run(work)


def test_who_comes_and_goes_keeps_nobody_out() -> None:
    """Each of two tenants asks anew as soon as it had its turn."""

    async def work() -> None:
        desk = Desk()
        for number in range(4):
            await desk.ask(f"a{number}")
        for number in range(20):
            await desk.ask(f"b{number}")
            await desk.ask(f"c{number}")
            await desk.end(next(iter(desk.running)))
            await desk.end(next(iter(desk.running)))
        assert {name for name in desk.tasks if desk.tasks[name].done()} >= {"a0", "a1", "a2", "a3"}
        await desk.order()

    run(work)


def test_what_is_about_one_thing_has_one_turn_whatever_else_it_is_about() -> None:
    async def work() -> None:
        desk = Desk(at_once=3)
        await desk.ask("a0", "k", "x")
        await desk.ask("a1", "k", "y")
        await desk.ask("a2", "z", "k")
        await desk.ask("a3", "y")
        await desk.ask("b0", "k")  # another tenant's thing of the same name
        assert list(desk.running) == ["a0", "a3", "b0"]
        await desk.end("a3")
        assert list(desk.running) == ["a0", "b0"]
        await desk.end("b0")
        assert await desk.order() == ["a0", "a1", "a2"]

    run(work)


def test_who_had_no_turn_in_time_takes_none() -> None:
    async def work() -> None:
        desk = Desk(wait_s=0.0)
        await desk.ask("a0")
        await desk.ask("a1")
        assert await desk.tasks["a1"] is None
        await desk.end("a0")
        await desk.ask("b0")
        assert list(desk.running) == ["b0"]
        await desk.end("b0")

    run(work)


@pytest.mark.parametrize("given", [False, True])
def test_who_is_cancelled_gives_its_turn_back(given: bool) -> None:
    async def work() -> None:
        desk = Desk()
        turn = await desk.lane.take("a", frozenset())
        assert turn is not None
        await desk.ask("a1")
        await desk.ask("a2")
        if given:  # its turn and its end come together
            desk.lane.give_back("a", turn)
        desk.tasks["a1"].cancel()
        with pytest.raises(asyncio.CancelledError):
            await desk.tasks["a1"]
        if not given:
            desk.lane.give_back("a", turn)
        await settled()
        assert await desk.order() == ["a2"]

    run(work)


def test_whatever_happens_no_turn_is_lost_and_none_is_one_too_many() -> None:
    chance = random.Random(7)
    at_once = 3

    async def work() -> None:
        lane = Lane(at_once, LONG_S)
        running: Counter[tuple[str, int]] = Counter()
        most = 0

        async def one(tenant: str) -> None:
            nonlocal most
            own = frozenset(chance.sample(range(4), chance.randint(0, 2)))

            async def hold() -> bool:
                nonlocal most
                names = [(tenant, each) for each in own] + [("", 0)]
                running.update(names)
                most = max(most, running["", 0])
                assert all(running[name] == 1 for name in names[:-1])
                try:
                    for _ in range(chance.randint(0, 5)):
                        await asyncio.sleep(0)
                finally:
                    running.subtract(names)
                return True

            until = asyncio.get_running_loop().time() + chance.choice([0.0, 0.001, LONG_S])
            await lane.run(hold, tenant, own, until)

        tasks = [asyncio.create_task(one(chance.choice("abc"))) for _ in range(500)]
        for task in chance.sample(tasks, 100):
            for _ in range(chance.randint(0, 3)):
                await asyncio.sleep(0)
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in answers} <= {type(None), asyncio.CancelledError}
        assert most == at_once
        desk = Desk()
        desk.lane = lane
        for name in ("a0", "a1", "b0", "b1"):
            await desk.ask(name)
        assert len(desk.running) == at_once
        await desk.order()

    run(work)


def ticks() -> Iterator[int]:
    """Counts the turns of the loop from here on."""
    loop, count = asyncio.get_running_loop(), 0

    def tick() -> None:
        nonlocal count
        count += 1
        loop.call_soon(tick)

    tick()
    while True:
        yield count


def test_big_bodies_that_are_ready_are_read_one_in_a_turn_of_the_loop() -> None:
    async def work() -> None:
        reading, count = Reading(), ticks()
        read: list[tuple[str, int]] = []

        async def ask(name: str, size: int) -> None:
            until = asyncio.get_running_loop().time() + LONG_S

            def body() -> bool:
                read.append((name, next(count)))
                return True

            assert await reading.run(size, name[0], body, until)

        names = [f"a{number}" for number in range(6)] + ["b0"]
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(ask(name, SMALL + 1))
            group.create_task(ask("small", SMALL))
        order = [name for name, _ in read]
        assert order[:3] == ["a0", "small", "b0"]  # small ones pass, others have the next turn
        turns = [turn for name, turn in read if name != "small"]
        assert len(set(turns)) == len(names)

    run(work)


def test_a_body_whose_turn_does_not_come_is_not_read() -> None:
    async def work() -> None:
        reading = Reading()
        loop = asyncio.get_running_loop()

        async def first() -> str | None:
            return await reading.run(SMALL + 1, "a", lambda: "first", loop.time() + LONG_S)

        async def second() -> str | None:
            return await reading.run(SMALL + 1, "b", lambda: "second", loop.time())

        assert await asyncio.gather(first(), second()) == ["first", None]

    run(work)


def test_a_body_that_cannot_be_read_gives_its_turn_back() -> None:
    async def work() -> None:
        reading = Reading()
        until = asyncio.get_running_loop().time() + LONG_S
        with pytest.raises(ZeroDivisionError):
            await reading.run(SMALL + 1, "a", lambda: 1 // 0, until)
        assert await reading.run(SMALL + 1, "a", lambda: 7, until) == 7

    run(work)


# -- beside the loop, and in slices of its turns


def test_a_body_that_is_read_aside_stops_nobody_and_its_turn_is_one() -> None:
    async def work() -> None:
        reading = Reading.in_a_thread()
        loop = asyncio.get_running_loop()
        begun, go_on = threading.Event(), threading.Event()
        at_work: list[str] = []

        def slow() -> str:
            at_work.append("slow")
            begun.set()
            assert go_on.wait(LONG_S)
            at_work.append("slow over")
            return "slow"

        def next_one() -> str:
            at_work.append("next")
            return "next"

        until = loop.time() + LONG_S
        first = asyncio.ensure_future(reading.run(SMALL + 1, "a", slow, until))
        assert await asyncio.to_thread(begun.wait, LONG_S)
        second = asyncio.ensure_future(reading.run(SMALL + 1, "b", next_one, until))
        # The loop goes on: small bodies are read, and turns of the loop go by.
        assert await reading.run(SMALL, "c", lambda: "small", until) == "small"
        for _ in range(100):
            await asyncio.sleep(0)
        assert at_work == ["slow"]
        first.cancel()  # its caller is gone, the thread is not: the turn is still its
        for _ in range(100):
            await asyncio.sleep(0)
        assert at_work == ["slow"]
        go_on.set()
        assert await second == "next"
        assert at_work == ["slow", "slow over", "next"]

    run(work)


def test_what_cannot_be_read_aside_gives_its_turn_back() -> None:
    async def work() -> None:
        reading = Reading.in_a_thread()
        until = asyncio.get_running_loop().time() + LONG_S
        with pytest.raises(ZeroDivisionError):
            await reading.run(SMALL + 1, "a", lambda: 1 // 0, until)
        assert await reading.run(SMALL + 1, "a", lambda: 7, until) == 7

    run(work)


class Watch:
    """A clock that moves by what is done."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_small_bodies_that_take_long_leave_every_turn_of_the_loop_to_others() -> None:
    async def work() -> None:
        watch = Watch()
        slices, count = Slices(watch), ticks()
        turns: list[int] = []

        def slow() -> None:
            watch.now += 0.008
            turns.append(next(count))

        await asyncio.gather(*(slices.run(slow, "a") for _ in range(50)))
        assert len(turns) == 50
        assert turns == sorted(turns)
        assert max(Counter(turns).values()) <= 2  # 10 ms are over behind the second

    run(work)


def test_small_bodies_that_are_read_quickly_do_not_wait() -> None:
    async def work() -> None:
        slices, count = Slices(Watch()), ticks()
        turns: list[int] = []
        await asyncio.gather(
            *(slices.run(lambda: turns.append(next(count)), "a") for _ in range(50))
        )
        assert len(turns) == 50
        assert len(set(turns)) == 1

    run(work)


def test_whoever_floods_keeps_another_tenant_waiting_for_one_body() -> None:
    async def work() -> None:
        watch = Watch()
        slices = Slices(watch)
        read: list[str] = []

        def slow(tenant: str) -> None:
            watch.now += 1
            read.append(tenant)

        order = [*"aaaaaaaaa", "b", "b", "c"]
        wishes = (slices.run(functools.partial(slow, each), each) for each in order)
        await asyncio.gather(*wishes)
        assert "".join(read) == "aabcab" + "a" * 6

    run(work)


def test_one_that_is_cancelled_in_line_holds_up_nobody() -> None:
    async def work() -> None:
        watch = Watch()
        slices = Slices(watch)
        read: list[int] = []

        def slow(number: int) -> None:
            watch.now += 1
            read.append(number)

        tasks = [
            asyncio.ensure_future(slices.run(functools.partial(slow, number), "a"))
            for number in range(9)
        ]
        await asyncio.sleep(0)
        for number in (1, 2, 5):
            tasks[number].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert read == [0, 3, 4, 6, 7, 8]

    run(work)
