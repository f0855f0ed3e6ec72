"""Connections that cost and do nothing: silent ones, heads that do not come, answers that nobody
takes, and too many of all.

The protocol as it ships on an event loop of the test's own, with shorter patience.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway import http1
from gateway.http1 import Http1Protocol
from gateway.limits import ROOM_TO_REFUSE
from gateway.proxy.shares import Share, Untaken
from tests.unit.upstream.calls import LOOPS, run

SHORT_S = 0.2
GET = b"GET /x HTTP/1.1\r\nHost: g\r\n\r\n"


class App:
    """Answers with ``size`` bytes, once it may."""

    def __init__(self, size: int = 2) -> None:
        self._size = size
        self.may = asyncio.Event()
        self.may.set()
        self.asked = 0
        self.share = Share(1 << 30)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        scope["state"]["untaken"] = Untaken(self.share, 1)
        await self.may.wait()
        length = [(b"content-length", b"%d" % self._size)]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": bytes(self._size)})


class Desk:
    """A server, and callers of it."""

    def __init__(self, server: asyncio.AbstractServer, state: ServerState) -> None:
        self._address = server.sockets[0].getsockname()
        self.connections = state.connections
        self._open: list[socket.socket] = []

    async def call(self, data: bytes = b"", buffer: int | None = None) -> socket.socket:
        sock = socket.socket()
        if buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, self._address)
        await loop.sock_sendall(sock, data)
        self._open.append(sock)
        return sock

    async def heard(self, sock: socket.socket) -> bytes:
        """All that comes until the end, which an answer behind a reset may be."""
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := await asyncio.get_running_loop().sock_recv(sock, 65536):
                found += piece
        return found

    async def until(self, connections: int) -> None:
        while len(self.connections) != connections:  # noqa: ASYNC110 - uvicorn's own set
            await asyncio.sleep(0.005)

    def close(self) -> None:
        for sock in self._open:
            sock.close()


@contextlib.asynccontextmanager
async def served(app: App, limit: float | None = None) -> AsyncIterator[Desk]:
    config = uvicorn.Config(app, interface="asgi3", lifespan="off", log_config=None)
    state = ServerState()
    more = {} if limit is None else {"connection_limit": limit}
    protocol = type("Protocol", (Http1Protocol,), more)
    server = await asyncio.get_running_loop().create_server(
        lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    desk = Desk(server, state)
    try:
        yield desk
    finally:
        desk.close()
        server.close()


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("HEAD_S", "FRESH_S", "CROWDED_HEAD_S", "TAKE_S"):
        monkeypatch.setattr(http1, name, SHORT_S)
    return str(request.param)


def test_a_connection_without_a_byte_is_closed(loop: str) -> None:
    async def main() -> None:
        async with served(App()) as desk:
            assert await desk.heard(await desk.call()) == b""
            await desk.until(0)

    run(loop, main())


@pytest.mark.parametrize("head", [b"G", b"GET /x", GET[:-2], GET + GET[:-5]])
def test_a_head_that_does_not_end_in_time_is_refused(loop: str, head: bytes) -> None:
    async def main() -> None:
        app = App()
        async with served(app) as desk:
            sock = await desk.call(head)

            async def drip() -> None:
                with contextlib.suppress(OSError):
                    for _ in range(50):  # no byte gives it more time
                        await asyncio.sleep(SHORT_S / 10)
                        if head != b"G":  # which would be no method any more
                            await asyncio.get_running_loop().sock_sendall(sock, b"a")

            dripping = asyncio.ensure_future(drip())
            heard = await desk.heard(sock)
            assert not dripping.done()
            dripping.cancel()
            *answers, last = heard.split(b"HTTP/1.1 ")[1:] or [b""]
            assert [answer[:3] for answer in answers] == [b"200"] * (head.count(b"\r\n\r\n"))
            assert last.startswith(b"400 ")
            assert b"Send the whole head within" in last
            await desk.until(0)
            assert app.asked == head.count(b"\r\n\r\n")

    run(loop, main())


def test_blank_lines_are_no_head(loop: str) -> None:
    async def main() -> None:
        async with served(App()) as desk:
            assert await desk.heard(await desk.call(b"\r\n\r\n")) == b""

    run(loop, main())


def test_a_request_that_was_begun_in_time_may_take_longer(loop: str) -> None:
    async def main() -> None:
        app = App()
        app.may.clear()
        async with served(app) as desk:
            sock = await desk.call(GET[:7])
            await asyncio.get_running_loop().sock_sendall(sock, GET[7:])
            while not app.asked:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await desk.heard(await desk.call())  # as long as a head may take
            app.may.set()
            assert (await asyncio.get_running_loop().sock_recv(sock, 100)).startswith(
                b"HTTP/1.1 200 "
            )

    run(loop, main())


# -- answers that nobody takes


@pytest.mark.parametrize("size", [60 * 1024, 8 * 1024 * 1024], ids=["small", "large"])
def test_an_answer_that_nobody_takes_ends_with_its_connection(loop: str, size: int) -> None:
    async def main() -> None:
        async with served(App(size)) as desk:
            server_buffer = socket.SO_SNDBUF
            close = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            sock = await desk.call(b"", buffer=4096)
            await desk.until(1)
            (protocol,) = desk.connections
            ours = protocol.transport.get_extra_info("socket")
            ours.setsockopt(socket.SOL_SOCKET, server_buffer, 4096)
            await asyncio.get_running_loop().sock_sendall(sock, close)
            await desk.until(0)

    run(loop, main())


def test_what_nobody_takes_counts_until_it_is_taken_or_given_up(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 8 * 1024 * 1024
    monkeypatch.setattr(http1, "TAKE_S", 20.0)
    monkeypatch.setattr(http1, "FRESH_S", 20.0)

    async def main() -> None:
        app = App(size)
        async with served(app) as desk:
            sock = await desk.call(GET, buffer=4096)
            while not app.share.used:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            assert size - 4 * 2**20 < app.share.used <= size + 1024
            heard = 0
            while heard < size:
                heard += len(await asyncio.get_running_loop().sock_recv(sock, 1 << 20))
            while app.share.used:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            monkeypatch.setattr(http1, "TAKE_S", SHORT_S)
            await desk.call(GET, buffer=4096)
            while not app.share.used:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await desk.until(1)  # it was reset
            assert app.share.used == 0

    run(loop, main())


# -- too many connections


def test_over_the_limit_the_newest_are_refused_and_those_that_are_in_stay(loop: str) -> None:
    async def main() -> None:
        app = App()
        app.may.clear()
        async with served(app, limit=3) as desk:
            within = [await desk.call(GET) for _ in range(3)]
            await desk.until(3)
            refused = await desk.call(GET)
            heard = await desk.heard(refused)
            assert heard.startswith(b"HTTP/1.1 503 ")
            assert b"connection: close" in heard
            assert b"retry-after: 1" in heard.lower()
            assert b"urn:fencegate:problem:overloaded" in heard
            silent = await desk.call()
            assert await desk.heard(silent) == b""
            app.may.set()
            for sock in within:
                first = await asyncio.get_running_loop().sock_recv(sock, 12)
                assert first == b"HTTP/1.1 200"
            within[0].close()
            await desk.until(2)
            again = await desk.call(GET)
            assert await asyncio.get_running_loop().sock_recv(again, 12) == b"HTTP/1.1 200"
            assert app.asked == 4

    run(loop, main())


def test_one_that_was_let_in_may_ask_though_there_are_too_many_now(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEAD_S", "FRESH_S", "CROWDED_HEAD_S"):
        monkeypatch.setattr(http1, name, 20.0)

    async def main() -> None:
        async with served(App(), limit=1) as desk:
            first = await desk.call(GET[:7])
            await desk.until(1)
            await desk.call()
            await desk.until(2)
            await asyncio.get_running_loop().sock_sendall(first, GET[7:])
            assert await asyncio.get_running_loop().sock_recv(first, 12) == b"HTTP/1.1 200"

    run(loop, main())


def test_who_looks_after_the_process_is_let_in_over_the_limit(loop: str) -> None:
    async def main() -> None:
        app = App()
        async with served(app, limit=1) as desk:
            await desk.call()
            heard = await desk.heard(await desk.call(GET.replace(b"/x", b"/healthz")))
            assert heard.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in heard

    run(loop, main())


def test_far_over_the_limit_nobody_is_answered(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "CROWDED_HEAD_S", 20.0)
    monkeypatch.setattr(http1, "FRESH_S", 20.0)

    async def main() -> None:
        app = App()
        async with served(app, limit=2) as desk:
            for _ in range(2 + ROOM_TO_REFUSE):
                await desk.call()
            await desk.until(2 + ROOM_TO_REFUSE)
            assert await desk.heard(await desk.call()) == b""
            await desk.until(2 + ROOM_TO_REFUSE)
            assert app.asked == 0

    run(loop, main())


async def answered(sock: socket.socket) -> None:
    """That an answer has come, whole: the App's are 2 bytes."""
    heard = b""
    while not heard.endswith(b"\r\n\r\n\0\0"):
        piece = await asyncio.get_running_loop().sock_recv(sock, 65536)
        assert piece, heard
        heard += piece
    assert heard.startswith(b"HTTP/1.1 200 ")


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_S", "FRESH_S", "CROWDED_HEAD_S"):
        monkeypatch.setattr(http1, name, 20.0)


