"""A request that was given up must not arrive afterwards (G1): the kernel's queue counts too."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from gateway.upstream import Client, Deadlines, Origin, Request, now_s

BODY = b"x" * 60_000
"""Small enough for the kernel's send queue, too large for the peer's receive queue below."""


@pytest.fixture
def deaf() -> Iterator[socket.socket]:
    """A peer that accepts and does not read."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        yield listener


async def give_up(port: int) -> tuple[str | None, bool]:
    """The fault, and whether a late answer could still be waited for."""
    client = Client(Origin.parse(f"http://127.0.0.1:{port}"))
    now = now_s()
    request = Request(b"POST", b"/", ((b"Host", b"h"),), BODY)
    transfer = await client.send(request, Deadlines(now + 1, now + 1, now + 0.3), keep_limit=10)
    late = await transfer.late(until=now_s() + 0.05, byte_limit=10)
    transfer.close()
    await client.close()
    return transfer.exchange.fault, late is not None


def received(connection: socket.socket) -> bytes:
    """What arrives once the peer does read, up to the end or the reset."""
    connection.settimeout(5)
    got = b""
    try:
        while piece := connection.recv(65536):
            got += piece
    except ConnectionResetError:
        pass
    return got


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_what_waits_in_the_kernel_is_thrown_away(deaf: socket.socket, loop: str) -> None:
    factory = asyncio.new_event_loop
    if loop == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        fault, _ = runner.run(give_up(deaf.getsockname()[1]))
    connection, _ = deaf.accept()
    with connection:
        assert fault == "timeout"
        assert not received(connection).endswith(b"\r\n\r\n" + BODY)
