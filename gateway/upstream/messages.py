"""What a caller hands to the client."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.model import Headers

__all__ = ["Deadlines", "Request", "encode_head"]

_BODY_EXPECTED = frozenset((b"POST", b"PUT", b"PATCH"))


@dataclass(frozen=True, slots=True)
class Request:
    """One request, ready to be written.

    ``target`` is the raw origin form, base path included. ``headers`` is the whole end-to-end list
    with ``Host``, and without ``Connection``, ``Transfer-Encoding`` and ``Content-Length``: the
    client adds the last of these and nothing else.
    """

    method: bytes
    target: bytes
    headers: Headers
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Readings of the client's clock, in seconds.

    By ``connect`` a connection exists (slot, DNS, TCP and TLS included); before ``first_byte`` the
    first byte is written or never; by ``last`` the whole exchange is over.
    """

    connect: float
    first_byte: float
    last: float


def encode_head(request: Request) -> bytes:
    """Request line and field lines, with the empty line that ends them.

    Raises ``ValueError`` when a part would read as more than itself. Both the intake and the
    policies rule that out, so it is a bug in the caller, and nothing has been sent.
    """
    lines = [b"%b %b HTTP/1.1" % (request.method, request.target)]
    lines += [b"%b: %b" % line for line in request.headers]
    if request.body or request.method in _BODY_EXPECTED:  # RFC 9110 §8.6
        lines.append(b"Content-Length: %d" % len(request.body))
    breaks = len(lines) + 1
    lines += (b"", b"")
    head = b"\r\n".join(lines)
    if head.count(b"\n") != breaks or head.count(b"\r") != breaks or lines[0].count(b" ") != 2:
        raise ValueError("a request line or field line holds a line break or a stray space")
    return head
