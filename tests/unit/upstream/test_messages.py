import pytest

from gateway.upstream import Request
from gateway.upstream.messages import encode_head

HOST = (b"Host", b"a")


def test_writes_what_it_is_given_in_order_and_adds_the_length_only() -> None:
    lines = (HOST, (b"x-A", b"1"), (b"X-a", b"2"), (b"Empty", b""))
    head = encode_head(Request(b"POST", b"/p?q=%20", lines, b"abc"))
    assert head == (
        b"POST /p?q=%20 HTTP/1.1\r\nHost: a\r\nx-A: 1\r\nX-a: 2\r\nEmpty: \r\n"
        b"Content-Length: 3\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        (b"GET", b"", None),
        (b"DELETE", b"", None),
        (b"HEAD", b"", None),
        (b"POST", b"", b"0"),
        (b"PUT", b"", b"0"),
        (b"PATCH", b"", b"0"),
        (b"DELETE", b"x", b"1"),
        (b"GET", b"xy", b"2"),
    ],
)
def test_length_goes_with_bodies_and_with_methods_that_expect_one(
    method: bytes, body: bytes, length: bytes | None
) -> None:
    head = encode_head(Request(method, b"/", (HOST,), body))
    wanted = b"" if length is None else b"Content-Length: " + length + b"\r\n"
    assert head == method + b" / HTTP/1.1\r\nHost: a\r\n" + wanted + b"\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        Request(b"GET", b"/a b", (HOST,)),
        Request(b"GET", b"/a\r\nX: y", (HOST,)),
        Request(b"GET", b"/a\n", (HOST,)),
        Request(b"GET", b"/", (HOST, (b"A", b"x\r\nB: y"))),
        Request(b"GET", b"/", (HOST, (b"A", b"x\ry"))),
        Request(b"GET", b"/", (HOST, (b"A\n", b"x"))),
        Request(b"G T", b"/", (HOST,)),
    ],
)
def test_refuses_what_would_read_as_more_than_itself(request_: Request) -> None:
    with pytest.raises(ValueError, match="line break"):
        encode_head(request_)
