"""A streamed request body, piece by piece, on a transport without a socket and a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.model import Exchange, Stage
from gateway.upstream import BodyCutShort, Deadlines, Request, Streamed, Transfer, Turns
from gateway.upstream.messages import PIECE, body_parts, encode_head
from tests.unit.upstream.calls import ManualClock, connected, reader, run

HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
DONE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
QUIET_S = 300.0


class Source:
    """Gives its pieces one by one, and then nothing; notes how often it was asked."""

    def __init__(self, *pieces: bytes | None, length: int | None = None) -> None:
        self._pieces = list(pieces)
        self.asked = 0
        self.cancelled = False
        self.body = Streamed(length, self.pull)

    async def pull(self) -> bytes | None:
        self.asked += 1
        if self._pieces:
            return self._pieces.pop(0)
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


class Bench:
    """One exchange whose body comes from ``source`` and whose response is passed on."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.clock = ManualClock()
        self.connection, self.transport = connected(self.clock)
        self.reader = reader(b"GET", keep_limit=None)

    async def perform(self) -> Exchange:
        now = self.clock.now
        deadlines = Deadlines(now + 5, now + 7, now + 3600, QUIET_S)
        await self.connection.perform(self.reader, HEAD, self.source.body, deadlines)
        return self.reader.exchange(self.connection.stage)

    def start(self) -> asyncio.Task[Exchange]:
        return asyncio.create_task(self.perform())

    def when_written(self, count: int, action: Callable[[], None]) -> None:
        """Do this as the write of that number is made."""

        def on_write() -> None:
            if len(self.transport.written) == count:
                action()

        self.transport.on_write = on_write

    def answer(self) -> None:
        self.connection.data_received(DONE)


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_pieces_of_a_known_length_leave_as_they_are_and_the_stage_rises_before_each() -> None:
    async def main() -> None:
        bench = Bench(Source(b"hello", b"world", length=10))
        stages: list[Stage] = []

        def on_write() -> None:
            stages.append(bench.connection.stage)
            if len(stages) == 3:
                bench.answer()

        bench.transport.on_write = on_write
        seen = await bench.perform()
        assert bench.transport.written == [HEAD, b"hello", b"world"]
        assert stages == [Stage.SENDING_HEADERS, Stage.SENDING_BODY, Stage.SENDING_BODY]
        assert (seen.stage, seen.oversize, seen.fault) == (Stage.STATUS_SEEN, True, None)
        assert bench.source.asked == 2

    run("asyncio", main())


def test_pieces_of_an_unknown_length_leave_in_chunks_and_are_ended() -> None:
    async def main() -> None:
        bench = Bench(Source(b"hello", b"x" * (PIECE + 1), b""))
        bench.when_written(5, bench.answer)
        await bench.perform()
        assert bench.connection.stage is Stage.SENT
        big = [b"10000\r\n" + b"x" * PIECE + b"\r\n", b"1\r\nx\r\n"]
        assert bench.transport.written == [HEAD, b"5\r\nhello\r\n", *big, b"0\r\n\r\n"]

    run("asyncio", main())


def test_a_piece_is_asked_for_when_the_one_before_has_left() -> None:
    async def main() -> None:
        bench = Bench(Source(b"hello", b"world", length=10))
        bench.when_written(2, bench.connection.pause_writing)
        task = bench.start()
        await turns()
        assert bench.source.asked == 2  # the second waits in hand until there is room
        assert bench.transport.written == [HEAD, b"hello"]
        bench.when_written(3, bench.answer)
        bench.connection.resume_writing()
        await task
        assert bench.transport.written[-1] == b"world"

    run("asyncio", main())


@pytest.mark.parametrize("large", [True, False])
def test_an_early_answer_ends_the_sending_and_the_pulling(large: bool) -> None:
    async def main() -> None:
        source = Source(b"x" * (4 * PIECE if large else 5), b"world", length=1 << 20)
        bench = Bench(source)
        bench.when_written(2, bench.answer)
        seen = await bench.perform()
        assert seen.stage is Stage.STATUS_SEEN
        assert len(bench.transport.written) == 2
        assert source.asked == 1
        assert not bench.connection.reusable

    run("asyncio", main())


