"""The stage, the clock and the sending side, write by write, on a transport without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.core.model import Exchange, Response, Stage
from gateway.upstream import Deadlines
from gateway.upstream.connection import Connection
from gateway.upstream.messages import PIECE
from tests.unit.upstream.calls import FakeTransport, ManualClock, connected, reader, run, within

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n\r\n"
DONE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LARGE = bytes(range(256)) * (3 * PIECE // 256)


class Bench:
    """One exchange on a fake transport and a manual clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.connection, self.transport = connected(self.clock)
        self.reader = reader()

    async def perform(self, body: bytes = b"", *, within_s: float = 10.0) -> Exchange:
        await self.connection.perform(self.reader, HEAD, body, within(within_s, clock=self.clock))
        return self.seen()

    def seen(self) -> Exchange:
        return self.reader.exchange(self.connection.stage)


def test_stage_is_raised_before_the_first_write_and_small_requests_take_one_write() -> None:
    async def main() -> None:
        bench = Bench()
        stages: list[Stage] = []

        def on_write() -> None:
            stages.append(bench.connection.stage)
            bench.connection.data_received(DONE)

        bench.transport.on_write = on_write
        assert bench.connection.stage is Stage.CONNECTED
        seen = await bench.perform(b"body")
        assert stages == [Stage.SENDING_HEADERS]
        assert bench.transport.written == [HEAD + b"body"]
        assert seen.stage is Stage.BODY_COMPLETE
        assert bench.connection.reusable

    run("asyncio", main())


def test_large_body_goes_in_pieces_and_the_stage_rises_with_them() -> None:
    async def main() -> None:
        bench = Bench()
        stages: list[Stage] = []

        def on_write() -> None:
            stages.append(bench.connection.stage)
            if len(stages) == 4:
                bench.connection.data_received(DONE)

        bench.transport.on_write = on_write
        assert (await bench.perform(LARGE)).stage is Stage.BODY_COMPLETE
        assert stages == [Stage.SENDING_HEADERS, *[Stage.SENDING_BODY] * 3]
        assert bench.transport.written[0] == HEAD
        assert b"".join(bench.transport.written[1:]) == LARGE

    run("asyncio", main())


@pytest.mark.parametrize("late_by", [0.0, 100.0])
@pytest.mark.parametrize("which", ["first_byte", "last"])
def test_nothing_is_written_once_a_deadline_has_passed(which: str, late_by: float) -> None:
    async def main() -> None:
        bench = Bench()
        soon, far = bench.clock.now + 5, bench.clock.now + 500
        deadlines = (
            Deadlines(soon, soon, far) if which == "first_byte" else Deadlines(soon, far, soon)
        )
        bench.clock.advance(5 + late_by)
        await bench.connection.perform(bench.reader, HEAD, b"", deadlines)
        assert bench.seen() == Exchange(Stage.CONNECTED, None, "paused")
        assert bench.transport.written == []

    run("asyncio", main())


@pytest.mark.parametrize("pieces", [0, 1, 2])
def test_a_pause_between_two_writes_ends_the_sending(pieces: int) -> None:
    async def main() -> None:
        bench = Bench()

        def on_write() -> None:
            if len(bench.transport.written) == 1 + pieces:
                bench.clock.advance(10)

        bench.transport.on_write = on_write
        seen = await bench.perform(LARGE)
        stage = Stage.SENDING_BODY if pieces else Stage.SENDING_HEADERS
        assert seen == Exchange(stage, None, "paused")
        assert len(bench.transport.written) == 1 + pieces
        bench.connection.close()
        assert bench.transport.aborted

    run("asyncio", main())


def test_first_byte_deadline_does_not_bind_later_pieces() -> None:
    async def main() -> None:
        bench = Bench()

        def on_write() -> None:
            bench.clock.advance(1)
            if len(bench.transport.written) == 4:
                bench.connection.data_received(DONE)

        bench.transport.on_write = on_write
        now = bench.clock.now
        deadlines = Deadlines(now + 0.5, now + 0.5, now + 60)
        await bench.connection.perform(bench.reader, HEAD, LARGE, deadlines)
        assert bench.seen().stage is Stage.BODY_COMPLETE

    run("asyncio", main())


def later(turns: int, action: Callable[[], None]) -> None:
    """Run ``action`` after that many turns of the loop."""
    loop = asyncio.get_running_loop()
    loop.call_soon(action if turns == 1 else lambda: later(turns - 1, action))


