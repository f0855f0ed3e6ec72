"""Turns: however many streams want to move, only so many do in one turn of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from gateway.upstream import Turns
from tests.unit.upstream.calls import LOOPS, run

BOTH = pytest.mark.parametrize("loop", LOOPS)


class Count:
    """Numbers the turns of the loop."""

    def __init__(self) -> None:
        self.turn = 0
        self._next()

    def _next(self) -> None:
        self.turn += 1
        asyncio.get_running_loop().call_soon(self._next)


@BOTH
@pytest.mark.parametrize("limit", [1, 3])
def test_so_many_are_let_through_in_a_turn_and_in_their_order(loop: str, limit: int) -> None:
    async def main() -> None:
        count, turns = Count(), Turns(limit)
        through: list[tuple[int, int]] = []

        async def taker(name: int) -> None:
            for _ in range(20):
                await turns.take()
                through.append((count.turn, name))

        await asyncio.gather(*(taker(name) for name in range(10)))
        per_turn = [[turn for turn, _ in through].count(turn) for turn in {t for t, _ in through}]
        assert len(through) == 200
        assert max(per_turn) == limit
        names = [name for _, name in through[limit : limit + 160]]
        assert names == list(range(10)) * 16  # nobody is passed over

    run(loop, main())


@BOTH
def test_whoever_is_alone_never_waits_twice_in_a_turn(loop: str) -> None:
    async def main() -> None:
        count, turns = Count(), Turns(2)
        await asyncio.sleep(0)
        began = count.turn
        await turns.take()
        await turns.take()
        assert count.turn == began  # at once
        await turns.take()
        assert count.turn > began

    run(loop, main())


@BOTH
def test_one_that_gives_up_in_line_costs_nobody_a_turn(loop: str) -> None:
    async def main() -> None:
        count, turns = Count(), Turns(1)
        through: dict[int, int] = {}

        async def taker(name: int) -> None:
            await turns.take()
            through[name] = count.turn

        takers = [asyncio.create_task(taker(name)) for name in range(6)]
        await asyncio.sleep(0)
        for task in takers[3:5]:
            task.cancel()
        await asyncio.gather(*takers, return_exceptions=True)
        assert list(through) == [0, 1, 2, 5]
        assert through[5] - through[2] == through[2] - through[1] == 1

    run(loop, main())


@BOTH
def test_an_idle_line_leaves_nothing_running(loop: str) -> None:
    async def main() -> None:
        turns = Turns(1)
        for _ in range(3):
            await turns.take()
        for _ in range(5):
            await asyncio.sleep(0)
        assert (turns._taken, turns._let_in, turns._ticking) == (0, 0, False)

    run(loop, main())
