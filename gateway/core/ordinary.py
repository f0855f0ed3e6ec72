"""Messages of the ordinary kind, read in one go.

Nearly all requests and answers come whole in one read, with a length, in plain ASCII, and with no
field that changes how they are framed or who reads on. Taking such a one apart by a parser costs a
call for each of its fields. What is read here is a small part of what the parser takes and means
the same to it; whatever is not of this kind, or not surely, is ``None`` here and for the parser.
"""

from __future__ import annotations

import re

from gateway.core.framing import HOST
from gateway.core.headers import Head
from gateway.core.model import Headers
from gateway.core.value import value

__all__ = ["OrdinaryAnswer", "OrdinaryRequest", "read_answer", "read_request"]

_HEAD = 8 * 1024
"""Bytes of a head; common clients and servers send one or two KiB."""
_LINES = 64
_NAMES, _NAME = 1024, 64
"""Names that are remembered as well-formed, and bytes of each: up to 64 KiB."""

_REQUEST = re.compile(
    rb"(GET|HEAD|POST|PUT|PATCH|DELETE) (/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)"
    rb"(?:\?([A-Za-z0-9._~!$&'()*+,;=:@%/?-]*))? HTTP/1\.1"
)
_STATUS = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9]) [ -~]*")
_BODILESS = (b"204", b"304")

_TOKEN = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SAFE = bytes(range(0x20, 0x7F)) + b"\r\n"

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


@value(frozen=True, slots=True)
class OrdinaryAnswer:
    """``headers``: names as they came."""

    status: int
    headers: Headers
    body: bytes


def read_request(data: bytes) -> OrdinaryRequest | None:
    """One whole request, its body included, and nothing behind it."""
    found = _parts(data)
    if found is None:
        return None
    lines, body = found
    first = _REQUEST.fullmatch(lines[0])
    if first is None:
        return None
    pairs = []
    for line in lines[1:]:
        sent, _, content = line.partition(b": ")
        name = _known.get(sent) or _named(sent)
        content = content.strip()
        if not name or not content:
            return None
        pairs.append((name, content))
    headers = Head(pairs)
    asked = headers.lines
    if not _framed(asked.get(b"connection"), asked.get(b"content-length"), body, implied=True):
        return None
    hosts = asked.get(b"host")
    if not hosts or len(hosts) > 1 or not HOST.fullmatch(hosts[0]):
        return None
    method, path, query = first.groups()
    return OrdinaryRequest(method.decode("ascii"), path, query or b"", headers, body)


def read_answer(data: bytes) -> OrdinaryAnswer | None:
    """One whole final answer with its length and a body, behind which the connection stays."""
    found = _parts(data)
    if found is None:
        return None
    lines, body = found
    first = _STATUS.fullmatch(lines[0])
    if first is None or first[1] in _BODILESS:
        return None
    pairs, connection, lengths = [], [], []
    for line in lines[1:]:
        sent, _, content = line.partition(b": ")
        name = _known.get(sent) or _named(sent)
        content = content.strip()
        if not name or not content:
            return None
        pairs.append((sent, content))
        if name == b"content-length":
            lengths.append(content)
        elif name == b"connection":
            connection.append(content)
    if not _framed(connection, lengths, body, implied=False):
        return None
    return OrdinaryAnswer(int(first[1]), tuple(pairs), body)


def _parts(data: bytes) -> tuple[list[bytes], bytes] | None:
    """The lines of a head, and what is behind it."""
    ends = data.find(b"\r\n\r\n", 0, _HEAD)
    if ends < 0:
        return None
    head = data[:ends]
    lines = head.split(b"\r\n")
    breaks = len(lines) - 1
    if breaks > _LINES or head.translate(None, _SAFE):
        return None
    if head.count(b"\n") != breaks or head.count(b"\r") != breaks:
        return None  # a bare one
    return lines, data[ends + 4 :]


def _named(sent: bytes) -> bytes | None:
    """The name in lower case, if it is well-formed and that of an ordinary field."""
    name = sent.lower()
    if len(sent) > _NAME or name in _OTHER or not _TOKEN.fullmatch(sent):
        return None
    if len(_known) >= _NAMES:
        _known.clear()
    _known[sent] = name
    return name


def _framed(
    connection: list[bytes] | None, lengths: list[bytes] | None, body: bytes, *, implied: bool
) -> bool:
    """Whether the connection stays and the length is that of the body, which nothing follows.
    ``implied``: without a length there is no body."""
    if connection and (len(connection) > 1 or connection[0].lower() != b"keep-alive"):
        return False
    if not lengths:
        return implied and not body
    return len(lengths) == 1 and lengths[0] == b"%d" % len(body)
