"""Requests and responses, made from a seed: whatever HTTP/1.1 allows and one side may send.

Each is written down as it goes over the wire, so that nothing between test and socket mends it.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from gateway.core.model import Headers
from tests.kit.upstream import Answer, raw

__all__ = ["MARK", "Case", "generate"]

MARK = "X-Case"
"""The field by which the upstream knows which response a request is to get."""

_KIB, _MIB = 1024, 1024 * 1024

LIMIT = 8 * _MIB
"""The largest body of a request that a policy takes by default."""

# Many small, and those at which somebody's buffer or limit ends: a read, a piece, ``keep_limit``.
_EDGES = [0, 1, 4095, 16 * _KIB, 64 * _KIB - 1, 64 * _KIB, 64 * _KIB + 1, 300_001]
_LARGE = [_MIB - 1, _MIB, _MIB + 1, 3 * _MIB, LIMIT]

_SAFE = ["GET", "HEAD", "OPTIONS"]
_GUARDED = ["POST", "PUT", "PATCH", "DELETE"]

_FINAL = [
    *(200, 201, 202, 203, 204, 205, 206, 207, 226, 299, 300, 301, 302, 303, 304, 305, 307, 308),
    *(400, 402, 403, 404, 405, 406, 409, 410, 411, 412, 413, 414, 415, 416, 417, 418, 422, 423),
    *(428, 431, 451, 499, 501, 505, 507, 508, 511, 599),
]
_NOT_EXECUTED = [401, 407, 421, 425, 429]
_AMBIGUOUS = [408, 500, 502, 503, 504]
"""To a command they are no answer, so only unguarded requests get them."""

_SEGMENT = [
    *"abzAZ019-._~!$&'()*+,=:@",
    *("%7E", "%C3%A9", "%e9", "%20", "%41", "%25", "%3F", "%23", "%3a", "x" * 40),
]
_QUERY = [
    *"abz019-._~!$&'()*+,;=:@/?[]|{}\\^`",
    *("%2F", "%00", "%zz", "%", "&&", "a=", "=b", "+", '"', "x" * 300),
]
_TEXT = [*"abcXYZ019 \t,;:=/?@()<>{}[]'\"\\", "caf\xe9", "\xff\x80", "\xc3\xa9", '"a, b"', "%41"]


@dataclass(frozen=True, slots=True)
class Case:
    """``target``: below the mount. ``lines``: of the request, in order. ``sent``: its body as it
    goes over the wire, ``body`` as it is meant; the same of the response, whose whole bytes are
    ``answer``. ``then``: whether the upstream ends the connection behind them."""

    number: int
    method: str
    target: str
    lines: Headers
    sent: bytes
    body: bytes
    status: int
    answer: bytes
    closes: bool

    @property
    def guarded(self) -> bool:
        return self.method not in _SAFE

    def request(self, prefix: str, host: str) -> bytes:
        head = f"{self.method} {prefix}{self.target} HTTP/1.1\r\nHost: {host}\r\n".encode("ascii")
        return head + _written(self.lines) + b"\r\n" + self.sent

    def scripted(self) -> Answer:
        return raw(self.answer, then="close" if self.closes else "keep")


def generate(seed: int, count: int) -> list[Case]:
    """``count`` cases; the large sizes are few, and spread."""
    random = Random(seed)
    return [_case(random, number) for number in range(count)]


def _case(random: Random, number: int) -> Case:
    guarded = random.random() < 0.6
    method = random.choice(_GUARDED if guarded else _SAFE)
    target = f"/v1/accounts/a{number}/things/t{_text(random, _SEGMENT, 0, 12)}"
    if random.random() < 0.6:
        target += "?" + _text(random, _QUERY, 1, 20)
    # Every 25th body is a large one; unguarded requests seldom have any.
    size = _size(random, large=number % 25 == 7)
    body = b"" if not guarded and random.random() < 0.7 else random.randbytes(size)
    kind, body = _coded(random, body)
    framing, sent = _framed(random, body, none=method in ("GET", "HEAD", "OPTIONS", "DELETE"))
    own = [(b"Idempotency-Key", b"k-%d" % number), (b"X-Execution-Fence", b"1")] if guarded else []
    lines = [
        *own,
        (MARK.encode("ascii"), b"%d" % number),
        *_fields(random, _ASKED),
        *kind,
        *framing,
    ]
    random.shuffle(lines)
    status, answer, closes = _answer(random, method, guarded, large=number % 25 == 13)
    return Case(number, method, target, tuple(lines), sent, body, status, answer, closes)


# -- parts of both


def _text(random: Random, alphabet: Sequence[str], least: int, most: int) -> str:
    return "".join(random.choices(alphabet, k=random.randint(least, most)))


def _value(random: Random) -> bytes:
    """A field's value, with blanks around it that are no part of it."""
    text = _text(random, _TEXT, 0, 12).strip(" \t").encode("latin-1")
    return random.choice([b"", b" ", b"\t"]) + text + random.choice([b"", b" ", b"\t "])


