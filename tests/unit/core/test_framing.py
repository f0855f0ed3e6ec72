"""What a request's head must be beyond the parser's own checks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.framing import (
    HEAD_LIMIT,
    LINES_LIMIT,
    NO_UPGRADE,
    TOO_LONG,
    TOO_MANY,
    UNREADABLE,
    check_head,
    check_message,
    check_request_line,
    expects_continue,
    has_body,
)
from gateway.core.model import Headers

HOST = (b"host", b"gateway.test")
CHUNKED = (b"transfer-encoding", b"chunked")


@pytest.mark.parametrize("target", [b"/", b"/pay/v1/cases?a=b", b"/a?u=http://h/a", b"*"])
@pytest.mark.parametrize(
    ("version", "headers"),
    [
        ("1.1", (HOST,)),
        ("1.0", (HOST,)),
        ("1.0", ()),
        ("1.1", ((b"host", b" gateway.test:8080\t"),)),
        ("1.1", ((b"host", b"[::1]:8080"),)),
        ("1.1", (HOST, (b"content-length", b"4"))),
        ("1.1", (HOST, CHUNKED)),
        ("1.1", (HOST, (b"transfer-encoding", b" Chunked "))),
    ],
)
def test_a_plain_head_passes(version: str, headers: Headers, target: bytes) -> None:
    assert check_head(version, headers, target) is None


@pytest.mark.parametrize("version", ["0.9", "1.2", "2.0", "3.0", "1.10", ""])
def test_another_version_is_refused(version: str) -> None:
    assert "HTTP/1.1" in (check_head(version, (HOST,), b"/") or "")


@pytest.mark.parametrize("target", [b"#", b"/a#b", b"/a?q=1#b", b"/a#"])
def test_a_fragment_is_refused(target: bytes) -> None:
    assert "#" in (check_head("1.1", (HOST,), target) or "")


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(
    "hosts",
    [
        [b"a", b"a"],
        [b"a", b"b"],
        [b"", b"a"],
        [b""],
        [b" \t"],
        [b"a b"],
        [b"a\tb"],
        [b"a,b"],
        [b"a/b"],
        [b"u@a"],
        [b"a?b"],
        [b"a#b"],
        [b"a\\b"],
        [b"a:b"],
        [b"a:1:2"],
        [b":80"],
        [b"[::1"],
        [b"::1"],
        [b"[::1%eth0]"],
        [b"caf\xe9"],
        [b"a%zz"],
        [b"a%"],
        [b'"a"'],
        [b"<a>"],
    ],
)
def test_a_host_that_is_not_one_host_is_refused(version: str, hosts: list[bytes]) -> None:
    headers = tuple((b"host", host) for host in hosts)
    assert "Host" in (check_head(version, headers, b"/") or "")


@pytest.mark.parametrize("host", [b"a", b"A-1.b_c", b"a:", b"a:80", b"[::1]", b"[::1]:8", b"a%2d"])
def test_a_host_may_be_any_name_or_address(host: bytes) -> None:
    assert check_head("1.1", ((b"host", host),), b"/") is None


@pytest.mark.parametrize(
    ("target", "host", "passes"),
    [
        (b"http://h/a", b"h", True),
        (b"HTTP://H/a", b"h", True),
        (b"https://h:8/a?b", b"h:8", True),
        (b"http://h?b", b"h", True),
        (b"http://other/a", b"h", False),
        (b"http://h:80/a", b"h", False),
        (b"http://h@other/a", b"h", False),
        (b"http://other@h/a", b"h", False),
        (b"http:///a", b"h", False),
        (b"http://h", b"h", False),
        (b"ftp://h/a", b"h", False),
        (b"x:http://h/a", b"h", False),
    ],
)
def test_absolute_form_names_the_host_that_host_names(
    target: bytes, host: bytes, passes: bool
) -> None:
    assert (check_head("1.1", ((b"host", host),), target) is None) is passes


LINE = b"GET /a HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("read", "passes"),
    [
        (LINE + b"Host: a\r\n\r\n", True),
        (b"\r\n\r\n" + LINE, True),
        (b"\n" + LINE, False),
        (b"\r" + LINE, False),
        (b"\r\n\r" + LINE, False),
        (b"GET  /a HTTP/1.1\r\n", False),
        (b"GET /a  HTTP/1.1\r\n", False),
        (b"GET /a HTTP/1.1 \r\n", False),
        (b"GET\t/a HTTP/1.1\r\n", False),
        (b"GET /a HTTP/1.1\n", False),
        (b"GET /a RTSP/1.1\r\n", False),
        (b"\r\n", False),
    ],
)
def test_a_request_line_is_taken_as_it_is_written(read: bytes, passes: bool) -> None:
    assert (check_request_line(LINE, read) is None) is passes


def test_only_http_1_0_may_go_without_a_host() -> None:
    assert check_head("1.1", (), b"/") == "Send exactly one Host field."


@pytest.mark.parametrize(
    "codings",
    [
        [b"gzip, chunked"],
        [b"gzip", b"chunked"],
        [b"chunked", b"chunked"],
        [b"chunked, chunked"],
        [b"chunked;q=1"],
        [b"identity"],
        [b"gzip"],
        [b"xchunked"],
        [b'"chunked"'],
        [b""],
        [b"chunked", b""],
    ],
)
def test_any_coding_but_chunked_alone_is_refused(codings: list[bytes]) -> None:
    headers = (HOST, *((b"transfer-encoding", coding) for coding in codings))
    assert "Transfer-Encoding" in (check_head("1.1", headers, b"/") or "")


def test_a_coding_beside_a_length_or_in_http_1_0_is_refused() -> None:
    beside = (HOST, CHUNKED, (b"content-length", b"4"))
    assert check_head("1.1", beside, b"/") is not None
    assert check_head("1.1", beside[::-1], b"/") is not None
    assert check_head("1.0", (HOST, CHUNKED), b"/") is not None


@given(
    st.text("01.29", max_size=3) | st.just("1.1"),
    st.lists(
        st.tuples(
            st.sampled_from([b"host", b"transfer-encoding", b"content-length"]),
            st.sampled_from([b"", b"0", b"4", b"chunked", b"gzip", b"h", b"a b", b"a,b"]),
        ),
        max_size=4,
    ),
    st.binary(max_size=8),
)
def test_what_passes_can_be_framed_in_one_way(
    version: str, fields: list[tuple[bytes, bytes]], target: bytes
) -> None:
    wrong = check_head(version, tuple(fields), target)
    if wrong is not None:
        assert wrong.endswith(".")
        return
    names = [name for name, _ in fields]
    assert version in ("1.0", "1.1")
    assert b"#" not in target
    assert names.count(b"host") <= 1
    assert names.count(b"transfer-encoding") <= 1
    assert not {b"transfer-encoding", b"content-length"} <= set(names)
    assert version == "1.1" or b"transfer-encoding" not in names


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ((HOST,), False),
        (((b"content-length", b"0"),), False),
        (((b"content-length", b" 0 "),), False),
        (((b"content-length", b"1"),), True),
        (((b"content-length", b"00"),), True),
        ((CHUNKED,), True),
    ],
)
def test_a_head_announces_a_body_or_none(headers: Headers, expected: bool) -> None:
    assert has_body(headers) is expected


@pytest.mark.parametrize("length", [b"0", b"4", b"0004", b"9" * 19])
def test_a_length_of_up_to_19_digits_passes(length: bytes) -> None:
    assert check_head("1.1", (HOST, (b"content-length", length)), b"/") is None


@pytest.mark.parametrize("length", [b"", b"0" * 20, b"0" * 5000 + b"4", b"+4", b"4,4", b"4x"])
def test_a_length_that_not_everybody_can_read_is_refused(length: bytes) -> None:
    assert "Content-Length" in (check_head("1.1", (HOST, (b"content-length", length)), b"/") or "")


FOUR = (b"content-length", b"4")


@pytest.mark.parametrize(
    ("version", "framing", "values", "expected"),
    [
        ("1.1", FOUR, [b"100-continue"], True),
        ("1.1", CHUNKED, [b"100-Continue"], True),
        ("1.1", FOUR, [b" 100-continue\t"], True),
        ("1.1", FOUR, [b"x, 100-continue"], True),
        ("1.1", FOUR, [b"x", b"100-continue"], True),
        ("1.1", FOUR, [b"x-100-continue"], False),
        ("1.1", FOUR, [b"100-continue=1"], False),
        ("1.1", FOUR, [], False),
        ("1.0", FOUR, [b"100-continue"], False),
        ("1.1", (b"content-length", b"0"), [b"100-continue"], False),
        ("1.1", (b"a", b"b"), [b"100-continue"], False),
    ],
)
def test_who_waits_for_100_continue(
    version: str, framing: tuple[bytes, bytes], values: list[bytes], expected: bool
) -> None:
    headers = (HOST, framing, *((b"expect", value) for value in values))
    assert expects_continue(version, headers) is expected


UPGRADE = ((b"connection", b"Upgrade, HTTP2-Settings"), (b"upgrade", b"h2c"))


@pytest.mark.parametrize(
    ("headers", "size", "wrong"),
    [
        ((HOST,), 0, None),
        ((HOST, (b"content-length", b"3")), 3, None),
        ((HOST, CHUNKED), 3, None),
        ((HOST, *UPGRADE), 0, None),
        ((HOST, (b"upgrade", b"h2c"), (b"content-length", b"3")), 3, None),
        ((HOST, *UPGRADE, (b"content-length", b"3")), 3, NO_UPGRADE),
        ((HOST, (b"content-length", b"3x")), 3, UNREADABLE),
        ((HOST, (b"content-length", b"")), 0, UNREADABLE),
        ((HOST, (b"content-length", b"3"), (b"content-length", b"3")), 3, UNREADABLE),
        ((HOST, (b"content-length", b"9" * 20)), 3, UNREADABLE),
        ((HOST, (b"x", b"y" * HEAD_LIMIT)), 0, TOO_LONG),
        ((HOST,) + ((b"a", b""),) * (LINES_LIMIT - 1), 0, None),
        ((HOST,) + ((b"a", b""),) * LINES_LIMIT, 0, TOO_MANY),
    ],
)
def test_a_message_that_the_server_does_not_take(
    headers: Headers, size: int, wrong: str | None
) -> None:
    assert check_message("POST", b"/", headers, size) == wrong


def test_other_lengths_and_methods() -> None:
    for length, size in ((b"2", 3), (b"4", 3), (b"1", 0)):
        found = check_message("POST", b"/", (HOST, (b"content-length", length)), size)
        assert found is not None
        assert f", {size}," in found
    assert check_message("A" * 32, b"/", (HOST,), 0) is None
    assert check_message("A" * 33, b"/", (HOST,), 0) == UNREADABLE
    # GET / HTTP/1.1, the two ends of lines, and a field of 4 bytes more than its text.
    room = HEAD_LIMIT - len("GET / HTTP/1.1\r\n\r\n") - len("x: \r\n")
    assert check_message("GET", b"/", ((b"x", b"y" * room),), 0) is None
    assert check_message("GET", b"/", ((b"x", b"y" * (room + 1)),), 0) == TOO_LONG
