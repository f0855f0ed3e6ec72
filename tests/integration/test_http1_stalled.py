"""A caller that stops reading is cut off after a while, whatever the server still has for it.

The protocol as it ships on an event loop of the test's own, with a shorter patience: two minutes
would be too long to wait for.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway import http1
from gateway.http1 import Http1Protocol
from tests.unit.upstream.calls import LOOPS, run

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class App:
    """Sends a body of so many bytes, again and again until it is told that nobody listens, or
    once."""

    def __init__(self, size: int, *, endless: bool) -> None:
        self._body = {"type": "http.response.body", "body": bytes(size), "more_body": endless}
        self._endless = endless
        self.told = asyncio.Event()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        sending = asyncio.ensure_future(self._send(send))
        while (await receive())["type"] != "http.disconnect":
            pass
        sending.cancel()
        self.told.set()

    async def _send(self, send: Send) -> None:
        await send(self._body)
        while self._endless:
            await send(self._body)


async def served(app: App) -> tuple[socket.socket, asyncio.AbstractServer, asyncio.Event]:
    """A caller that has asked and reads nothing; and the end of its connection."""
    lost = asyncio.Event()

    class Protocol(Http1Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    config = uvicorn.Config(app, interface="asgi3", lifespan="off", log_config=None)
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    caller = socket.socket()
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    caller.connect(server.sockets[0].getsockname())
    caller.sendall(GET)
    caller.setblocking(False)
    return caller, server, lost


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("size", "endless"), [(256 * 1024, True), (16 * 1024 * 1024, False)], ids=["stream", "replay"]
)
def test_a_caller_that_does_not_read_is_reset(
    loop: str, size: int, endless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "TAKE_S", 0.2)

    async def main() -> None:
        app = App(size, endless=endless)
        caller, server, lost = await served(app)
        with closing(caller):
            await app.told.wait()
            await lost.wait()
            error = caller.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            assert error, "it was not reset"
        server.close()

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_whoever_has_taken_all_has_its_time_anew(loop: str) -> None:
    async def main() -> None:
        protocol: Any = Http1Protocol.__new__(Http1Protocol)
        protocol.loop = asyncio.get_running_loop()
        protocol.transport = protocol.cycle = None
        protocol.flow = SimpleNamespace(pause_writing=int, resume_writing=int)
        timers: list[asyncio.TimerHandle] = []
        for _ in range(3):
            protocol.pause_writing()
            timers.append(protocol._taking)
            protocol.pause_writing()
            assert protocol._taking is timers[-1]
            protocol.resume_writing()
            assert protocol._taking is None
        assert all(timer.cancelled() for timer in timers)

    run(loop, main())
