"""Many fast streams at once: each reads when it is its turn, and one read at a time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from gateway.upstream import Client, Deadlines, Origin, Request, Streamed, Turns, now_s
from gateway.upstream.connection import Connection
from tests.kit.flow import MIB, FlowUpstream, Pattern, Peer, Tally
from tests.unit.upstream.calls import run

STREAMS = 12
LIMIT = 2
WHOLE = Pattern(4 * MIB)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"


def deadlines() -> Deadlines:
    now = now_s()
    return Deadlines(now + 20, now + 20, now + 25)


def request(body: Streamed | bytes = b"") -> Request:
    return Request(b"GET", b"/", ((b"host", b"u"),), body)


class Watch:
    """How many times something happened in each turn of the loop."""

    def __init__(self) -> None:
        self.turn = 0
        self.seen: Counter[int] = Counter()
        self._next()

    def _next(self) -> None:
        self.turn += 1
        asyncio.get_running_loop().call_soon(self._next)

    def note(self) -> None:
        self.seen[self.turn] += 1


def test_downloads_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Watch.__new__(Watch)
    reads: Counter[Connection] = Counter()
    flows: Counter[Connection] = Counter()
    flow, received = Connection.flow, Connection.data_received

    def watched_flow(connection: Connection) -> None:
        asked.note()
        flows[connection] += 1
        flow(connection)

    def watched_received(connection: Connection, data: bytes) -> None:
        reads[connection] += 1
        received(connection, data)

    monkeypatch.setattr(Connection, "flow", watched_flow)
    monkeypatch.setattr(Connection, "data_received", watched_received)

    async def main(url: str) -> list[Tally]:
        asked.__init__()  # type: ignore[misc]
        client = Client(Origin.parse(url), turns=Turns(LIMIT))

        async def download() -> Tally:
            transfer = await client.send(request(), deadlines(), keep_limit=None)
            seen = Tally()
            async for piece in transfer.rest():
                seen.add(piece)
            return seen

        return await asyncio.gather(*(download() for _ in range(STREAMS)))

    def serve(peer: Peer) -> None:
        peer.read_head()
        peer.write(OK % WHOLE.size, WHOLE)

    with FlowUpstream(serve) as upstream:
        assert run("uvloop", main(upstream.url)) == [WHOLE.tally()] * STREAMS
    assert max(asked.seen.values()) <= LIMIT
    assert sum(asked.seen.values()) > 10 * STREAMS
    # One read for each time it was asked, and those up to the first byte of the body.
    assert all(reads[each] <= flows[each] + 2 for each in reads)


def test_uploads_pull_in_turns() -> None:
    pulled = Watch.__new__(Watch)
    pieces = 20

    async def main(url: str) -> list[int]:
        pulled.__init__()  # type: ignore[misc]
        client = Client(Origin.parse(url), turns=Turns(LIMIT))

        async def upload() -> int:
            left = pieces

            async def pull() -> bytes:
                nonlocal left
                pulled.note()
                left -= 1
                return bytes(100_000)

            body = Streamed(pieces * 100_000, pull)
            transfer = await client.send(request(body), deadlines(), keep_limit=None)
            transfer.close()
            assert left == 0
            return transfer.exchange.response.status if transfer.exchange.response else 0

        return await asyncio.gather(*(upload() for _ in range(STREAMS)))

    def serve(peer: Peer) -> None:
        peer.read_head()
        assert peer.read(pieces * 100_000).size == pieces * 100_000
        peer.write(OK % 0)

    with FlowUpstream(serve) as upstream:
        assert run("uvloop", main(upstream.url)) == [200] * STREAMS
    assert max(pulled.seen.values()) <= LIMIT
    assert sum(pulled.seen.values()) == pieces * STREAMS
