"""What a request's head must be beyond the parser's own checks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.framing import check_head, has_body
from gateway.core.model import Headers

HOST = (b"host", b"gateway.test")
CHUNKED = (b"transfer-encoding", b"chunked")


@pytest.mark.parametrize("target", [b"/", b"/pay/v1/cases?a=b", b"/a?", b"http://h/a", b"*"])
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
    ],
)
def test_a_host_that_is_not_one_host_is_refused(version: str, hosts: list[bytes]) -> None:
    headers = tuple((b"host", host) for host in hosts)
    assert "Host" in (check_head(version, headers, b"/") or "")


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