@pytest.mark.parametrize("behind", [b"", b"\r\n"], ids=["nothing", "a blank line"])
def test_over_the_limit_the_one_that_lies_idle_longest_gives_way(
    loop: str, monkeypatch: pytest.MonkeyPatch, behind: bytes
) -> None:
    patient(monkeypatch)

    async def main() -> None:
        app = App()
        async with served(app, limit=3) as desk:
            idle = [await desk.call() for _ in range(3)]
            await desk.until(3)
            for sock in (idle[1], idle[0], idle[2]):
                await asyncio.get_running_loop().sock_sendall(sock, GET + behind)
                await answered(sock)
            # One that asks again has lain idle for the shortest time.
            await asyncio.get_running_loop().sock_sendall(idle[1], GET)
            await answered(idle[1])
            for gone in (idle[0], idle[2], idle[1]):
                await answered(await desk.call(GET))
                assert await desk.heard(gone) == b""
                await desk.until(3)
            assert app.asked == 7

    run(loop, main())


@pytest.mark.parametrize(
    ("first", "begun", "rest"),
    [(GET, GET[:7], GET[7:]), (GET + GET[:7], b"", GET[7:]), (GET, GET, b"")],
    ids=["a head", "a head in one read with the request before", "a request"],
)
def test_over_the_limit_whoever_has_begun_a_request_stays(
    loop: str, monkeypatch: pytest.MonkeyPatch, first: bytes, begun: bytes, rest: bytes
) -> None:
    patient(monkeypatch)

    async def main() -> None:
        app = App()
        async with served(app, limit=2) as desk:
            silent = await desk.call()
            busy = await desk.call(first)
            await answered(busy)
            app.may.clear()
            await asyncio.get_running_loop().sock_sendall(busy, begun)
            # Nobody has to wait until that is read: what lies in the kernel counts as well.
            refused = await desk.heard(await desk.call(GET))
            assert refused.startswith(b"HTTP/1.1 503 ")
            app.may.set()
            for sock, more in ((busy, rest), (silent, GET)):
                await asyncio.get_running_loop().sock_sendall(sock, more)
                await answered(sock)

    run(loop, main())


def test_a_head_that_began_in_one_read_with_the_request_before_has_its_time_too(
    loop: str,
) -> None:
    async def main() -> None:
        async with served(App()) as desk:
            heard = await desk.heard(await desk.call(GET + GET[:7]))
            assert heard.count(b"HTTP/1.1 ") == 2
            assert b"HTTP/1.1 400 " in heard

    run(loop, main())


def test_what_was_read_for_a_request_is_let_go_behind_its_answer(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(monkeypatch)
    marked = b"/" + b"x" * 60

    async def main() -> None:
        async with served(App()) as desk:
            await answered(
                await desk.call(
                    b"GET %b HTTP/1.1\r\nHost: g\r\nX-A: %b\r\nContent-Length: %d\r\n\r\n%b"
                    % (marked, marked, len(marked), marked)
                )
            )
            (protocol,) = desk.connections
            held = {**vars(protocol), **vars(protocol.cycle)}
            assert marked not in b"".join(repr(each).encode() for each in held.values())

    run(loop, main())
