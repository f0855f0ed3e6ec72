"""The line before the database: one of each entity, never too many, fair between tenants, and
nobody is forgotten in it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from gateway.proxy.line import Late, Line
from gateway.proxy.shares import Flight, Share
from gateway.proxy.waiting import Full
from tests.kit.commands import attempt, command

LONG_S = 30.0


class Desk:
    """Who stands in a line; ``asking`` those who have a turn, ended by hand."""

    def __init__(self, at_once: int = 2, limit: int = 10_000, per_topic: int = 10_000) -> None:
        self.line = Line(at_once, limit=limit, limit_per_topic=per_topic)
        self.asking: dict[str, asyncio.Event] = {}
        self.order: list[str] = []
        self.share = Share(10_000)

    async def ask(self, name: str, wait_s: float = LONG_S, *, key: str = "", **about: Any) -> str:
        """``name``: a tenant's digit, and an entity's letter."""
        made = command(
            key or name,
            by=attempt(0),
            tenant=int(name[0]),
            entity=name[1],
            **about,
        )
        flight = Flight(made.tenant, (self.share,))
        until = asyncio.get_running_loop().time() + wait_s
        try:
            about = self.line.at_once(made) or await self.line.wait(made, flight, until)
            self.order.append(name)
            self.asking[name] = asyncio.Event()
            try:
                await self.asking[name].wait()
            finally:
                del self.asking[name]
                self.line.leave(about)
        finally:
            flight.rest()
        return name

    async def start(self, name: str, **more: Any) -> asyncio.Task[str]:
        task = asyncio.ensure_future(self.ask(name, **more))
        await settled()
        return task

    async def end(self, name: str) -> None:
        self.asking[name].set()
        await settled()


async def settled() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


def test_one_of_each_entity_asks_at_a_time_and_others_pass() -> None:
    async def main() -> None:
        desk = Desk(at_once=3)
        for name in ("1a.1", "1a.2", "1a.3", "1b", "2a"):
            await desk.start(name)
        assert list(desk.asking) == ["1a.1", "1b", "2a"]
        assert (desk.line.count, desk.share.used) == (2, 3)  # who waits is not in flight
        await desk.end("1a.1")
        assert list(desk.asking) == ["1b", "2a", "1a.2"]
        await desk.end("1a.2")
        await desk.end("1a.3")
        await desk.end("1b")
        await desk.end("2a")
        assert (desk.line.count, desk.share.used) == (0, 0)

    asyncio.run(main())


def test_without_a_lock_on_the_entity_it_is_one_of_each_key() -> None:
    async def main() -> None:
        desk = Desk(at_once=5)
        free = {"serial": False, "fence": None}
        for name, key in (("1a.1", "k"), ("1a.2", "k"), ("1a.3", "other")):
            await desk.start(name, key=key, **free)
        assert list(desk.asking) == ["1a.1", "1a.3"]

    asyncio.run(main())


def test_a_tenant_that_floods_has_every_other_turn() -> None:
    async def main() -> None:
        desk = Desk(at_once=1)
        await desk.start("1a")
        for letter in "bcdef":
            await desk.start("1" + letter)
        for letter in "ab":
            await desk.start("2" + letter)
        while desk.asking:
            await desk.end(next(iter(desk.asking)))
        assert desk.order == ["1a", "1b", "2a", "1c", "2b", "1d", "1e", "1f"]

    asyncio.run(main())


def test_no_turn_in_time_and_a_full_line_are_told() -> None:
    async def main() -> None:
        desk = Desk(at_once=1, limit=3, per_topic=1)
        await desk.start("1a")
        with pytest.raises(Late):
            await desk.ask("1a.late", 0.01)
        first = await desk.start("1a.2")
        with pytest.raises(Full):
            await desk.ask("1a.3")
        await desk.start("1b")
        await desk.start("1c")
        with pytest.raises(Full):
            await desk.ask("1d")
        await desk.end("1a")
        await desk.end("1b")
        await desk.end("1c")
        await desk.end("1a.2")
        assert await first == "1a.2"
        assert desk.share.used == 0

    asyncio.run(main())


def test_a_tenant_that_fills_the_line_leaves_places_to_others() -> None:
    async def main() -> None:
        desk = Desk(at_once=1)
        desk.line = Line(1, limit=6, limit_per_topic=6, several=lambda: True)
        await desk.start("1a")
        for letter in "bcde":
            await desk.start("1" + letter)
        with pytest.raises(Full, match="4 of this tenant's callers"):
            await desk.ask("1f")
        await desk.start("2a")
        assert desk.line.count == 5
        while desk.asking:
            await desk.end(next(iter(desk.asking)))
        assert desk.order == ["1a", "1b", "2a", "1c", "1d", "1e"]
        assert (desk.line.count, desk.share.used) == (0, 0)

    asyncio.run(main())


def test_who_waits_when_the_process_stops_hears_so_at_once() -> None:
    async def main() -> None:
        desk = Desk(at_once=1)
        asking = await desk.start("1a")
        waiting = [await desk.start(name) for name in ("1a.2", "1a.3", "1b", "2c")]
        desk.line.close()
        for task in waiting:
            with pytest.raises(Late, match="stopping"):
                await task
        await desk.end("1a")
        assert await asking == "1a"
        assert (desk.line.count, desk.share.used) == (0, 0)
        assert (desk.line._behind, desk.line._next) == ({}, {})

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(20))
def test_whatever_leaves_when_nobody_is_forgotten(seed: int) -> None:
    chance = random.Random(seed)

    async def main() -> None:
        desk = Desk(at_once=chance.randint(1, 3))
        tasks = []
        for number in range(60):
            name = f"{chance.randint(1, 3)}{chance.choice('abc')}.{number}"
            tasks.append(asyncio.ensure_future(desk.ask(name)))
            if chance.random() < 0.4:
                await settled()
            if chance.random() < 0.5:
                chance.choice(tasks).cancel()
            if desk.asking and chance.random() < 0.5:
                desk.asking[chance.choice(list(desk.asking))].set()
        while not all(task.done() for task in tasks):
            await settled()
            entities = [name[:2] for name in desk.asking]
            assert len(entities) == len(set(entities))
            assert entities, "somebody is due, and nobody asks"
            desk.asking[chance.choice(list(desk.asking))].set()
            await settled()
        await settled()
        assert (desk.line.count, desk.share.used) == (0, 0)
        assert (desk.line._behind, desk.line._next) == ({}, {})

    asyncio.run(main())
