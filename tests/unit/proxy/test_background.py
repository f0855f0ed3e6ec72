"""Tasks that outlive their request, and a shutdown that waits for them."""

from __future__ import annotations

import asyncio
import gc

from gateway.proxy.background import Background
from tests.unit.proxy.rig import run


def test_a_task_is_held_until_it_is_done() -> None:
    async def main() -> None:
        background, done = Background(), asyncio.Event()

        async def work() -> str:
            await done.wait()
            return "recorded"

        task = background.spawn(work())
        await asyncio.sleep(0)
        gc.collect()
        assert len(background) == 1
        done.set()
        assert await task == "recorded"
        await asyncio.sleep(0)
        assert len(background) == 0

    run(main())


def test_draining_waits_for_what_is_spawned_meanwhile() -> None:
    async def main() -> None:
        background, log = Background(), []

        async def second() -> None:
            await asyncio.sleep(0)
            log.append("second")

        async def first() -> None:
            await asyncio.sleep(0)
            background.spawn(second())
            log.append("first")

        background.spawn(first())
        assert await background.drain(10) == 0
        assert log == ["first", "second"]

    run(main())


def test_draining_ends_in_time_and_says_how_many_are_left() -> None:
    async def main() -> None:
        background = Background()
        tasks = [background.spawn(asyncio.Event().wait()) for _ in range(2)]
        assert await background.drain(0) == 2
        assert await background.drain(0.01) == 2
        assert not any(task.done() for task in tasks)
        await background.cancel()
        assert all(task.cancelled() for task in tasks)
        assert await background.drain(0) == 0

    run(main())


def test_a_task_that_fails_does_not_stop_a_shutdown() -> None:
    async def main() -> None:
        background = Background()

        async def fails() -> None:
            raise ValueError("bug")

        task = background.spawn(fails())
        assert await background.drain(10) == 0
        await background.cancel()
        assert isinstance(task.exception(), ValueError)

    run(main())


def test_draining_nothing_is_done_at_once() -> None:
    async def main() -> None:
        assert await Background().drain(10) == 0
        await Background().cancel()

    run(main())
