"""How a request's body is handed on, whatever pieces it comes in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.integration.test_http1_slow import App, answered, served
from tests.unit.upstream.calls import LOOPS, run

HEAD = b"POST /x HTTP/1.1\r\nHost: g\r\n%b\r\n\r\n"


class Reader(App):
    """Reads the body whole before it answers, or nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []
        self.reads = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", self.reads
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies += [body] * self.reads
        await super().__call__(scope, receive, send)


@pytest.mark.parametrize("loop", LOOPS)
def test_pieces_of_one_read_are_handed_on_together(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of one byte must not cost what a read costs."""
    calls = 0
    on_body = HttpToolsProtocol.on_body

    def counted(self: HttpToolsProtocol, body: bytes) -> None:
        nonlocal calls
        calls += 1
        on_body(self, body)

    monkeypatch.setattr(HttpToolsProtocol, "on_body", counted)
    bytes_of_it = [b"%c" % (97 + at % 26) for at in range(9_000)]
    chunks = b"".join(b"1\r\n%b\r\n" % each for each in bytes_of_it)

    async def main() -> None:
        app = Reader()
        async with served(app) as desk:
            head = HEAD % b"Transfer-Encoding: chunked"
            await answered(await desk.call(head + chunks + b"0\r\n\r\n"))
        assert app.bodies == [b"".join(bytes_of_it)]
        assert 1 <= calls < 100

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_the_rest_of_an_answered_body_is_no_part_of_the_next_one(loop: str) -> None:
    async def main() -> None:
        app = Reader()
        async with served(app) as desk:
            app.reads = False
            sock = await desk.call(HEAD % b"Content-Length: 6" + b"abc")
            await answered(sock)
            app.reads = True
            following = b"def" + HEAD % b"Content-Length: 2" + b"gh"
            await asyncio.get_running_loop().sock_sendall(sock, following)
            await answered(sock)
        assert app.bodies == [b"gh"]

    run(loop, main())
