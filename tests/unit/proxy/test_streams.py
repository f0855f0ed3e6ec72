"""Places of streams: shared between tenants, waited for, and never lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from gateway.proxy.streams import Place, Places

LONG_S = 60.0


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_tenant_that_holds_its_share_waits_and_another_does_not() -> None:
    async def main() -> None:
        places = Places(4, lambda: True)
        theirs = [Place(places, 1) for _ in range(3)]
        assert [await each.take(0) for each in theirs] == [True] * 3
        fourth, fifth, other = Place(places, 1), Place(places, 1), Place(places, 2)
        waiting = [asyncio.ensure_future(each.take(LONG_S)) for each in (fourth, fifth)]
        await settled()
        assert await other.take(0)
        assert not any(each.done() for each in waiting)
        theirs[0].close()
        theirs[1].close()
        await settled()
        assert [each.done() for each in waiting] == [True, False]  # as they came
        other.close()
        other.close()
        assert await waiting[1]
        for each in (theirs[2], fourth, fifth):
            each.close()
        assert places.used == 0

    asyncio.run(main())


def test_a_single_tenant_may_have_all_and_who_had_none_in_time_holds_none() -> None:
    async def main() -> None:
        places = Places(2)
        first, second, third = (Place(places, 1) for _ in range(3))
        assert [await each.take(0) for each in (first, second, third)] == [True, True, False]
        third.close()
        assert places.used == 2
        first.close()
        assert await third.take(0)

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(20))
def test_whoever_leaves_when_nobody_is_forgotten(seed: int) -> None:
    chance = random.Random(seed)

    async def main() -> None:
        places = Places(chance.randint(2, 5), lambda: True)
        made = [Place(places, chance.randint(1, 3)) for _ in range(40)]
        takes = []
        for each in made:
            takes.append(asyncio.ensure_future(each.take(LONG_S)))
            if chance.random() < 0.5:
                await settled()
            if chance.random() < 0.4:
                chance.choice(takes).cancel()
            if chance.random() < 0.3:
                chance.choice(made).close()
        for _ in range(200):
            await settled()
            for each in made:
                each.close()
        assert all(each.done() for each in takes)
        assert (places.used, places._waiting) == (0, {})

    asyncio.run(main())