def test_an_early_answer_while_the_source_has_nothing_stops_waiting_for_it() -> None:
    async def main() -> None:
        bench = Bench(Source(b"hello", length=10))
        task = bench.start()
        await turns()
        assert bench.source.asked == 2
        bench.answer()
        assert (await task).stage is Stage.STATUS_SEEN
        await turns()
        assert bench.source.cancelled

    run("asyncio", main())


@pytest.mark.parametrize(
    "pieces", [[None], [b"hello", None], [b"hello", b""], [b"hello", b"abcdef"]]
)
def test_a_body_that_breaks_off_or_is_not_as_long_as_announced_is_never_completed(
    pieces: list[bytes | None],
) -> None:
    """A byte too many would be read as the start of the next request."""

    async def main() -> None:
        bench = Bench(Source(*pieces, length=10))
        seen = await bench.perform()
        assert (seen.response, seen.fault) == (None, "closed")
        assert b"".join(bench.transport.written[1:]) in (b"", b"hello")
        bench.connection.close()
        assert bench.transport.aborted

    run("asyncio", main())


def test_a_chunked_body_that_breaks_off_gets_no_last_chunk() -> None:
    async def main() -> None:
        bench = Bench(Source(b"hello", None))
        assert (await bench.perform()).fault == "closed"
        assert bench.transport.written == [HEAD, b"5\r\nhello\r\n"]

    run("asyncio", main())


def test_a_pause_before_a_write_ends_the_sending() -> None:
    async def main() -> None:
        bench = Bench(Source(b"hello", b"world", length=10))
        bench.when_written(2, lambda: bench.clock.advance(3600))
        assert (await bench.perform()).fault == "paused"
        assert bench.transport.written == [HEAD, b"hello"]

    run("asyncio", main())


def expire(bench: Bench, by_s: float) -> None:
    """Time passes, and the timer runs."""
    bench.clock.advance(by_s)
    bench.connection._on_timer()


def test_an_upstream_that_takes_nothing_for_too_long_is_given_up() -> None:
    async def main() -> None:
        bench = Bench(Source(b"hello", b"world", length=10))
        bench.when_written(2, bench.connection.pause_writing)
        task = bench.start()
        await turns()
        expire(bench, QUIET_S - 1)
        await turns()
        assert not task.done()
        expire(bench, 1)
        assert (await task).fault == "timeout"
        assert bench.transport.written == [HEAD, b"hello"]

    run("asyncio", main())


def test_a_slow_source_does_not_count_against_the_upstream() -> None:
    async def main() -> None:
        bench = Bench(Source(b"hello", length=10))
        task = bench.start()
        await turns()
        expire(bench, 3599)
        await turns()
        assert not task.done()
        expire(bench, 1)
        assert (await task).fault == "timeout"

    run("asyncio", main())


def test_a_head_may_take_so_long_and_its_body_as_long_as_it_likes() -> None:
    async def main() -> None:
        silent, slow = Bench(Source(b"hello", length=5)), Bench(Source(b"hello", length=5))
        waiting, begun = silent.start(), slow.start()
        await turns()
        slow.connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        assert (await begun).oversize
        expire(silent, QUIET_S)
        assert await waiting == Exchange(Stage.SENT, None, "timeout")
        expire(slow, 3599)
        assert slow.reader.fault is None
        slow.connection.data_received(b"ok")
        assert slow.reader.done

    run("asyncio", main())


async def answered_early() -> Bench:
    """The head of an answer is in, and of the request five bytes of ten have left."""
    bench = Bench(Source(b"hello", length=10))
    task = bench.start()
    await turns()
    bench.connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
    assert (await task).oversize
    assert bench.connection.stage is Stage.SENDING_BODY
    return bench


