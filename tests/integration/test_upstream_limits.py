"""Deadlines, the pool, cancellation, oversize and late bodies, on real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.core.model import Exchange, Stage
from gateway.upstream import BodyCutShort, Client, Deadlines, Origin, Transfer, now_s
from tests.kit.upstream import (
    Gate,
    RecordingUpstream,
    closed_port,
    drip,
    gated,
    hang,
    raw,
    respond,
)
from tests.unit.upstream.calls import LOOPBACK, LOOPS, ManualClock, request, run, within

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


async def arrived(upstream: RecordingUpstream, n: int) -> None:
    await asyncio.to_thread(upstream.wait_for_requests, n)


# -- no connection


def test_refused(loop: str) -> None:
    async def main() -> Exchange:
        client = Client(Origin.parse(f"http://127.0.0.1:{closed_port()}"))
        return (await client.send(request(), within(), keep_limit=0)).exchange

    assert run(loop, main()) == Exchange(Stage.CONNECTING, None, "refused")


def test_no_address(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> Exchange:
        async def getaddrinfo(*_: Any, **__: Any) -> Any:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
        client = Client(Origin.parse("http://upstream.invalid"))
        return (await client.send(request(), within(), keep_limit=0)).exchange

    assert run("asyncio", main()) == Exchange(Stage.CONNECTING, None, "dns")


def test_a_dead_address_does_not_hide_a_live_one(upstream: RecordingUpstream) -> None:
    dead = closed_port()

    async def main() -> Exchange:
        async def getaddrinfo(*_: Any, **__: Any) -> Any:
            return [
                (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", dead, 0, 0)),
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", dead)),
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", upstream.port)),
            ]

        asyncio.get_running_loop().getaddrinfo = getaddrinfo  # type: ignore[method-assign]
        client = Client(Origin.parse("http://upstream.test"), networks=LOOPBACK)
        return (await client.send(request(), within(), keep_limit=1000)).exchange

    assert run("asyncio", main()).stage is Stage.BODY_COMPLETE


def test_a_handshake_that_never_ends_is_a_connect_timeout(loop: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]

        async def main() -> Exchange:
            client = Client(Origin.parse(f"https://127.0.0.1:{port}"))
            deadlines = Deadlines(now_s() + 0.1, now_s() + 10, now_s() + 10)
            return (await client.send(request(), deadlines, keep_limit=0)).exchange

        assert run(loop, main()) == Exchange(Stage.CONNECTING, None, "connect-timeout")


def test_a_connection_made_after_a_suspend_is_too_late(
    loop: str, upstream: RecordingUpstream
) -> None:
    clock = ManualClock()

    async def main() -> Exchange:
        client = client_of(upstream, clock=clock)
        now = clock.now
        sending = asyncio.create_task(
            client.send(request(), Deadlines(now + 5, now + 60, now + 60), keep_limit=0)
        )
        await asyncio.sleep(0)
        clock.advance(5)
        return (await sending).exchange

    assert run(loop, main()) == Exchange(Stage.CONNECTING, None, "connect-timeout")
    assert upstream.count == 0


@pytest.mark.parametrize("reused", [False, True])
def test_paused_before_the_first_byte_sends_nothing(
    loop: str, upstream: RecordingUpstream, reused: bool
) -> None:
    async def main() -> Exchange:
        client = client_of(upstream)
        if reused:
            await client.send(request(), within(), keep_limit=1000)
        past = Deadlines(now_s() + 10, now_s(), now_s() + 10)
        return (await client.send(request(), past, keep_limit=0)).exchange

    assert run(loop, main()) == Exchange(Stage.CONNECTED, None, "paused")
    assert upstream.count == int(reused)
    upstream.wait_for_disconnects(1)
    assert upstream.partial == []


# -- no answer in time


def test_no_answer_is_a_timeout_and_a_late_one_is_heard(
    loop: str, upstream: RecordingUpstream
) -> None:
    gate = Gate()
    upstream.next(gated(gate, respond(202, b"late")))

    async def main() -> tuple[Exchange, Exchange | None, Exchange | None]:
        client = client_of(upstream)
        transfer = await client.send(request(), within(0.1), keep_limit=1000)
        gate.release()
        late = await transfer.late(until=now_s() + 10, byte_limit=1000)
        return transfer.exchange, late, await transfer.late(until=now_s() + 10, byte_limit=1)

    seen, late, again = run(loop, main())
    assert seen == Exchange(Stage.SENT, None, "timeout")
    assert late is not None
    assert late.stage is Stage.BODY_COMPLETE
    assert late.response is not None
    assert (late.response.status, late.response.body) == (202, b"late")
    assert again is None
    upstream.wait_for_disconnects(1)


def test_status_seen_then_timeout_then_the_rest(loop: str, upstream: RecordingUpstream) -> None:
    gate = Gate()
    gate.step()
    upstream.next(drip([OK + b"Content-Length: 6\r\n\r\nabc", b"def"], gate=gate))

    async def main() -> tuple[Exchange, Exchange | None]:
        transfer = await client_of(upstream).send(request(), within(0.1), keep_limit=1000)
        gate.step()
        return transfer.exchange, await transfer.late(until=now_s() + 10, byte_limit=1000)

    seen, late = run(loop, main())
    assert (seen.stage, seen.fault) == (Stage.STATUS_SEEN, "timeout")
    assert seen.response is not None
    assert seen.response.body == b"abc"
    assert late is not None
    assert late.stage is Stage.BODY_COMPLETE
    assert late.response is not None
    assert late.response.body == b"abcdef"


@pytest.mark.parametrize(
    ("data", "then", "byte_limit", "until_s", "expected"),
    [
        (b"", "close", 1000, 10.0, None),
        (b"", "reset", 1000, 10.0, None),
        (b"", "keep", 1000, 0.05, None),
        (b"nonsense", "keep", 1000, 10.0, None),
        (OK + b"Content-Length: 2\r\n\r\nok", "keep", 10, 10.0, None),
        (OK + b"Content-Length: 2\r\n\r\no", "close", 1000, 10.0, (5, "closed", False)),
        (OK + b"Content-Length: 200\r\n\r\n" + b"x" * 200, "keep", 1000, 10.0, (5, None, True)),
    ],
)
def test_late_answers_are_judged_by_the_same_rules(
    loop: str,
    upstream: RecordingUpstream,
    data: bytes,
    then: Any,
    byte_limit: int,
    until_s: float,
    expected: Any,
) -> None:
    gate = Gate()
    upstream.next(gated(gate, raw(data, then=then)))

    async def main() -> Exchange | None:
        transfer = await client_of(upstream).send(request(), within(0.05), keep_limit=100)
        gate.release()
        return await transfer.late(until=now_s() + until_s, byte_limit=byte_limit)

    late = run(loop, main())
    assert expected == (None if late is None else (late.stage, late.fault, late.oversize))


def test_a_hanging_upstream_keeps_no_slots_and_lingering_is_bounded(
    loop: str, upstream: RecordingUpstream
) -> None:
    upstream.next(hang(), hang(), respond(202))

    async def main() -> list[Transfer]:
        client = client_of(upstream, max_connections=1)
        first = await client.send(request(), within(0.05), keep_limit=0)
        second = await client.send(request(), within(0.05), keep_limit=0)
        assert await second.late(until=now_s() + 10, byte_limit=1) is None
        await asyncio.to_thread(upstream.wait_for_disconnects, 1)
        third = await client.send(request(), within(), keep_limit=1000)
        assert (client._pool.slots, client._pool.lingering) == (1, 1)
        first.close()
        assert (client._pool.slots, client._pool.lingering) == (1, 0)
        await client.close()
        assert client._pool.slots == 0
        return [first, second, third]

    assert [one.exchange.stage for one in run(loop, main())] == [4, 4, 6]
    upstream.wait_for_disconnects(3)


def test_a_body_that_the_peer_does_not_take_times_out_while_sending(loop: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]

        async def main() -> tuple[Exchange, Exchange | None]:
            client = Client(Origin.parse(f"http://127.0.0.1:{port}"))
            transfer = await client.send(request(body=bytes(64 << 20)), within(0.2), keep_limit=0)
            late = await transfer.late(until=now_s() + 10, byte_limit=100)
            assert client._pool.slots == client._pool.lingering == 0
            return transfer.exchange, late

        seen, late = run(loop, main())
        assert seen == Exchange(Stage.SENDING_BODY, None, "timeout")
        assert late is None  # unsent bytes would have left by themselves


# -- the pool


def test_waiters_are_served_in_order_and_never_above_the_limit(
    loop: str, upstream: RecordingUpstream
) -> None:
    gates = [Gate() for _ in range(5)]
    upstream.next(*(gated(gate, respond()) for gate in gates))

    async def main() -> None:
        client = client_of(upstream, max_connections=2)
        sending = []
        for number in range(5):
            one = request(target=b"/%d" % number)
            sending.append(asyncio.create_task(client.send(one, within(), keep_limit=0)))
            await asyncio.sleep(0)
            if number < 2:
                await arrived(upstream, number + 1)
        for number, gate in enumerate(gates):
            assert client._pool.slots == 2
            await arrived(upstream, min(number + 2, 5))
            gate.release()
            await sending[number]
        await client.close()
        assert client._pool.slots == 0

    run(loop, main())
    assert [one.target for one in upstream.requests] == [b"/0", b"/1", b"/2", b"/3", b"/4"]
    assert upstream.connections == 2


def test_no_slot_in_time(loop: str, upstream: RecordingUpstream) -> None:
    gate = Gate()
    upstream.next(gated(gate))

    async def main() -> Exchange:
        client = client_of(upstream, max_connections=1)
        first = asyncio.create_task(client.send(request(), within(), keep_limit=1000))
        await arrived(upstream, 1)
        second = await client.send(request(), within(0.05), keep_limit=0)
        gate.release()
        assert (await first).exchange.stage is Stage.BODY_COMPLETE
        assert (client._pool.slots, client._pool.idle) == (1, 1)
        return second.exchange

    assert run(loop, main()) == Exchange(Stage.CONNECTING, None, "pool")
    assert upstream.count == 1


def test_a_slot_granted_after_a_suspend_is_too_late_and_goes_back(
    loop: str, upstream: RecordingUpstream
) -> None:
    clock, gate = ManualClock(), Gate()
    upstream.next(gated(gate))

    async def main() -> Exchange:
        client = client_of(upstream, max_connections=1, clock=clock)
        first = asyncio.create_task(
            client.send(request(), within(60, clock=clock), keep_limit=1000)
        )
        await arrived(upstream, 1)
        second = asyncio.create_task(client.send(request(), within(5, clock=clock), keep_limit=0))
        await asyncio.sleep(0)
        clock.advance(5)
        gate.release()
        await first
        seen = (await second).exchange
        assert (client._pool.slots, client._pool.idle) == (1, 1)
        return seen

    assert run(loop, main()) == Exchange(Stage.CONNECTING, None, "pool")


def test_cancelled_sender_closes_its_socket_and_gives_its_slot_back(
    loop: str, upstream: RecordingUpstream
) -> None:
    upstream.next(hang())

    async def main() -> None:
        client = client_of(upstream, max_connections=1)
        sending = asyncio.create_task(client.send(request(), within(), keep_limit=0))
        await arrived(upstream, 1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await asyncio.to_thread(upstream.wait_for_disconnects, 1)
        assert client._pool.slots == 0
        again = await client.send(request(), within(), keep_limit=1000)
        assert again.exchange.stage is Stage.BODY_COMPLETE

    run(loop, main())


def test_cancelled_waiter_leaves_the_queue(loop: str, upstream: RecordingUpstream) -> None:
    gate = Gate()
    upstream.next(gated(gate))

    async def main() -> None:
        client = client_of(upstream, max_connections=1)
        first = asyncio.create_task(client.send(request(), within(), keep_limit=1000))
        await arrived(upstream, 1)
        waiter = asyncio.create_task(client.send(request(), within(), keep_limit=0))
        await asyncio.sleep(0)
        waiter.cancel()
        gate.release()
        await asyncio.wait({first, waiter})
        assert waiter.cancelled()
        assert (client._pool.slots, client._pool.idle) == (1, 1)

    run(loop, main())
    assert upstream.count == 1


def test_cancelled_while_connecting(loop: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]

        async def main() -> None:
            client = Client(Origin.parse(f"https://127.0.0.1:{port}"))
            sending = asyncio.create_task(client.send(request(), within(), keep_limit=0))
            peer = await asyncio.to_thread(lambda: silent.accept()[0])
            await asyncio.to_thread(peer.recv, 1)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert client._pool.slots == 0
            with peer:  # all that is left of it is the end
                while await asyncio.to_thread(peer.recv, 65536):
                    pass

        run(loop, main())


@pytest.mark.parametrize("tls", [False, True])
def test_connections_given_up_at_any_turn_leave_the_descriptors_of_others_alone(
    loop: str, tls: bool
) -> None:
    with RecordingUpstream(tls=tls) as upstream:

        async def main() -> None:
            context = upstream.client_context() if tls else None
            client = client_of(upstream, ssl_context=context, idle_s=0, max_connections=8)

            def start(n: int) -> list[asyncio.Task[Transfer]]:
                sends = (client.send(request(), within(), keep_limit=1000) for _ in range(n))
                return [asyncio.create_task(send) for send in sends]

            for turns in range(12):
                given_up, kept = start(8), start(8)  # the latter wait for a slot each
                for _ in range(turns):
                    await asyncio.sleep(0)
                for task in given_up:
                    task.cancel()
                for transfer in await asyncio.gather(*kept):
                    assert transfer.exchange.stage is Stage.BODY_COMPLETE
                await asyncio.wait(given_up)
                assert client._pool.slots == 0

        run(loop, main())
        upstream.wait_for_disconnects(upstream.connections)


# -- oversize bodies


def test_rest_follows_what_was_kept_and_the_connection_is_reused(
    loop: str, upstream: RecordingUpstream
) -> None:
    body = bytes(range(256)) * 20_000
    upstream.next(respond(200, body), respond())

    async def main() -> None:
        client = client_of(upstream)
        transfer = await client.send(request(), within(), keep_limit=1000)
        seen = transfer.exchange
        assert (seen.stage, seen.fault, seen.oversize) == (Stage.STATUS_SEEN, None, True)
        assert seen.response is not None
        assert seen.response.body == body[:1000]
        rest = b"".join([piece async for piece in transfer.rest()])
        assert rest == body[1000:]
        await client.send(request(), within(), keep_limit=1000)

    run(loop, main())
    assert upstream.connections == 1


def test_limit_zero_gives_the_head_and_then_streams(loop: str, upstream: RecordingUpstream) -> None:
    gate = Gate()
    upstream.next(
        drip(
            [OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n", b"1\r\nb\r\n", b"0\r\n\r\n"],
            gate=gate,
        )
    )
    gate.step()

    async def main() -> None:
        transfer = await client_of(upstream).send(request(), within(), keep_limit=0)
        assert transfer.exchange.oversize
        assert transfer.exchange.response is not None
        assert transfer.exchange.response.body == b""
        rest = transfer.rest()
        for wanted in (b"a", b"b"):
            assert await anext(rest) == wanted
            gate.step()
        assert [piece async for piece in rest] == []

    run(loop, main())


def test_reading_stops_while_nobody_consumes(loop: str, upstream: RecordingUpstream) -> None:
    upstream.next(respond(200, bytes(64 << 20)))

    async def main() -> None:
        transfer = await client_of(upstream).send(request(), within(), keep_limit=0)
        total = peak = 0
        assert transfer._reader is not None
        async for piece in transfer.rest():
            total += len(piece)
            for _ in range(10):
                await asyncio.sleep(0)
            if transfer._reader is not None:
                peak = max(peak, transfer._reader.queued)
        assert total == 64 << 20
        assert peak <= 1 << 20

    run(loop, main())


@pytest.mark.parametrize(("then", "fault"), [("close", "closed"), ("reset", "reset")])
def test_rest_that_is_cut_short_raises(
    loop: str, upstream: RecordingUpstream, then: Any, fault: str
) -> None:
    gate = Gate()
    gate.step()
    upstream.next(drip([OK + b"Content-Length: 9\r\n\r\nabc", b"d"], gate=gate, then=then))

    async def main() -> None:
        client = client_of(upstream)
        transfer = await client.send(request(), within(), keep_limit=1)
        gate.step()
        pieces: list[bytes] = []

        async def read_on() -> None:
            async for piece in transfer.rest():
                pieces.append(piece)

        with pytest.raises(BodyCutShort, match=fault):
            await read_on()
        assert pieces[0] == b"bc"
        assert client._pool.slots == 0

    run(loop, main())


def test_rest_ends_at_the_last_deadline_even_if_nobody_reads_it(
    loop: str, upstream: RecordingUpstream
) -> None:
    upstream.next(raw(OK + b"Content-Length: 9\r\n\r\nabc"))

    async def main() -> None:
        client = client_of(upstream)
        transfer = await client.send(request(), within(0.1), keep_limit=1)
        await asyncio.to_thread(upstream.wait_for_disconnects, 1)
        assert client._pool.slots == 0
        rest = transfer.rest()
        assert await anext(rest) == b"bc"
        with pytest.raises(BodyCutShort, match="timeout"):
            await anext(rest)
        assert client._pool.slots == 0

    run(loop, main())


def test_a_whole_oversize_body_that_nobody_reads_gives_its_slot_back(
    loop: str, upstream: RecordingUpstream
) -> None:
    upstream.next(respond(200, b"abc"))

    async def main() -> None:
        client = client_of(upstream, idle_s=0)
        transfer = await client.send(request(), within(0.1), keep_limit=1)
        assert client._pool.slots == 1
        await asyncio.to_thread(upstream.wait_for_disconnects, 1)
        assert client._pool.slots == 0
        assert [piece async for piece in transfer.rest()] == [b"bc"]

    run(loop, main())


def test_closing_ends_a_rest_that_waits(loop: str, upstream: RecordingUpstream) -> None:
    upstream.next(raw(OK + b"Content-Length: 9\r\n\r\nabc"))

    async def main() -> None:
        client = client_of(upstream)
        transfer = await client.send(request(), within(), keep_limit=0)
        rest = transfer.rest()
        assert await anext(rest) == b"abc"
        waiting = asyncio.ensure_future(anext(rest))
        await asyncio.sleep(0)
        transfer.close()
        with pytest.raises(BodyCutShort, match="closed"):
            await waiting
        assert client._pool.slots == 0

    run(loop, main())


def test_leaving_the_rest_closes_the_connection(loop: str, upstream: RecordingUpstream) -> None:
    upstream.next(respond(200, bytes(1 << 20)))

    async def main() -> None:
        client = client_of(upstream)
        transfer = await client.send(request(), within(), keep_limit=1)
        transfer.close()
        transfer.close()
        assert [piece async for piece in transfer.rest()] == []
        assert client._pool.slots == 0
        await asyncio.to_thread(upstream.wait_for_disconnects, 1)

    run(loop, main())
