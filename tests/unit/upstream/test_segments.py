"""Property: what is seen of a response depends on its bytes, not on how they were cut into
segments; and a response that is cut short is classified by where it was cut."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.model import Exchange, Fault, Stage
from gateway.upstream.connection import Connection
from gateway.upstream.reading import ResponseReader
from tests.unit.upstream.calls import play, reader


@dataclass(frozen=True)
class Scripted:
    """Response bytes, with what is known about them by construction."""

    method: bytes
    status: int
    framing: str  # length | chunked | close | none
    head: bytes
    payload: bytes
    body: bytes
    keep_limit: int

    @property
    def data(self) -> bytes:
        return self.head + self.payload

    def fresh_reader(self) -> ResponseReader:
        return reader(self.method, self.keep_limit)

    def body_by(self, at: int) -> bytes:
        """The body bytes among the first ``at`` bytes of the payload."""
        if self.framing != "chunked":
            return self.payload[:at]
        body, offset = b"", 0
        while True:
            line_end = self.payload.index(b"\r\n", offset) + 2
            size = int(self.payload[offset:line_end].partition(b";")[0], 16)
            if at <= line_end or size == 0:
                return body
            body += self.payload[line_end : min(at, line_end + size)]
            offset = line_end + size + 2


@st.composite
def scripted(draw: st.DrawFn) -> Scripted:
    status = draw(st.sampled_from([200, 201, 204, 304, 302, 404, 429, 500, 503]))
    method = draw(st.sampled_from([b"POST", b"GET", b"HEAD"]))
    framing = draw(st.sampled_from(["length", "chunked", "close"]))
    chunks = draw(st.lists(st.binary(min_size=1, max_size=20), max_size=4))
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 103 Hints\r\nLink: a\r\n\r\n"])) * draw(
        st.integers(0, 2)
    )
    body = b"".join(chunks)
    lines = [b"HTTP/1.1 %d Reason" % status, b"X-A: 1", b"x-a:", b"Connection: close"]
    payload = body
    if framing == "length":
        lines.append(b"Content-Length: %d" % len(body))
    elif framing == "chunked":
        lines.append(b"Transfer-Encoding: chunked")
        trailer = draw(st.sampled_from([b"", b"T: v\r\n"]))
        payload = b"".join(b"%x;e=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        payload += b"0\r\n" + trailer + b"\r\n"
    if method == b"HEAD" or status in (204, 304):
        framing, payload, body = "none", b"", b""
    head = interim + b"\r\n".join([*lines, b"", b""])
    keep_limit = draw(st.sampled_from([0, 1, 10, 1000]))
    return Scripted(method, status, framing, head, payload, body, keep_limit)


def segments(data: bytes, marks: list[int]) -> list[bytes]:
    edges = [0, *sorted(mark % (len(data) + 1) for mark in marks), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


def orderly(connection: Connection) -> None:
    connection.eof_received()
    connection.connection_lost(None)


def broken(connection: Connection) -> None:
    connection.connection_lost(ConnectionResetError())


def expected(script: Scripted, cut: int, reset: bool) -> tuple[Stage, Fault | None, bool]:
    """Stage, fault and oversize by the table in ``docs``: where was it cut, and how?"""
    fault: Fault = "reset" if reset else "closed"
    at = cut - len(script.head)
    if at < 0:
        return Stage.SENT, fault, False
    if len(script.body_by(at)) > script.keep_limit:
        return Stage.STATUS_SEEN, None, True
    whole = at == len(script.payload) if script.framing != "close" else not reset
    if whole:
        return Stage.BODY_COMPLETE, None, False
    return Stage.STATUS_SEEN, fault, False


@given(scripted(), st.data(), st.booleans(), st.lists(st.integers(0, 10_000), max_size=12))
def test_segments_do_not_matter_and_cuts_classify(
    script: Scripted, data: st.DataObject, reset: bool, marks: list[int]
) -> None:
    cut = data.draw(st.integers(0, len(script.data)))
    end = broken if reset else orderly
    arrived = script.data[:cut]
    seen = play(segments(arrived, marks), end, script.fresh_reader)
    assert seen == play([arrived] if arrived else [], end, script.fresh_reader)
    assert (seen.stage, seen.fault, seen.oversize) == expected(script, cut, reset)
    check_response(script, cut, seen)


def check_response(script: Scripted, cut: int, seen: Exchange) -> None:
    if seen.stage < Stage.STATUS_SEEN:
        assert seen.response is None
        return
    assert seen.response is not None
    assert seen.response.status == script.status
    assert seen.response.headers[:3] == ((b"X-A", b"1"), (b"x-a", b""), (b"Connection", b"close"))
    body = script.body_by(cut - len(script.head))
    assert seen.response.body == body[: script.keep_limit]
    assert seen.close_delimited is (script.framing == "close")


@given(scripted(), st.lists(st.integers(0, 10_000), max_size=12), st.binary(max_size=30))
def test_bytes_after_the_end_change_nothing(
    script: Scripted, marks: list[int], extra: bytes
) -> None:
    if script.framing == "close":
        return
    alone = play([script.data], orderly, script.fresh_reader)
    assert play(segments(script.data + extra, marks), orderly, script.fresh_reader) == alone