def test_an_answer_before_the_end_of_its_request_may_not_pause_for_ever() -> None:
    """Its upstream may wait for the rest of the request, which never comes."""

    async def main() -> None:
        bench = await answered_early()
        bench.connection.flow()
        expire(bench, QUIET_S - 1)
        assert bench.reader.fault is None
        expire(bench, 1)
        assert bench.reader.fault == "timeout"

    run("asyncio", main())


def test_a_slow_caller_does_not_count_against_an_early_answer() -> None:
    async def main() -> None:
        bench = await answered_early()
        bench.connection.flow()
        bench.clock.advance(QUIET_S - 1)
        bench.connection.data_received(b"o")
        expire(bench, QUIET_S)
        assert bench.reader.fault is None
        bench.connection.flow()
        expire(bench, QUIET_S)
        assert bench.reader.fault == "timeout"

    run("asyncio", main())


@pytest.mark.parametrize("end", ["reset", "closed", "timeout", "done"])
def test_an_end_that_comes_while_it_stands_in_line_is_not_missed(end: str) -> None:
    """A body that broke off then must not look whole."""

    class Line(Turns):
        async def take(self) -> None:
            if end == "done":
                bench.connection.data_received(b"ok")
            elif end == "timeout":
                expire(bench, 3600)
            else:
                bench.connection.connection_lost(None if end == "closed" else OSError())

    async def main() -> None:
        nonlocal bench
        bench = Bench(Source(b"hello", length=5))
        task = bench.start()
        await turns()
        bench.connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        pool: Any = SimpleNamespace(put=lambda _: None)
        transfer = Transfer(await task, pool, Line(), bench.connection, bench.reader)
        bench.connection.when_over(transfer._release)
        if end == "done":
            assert [piece async for piece in transfer.rest()] == [b"ok"]
        else:
            with pytest.raises(BodyCutShort) as cut:
                assert [piece async for piece in transfer.rest()] == []
            assert cut.value.fault == end

    bench: Bench
    run("asyncio", main())


def test_one_read_of_a_body_is_held_and_the_next_is_asked_for() -> None:
    async def main() -> None:
        bench = Bench(Source(b"hello", length=5))
        task = bench.start()
        await turns()
        bench.connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
        await task
        assert bench.transport.reading
        for piece in (b"abc", b"def"):
            bench.connection.flow()
            assert bench.transport.reading
            bench.connection.data_received(piece)
            assert not bench.transport.reading

    run("asyncio", main())


def test_what_pulling_raises_is_raised() -> None:
    async def broken() -> bytes | None:
        raise RuntimeError("a bug")

    async def main() -> None:
        bench = Bench(Source())
        bench.source.body = Streamed(5, broken)
        with pytest.raises(RuntimeError, match="a bug"):
            await bench.perform()

    run("asyncio", main())


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (Streamed(7, Source.pull), b"Content-Length: 7"),  # type: ignore[arg-type]
        (Streamed(None, Source.pull), b"Transfer-Encoding: chunked"),  # type: ignore[arg-type]
        (b"", None),
        (b"ab", b"Content-Length: 2"),
    ],
)
def test_the_head_announces_the_body(body: bytes | Streamed, line: bytes | None) -> None:
    lines = encode_head(Request(b"GET", b"/", ((b"Host", b"a"),), body)).split(b"\r\n")
    assert lines[2:-2] == ([] if line is None else [line])


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 3 * PIECE])
@pytest.mark.parametrize("chunked", [False, True])
def test_parts_are_bounded_and_make_up_the_piece(size: int, chunked: bool) -> None:
    piece = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    parts = [bytes(part) for part in body_parts(piece, chunked=chunked)]
    assert all(len(part) <= PIECE + len(b"10000\r\n\r\n") for part in parts)
    if not chunked:
        assert b"".join(parts) == piece
    elif size:
        heads = [part.partition(b"\r\n") for part in parts]
        assert all(int(head, 16) == len(rest) - 2 for head, _, rest in heads)
        assert b"".join(rest[:-2] for _, _, rest in heads) == piece
    else:
        assert parts == [b"0\r\n\r\n"]
