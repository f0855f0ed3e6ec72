"""What the tests of the client share: event loops, a manual clock, a transport without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from gateway.core.egress import network
from gateway.core.model import Exchange
from gateway.upstream import Deadlines, Request, now_s
from gateway.upstream.connection import Connection
from gateway.upstream.reading import DEFAULT_HEAD_LIMIT, ResponseReader

T = TypeVar("T")

LOOPBACK = (network("127.0.0.0/8"), network("::1"))
"""Where names of tests may lead, which else lead to public addresses only."""

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run(loop: str, main: Coroutine[Any, Any, T]) -> T:
    """Run on a fresh event loop of that name; a test that hangs fails after 30 s."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(asyncio.wait_for(main, 30))


class ManualClock:
    """A clock that moves only when told to; starts at the real one's reading."""

    def __init__(self) -> None:
        self.now = now_s()

    def __call__(self) -> float:
        return self.now

    def advance(self, by_s: float) -> None:
        self.now += by_s


def request(method: bytes = b"POST", body: bytes = b"{}", target: bytes = b"/v1/pay") -> Request:
    return Request(method, target, ((b"Host", b"upstream.test"),), body)


def within(s: float = 10.0, *, clock: Callable[[], float] = now_s) -> Deadlines:
    """All three deadlines ``s`` seconds from now."""
    due = clock() + s
    return Deadlines(due, due, due)


class FakeTransport(asyncio.Transport):
    """Takes everything at once and remembers it. ``on_write`` runs before a write returns."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.written: list[bytes] = []
        self.reading = True
        self.closed = self.aborted = False
        self.on_write: Callable[[], None] | None = None

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))
        if self.on_write is not None:
            self.on_write()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


def connected(clock: Callable[[], float] = now_s) -> tuple[Connection, FakeTransport]:
    """A connection without a network. Needs a running loop."""
    connection = Connection(clock)
    transport = FakeTransport(connection)
    connection.connection_made(transport)
    return connection, transport


def reader(
    method: bytes = b"POST", keep_limit: int | None = 1 << 20, head_limit: int = DEFAULT_HEAD_LIMIT
) -> ResponseReader:
    return ResponseReader(method=method, keep_limit=keep_limit, head_limit=head_limit)


def play(
    segments: list[bytes], end: Callable[[Connection], None], make: Callable[[], ResponseReader]
) -> Exchange:
    """One exchange whose answer arrives in these segments and then ends that way."""

    async def main() -> Exchange:
        connection, transport = connected()
        response = make()

        def on_write() -> None:
            for segment in segments:
                connection.data_received(segment)
            end(connection)

        transport.on_write = on_write
        await connection.perform(response, b"POST / HTTP/1.1\r\n\r\n", b"", within(60))
        seen = response.exchange(connection.stage)
        connection.close()
        return seen

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()
