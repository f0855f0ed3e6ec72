"""The same bytes, read by our client and by httpx: both must see the same response.

Each case is played by a real server, plain and over TLS, to both clients on the same event loop;
ours reads it whole and as a stream. Compared are status, field lines in their order and spelling,
raw body bytes, and how it ended: ``MEANS`` says which exceptions of httpx say the same as a fault
of ours. Where the two differ on purpose, ``DIFFERENT`` names both readings and the section of the
RFC that allows or demands ours.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import httpx
import pytest

from gateway.core.model import Fault
from gateway.upstream import BodyCutShort, Client, Origin, Request
from tests.kit.upstream import (
    Answer,
    Gate,
    RecordingUpstream,
    Then,
    closed_port,
    cut,
    drip,
    early,
    raw,
    respond,
)
from tests.unit.upstream.calls import LOOPS, run, within

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = 1 << 20

MEANS: Mapping[Fault, tuple[type[httpx.HTTPError], ...]] = {
    "refused": (httpx.ConnectError,),
    "tls": (httpx.ConnectError,),
    "closed": (httpx.RemoteProtocolError,),
    "reset": (httpx.ReadError,),
    "protocol": (httpx.RemoteProtocolError,),
    "headers-too-large": (httpx.RemoteProtocolError,),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client made of a response; ``status`` 0 where it saw none. ``end`` is ``None`` where
    it took the response for complete."""

    status: int = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    end: Fault | type[httpx.HTTPError] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """``answer`` is made anew for each client, since gates are used up."""

    name: str
    answer: Callable[[], Answer]
    method: bytes = b"POST"
    body: bytes = b"{}"


def bytewise(data: bytes, then: Then = "keep") -> Answer:
    return drip([data[at : at + 1] for at in range(len(data))], then=then)


def case(name: str, data: bytes, then: Then = "keep", method: bytes = b"POST") -> Case:
    return Case(name, lambda: raw(data, then=then), method)


