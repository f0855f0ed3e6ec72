"""What a caller hands to the client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from gateway.core.headers import written
from gateway.core.model import Headers
from gateway.core.value import value

__all__ = ["PIECE", "Deadlines", "Request", "Streamed", "body_parts", "encode_head", "encoded"]

PIECE = 64 * 1024
"""Bytes of body written between two looks at the clock and at what the peer says."""

_BODY_EXPECTED = frozenset((b"POST", b"PUT", b"PATCH"))


@dataclass(frozen=True, slots=True)
class Streamed:
    """A body that is sent as it comes. ``length``: its bytes, ``None`` where they are not known
    beforehand; it is then sent chunked.

    ``pull`` waits for the next piece: empty at the end, ``None`` where the body broke off. It is
    called when the piece before has left, never twice at a time, and may be cancelled.
    """

    length: int | None
    pull: Callable[[], Awaitable[bytes | None]]


@value(frozen=True, slots=True)
class Request:
    """One request, ready to be written.

    ``target`` is the raw origin form, base path included. ``headers`` is the whole end-to-end list
    with ``Host``, and without ``Connection``, ``Transfer-Encoding`` and ``Content-Length``: the
    client adds one of the last two and nothing else.
    """

    method: bytes
    target: bytes
    headers: Headers = field(repr=False)  # with the policy's credentials
    body: bytes | Streamed = field(default=b"", repr=False)
    head: bytes = field(default=b"", repr=False, compare=False)
    """As ``encode_head`` writes it, where that was done already."""


@value(frozen=True, slots=True)
class Deadlines:
    """Readings of the client's clock, in seconds.

    By ``connect`` a connection exists (slot, DNS, TCP and TLS included); before ``first_byte`` the
    first byte is written or never; by ``last`` the whole exchange is over.

    ``quiet_s`` is a duration: until the head of the response is in, the upstream may leave the next
    piece of a streamed body, or an answer to the whole request, outstanding for so long.
    """

    connect: float
    first_byte: float
    last: float
    quiet_s: float | None = None


def encode_head(request: Request) -> bytes:
    """Request line and field lines, with the empty line that ends them.

    Raises ``ValueError`` when a part would read as more than itself. Both the intake and the
    policies rule that out, so it is a bug in the caller, and nothing has been sent.
    """
    return _head(request.method, request.target, request.headers, request.body)


def encoded(method: bytes, target: bytes, headers: Headers, body: bytes | Streamed) -> Request:
    """A request with its head, or as ``encode_head`` raises."""
    return Request(method, target, headers, body, _head(method, target, headers, body))


def _head(method: bytes, target: bytes, headers: Headers, body: bytes | Streamed) -> bytes:
    first = b"%b %b HTTP/1.1\r\n" % (method, target)
    framing = b""
    if isinstance(body, Streamed):
        length = body.length
        framing = (
            b"Transfer-Encoding: chunked\r\n"
            if length is None
            else b"Content-Length: %d\r\n" % length
        )
    elif body or method in _BODY_EXPECTED:  # RFC 9110 §8.6
        framing = b"Content-Length: %d\r\n" % len(body)
    head = b"%b%b%b\r\n" % (first, written(headers), framing)
    breaks = len(headers) + (3 if framing else 2)
    if head.count(b"\n") != breaks or head.count(b"\r") != breaks or first.count(b" ") != 2:
        raise ValueError("a request line or field line holds a line break or a stray space")
    return head


def body_parts(piece: bytes, *, chunked: bool) -> Iterator[bytes | memoryview]:
    """A piece of a body as it goes over the wire, at most ``PIECE`` bytes of it at a time. In
    chunks the empty piece is the last one (RFC 9112 §7.1)."""
    if chunked and not piece:
        yield b"0\r\n\r\n"
        return
    view = memoryview(piece)
    for start in range(0, len(piece), PIECE):
        part = view[start : start + PIECE]
        yield b"".join((b"%x\r\n" % len(part), part, b"\r\n")) if chunked else part
