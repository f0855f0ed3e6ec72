"""What the server says beyond ASGI, and what it writes for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.proxy.respond import BODY_FOLLOWS
from tests.integration.test_http1_slow import GET, App, answered, served
from tests.unit.upstream.calls import LOOPS, run

POST = b"POST /x HTTP/1.1\r\nHost: g\r\nContent-Length: 6\r\n\r\n"
OK = [(b"Content-Length", b"2"), (b"X-Odd%s", b"%d")]


class Told(App):
    """Notes the body that was there at once, and waits for a hang-up where it is to."""

    def __init__(self, *, waits: bool = False) -> None:
        super().__init__()
        self._waits = waits
        self.bodies: list[bytes | None] = []
        self.waiting, self.gone = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.bodies.append(scope["state"]["whole_body"]())
        if self._waits:
            told = scope["state"]["hang_up"]()
            self.waiting.set()
            await told
            self.gone.set()
        await super().__call__(scope, receive, send)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("pieces", "whole"),
    [((GET,), b""), ((POST + b"abcdef",), b"abcdef"), ((POST + b"abc", b"def"), None)],
)
def test_a_body_is_handed_over_if_all_of_it_is_there(
    loop: str, pieces: tuple[bytes, ...], whole: bytes | None
) -> None:
    async def main() -> None:
        app = Told()
        async with served(app) as desk:
            sock = await desk.call(pieces[0])
            await answered(sock)
            assert app.bodies == [whole]

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_body_that_waits_for_100_continue_is_not_there(loop: str) -> None:
    async def main() -> None:
        app = Told()
        async with served(app) as desk:
            head = POST[:-2] + b"Expect: 100-continue\r\n\r\n"
            await answered(await desk.call(head))
            assert app.bodies == [None]

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("request_", [GET, POST + b"abcdef", POST + b"abc"])
def test_whoever_waits_for_a_hang_up_is_told(loop: str, request_: bytes) -> None:
    async def main() -> None:
        app = Told(waits=True)
        async with served(app) as desk:
            sock = await desk.call(request_)
            await app.waiting.wait()
            assert not app.gone.is_set()
            sock.close()
            await app.gone.wait()
            await desk.until(0)

    run(loop, main())


def answers(head: dict[str, Any], *bodies: dict[str, Any]) -> Callable[..., Any]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, **head})
        for body in bodies:
            await send({"type": "http.response.body", **body})

    return app


WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-odd%s: %d\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"


@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize(
    ("fields", "bodies", "heard"),
    [
        (OK, [{"body": b"ok"}], WHOLE),
        (OK, [{"body": b"o", "more_body": True}, {"body": b"k"}], WHOLE),
        ([], [{"body": b"ok"}], CHUNKED),
        ([], [{"body": b"ok", "more_body": True}, {}], CHUNKED),
        # What a field must not hold is never written, and neither is anything in its place.
        ([*OK, (b"a", b"b\rc")], [{"body": b"ok"}], b""),
        ([*OK, (b"a\n", b"b")], [{"body": b"ok"}], b""),
    ],
    ids=["whole", "pieces", "chunked", "chunks", "value", "name"],
)
def test_the_same_is_written_whether_the_body_follows_or_not(
    fields: Any, bodies: Any, heard: bytes, follows: bool
) -> None:
    async def main() -> None:
        app: Any = answers({"headers": fields, BODY_FOLLOWS: follows}, *bodies)
        async with served(app) as desk:
            sock = await desk.call(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            said = await desk.heard(sock)
            assert said.replace(b"connection: close\r\n", b"") == heard
            await desk.until(0)

    run(next(iter(LOOPS)), main())


@pytest.mark.parametrize("body", [b"o", b"okk"])
def test_a_body_of_another_length_than_announced_does_not_look_whole(body: bytes) -> None:
    async def main() -> None:
        app: Any = answers({"headers": OK, BODY_FOLLOWS: True}, {"body": body})
        async with served(app) as desk:
            said = await desk.heard(await desk.call(GET))
            assert not said.endswith(b"ok")
            await desk.until(0)

    run(next(iter(LOOPS)), main())
