"""The client against a real server: what reaches it, what is seen of it, what is reused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.core.model import Exchange, Response, Stage
from gateway.upstream import BodyCutShort, Client, Origin, Request, Transfer
from gateway.upstream.messages import PIECE
from tests.kit.upstream import (
    Answer,
    Gate,
    RecordingUpstream,
    cut,
    drip,
    early,
    gated,
    raw,
    respond,
)
from tests.unit.upstream.calls import LOOPS, ManualClock, request, run, within

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as server:
        yield server


@pytest.fixture(params=sorted(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def client_of(upstream: RecordingUpstream, **options: Any) -> Client:
    return Client(Origin.parse(upstream.url), **options)


async def call(client: Client, what: Request | None = None, keep_limit: int = 1 << 20) -> Exchange:
    transfer = await client.send(what or request(), within(), keep_limit=keep_limit)
    transfer.close()
    return transfer.exchange


def exchanges(
    loop: str, upstream: RecordingUpstream, *answers: Answer, **options: Any
) -> list[Exchange]:
    """One request for each answer, one after the other, by one client."""
    upstream.next(*answers)

    async def main() -> list[Exchange]:
        client = client_of(upstream, **options)
        seen = [await call(client) for _ in answers]
        await client.close()
        return seen

    return run(loop, main())


def test_request_arrives_as_written_and_the_response_as_sent(
    loop: str, upstream: RecordingUpstream
) -> None:
    answer = raw(
        OK + b"x-B: 1\r\nSet-Cookie: a\r\nset-cookie: b\r\nContent-Length: 2\r\n\r\n\xff\0"
    )
    [seen] = exchanges(loop, upstream, answer)
    lines = (
        (b"x-B", b"1"),
        (b"Set-Cookie", b"a"),
        (b"set-cookie", b"b"),
        (b"Content-Length", b"2"),
    )
    assert seen == Exchange(Stage.BODY_COMPLETE, Response(200, lines, b"\xff\0"))
    [got] = upstream.requests
    assert got.head == b"POST /v1/pay HTTP/1.1\r\nHost: upstream.test\r\nContent-Length: 2"
    assert got.body == b"{}"


def test_nothing_is_added_taken_from_the_environment_or_followed(
    loop: str, upstream: RecordingUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    location = respond(307, b"", [("Location", "/elsewhere"), ("Set-Cookie", "a=b")])
    coded = respond(200, b"not gzip", [("Content-Encoding", "gzip")])
    moved, kept = exchanges(loop, upstream, location, coded)
    assert moved.response is not None
    assert moved.response.status == 307
    assert kept.response is not None
    assert kept.response.body == b"not gzip"
    assert [one.headers for one in upstream.requests] == [
        ((b"Host", b"upstream.test"), (b"Content-Length", b"2"))
    ] * 2


@pytest.mark.parametrize("status", [401, 425, 429, 500, 502, 503, 504])
def test_no_status_is_retried(loop: str, upstream: RecordingUpstream, status: int) -> None:
    [seen] = exchanges(loop, upstream, respond(status, b"", [("Retry-After", "0")]))
    assert seen.response is not None
    assert seen.response.status == status
    assert upstream.count == 1


def test_large_bodies_arrive_whole_in_both_directions(
    loop: str, upstream: RecordingUpstream
) -> None:
    body = bytes(range(256)) * (40 * PIECE // 256) + b"end"
    upstream.script = lambda got: respond(200, got.body)

    async def main() -> Exchange:
        return await call(client_of(upstream), request(body=body), keep_limit=len(body))

    seen = run(loop, main())
    assert seen.stage is Stage.BODY_COMPLETE
    assert seen.response is not None
    assert seen.response.body == body
    assert upstream.requests[0].body == body


# -- reuse of connections


def test_connections_are_reused_last_in_first_out(loop: str, upstream: RecordingUpstream) -> None:
    gates = [Gate(), Gate()]
    upstream.next(*(gated(gate) for gate in gates))

    async def main() -> None:
        client = client_of(upstream)
        first = asyncio.create_task(call(client))
        await asyncio.to_thread(upstream.wait_for_requests, 1)
        second = asyncio.create_task(call(client))
        await asyncio.to_thread(upstream.wait_for_requests, 2)
        for gate, task in zip(gates, (first, second), strict=True):
            gate.release()
            await task
        await call(client)
        await client.close()

    run(loop, main())
    assert [one.connection for one in upstream.requests] == [1, 2, 2]


REUSED = [
    respond(204),
    respond(304),
    raw(OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nT: v\r\n\r\n"),
    raw(b"HTTP/1.1 103 Hints\r\n\r\n" + OK + b"Content-Length: 0\r\n\r\n"),
]
NOT_REUSED = [
    respond(200, close=True),
    raw(OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n"),
    raw(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"),
    raw(OK + b"Content-Length: 0\r\n\r\n" + OK + b"Content-Length: 4\r\n\r\nevil"),
    raw(OK + b"\r\nuntil the close", then="close"),
]


@pytest.mark.parametrize("answer", REUSED)
def test_reused(loop: str, upstream: RecordingUpstream, answer: Answer) -> None:
    first, second = exchanges(loop, upstream, answer, respond())
    assert first.stage is second.stage is Stage.BODY_COMPLETE
    assert upstream.connections == 1


@pytest.mark.parametrize("answer", NOT_REUSED)
def test_not_reused(loop: str, upstream: RecordingUpstream, answer: Answer) -> None:
    first, second = exchanges(loop, upstream, answer, respond(202))
    assert first.stage is second.stage is Stage.BODY_COMPLETE
    assert second.response is not None
    assert second.response.status == 202
    assert upstream.connections == 2


def test_idle_s_zero_is_always_fresh(loop: str, upstream: RecordingUpstream) -> None:
    exchanges(loop, upstream, respond(), respond(), idle_s=0)
    assert upstream.connections == 2


def test_a_connection_idle_for_too_long_is_not_reused(
    loop: str, upstream: RecordingUpstream
) -> None:
    clock = ManualClock()

    async def main() -> None:
        client = client_of(upstream, clock=clock, idle_s=4.0)
        for wait_s in (3.9, 4.0, 0.0):
            await client.send(request(), within(clock=clock), keep_limit=100)
            clock.advance(wait_s)
        await client.close()

    run(loop, main())
    assert [one.connection for one in upstream.requests] == [1, 1, 2]


@pytest.mark.parametrize("then", ["close", "reset"])
def test_a_connection_that_ended_while_idle_is_found_out_before_anything_is_sent(
    loop: str, upstream: RecordingUpstream, then: Any
) -> None:
    async def main() -> list[Exchange]:
        client = client_of(upstream)
        first = await call(client)
        upstream.drop_connections(then)  # blocks the loop: only the kernel knows of it
        upstream.wait_for_disconnects(1)
        return [first, await call(client)]

    assert [one.stage for one in run(loop, main())] == [Stage.BODY_COMPLETE] * 2
    assert upstream.connections == 2


def test_an_idle_connection_that_speaks_is_not_reused(
    loop: str, upstream: RecordingUpstream
) -> None:
    gate = Gate()
    whole, stray = OK + b"Content-Length: 0\r\n\r\n", OK + b"Content-Length: 4\r\n\r\nevil"
    gate.step()
    upstream.next(drip([whole, stray], gate=gate), respond(202))

    async def main() -> Exchange:
        client = client_of(upstream)
        await call(client)
        gate.step()
        await asyncio.to_thread(upstream.wait_for_disconnects, 1)  # we hung up on it
        return await call(client)

    seen = run(loop, main())
    assert seen.response is not None
    assert seen.response.status == 202


@pytest.mark.parametrize(("then", "fault"), [("close", "closed"), ("reset", "reset")])
@pytest.mark.parametrize("reused", [False, True])
def test_a_connection_that_dies_on_the_request_leaves_it_unknown_and_is_not_retried(
    loop: str, upstream: RecordingUpstream, then: Any, fault: str, reused: bool
) -> None:
    answers = [respond()] * reused + [cut(then)]
    seen = exchanges(loop, upstream, *answers)[-1]
    assert (seen.stage, seen.response, seen.fault) == (Stage.SENT, None, fault)
    assert upstream.count == len(answers)
    assert upstream.connections == 1


# -- what is seen of a response


@pytest.mark.parametrize(("then", "fault"), [("close", "closed"), ("reset", "reset")])
@pytest.mark.parametrize(
    "data",
    [
        OK + b"Content-Length: 9\r\n\r\nabc",
        OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n6\r\nabc",
    ],
)
def test_body_cut_short(
    loop: str, upstream: RecordingUpstream, data: bytes, then: Any, fault: str
) -> None:
    [seen] = exchanges(loop, upstream, raw(data, then=then))
    assert seen.fault == fault
    if fault == "closed" or seen.response is not None:  # a reset may overtake what came before it
        assert seen.stage is Stage.STATUS_SEEN
        assert seen.response is not None
        assert (seen.response.status, seen.response.body) == (200, b"abc")


def test_close_delimited_is_complete_upon_a_clean_end(
    loop: str, upstream: RecordingUpstream
) -> None:
    [seen] = exchanges(loop, upstream, raw(OK + b"\r\nabc", then="close"))
    assert (seen.stage, seen.fault, seen.close_delimited) == (Stage.BODY_COMPLETE, None, True)
    assert seen.response == Response(200, (), b"abc")


def test_close_delimited_is_cut_short_by_a_reset(loop: str, upstream: RecordingUpstream) -> None:
    gate = Gate()
    gate.step()
    upstream.next(drip([OK + b"\r\nabc", b"d"], gate=gate, then="reset"))

    async def main() -> Transfer:
        client = client_of(upstream)
        transfer = await client.send(request(), within(), keep_limit=0)
        gate.step()
        pieces = bytearray()

        async def read_on() -> None:
            async for piece in transfer.rest():
                pieces.extend(piece)

        with pytest.raises(BodyCutShort, match="reset"):
            await read_on()
        assert pieces.startswith(b"abc")
        return transfer

    assert run(loop, main()).exchange.close_delimited


def test_head_response_has_no_body(loop: str, upstream: RecordingUpstream) -> None:
    upstream.script = lambda _: raw(OK + b"Content-Length: 1000\r\n\r\n")

    async def main() -> list[Exchange]:
        client = client_of(upstream)
        return [await call(client, request(b"HEAD", b"")) for _ in range(2)]

    assert [one.stage for one in run(loop, main())] == [Stage.BODY_COMPLETE] * 2
    assert upstream.connections == 1


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            "protocol",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 50, "protocol"),
        (OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "protocol"),
        (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "protocol"),
        (b"HTTP/1.1 600 Odd\r\nContent-Length: 0\r\n\r\n", "protocol"),
        (b"220 smtp ready\r\n", "protocol"),
        (OK + b"A: " + b"x" * 70_000 + b"\r\n\r\n", "headers-too-large"),
        (OK + b"A: b\r\n" * 300 + b"\r\n", "headers-too-large"),
    ],
)
def test_refused_responses_are_sent_and_unknown_and_end_the_connection(
    loop: str, upstream: RecordingUpstream, data: bytes, fault: Any
) -> None:
    [seen] = exchanges(loop, upstream, raw(data))
    assert seen == Exchange(Stage.SENT, None, fault)
    upstream.wait_for_disconnects(1)


def test_dripping_bytes_one_by_one_makes_no_difference(
    loop: str, upstream: RecordingUpstream
) -> None:
    data = b"HTTP/1.1 103 Hints\r\nA: b\r\n\r\n" + OK + b"Transfer-Encoding: chunked\r\n\r\n"
    data += b"3;e\r\nabc\r\n0\r\nT: v\r\n\r\n"
    whole, split = exchanges(loop, upstream, raw(data), drip([bytes([byte]) for byte in data]))
    assert whole == split
    assert whole.stage is Stage.BODY_COMPLETE
    assert upstream.connections == 1


def test_early_response_is_taken_and_the_rest_of_the_body_is_not_sent(
    loop: str, upstream: RecordingUpstream
) -> None:
    upstream.next(early(respond(413, b"too large")), respond())
    body = bytes(64 << 20)

    async def main() -> list[Exchange]:
        client = client_of(upstream)
        return [await call(client, request(body=body)), await call(client)]

    first, second = run(loop, main())
    assert first.stage is Stage.BODY_COMPLETE
    assert first.response is not None
    assert (first.response.status, first.response.body) == (413, b"too large")
    assert second.stage is Stage.BODY_COMPLETE
    assert [one.connection for one in (*upstream.partial, *upstream.requests)] == [1, 2]
