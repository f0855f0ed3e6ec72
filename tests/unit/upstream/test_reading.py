"""Framing rules, judged on bytes alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.model import Exchange, Stage
from gateway.upstream.reading import MAX_HEADER_LINES, MAX_INTERIM, ResponseReader
from tests.unit.upstream.calls import reader

OK = b"HTTP/1.1 200 OK\r\n"
EMPTY = OK + b"Content-Length: 0\r\n\r\n"


def fed(*segments: bytes, into: ResponseReader | None = None) -> ResponseReader:
    response = into or reader()
    for segment in segments:
        response.feed(segment)
    return response


def body_of(response: ResponseReader) -> bytes:
    seen = response.exchange(Stage.SENT).response
    assert seen is not None
    return seen.body


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (EMPTY, b""),
        (OK + b"content-length: 3  \r\n\r\nabc", b"abc"),
        (OK + b"content-length: " + b"0" * 5000 + b"3\r\n\r\nabc", b"abc"),
        (OK + b"Transfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0;z\r\nT: v\r\n\r\n", b"abc"),
        (b"\r\n" + EMPTY, b""),
        (b"HTTP/1.1 299\r\nContent-Length: 1\r\n\r\na", b"a"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + EMPTY, b""),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * MAX_INTERIM + EMPTY, b""),
        (OK + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\na", b"a"),
    ],
)
def test_complete_and_the_connection_may_go_on(data: bytes, body: bytes) -> None:
    response = fed(data)
    assert response.done
    assert response.fault is None
    assert response.keep_alive
    assert not response.extra
    assert body_of(response) == body
    assert response.exchange(Stage.SENT).stage is Stage.BODY_COMPLETE


@pytest.mark.parametrize(
    ("sent", "kept"), [(b"003", b"3"), (b"3 ", b"3"), (b"000", b"0"), (b"0" * 5000 + b"3", b"3")]
)
def test_a_length_is_written_anew(sent: bytes, kept: bytes) -> None:
    """Python refuses to read more than 4,300 digits."""
    response = fed(OK + b"Content-Length: " + sent + b"\r\n\r\n" + b"abc"[: int(kept)])
    assert response.done
    seen = response.exchange(Stage.SENT).response
    assert seen is not None
    assert seen.headers == ((b"Content-Length", kept),)


def test_field_lines_keep_order_spelling_and_repeats_and_lose_interim_ones_and_trailers() -> None:
    response = fed(
        b"HTTP/1.1 100 Continue\r\nX-Interim: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"x-B: 1\r\nX-a:\r\nSet-Cookie: c=1\r\nset-cookie: d=\xff2 \t\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: 1\r\n\r\n",
    )
    seen = response.exchange(Stage.SENT).response
    assert seen is not None
    assert seen.headers == (
        (b"x-B", b"1"),
        (b"X-a", b""),
        (b"Set-Cookie", b"c=1"),
        (b"set-cookie", b"d=\xff2"),
        (b"Transfer-Encoding", b"chunked"),
    )


@pytest.mark.parametrize(
    "data",
    [
        OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
        OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n",
        OK + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\n",
        OK + b"Content-Length: 3, 3\r\n\r\n",
        OK + b"Content-Length: +3\r\n\r\n",
        OK + b"Content-Length: 0x3\r\n\r\n",
        OK + b"Content-Length: -3\r\n\r\n",
        OK + b"Content-Length:\r\n\r\n",
        OK + b"Content-Length: 99999999999999999999\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\n\r\n",
        OK + b"Transfer-Encoding: identity\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        OK + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
        OK + b"Transfer-Encoding: chunked, chunked\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"Transfer-Encoding:\r\n\r\n",
        OK + b"Transfer-Encoding: \x0bchunked\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n" + EMPTY,
        b"HTTP/1.1 100 Continue\r\n\r\n" * (MAX_INTERIM + 1),
        b"HTTP/1.1 000 X\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 600 X\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 999 X\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 20 X\r\n\r\n",
        b"HTTP/1.1 2000 X\r\n\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/0.9 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"RTSP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"ICE/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\x15\x03\x01\x00\x02",
        OK + b"A: x\r\n folded\r\n\r\n",
        OK + b"A : x\r\n\r\n",
        OK + b"A: x\x00y\r\n\r\n",
        OK + b"A: x\ry\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    ],
)
def test_unsafe_or_foreign_is_a_fault_and_its_status_is_never_shown(data: bytes) -> None:
    for response in (fed(data), fed(*(bytes([byte]) for byte in data))):
        assert response.exchange(Stage.SENT) == Exchange(Stage.SENT, None, "protocol")


@pytest.mark.parametrize("data", [b"3\r\nabcd\r\n", b"3\r\nabc\r\nzz\r\n", b"3\r\nabc\r\n3 \r\n"])
def test_broken_chunks_leave_the_status_and_what_came(data: bytes) -> None:
    seen = fed(OK + b"Transfer-Encoding: chunked\r\n\r\n" + data).exchange(Stage.SENT)
    assert (seen.stage, seen.fault) == (Stage.STATUS_SEEN, "protocol")
    assert seen.response is not None
    assert (seen.response.status, seen.response.body) == (200, b"abc")


def test_head_has_no_body_whatever_its_length_says() -> None:
    response = fed(OK + b"Content-Length: 5\r\n\r\n", into=reader(b"HEAD"))
    assert response.done
    assert response.keep_alive
    assert body_of(response) == b""
    response.feed(b"stray")
    assert response.extra


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
        OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n",
        OK + b"Connection: x, Close\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_last_response_of_a_connection(data: bytes) -> None:
    response = fed(data)
    assert response.done
    assert not response.keep_alive


@pytest.mark.parametrize("extra", [b"HTTP/1.1 500 E\r\n\r\n", EMPTY, b"junk", b"H"])
def test_bytes_after_the_response_are_ignored_and_noticed(extra: bytes) -> None:
    for response in (fed(EMPTY + extra), fed(EMPTY, extra)):
        assert response.extra
        assert response.done
        assert response.fault is None
        assert response.status == 200


def test_body_without_a_length_ends_with_an_orderly_close_only() -> None:
    whole = fed(OK + b"\r\nabc")
    assert not whole.settled
    whole.eof()
    seen = whole.exchange(Stage.SENT)
    assert (seen.stage, seen.close_delimited, seen.fault) == (Stage.BODY_COMPLETE, True, None)
    broken = fed(OK + b"\r\nabc")
    broken.fail("reset")
    seen = broken.exchange(Stage.SENT)
    assert (seen.stage, seen.close_delimited, seen.fault) == (Stage.STATUS_SEEN, True, "reset")


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("over", [0, 1])
def test_head_limit_is_exact(over: int, one_by_one: bool) -> None:
    limit = 1000
    start, end = OK + b"A: ", b"\r\nContent-Length: 1\r\n\r\n"
    head = start + b"x" * (limit + over - len(start) - len(end)) + end
    data = head + b"y"
    segments = [bytes([byte]) for byte in data] if one_by_one else [data]
    response = fed(*segments, into=reader(head_limit=limit))
    assert response.done is (over == 0)
    assert response.fault == (None if over == 0 else "headers-too-large")


@pytest.mark.parametrize("over", [0, 1])
def test_line_limit_is_exact(over: int) -> None:
    lines = b"A: x\r\n" * (MAX_HEADER_LINES - 1 + over)
    response = fed(OK + lines + b"Content-Length: 0\r\n\r\n")
    assert response.fault == (None if over == 0 else "headers-too-large")


def test_endless_trailers_end() -> None:
    response = reader(head_limit=1000)
    response.feed(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n")
    for _ in range(11):
        response.feed(b"T" * 100)
    assert response.exchange(Stage.SENT).fault == "headers-too-large"
    assert response.status == 200


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_keep_limit_is_exact(limit: int) -> None:
    response = fed(OK + b"Content-Length: 3\r\n\r\nabc", into=reader(keep_limit=limit))
    seen = response.exchange(Stage.SENT)
    assert seen.response is not None
    assert seen.response.body == b"abc"[:limit]
    assert seen.oversize is (limit < 3)
    assert seen.fault is None
    assert b"".join(response.queue) == b"abc"[limit:]
    assert seen.stage is (Stage.BODY_COMPLETE if limit == 3 else Stage.STATUS_SEEN)


def test_an_empty_body_is_complete_at_limit_zero() -> None:
    assert fed(EMPTY, into=reader(keep_limit=0)).exchange(Stage.SENT).stage is Stage.BODY_COMPLETE


@given(st.binary(max_size=400), st.integers(0, 60), st.booleans())
def test_no_bytes_raise_and_no_value_carries_a_line_break(
    noise: bytes, at: int, chunked: bool
) -> None:
    coding = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 5"
    data = OK + b"A: b\r\n" + coding + b"\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"
    response = fed(data[:at] + noise, data[at:])
    response.eof()
    seen = response.exchange(Stage.SENT)
    assert (seen.fault is None) == (seen.stage is Stage.BODY_COMPLETE)
    assert (seen.response is None) == (seen.stage < Stage.STATUS_SEEN)
    if seen.response is not None:
        assert 200 <= seen.response.status <= 599
        joined = b"".join(name + value for name, value in seen.response.headers)
        assert not set(b"\r\n\0") & set(joined)


# -- without a keep limit: whoever passes a response on acts at its head


def streamed(*segments: bytes, method: bytes = b"GET") -> ResponseReader:
    made = reader(method, keep_limit=None)
    for segment in segments:
        made.feed(segment)
    return made


@pytest.mark.parametrize("framing", [b"Content-Length: 5", b"Transfer-Encoding: chunked", b"A: b"])
def test_the_end_of_the_head_settles_a_streamed_response(framing: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n"
    assert not streamed(head[:-1]).settled
    made = streamed(head)
    assert (made.settled, made.oversize, made.done) == (True, True, False)
    seen = made.exchange(Stage.SENT)
    assert (seen.stage, seen.oversize, seen.fault) == (Stage.STATUS_SEEN, True, None)
    made.feed(b"5\r\nhello\r\n" if b"chunked" in framing else b"hello")
    assert list(made.queue) == [b"hello"]


@pytest.mark.parametrize(
    ("method", "data"),
    [
        (b"GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        (b"GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (b"GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
        (b"GET", b"HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ],
)
def test_a_streamed_response_without_a_body_is_complete(method: bytes, data: bytes) -> None:
    seen = streamed(data, method=method).exchange(Stage.SENT)
    assert (seen.stage, seen.oversize) == (Stage.BODY_COMPLETE, False)


def test_an_interim_response_does_not_settle_a_streamed_one() -> None:
    assert not streamed(b"HTTP/1.1 103 Hints\r\nLink: a\r\n\r\n").settled