CASES = [
    case("fixed length", OK + b"Content-Length: 5\r\n\r\n\x00\xffabc"),
    case("fixed length, empty", OK + b"Content-Length: 0\r\n\r\n"),
    case("fixed length, a megabyte", OK + b"Content-Length: 1000000\r\n\r\n" + bytes(1_000_000)),
    case("chunked", CHUNKED + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"),
    case("chunked, empty", CHUNKED + b"0\r\n\r\n"),
    case("chunked, extensions", CHUNKED + b'5;a=b;c="d"\r\nhello\r\n0;e\r\n\r\n'),
    case("chunked, trailers", CHUNKED + b"5\r\nhello\r\n0\r\nX-T: 1\r\nY: 2\r\n\r\n"),
    case(
        "chunked, sizes in any case",
        CHUNKED + b"00A\r\n0123456789\r\n0a\r\n0123456789\r\n0\r\n\r\n",
    ),
    case("until the close", OK + b"X-A: 1\r\n\r\nabc", "close"),
    case("until the close, empty", OK + b"\r\n", "close"),
    case("in HTTP/1.0, until the close", b"HTTP/1.0 200 OK\r\n\r\nabc", "close"),
    case("in HTTP/1.0, with a length", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", "close"),
    case("fixed length, cut short", OK + b"Content-Length: 9\r\n\r\nabc", "close"),
    case("fixed length, cut at the head", OK + b"Content-Length: 9\r\n\r\n", "close"),
    case("chunked, cut between chunks", CHUNKED + b"3\r\nabc\r\n", "close"),
    case("chunked, cut within a chunk", CHUNKED + b"6\r\nabc", "close"),
    case("chunked, cut before the last line", CHUNKED + b"3\r\nabc\r\n0\r\n", "close"),
    case("cut within the head", OK + b"Content-Le", "close"),
    Case("no answer", lambda: cut("close")),
    Case("reset in place of an answer", lambda: cut("reset")),
    Case("slow, fixed length", lambda: bytewise(OK + b"Content-Length: 3\r\n\r\nabc")),
    Case("slow, chunked", lambda: bytewise(CHUNKED + b"3;x\r\nabc\r\n0\r\nT: v\r\n\r\n")),
    Case("slow, until the close", lambda: bytewise(OK + b"\r\nabc", "close")),
    Case("slow, cut short", lambda: bytewise(CHUNKED + b"3\r\nab", "close")),
    Case("early", lambda: early(respond(413, b"too large")), body=bytes(4 << 20)),
    Case("early, and closed", lambda: early(respond(413, b"no", close=True)), body=b"{}"),
    *(
        case(f"{status} before the final one", b"HTTP/1.1 %d X\r\nLink: a\r\n\r\n" % status + final)
        for status in (100, 102, 103)
        for final in (OK + b"Content-Length: 2\r\n\r\nok",)
    ),
    case(
        "three interim responses",
        b"HTTP/1.1 100 Continue\r\n\r\n"
        + b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" * 2
        + b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno",
    ),
    case("an interim response alone", b"HTTP/1.1 103 Early Hints\r\n\r\n", "close"),
    case("HEAD with a length", OK + b"Content-Length: 1000\r\n\r\n", method=b"HEAD"),
    case("HEAD in chunks", CHUNKED, method=b"HEAD"),
    case("HEAD without a length", OK + b"X: y\r\n\r\n", method=b"HEAD"),
    case("204", b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n"),
    case("204 with a length of nothing", b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"),
    case("304", b"HTTP/1.1 304 Not Modified\r\nETag: 1\r\n\r\n", method=b"GET"),
    case("304 with a length", b"HTTP/1.1 304 X\r\nContent-Length: 99\r\n\r\n", method=b"GET"),
    case("205", b"HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n"),
    case("no reason", b"HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nok"),
    case("an unusual status", b"HTTP/1.1 299 Odd\r\nContent-Length: 2\r\n\r\nok"),
    case(
        "repeated fields, in order",
        OK + b"B: 1\r\nSet-Cookie: a\r\nA: 2\r\nset-cookie: b\r\nB: 3\r\nContent-Length: 0\r\n\r\n",
    ),
    case("blanks round a value", OK + b"A:  \t b c \t \r\nE:\r\nContent-Length: 0\r\n\r\n"),
    case("values beyond ASCII", OK + b"A: caf\xe9 \xff\xc3\xa9\r\nContent-Length: 0\r\n\r\n"),
    case("a redirect", b"HTTP/1.1 307 X\r\nLocation: /b\r\nContent-Length: 2\r\n\r\nno"),
    case("a coding", OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"),
    case("a large head", OK + b"A: " + b"x" * 60_000 + b"\r\nContent-Length: 0\r\n\r\n"),
    case("many lines", OK + b"A: b\r\n" * 200 + b"Content-Length: 0\r\n\r\n"),
    case("garbage", b"220 mail.test ready\r\n", "close"),
    case("garbage without an end", b"\x00\x01\x02\x03\r\n\r\n", "close"),
    case("another protocol", b"SSH-2.0-x\r\n\r\n", "close"),
    case("a status that is none", b"HTTP/1.1 2xx OK\r\n\r\n", "close"),
    case("a blank before the colon", OK + b"A : b\r\nContent-Length: 0\r\n\r\n"),
    case("a length that is none", OK + b"Content-Length: 5x\r\n\r\nhello", "close"),
    case("a length with a sign", OK + b"Content-Length: +5\r\n\r\nhello", "close"),
    case("two lengths", OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", "close"),
    case("a chunk that is none", CHUNKED + b"xyz\r\nabc\r\n0\r\n\r\n", "close"),
    case("a chunk longer than it says", CHUNKED + b"2\r\nabc\r\n0\r\n\r\n", "close"),
    case("a NUL in a value", OK + b"A: b\x00c\r\nContent-Length: 0\r\n\r\n", "close"),
    case("a switch of protocols", b"HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"),
    case("two codings", OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "close"),
    case("an unknown coding", OK + b"Transfer-Encoding: identity\r\n\r\nabc", "close"),
    case("204 with a body", b"HTTP/1.1 204 X\r\nContent-Length: 3\r\n\r\nabc", "close"),
    case("a status below 100", b"HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n", "close"),
    case("a blank in a name", OK + b"A B: c\r\nContent-Length: 0\r\n\r\n", "close"),
    case("bytes behind the end", OK + b"Content-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n"),
]


# -- the two clients


async def ours(url: str, context: ssl.SSLContext | None, played: Case, *, streamed: bool) -> Seen:
    client = Client(Origin.parse(url), ssl_context=context)
    request = Request(played.method, b"/", ((b"Host", b"upstream.test"),), played.body)
    transfer = await client.send(request, within(), keep_limit=None if streamed else WHOLE)
    exchange = transfer.exchange
    if exchange.response is None:
        return Seen(end=exchange.fault)
    end, body = exchange.fault, bytearray(exchange.response.body)
    try:
        async for piece in transfer.rest():
            body += piece
    except BodyCutShort as error:
        end = error.fault
    await client.close()
    return Seen(exchange.response.status, exchange.response.headers, bytes(body), end)


async def theirs(url: str, context: ssl.SSLContext | None, played: Case) -> Seen:
    seen = Seen()
    try:
        async with (
            httpx.AsyncClient(trust_env=False, verify=context or True, timeout=10) as client,
            client.stream(played.method.decode(), url, content=played.body or None) as response,
        ):
            seen = Seen(response.status_code, tuple(response.headers.raw))
            async for piece in response.aiter_raw():
                seen = replace(seen, body=seen.body + piece)
    except httpx.HTTPError as error:
        return replace(seen, end=type(error))
    return seen


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "tls"])
def upstream(request: pytest.FixtureRequest) -> Iterator[RecordingUpstream]:
    with RecordingUpstream(tls=request.param) as server:
        yield server


@pytest.fixture(params=sorted(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def play(loop: str, upstream: RecordingUpstream, played: Case) -> tuple[Seen, Seen, Seen]:
    """What is seen of it whole, streamed, and by httpx."""
    upstream.clear()
    upstream.next(*(played.answer() for _ in range(3)))
    context = upstream.client_context() if upstream.url.startswith("https") else None

    async def main() -> tuple[Seen, Seen, Seen]:
        return (
            await ours(upstream.url, context, played, streamed=False),
            await ours(upstream.url, context, played, streamed=True),
            await theirs(upstream.url, context, played),
        )

    return run(loop, main())


@pytest.mark.parametrize("played", CASES, ids=lambda played: played.name)
def test_both_see_the_same(loop: str, upstream: RecordingUpstream, played: Case) -> None:
    whole, streamed, other = play(loop, upstream, played)
    assert streamed == whole
    assert replace(whole, end=None) == replace(other, end=None)
    assert same_end(whole.end, other.end), (whole.end, other.end)


def same_end(end: object, other: object) -> bool:
    if end is None or other is None:
        return end is other
    return any(end == fault and other in kinds for fault, kinds in MEANS.items())


def test_both_see_a_missing_closure_alert_within_a_body_of_known_length(loop: str) -> None:
    cases = [
        case("fixed", OK + b"Content-Length: 9\r\n\r\nabc", "fin"),
        case("chunked", CHUNKED + b"3\r\nabc\r\n", "fin"),
    ]
    with RecordingUpstream(tls=True) as upstream:
        for played in cases:
            whole, streamed, other = play(loop, upstream, played)
            assert (whole.end, other.end) == ("closed", httpx.RemoteProtocolError)
            assert whole == streamed
            assert (whole.status, whole.body) == (other.status, other.body) == (200, b"abc")


# -- piece by piece: each is asked for only when the one before has been seen


PIECES = [CHUNKED + b"3\r\nabc\r\n", b"3\r\ndef\r\n", b"3\r\nghi\r\n", b"0\r\n\r\n"]


async def our_pieces(client: Client, gate: Gate) -> AsyncIterator[bytes]:
    request = Request(b"GET", b"/", ((b"Host", b"upstream.test"),))
    gate.step()
    transfer = await client.send(request, within(), keep_limit=None)
    async for piece in transfer.rest():
        yield piece
        gate.step()


async def their_pieces(client: httpx.AsyncClient, url: str, gate: Gate) -> AsyncIterator[bytes]:
    gate.step()
    async with client.stream("GET", url) as response:
        async for piece in response.aiter_raw():
            yield piece
            gate.step()


async def gathered(pieces: AsyncIterator[bytes]) -> tuple[list[bytes], object]:
    seen: list[bytes] = []
    try:
        async for piece in pieces:
            seen.append(piece)
    except BodyCutShort as error:
        return seen, error.fault
    except httpx.HTTPError as error:
        return seen, type(error)
    return seen, None


@pytest.mark.parametrize("last", ["whole", "reset"])
def test_pieces_arrive_one_by_one(loop: str, upstream: RecordingUpstream, last: str) -> None:
    upstream.clear()
    gates = Gate(), Gate()
    context = upstream.client_context() if upstream.url.startswith("https") else None
    for gate in gates:
        whole = last == "whole"
        upstream.next(
            drip(PIECES if whole else PIECES[:2], gate=gate, then="keep" if whole else "reset")
        )

    async def main() -> list[tuple[list[bytes], object]]:
        client = Client(Origin.parse(upstream.url), ssl_context=context)
        async with httpx.AsyncClient(trust_env=False, verify=context or True) as other:
            return [
                await gathered(our_pieces(client, gates[0])),
                await gathered(their_pieces(other, upstream.url, gates[1])),
            ]

    (seen, end), (others, their_end) = run(loop, main())
    assert seen[0] == others[0] == b"abc"
    assert same_end(end, their_end), (end, their_end)
    if last == "whole":
        assert seen == others == [b"abc", b"def", b"ghi"]


# -- connections


@pytest.mark.parametrize(
    ("first", "connections"),
    [
        (respond(200, b"ok"), 1),
        (respond(204), 1),
        (raw(CHUNKED + b"2\r\nok\r\n0\r\n\r\n"), 1),
        (raw(b"HTTP/1.1 103 X\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nok"), 1),
        (respond(200, b"ok", close=True), 2),
        (raw(OK + b"Connection: keep-alive, Close\r\nContent-Length: 2\r\n\r\nok"), 2),
        (raw(OK + b"\r\nok", then="close"), 2),
        (raw(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", then="close"), 2),
    ],
)
def test_both_reuse_a_connection_or_not(loop: str, first: Answer, connections: int) -> None:
    with RecordingUpstream() as mine, RecordingUpstream() as other:

        async def main() -> None:
            client = Client(Origin.parse(mine.url))
            request = Request(b"GET", b"/", ((b"Host", b"upstream.test"),))
            async with httpx.AsyncClient(trust_env=False) as theirs_client:
                for answer in (first, respond(202)):
                    for server in (mine, other):
                        server.next(answer)
                    sent = await client.send(request, within(), keep_limit=WHOLE)
                    heard = await theirs_client.get(other.url)
                    assert sent.exchange.response is not None
                    assert sent.exchange.response.status == heard.status_code
                    assert sent.exchange.response.body == heard.content
            await client.close()

        run(loop, main())
        assert (mine.connections, other.connections) == (connections, connections)


@pytest.mark.parametrize("end", ["refused", "tls"])
def test_both_name_what_kept_them_from_connecting(loop: str, end: Fault) -> None:
    played = case("none", b"")
    with RecordingUpstream(tls=True) as upstream:
        url = upstream.url if end == "tls" else f"http://127.0.0.1:{closed_port()}"

        async def main() -> tuple[Seen, Seen]:
            return await ours(url, None, played, streamed=False), await theirs(url, None, played)

        seen, other = run(loop, main())
    assert seen == Seen(end=end)
    assert other.end in MEANS[end]


# -- where they differ on purpose


def differs(name: str, data: bytes, end: Fault | None, why: str) -> tuple[Case, Fault | None, str]:
    return case(name, data, "close"), end, why


TOOK: Mapping[str, type[httpx.HTTPError]] = {
    "a chunk of a size beyond any number": httpx.RemoteProtocolError,
    "an empty line in front": httpx.RemoteProtocolError,
}
"""Where httpx does not take the response for complete."""

END = b"Content-Length: 0\r\n\r\n"
DIFFERENT = [
    differs(
        "a length beside a transfer coding",
        OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "protocol",
        "RFC 9112 §6.3 (3): it ought to be an error; two readers may frame it in two ways",
    ),
    differs(
        "two equal lengths",
        OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        "protocol",
        "RFC 9110 §8.6: a recipient may refuse them or take them for one; both are right",
    ),
    differs(
        "a list of equal lengths",
        OK + b"Content-Length: 2, 2\r\n\r\nok",
        "protocol",
        "RFC 9110 §8.6: as above",
    ),
    differs(
        "a transfer coding in HTTP/1.0",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "protocol",
        "RFC 9112 §6.1: its framing must be treated as faulty; ours is right",
    ),
    differs(
        "lines ended by LF alone",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        "protocol",
        "RFC 9112 §2.2: a recipient may take them; both are right",
    ),
    differs(
        "a folded line",
        OK + b"A: b\r\n c\r\n" + END,
        "protocol",
        "RFC 9112 §5.2: a gateway answers 502, or unfolds; both are right",
    ),
    differs(
        "a control character in a value",
        OK + b"A: b\x01c\r\n" + END,
        "protocol",
        "RFC 9110 §5.5: the value is invalid; it may be kept only where that is safe",
    ),
    differs(
        "a blank behind a chunk size",
        CHUNKED + b"5 \r\nhello\r\n0\r\n\r\n",
        "protocol",
        "RFC 9112 §7.1: a chunk size is digits alone; ours is right",
    ),
    differs(
        "a chunk of a size beyond any number",
        CHUNKED + b"FFFFFFFFFFFFFFFFFF\r\nhello",
        "protocol",
        "RFC 9112 §7.1: the overflow must be caught; ours does so before it relays a byte of it",
    ),
    differs(
        "a status beyond 599",
        b"HTTP/1.1 600 X\r\n" + END,
        "protocol",
        "RFC 9110 §15: invalid, to be treated as a 5xx; to a command both mean an unknown outcome",
    ),
    differs(
        "a major version of its own",
        b"HTTP/2.0 200 X\r\n" + END,
        "protocol",
        "RFC 9110 §2.5: another major version may mean anything; ours is right",
    ),
    differs(
        "a minor version to come",
        b"HTTP/1.2 200 X\r\n" + END,
        "protocol",
        "RFC 9110 §2.5: it should be read as 1.1, so httpx is right; no such version exists",
    ),
    differs(
        "a head of 80 KB",
        OK + b"A: " + b"x" * 80_000 + b"\r\n" + END,
        "headers-too-large",
        "RFC 9110 §5.4: everybody chooses a limit; ours is 64 KiB",
    ),
    differs(
        "300 lines",
        OK + b"A: b\r\n" * 300 + END,
        "headers-too-large",
        "RFC 9110 §5.4: as above; ours is 256 lines",
    ),
    differs(
        "40 interim responses",
        b"HTTP/1.1 102 X\r\n\r\n" * 40 + OK + END,
        "protocol",
        "RFC 9110 §15.2 sets no limit; ours is 32, or a server could hold a command for ever",
    ),
    differs(
        "an empty line in front",
        b"\r\n" + OK + END,
        None,
        "RFC 9112 §2.2 asks it of servers only; it cannot be read in two ways, so both are right",
    ),
]


@pytest.mark.parametrize(
    ("played", "end", "why"), DIFFERENT, ids=lambda value: getattr(value, "name", "")
)
def test_ours_differs_on_purpose(
    loop: str, upstream: RecordingUpstream, played: Case, end: Fault | None, why: str
) -> None:
    """Also a guard: where httpx comes to agree, the row belongs to ``CASES``."""
    assert why.startswith("RFC ")
    whole, streamed, other = play(loop, upstream, played)
    assert (whole.end, streamed.end) == (end, end)
    assert other.end is TOOK.get(played.name)
    assert not same_end(whole.end, other.end) or whole.body != other.body


def test_only_ours_wants_a_closure_alert_where_the_close_ends_a_body(loop: str) -> None:
    """RFC 9112 §9.8: without one the body is incomplete; ours is right."""
    with RecordingUpstream(tls=True) as upstream:
        whole, streamed, other = play(loop, upstream, case("", OK + b"\r\nabc", "fin"))
    assert (whole.end, streamed.end, other.end) == ("closed", "closed", None)
    assert whole.body == streamed.body == other.body == b"abc"
