"""Requests of the ordinary kind, read in one go.

Nearly all requests come whole in one read, with a length, in plain ASCII, and with no field that
changes how they are framed or who reads on. Taking such a one apart by the parser, and then seeing
whether it read what we would have read, costs more than reading it. What is read here is a small
part of what the parser takes, and means the same to it; whatever is not surely of this kind is
``None`` here, and for the parser.
"""

from __future__ import annotations

import re

from gateway.core.framing import HOST
from gateway.core.headers import Head, values
from gateway.core.value import value

__all__ = ["OrdinaryRequest", "read_request"]

_HEAD, _LINES = 8 * 1024, 64
"""Bytes of a head, and its lines; common clients send one or two KiB."""
_NAMES, _NAME = 1024, 64
"""Names that are remembered as well-formed, and bytes of each."""

_REQUEST = re.compile(
    rb"(GET|HEAD|POST|PUT|PATCH|DELETE) (/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)"
    rb"(?:\?([A-Za-z0-9._~!$&'()*+,;=:@%/?-]*))? HTTP/1\.1"
)

_TOKEN = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_PRINTABLE = bytes(range(0x20, 0x7F))

_OTHER = frozenset(
    {
        b"expect",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
"""Fields that change who reads what, or how."""

_known: dict[bytes, bytes] = {}


@value(frozen=True, slots=True)
class OrdinaryRequest:
    """``path`` and ``query``: as they came. ``headers``: names in lower case."""

    method: str
    path: bytes
    query: bytes
    headers: Head
    body: bytes


def read_request(data: bytes) -> OrdinaryRequest | None:
    """One whole request, its body included, and nothing behind it."""
    ends = data.find(b"\r\n\r\n", 0, _HEAD)
    if ends < 0:
        return None
    head, body = data[:ends], data[ends + 4 :]
    line, *lines = head.split(b"\r\n")
    first = _REQUEST.fullmatch(line)
    breaks = b"\r\n" * len(lines)
    if first is None or len(lines) > _LINES or head.translate(None, _PRINTABLE) != breaks:
        return None  # also where one of the two stands alone: the lines are then fewer
    pairs = []
    for line in lines:
        sent, _, content = line.partition(b": ")
        name = _known.get(sent) or _named(sent)
        content = content.strip()
        if not name or not content:
            return None
        pairs.append((name, content))
    headers = Head(pairs)
    hosts = values(headers, b"host")
    if len(hosts) != 1 or not HOST.fullmatch(hosts[0]) or not _framed(headers, body):
        return None
    method, path, query = first.groups()
    return OrdinaryRequest(method.decode("ascii"), path, query or b"", headers, body)


def _named(sent: bytes) -> bytes | None:
    """The name in lower case, if it is well-formed and that of an ordinary field."""
    name = sent.lower()
    if len(sent) > _NAME or name in _OTHER or not _TOKEN.fullmatch(sent):
        return None
    if len(_known) >= _NAMES:
        _known.clear()
    _known[sent] = name
    return name


def _framed(headers: Head, body: bytes) -> bool:
    """Whether the connection stays, and the length is that of the body, which nothing follows."""
    stays = values(headers, b"connection")
    if stays and (len(stays) > 1 or stays[0].lower() != b"keep-alive"):
        return False
    lengths = values(headers, b"content-length")
    if not lengths:
        return not body
    return len(lengths) == 1 and lengths[0] == b"%d" % len(body)
