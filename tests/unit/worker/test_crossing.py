"""Calls from one thread into the loop of another."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from gateway.worker.crossing import Crossing


def test_every_call_of_many_threads_arrives() -> None:
    async def play() -> int:
        crossing, came = Crossing(asyncio.get_running_loop()), list[int]()
        over = asyncio.Event()

        def arrive(number: int) -> None:
            came.append(number)
            if len(came) == 4_000:
                over.set()

        def send(first: int) -> None:
            for number in range(first, first + 1_000):
                crossing.call(lambda number=number: arrive(number))

        threads = [threading.Thread(target=send, args=(first,)) for first in range(0, 4_000, 1_000)]
        for each in threads:
            each.start()
        async with asyncio.timeout(30):
            await over.wait()
        return len(set(came))

    assert asyncio.run(play()) == 4_000


def test_a_result_comes_from_another_thread_and_who_stops_waiting_does_not_cancel_it() -> None:
    async def play() -> None:
        crossing = Crossing(asyncio.get_running_loop())
        made: Future[int] = Future()
        waiting = asyncio.create_task(crossing.result(made))
        left = asyncio.create_task(crossing.result(made))
        await asyncio.sleep(0)
        left.cancel()
        threading.Thread(target=made.set_result, args=(7,)).start()
        assert await waiting == 7
        assert not made.cancelled()

    asyncio.run(play())


def test_nobody_is_called_where_the_loop_is_closed() -> None:
    loop = asyncio.new_event_loop()
    crossing = Crossing(loop)
    loop.close()
    crossing.call(lambda: 1 / 0)
    crossing.call(lambda: 1 / 0)
