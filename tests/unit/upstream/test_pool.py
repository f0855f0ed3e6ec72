"""Slots, order and the windows in which a grant meets a cancellation or a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.core.model import Fault
from gateway.upstream.connection import Connection
from gateway.upstream.pool import Pool
from tests.unit.upstream.calls import FakeTransport, ManualClock, connected, reader, run, within

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Bench:
    """A pool whose connections have no network."""

    def __init__(self, max_connections: int = 1, idle_s: float = 4.0) -> None:
        self.clock = ManualClock()
        self.made: list[FakeTransport] = []
        self.fault: Fault | None = None
        self.pool = Pool(
            self.dial, max_connections=max_connections, idle_s=idle_s, clock=self.clock
        )

    async def dial(self, timeout_s: float) -> Connection | Fault:
        if self.fault is not None:
            return self.fault
        connection, transport = connected(self.clock)
        self.made.append(transport)
        transport.on_write = lambda: connection.data_received(OK)
        return connection

    async def get(self, within_s: float = 10.0) -> Connection:
        got = await self.pool.acquire(self.clock.now + within_s)
        assert isinstance(got, Connection)
        return got

    async def used(self, connection: Connection) -> Connection:
        """After one exchange that leaves the connection reusable."""
        await connection.perform(reader(), b"", b"", within(60, clock=self.clock))
        assert connection.reusable
        return connection


@pytest.mark.parametrize("reusable", [False, True])
def test_a_grant_that_meets_a_cancellation_goes_to_the_next(reusable: bool) -> None:
    async def main() -> None:
        bench = Bench()
        held = await bench.get()
        if reusable:
            await bench.used(held)
        first = asyncio.create_task(bench.get())
        second = asyncio.create_task(bench.get())
        await asyncio.sleep(0)
        bench.pool.put(held)  # granted to the first, which is cancelled before it runs
        first.cancel()
        got = await second
        assert first.cancelled()
        assert (got is held) is reusable
        assert bench.pool.slots == 1

    run("asyncio", main())


def test_a_grant_that_meets_a_cancellation_and_no_waiter_is_kept_or_freed() -> None:
    async def main() -> None:
        for reusable in (False, True):
            bench = Bench()
            held = await bench.get()
            if reusable:
                await bench.used(held)
            waiter = asyncio.create_task(bench.get())
            await asyncio.sleep(0)
            bench.pool.put(held)
            waiter.cancel()
            await asyncio.wait({waiter})
            assert (bench.pool.slots, bench.pool.idle) == (reusable, reusable)

    run("asyncio", main())


def test_failed_dials_free_their_slot_for_the_next_waiter() -> None:
    async def main() -> None:
        bench = Bench()
        held = await bench.get()
        bench.fault = "refused"
        waiting = [asyncio.create_task(bench.pool.acquire(bench.clock.now + 9)) for _ in range(3)]
        await asyncio.sleep(0)
        bench.pool.drop(held)
        assert await asyncio.gather(*waiting) == ["refused"] * 3
        assert bench.pool.slots == 0

    run("asyncio", main())


def test_newcomers_do_not_overtake() -> None:
    async def main() -> None:
        bench = Bench()
        held = await bench.used(await bench.get())
        order: list[int] = []

        async def worker(number: int) -> None:
            got = await bench.used(await bench.get())
            order.append(number)
            bench.pool.put(got)

        tasks = [asyncio.create_task(worker(number)) for number in range(4)]
        await asyncio.sleep(0)
        bench.pool.put(held)
        tasks.append(asyncio.create_task(worker(4)))
        await asyncio.gather(*tasks)
        assert order == [0, 1, 2, 3, 4]
        assert len(bench.made) == 1

    run("asyncio", main())


def spoiled_by(what: str, connection: Connection) -> None:
    actions: dict[str, Callable[[], object]] = {
        "data": lambda: connection.data_received(b"x"),
        "eof": connection.eof_received,
        "lost": lambda: connection.connection_lost(None),
    }
    actions[what]()


@pytest.mark.parametrize("what", ["data", "eof", "lost"])
def test_liveness_check(what: str) -> None:
    async def main() -> None:
        bench = Bench()
        held = await bench.used(await bench.get())
        bench.pool.put(held)
        assert bench.pool.idle == 1
        spoiled_by(what, held)
        assert await bench.get() is not held
        assert (bench.pool.slots, len(bench.made)) == (1, 2)

    run("asyncio", main())


def test_idle_connections_end_even_if_nobody_asks() -> None:
    async def main() -> None:
        bench = Bench(max_connections=2, idle_s=0.01)
        held = [await bench.used(await bench.get()) for _ in range(2)]
        for connection in held:
            bench.pool.put(connection)
        bench.clock.advance(1)
        while bench.pool.idle:  # the sweep is a timer of 50 ms
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        assert bench.pool.slots == 0
        assert all(transport.closed for transport in bench.made)

    run("asyncio", main())


def test_close_ends_idle_connections_and_keeps_no_others() -> None:
    async def main() -> None:
        bench = Bench(max_connections=2)
        idle, busy = await bench.used(await bench.get()), await bench.used(await bench.get())
        bench.pool.put(idle)
        bench.pool.close()
        assert [transport.closed for transport in bench.made] == [True, False]
        bench.pool.put(busy)
        assert bench.pool.slots == 0
        assert bench.made[1].closed

    run("asyncio", main())


@pytest.mark.parametrize(("connections", "idle_s"), [(0, 4.0), (1, -1.0)])
def test_limits_are_checked(connections: int, idle_s: float) -> None:
    with pytest.raises(ValueError, match=r"max_connections|idle_s"):
        Bench(connections, idle_s)