def _size(random: Random, *, large: bool) -> int:
    if large:
        return random.choice(_LARGE)
    return random.choice([*_EDGES, *(random.randint(0, 4000) for _ in range(12))])


def _coded(random: Random, body: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """A body with what it says of itself."""
    coding = random.choice(["", "", "gzip", "deflate", "br", "x-none"]) if len(body) < _MIB else ""
    body = {
        "gzip": lambda: gzip.compress(body, mtime=0),
        "deflate": lambda: zlib.compress(body),
    }.get(coding, lambda: body)()
    kind = random.choice([b"application/octet-stream", b"text/plain; charset=utf-8", b"image/png"])
    lines = [(b"Content-Type", kind)]
    return [*lines, (b"Content-Encoding", coding.encode("ascii"))] if coding else lines, body


def _framed(random: Random, body: bytes, *, none: bool) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """A length or chunks, with extensions and trailers; or neither where there is ``none``."""
    if not body and none and random.random() < 0.7:
        return [], b""
    if random.random() < 0.5:
        return [(b"Content-Length", b"%d" % len(body))], body
    trailers = _written([(b"X-Sum", b"1"), (b"Idempotency-Key", b"other")])
    behind = trailers if random.random() < 0.4 else b""
    return [(b"Transfer-Encoding", b"chunked")], _chunks(random, body) + b"0\r\n" + behind + b"\r\n"


def _chunks(random: Random, body: bytes) -> bytes:
    """In up to some dozens of chunks, some with extensions."""
    pieces, at = [], 0
    while at < len(body):
        size = min(len(body) - at, random.randint(1, max(1, len(body) // 8)))
        extension = random.choice([b"", b"", b";a", b';a="b"'])
        pieces.append(b"%x%b\r\n%b\r\n" % (size, extension, body[at : at + size]))
        at += size
    return b"".join(pieces)


def _written(lines: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b:%b\r\n" % line for line in lines)


def _fields(
    random: Random, known: Sequence[Callable[[Random], list[tuple[bytes, bytes]]]]
) -> list[tuple[bytes, bytes]]:
    """Some known fields, and some that nobody knows, repeated and in several cases."""
    lines = [line for make in random.sample(known, random.randint(0, 5)) for line in make(random)]
    for _ in range(random.randint(0, 6)):
        name = random.choice([b"X-List", b"x-list", b"X-LIST", b"X-Other", b"X-!#$%&'*+.^`|~9"])
        lines.append((name, _value(random)))
    return lines


def _line(name: str, *values: str) -> Callable[[Random], list[tuple[bytes, bytes]]]:
    return lambda random: [(name.encode("ascii"), b" " + random.choice(values).encode("latin-1"))]


_HOP = [
    lambda _: [(b"Connection", b" X-Hop, keep-alive"), (b"X-Hop", b"1")],
    _line("Keep-Alive", "timeout=5"),
    _line("Trailer", "X-Sum"),
    _line("Proxy-Status", "edge; error=x"),
]

_ASKED = [
    *_HOP,
    _line("TE", "trailers", "deflate;q=0.5"),
    _line("Accept", "*/*", "application/json, text/*;q=0.1"),
    _line("Accept-Encoding", "br, gzip", "identity;q=0", ""),
    lambda _: [(b"Cookie", b" a=1; b=2"), (b"Cookie", b" c=3")],
    _line("Range", "bytes=0-9", "bytes=0-1,5-6"),
    _line("If-None-Match", '"v1", W/"v2"', "*"),
    _line("If-Modified-Since", "Thu, 01 Jan 2026 00:00:00 GMT"),
    _line("Origin", "https://shop.example", "null"),
    _line("Referer", "https://shop.example/caf\xe9"),
    _line("User-Agent", "a/1 (b; c)", ""),
    _line("X-Request-Id", "req-1", "no id; at all"),
    _line("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    _line("Prefer", "return=minimal"),
    _line("Max-Forwards", "0", "7"),
    _line("Via", "1.0 fred, 1.1 edge (a, b)"),
    _line("X-Forwarded-For", "192.0.2.1"),
    _line("Forwarded", 'for="[2001:db8::1]"'),
    _line("X-Real-IP", "192.0.2.1"),
    _line("Content-Language", "de", "de, en"),
]

_TOLD = [
    *_HOP,
    _line("Date", "Thu, 01 Jan 2026 00:00:00 GMT"),
    _line("Server", "legacy/1 (caf\xe9)"),
    lambda _: [(b"Set-Cookie", b" a=1; Expires=Thu, 01 Jan 2026"), (b"Set-Cookie", b" b=2")],
    _line("Location", "/v1/elsewhere?a=%2F", "https://elsewhere.example/", "//other/x", ""),
    _line("ETag", 'W/"7"', '"\xe9"'),
    _line("Link", "</a>; rel=next, </b>; rel=last"),
    _line("Vary", "Accept-Encoding", "*"),
    _line("Content-Range", "bytes 0-9/100", "bytes */100"),
    _line("Accept-Ranges", "bytes"),
    _line("Content-Disposition", 'attachment; filename="r\xe9sum\xe9"'),
    _line("WWW-Authenticate", 'Basic realm="x"'),
    _line("Retry-After", "0", "Thu, 01 Jan 2026 00:00:00 GMT"),
    _line("Cache-Control", "no-store", "max-age=1, private"),
    _line("Upgrade", "h2c"),
    _line("Via", "1.1 upstream"),
    _line("Age", "7"),
    _line("Gateway-Outcome", "applied"),
    _line("Strict-Transport-Security", "max-age=1"),
]


# -- responses


def _answer(random: Random, method: str, guarded: bool, *, large: bool) -> tuple[int, bytes, bool]:
    statuses = [*_FINAL, *_NOT_EXECUTED, *([] if guarded else _AMBIGUOUS)]
    status = 200 if large else random.choice(statuses)
    body = random.randbytes(_size(random, large=large))
    kind, body = _coded(random, body)
    if status == 206 and random.random() < 0.5:
        kind = [(b"Content-Type", b"multipart/byteranges; boundary=x")]
        body = b"--x\r\nContent-Range: bytes 0-0/2\r\n\r\na\r\n--x--\r\n"
    framing, sent, closes = _ending(random, method, status, body)
    lines = [*_fields(random, _TOLD), *kind, *framing]
    random.shuffle(lines)
    reason = random.choice([b"OK", b"", b"caf\xe9 (\t!)"])
    interim = random.choice([b"", b"", b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"])
    head = b"HTTP/1.1 %d %b\r\n" % (status, reason) + _written(lines) + b"\r\n"
    return status, interim + head + sent, closes


def _ending(
    random: Random, method: str, status: int, body: bytes
) -> tuple[list[tuple[bytes, bytes]], bytes, bool]:
    """Framing, the body as it goes over the wire, and whether the connection ends it."""
    length = [(b"Content-Length", b"%d" % len(body))]
    if method == "HEAD" or status in (204, 304):
        said = random.choice([[], [], length]) if status != 204 else []
        return said, b"", False
    if status == 205:
        return [(b"Content-Length", b"0")], b"", False
    if random.random() < 0.2:
        return [], body, True
    framing, sent = _framed(random, body, none=False)
    return framing, sent, random.random() < 0.1