def test_a_final_response_stops_the_body_an_interim_one_does_not() -> None:
    async def main() -> None:
        bench = Bench()

        def on_write() -> None:
            if len(bench.transport.written) == 2:
                bench.connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\n")
            if len(bench.transport.written) == 3:
                bench.connection.data_received(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\n")
                later(20, lambda: bench.connection.data_received(b"no"))

        bench.transport.on_write = on_write
        seen = await bench.perform(LARGE)
        assert (seen.stage, seen.fault) == (Stage.BODY_COMPLETE, None)
        assert seen.response == Response(413, ((b"Content-Length", b"2"),), b"no")
        assert len(bench.transport.written) == 3
        assert not bench.connection.reusable

    run("asyncio", main())


def test_a_full_socket_holds_the_next_piece_back() -> None:
    async def main() -> None:
        bench = Bench()

        def on_write() -> None:
            bench.connection.pause_writing()
            if len(bench.transport.written) == 4:
                bench.connection.data_received(DONE)

        bench.transport.on_write = on_write
        task = asyncio.create_task(bench.perform(LARGE))
        for written in (1, 2, 3):
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(bench.transport.written) == written
            bench.connection.resume_writing()
        assert (await task).stage is Stage.BODY_COMPLETE

    run("asyncio", main())


def test_bytes_before_the_request_make_the_connection_unusable() -> None:
    async def main() -> None:
        bench = Bench()
        bench.connection.data_received(b"HTTP/1.1 408 Timeout\r\n\r\n")
        assert not bench.connection.alive()
        assert await bench.perform() == Exchange(Stage.CONNECTED, None, "closed")
        assert bench.transport.written == []

    run("asyncio", main())


def test_a_connection_that_nobody_waits_for_any_more_ends_when_it_is_made() -> None:
    async def main() -> None:
        made = Connection(ManualClock())
        made.discard()
        transport = FakeTransport(made)
        made.connection_made(transport)
        assert transport.aborted

    run("asyncio", main())


def answer_after(bench: Bench, wait_s: float, *segments: bytes) -> None:
    def on_write() -> None:
        bench.clock.advance(wait_s)
        for segment in segments:
            bench.connection.data_received(segment)

    bench.transport.on_write = on_write


def test_an_answer_after_the_deadline_is_a_timeout_and_is_heard_late() -> None:
    """The machine slept: the data is there before any timer has run."""

    async def main() -> None:
        bench = Bench()
        answer_after(bench, 10.0, DONE[:20], DONE[20:])
        assert await bench.perform() == Exchange(Stage.SENT, None, "timeout")
        assert not bench.transport.reading
        assert bench.connection.may_linger
        await bench.connection.perform_late(bench.reader, bench.clock.now + 5, 1000)
        assert bench.seen().stage is Stage.BODY_COMPLETE

    run("asyncio", main())


def test_a_late_close_delimited_answer_is_heard_whole() -> None:
    async def main() -> None:
        bench = Bench()

        def on_write() -> None:
            bench.connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nok")
            bench.clock.advance(10)
            bench.connection.eof_received()
            bench.connection.connection_lost(None)

        bench.transport.on_write = on_write
        seen = await bench.perform()
        assert (seen.stage, seen.fault) == (Stage.STATUS_SEEN, "timeout")
        await bench.connection.perform_late(bench.reader, bench.clock.now + 5, 1000)
        seen = bench.seen()
        assert (seen.stage, seen.fault) == (Stage.BODY_COMPLETE, None)

    run("asyncio", main())


@pytest.mark.parametrize(("limit", "stage"), [(len(DONE), 6), (len(DONE) - 1, 4)])
def test_late_bytes_are_counted(limit: int, stage: int) -> None:
    async def main() -> None:
        bench = Bench()
        answer_after(bench, 10.0, DONE)
        await bench.perform()
        await bench.connection.perform_late(bench.reader, bench.clock.now + 5, limit)
        assert bench.seen().stage == stage

    run("asyncio", main())


@pytest.mark.parametrize("lost_by", [None, ConnectionResetError()])
def test_a_connection_that_dies_as_the_request_is_written_is_sent(
    lost_by: Exception | None,
) -> None:
    async def main() -> None:
        bench = Bench()
        bench.transport.on_write = lambda: bench.connection.connection_lost(lost_by)
        fault = "closed" if lost_by is None else "reset"
        seen = await bench.perform()
        assert (seen.stage, seen.response, seen.fault) == (Stage.SENT, None, fault)
        assert len(bench.transport.written) == 1

    run("asyncio", main())
