"""What is read without the parser is read as the parser and the checks behind it do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from gateway import http1
from gateway.core.ordinary import read_request
from gateway.cycle import Cycle
from tests.unit.upstream.calls import FakeTransport

GET = b"GET /a?b=c HTTP/1.1\r\nHost: g\r\n\r\n"
POST = (
    b"POST /pay/v1/%41 HTTP/1.1\r\nHost: g:80\r\nContent-Type: application/json\r\n"
    b"Connection: Keep-Alive\r\nContent-Length: 4\r\n\r\nbody"
)
_AFTERWARDS = (
    *("_lead", "_in_body", "_coded", "_head_open", "_idle_bytes", "_fresh", "_ignoring"),
    *("_ignored_bytes", "_rests_since", "_last"),
)


async def _app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nothing is started here")


_CONFIG = uvicorn.Config(_app, interface="asgi3", lifespan="off", log_config=None)


class Reading(http1.Http1Protocol):
    """A server's connection that begins requests and does not serve them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(_CONFIG, ServerState(), {}, loop)
        self.begun: list[Cycle] = []
        self.connection_made(FakeTransport(self))

    def _start_asgi_task(self, cycle: Cycle, app: Any) -> None:  # type: ignore[override]
        self.begun.append(cycle)

    def seen(self) -> Any:
        """All that tells two connections apart."""
        begun = [
            (
                {name: value for name, value in cycle.scope.items() if name != "state"},
                *(bytes(cycle.body), cycle.more_body, cycle.keep_alive, cycle.disconnected),
                *(cycle.waiting_for_100_continue, cycle.message_event.is_set()),
            )
            for cycle in self.begun
        ]
        transport: Any = self.transport
        after = {name: getattr(self, name) for name in _AFTERWARDS}
        refused = b"".join(transport.written)[:12]
        awaited = self._awaited is not None
        closing = transport.is_closing()
        return begun, refused, closing, awaited, after

    def answer(self) -> None:
        """Whatever was begun is answered; what was seen of it stays."""
        for cycle in self.begun:
            if not cycle.response_complete:
                cycle.response_complete = True
                if not cycle.keep_alive:
                    self.transport.close()
                scope, body = cycle.scope, cycle.body
                cycle.on_response()
                cycle.scope, cycle.body = scope, body


def both(reads: list[bytes], *, answered: bool = True) -> tuple[Any, Any]:
    """What a connection does with these reads; and what, if the parser sees all of them."""
    found = []
    for reader in (read_request, lambda _: None):
        with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
            patch.setattr(http1, "read_request", reader)
            patch.setattr(http1, "unreadable", lambda *_: b"HTTP/1.1 400")

            async def main() -> list[Any]:
                connection, seen = Reading(asyncio.get_running_loop()), []
                for data in reads:
                    if connection.transport.is_closing():
                        break
                    connection.data_received(data)
                    seen.append(connection.seen())
                    if answered:
                        connection.answer()
                        connection._rests_since = None
                return seen

            found.append(runner.run(main()))
    return found[0], found[1]


_VALUES = [
    b"g",
    b"g:80",
    b"a,b",
    b"keep-alive",
    b"close",
    b"4",
    b"04",
    b"0",
    b"chunked",
    b"h2c",
    b"",
]
_NAMES = [
    *(b"Host", b"host", b"Connection", b"Content-Length", b"X-A", b"x-b", b"Transfer-Encoding"),
    *(b"Upgrade", b"Expect", b"Idempotency-Key", b"Proxy-Connection", b"TE", b"Keep-Alive"),
]
_ODD = [b"\r", b"\n", b"\r\n", b" ", b"\t", b"\0", b":", b"\x7f", b"\xe9", b"#", b"?", b"//", b"%"]


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Requests that are nearly ordinary, and some bytes put into them."""
    method = draw(st.sampled_from([b"GET", b"POST", b"HEAD", b"PUT", b"DELETE", b"post", b"M-X"]))
    target = draw(st.sampled_from([b"/", b"/a/b", b"/a?", b"/a?b?c", b"//a", b"*", b"http://g/a"]))
    version = draw(st.sampled_from([b"1.1"] * 6 + [b"1.0", b"2.0"]))
    length = draw(st.sampled_from([b"Content-Length: 4\r\n"] * 3 + [b""]))
    lines = draw(st.lists(st.tuples(st.sampled_from(_NAMES), st.sampled_from(_VALUES)), max_size=2))
    colon = draw(st.sampled_from([b": "] * 5 + [b":", b":  ", b":\t", b" : "]))
    head = b"%b %b HTTP/%b\r\nHost: g\r\n%b" % (method, target, version, length)
    head += b"".join(name + colon + value + b"\r\n" for name, value in lines)
    made = head + b"\r\n" + draw(st.sampled_from([b"body"] * 4 + [b"", b"bo", b"body\r\n", GET]))
    for odd in draw(st.lists(st.sampled_from(_ODD), max_size=1)):
        at = draw(st.integers(0, len(made)))
        made = made[:at] + odd + made[at:]
    return made


@settings(max_examples=150)
@given(st.lists(st.one_of(messages(), st.sampled_from([GET, POST])), min_size=1, max_size=3))
def test_a_connection_does_the_same_if_the_parser_sees_all(reads: list[bytes]) -> None:
    found, expected = both(reads)
    assert found == expected


@given(messages(), st.sampled_from([GET, POST]))
def test_behind_a_request_without_an_answer_too(first: bytes, second: bytes) -> None:
    found, expected = both([first, second], answered=False)
    assert found == expected


@pytest.mark.parametrize("data", [GET, POST])
def test_the_ordinary_is_read_without_the_parser(data: bytes) -> None:
    read = read_request(data)
    assert read is not None
    assert (read.method.encode(), read.body) == (
        data[: data.index(b" ")],
        data[data.index(b"\r\n\r\n") + 4 :],
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"POST", b"post"),
        (b"POST", b"PURGE"),
        (b"1.1", b"1.0"),
        (b"/pay", b"http://g/pay"),
        (b"/pay", b"/#pay"),
        (b"Host: g:80\r\n", b""),
        (b"Host: g:80", b"Host: g, h"),
        (b"Content-Type: application/json", b"Host: g"),
        (b"Content-Type: application/json", b"Content-Length: 4"),
        (b"Content-Type: application/json", b"X-Empty: "),
        (b"Content-Type: application/json", b"X Odd: a"),
        (b"Content-Type: application/json", b"X-Folded: a\r\n b"),
        (b"Content-Type: application/json", b"X-Bare: a\nb"),
        (b"Content-Type: application/json", b"X-High: \xe9"),
        (b"Content-Type: application/json", b"Expect: 100-continue"),
        (b"Content-Type: application/json", b"Transfer-Encoding: chunked"),
        (b"Content-Type: application/json", b"Upgrade: h2c"),
        (b"Keep-Alive", b"close"),
        (b"Length: 4", b"Length: 04"),
        (b"Length: 4", b"Length: 3"),
        (b"Length: 4", b"Length: 5"),
        (b"\r\nContent-Length: 4", b""),
        (b"Content-Type", b"A" * 9000),
    ],
)
def test_whatever_else_is_for_the_parser(old: bytes, new: bytes) -> None:
    assert old in POST
    assert read_request(POST.replace(old, new, 1)) is None
