"""Gauges are read when somebody asks, not more often than that, and never shown when stale."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.core.jobs import LeaseStats
from gateway.errors import StoreUnavailable
from gateway.jobs.sampler import EVERY_S, LEASES, Sampler

FOUND = [LeaseStats("t", None, None, 1, 2.0, 3.0)]


class Store:
    """Answers once ``gate`` is open."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.down = False

    async def leases(self, limit: int) -> list[LeaseStats]:
        self.asked.append(limit)
        await self.gate.wait()
        if self.down:
            raise StoreUnavailable("it is down")
        return FOUND


class Rig:
    def __init__(self) -> None:
        self.store = Store()
        self.now = 100.0
        self.shown: list[Sequence[LeaseStats]] = []
        self.sampler = Sampler(self.store, self.shown.append, lambda: self.now)  # type: ignore[arg-type]


def test_one_sample_in_five_seconds_however_many_ask() -> None:
    async def main() -> None:
        rig = Rig()
        await asyncio.gather(*(rig.sampler.refresh() for _ in range(10)))
        rig.now += EVERY_S - 0.1
        await rig.sampler.refresh()
        assert (rig.store.asked, rig.shown) == ([LEASES], [FOUND])
        rig.now += 0.1
        await rig.sampler.refresh()
        assert rig.shown == [FOUND, FOUND]

    asyncio.run(main())


def test_a_slow_database_holds_metrics_up_for_a_moment_only_and_is_asked_once() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store.gate.clear()
        await rig.sampler.refresh()
        rig.now += 10 * EVERY_S
        await rig.sampler.refresh()
        assert (rig.store.asked, rig.shown) == ([LEASES], [])
        rig.store.gate.set()
        await rig.sampler.refresh()
        assert rig.shown == [FOUND]

    asyncio.run(main())


def test_what_cannot_be_read_is_not_shown_as_it_was() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.sampler.refresh()
        rig.store.down = True
        rig.now += EVERY_S
        await rig.sampler.refresh()
        assert rig.shown == [FOUND, ()]

    asyncio.run(main())


def test_stopping_ends_a_sample() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.sampler.stop()
        rig.store.gate.clear()
        await rig.sampler.refresh()
        await rig.sampler.stop()
        assert rig.shown == []

    asyncio.run(main())
