"""HTTP/1.1 as the RFCs have it, and nothing besides: what a strict reader finds in a stream.

Of the gateway's code nothing is used here. What this reader does not take must not reach the
upstream, and what the gateway writes must be readable here to its last byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Message", "Unreadable", "answers", "head_of", "methods", "requests"]

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_LINE = re.compile(rb"(" + _TOKEN + rb") ([!-~\x80-\xff]+) HTTP/1\.([01])")
_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9]{2}) [\t -~\x80-\xff]*")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")  # RFC 9112 §5
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[\t -~\x80-\xff]*)?")  # RFC 9112 §7.1.1

Fields = tuple[tuple[bytes, bytes], ...]


class Unreadable(ValueError):
    """Why a stream cannot be read on; ``args[0]``."""


class _Incomplete(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``first`` and ``second``: method and target, or status and nothing. ``fields``
    with names in lower case.."""

    first: bytes
    second: bytes
    fields: Fields
    body: bytes

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key == name]


class _Stream:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def line(self) -> bytes:
        end = self.data.find(b"\r\n", self.at)
        if end < 0:
            raise _Incomplete
        found = self.data[self.at : end]
        if b"\n" in found or b"\r" in found:
            raise Unreadable("a bare line end")
        self.at = end + 2
        return found

    def exactly(self, size: int) -> bytes:
        if len(self.data) - self.at < size:
            raise _Incomplete
        self.at += size
        return self.data[self.at - size : self.at]


def requests(data: bytes) -> list[Message]:
    """The requests that stand in ``data`` whole and well-formed, up to the first that does not."""
    return _read(data)[1]


def methods(data: bytes) -> list[bytes]:
    """Of the requests whose head at least stands there so; one may be answered by its head."""
    return _read(data)[0]


def _read(data: bytes) -> tuple[list[bytes], list[Message]]:
    stream, asked, found = _Stream(data), [], []
    try:
        while True:
            while data[stream.at : stream.at + 2] == b"\r\n":  # RFC 9112 §2.2
                stream.at += 2
            head = _head(stream)
            asked.append(head.first)
            body = _body(stream, head) or b""
            found.append(Message(head.first, head.second, head.fields, body))
    except (_Incomplete, Unreadable):
        return asked, found


def answers(data: bytes, asked: Sequence[bytes]) -> list[Message]:
    """The responses in ``data``, all of it; raises ``Unreadable``. ``asked``: the methods in order,
    as far as they are known; an answer to HEAD has no body."""
    stream, found = _Stream(data), []
    while stream.at < len(data):
        is_head = asked[len(found) :][:1] == [b"HEAD"]
        try:
            answer = _answer(stream, is_head=is_head)
        except _Incomplete:
            raise Unreadable(f"breaks off in {data[stream.at :][:300]!r}") from None
        if answer.first != b"100":
            found.append(answer)
    return found


def head_of(data: bytes) -> Message:
    """A request's head alone, with its empty line; raises ``Unreadable``."""
    stream = _Stream(data)
    try:
        message = _head(stream)
    except _Incomplete:
        raise Unreadable("breaks off") from None
    if stream.at != len(data):
        raise Unreadable("an empty line within")
    return message


def _head(stream: _Stream) -> Message:
    match = _LINE.fullmatch(stream.line())
    if match is None:
        raise Unreadable("no request line")
    fields = _fields(stream)
    hosts = [value for name, value in fields if name == b"host"]
    if len(hosts) != 1 and (match[3] == b"1" or hosts):
        raise Unreadable("not one Host")
    if match[3] == b"0" and any(name == b"transfer-encoding" for name, _ in fields):
        raise Unreadable("a transfer coding in HTTP/1.0")
    return Message(match[1], match[2], fields, b"")


def _answer(stream: _Stream, *, is_head: bool) -> Message:
    match = _STATUS.fullmatch(stream.line())
    if match is None:
        raise Unreadable(f"no status line at {stream.data[stream.at :][:200]!r}")
    head = Message(match[1], b"", _fields(stream), b"")
    bare = head.first in (b"204", b"304") or head.first.startswith(b"1")
    rest = stream.data[stream.at :]
    if bare or (is_head and (not rest or rest.startswith(b"HTTP/1.1 "))):
        return head
    body = _body(stream, head)
    if body is None:  # up to the end of the connection, RFC 9112 §6.3
        body = stream.exactly(len(rest))
    return Message(head.first, b"", head.fields, body)


def _fields(stream: _Stream) -> Fields:
    found = []
    while line := stream.line():
        match = _FIELD.fullmatch(line)
        if match is None:
            raise Unreadable("no field line")
        found.append((match[1].lower(), match[2]))
    return tuple(found)


def _body(stream: _Stream, head: Message) -> bytes | None:
    codings, lengths = head.all(b"transfer-encoding"), head.all(b"content-length")
    if codings:
        if [coding.lower() for coding in codings] != [b"chunked"] or lengths:
            raise Unreadable("framed in two ways")
        return _chunks(stream)
    if not lengths:
        return None
    if len(lengths) != 1 or re.fullmatch(rb"[0-9]+", lengths[0]) is None or len(lengths[0]) > 19:
        raise Unreadable("no length")
    return stream.exactly(int(lengths[0]))


def _chunks(stream: _Stream) -> bytes:
    pieces = []
    while True:
        match = _SIZE.fullmatch(stream.line())
        if match is None:
            raise Unreadable("no chunk size")
        if (size := int(match[1], 16)) == 0:
            _fields(stream)
            return b"".join(pieces)
        pieces.append(stream.exactly(size))
        if stream.exactly(2) != b"\r\n":
            raise Unreadable("a chunk that is longer than it says")
