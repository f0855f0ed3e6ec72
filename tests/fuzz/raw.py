"""Raw inputs: what a caller, a broken client or an attacker may write on a connection.

The generator takes a ``random.Random``: a seeded one where speed counts, hypothesis's own where an
example is to be made smaller. Every message of an input bears a token of its own, so that bytes of
one that reach the upstream in another are seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

__all__ = ["CORPUS", "TOKEN", "Input", "corpus", "generated", "tokens"]

CORPUS = Path(__file__).parent / "corpus"

TOKEN = b"TOKEN"
"""Stands in a seed's file where its token goes."""


@dataclass(frozen=True, slots=True)
class Input:
    """What goes over one connection. ``pieces``: each is sent when the one before it was read, and
    what it asked for is done. ``name``: of a seed, or of what was made."""

    name: str
    pieces: tuple[bytes, ...]

    @property
    def whole(self) -> bytes:
        return b"".join(self.pieces)


def tokens(prefix: str) -> Iterator[bytes]:
    """Words that never come twice, all of one length."""
    return (f"{prefix}{number:06x}z".encode("ascii") for number in itertools.count())


def corpus(made: Iterator[bytes]) -> list[Input]:
    """The seeds. A file has one input; a line ``--cut--`` parts its pieces."""
    seeds = []
    for path in sorted((CORPUS / "raw").glob("*.http")):
        data = path.read_bytes()
        while TOKEN in data:
            data = data.replace(TOKEN, next(made), 1)
        seeds.append(Input(path.stem, tuple(data.split(b"--cut--\n"))))
    return seeds


def generated(chance: Random, made: Iterator[bytes]) -> Input:
    """One input: one to three messages, damaged or not, in one piece or several."""
    messages = [_message(chance, next(made)) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
    data = list(messages)
    if not chance.randrange(3):
        at = chance.randrange(len(data))
        for _ in range(chance.choice((1, 1, 2, 4))):
            data[at] = chance.choice(_DAMAGE)(chance, data[at])
    how = chance.randrange(4)
    if how == 0:
        if not chance.randrange(3):
            data.append(data[0])  # the same command again, which is replayed
        return Input("one after the other", tuple(each for each in data if each) or (b"\r\n",))
    whole = b"".join(data) or b"\r\n"
    if how == 1 and len(whole) > 2:
        at = chance.randrange(1, len(whole))
        return Input("cut in two", (whole[:at], whole[at:]))
    return Input("at once", (whole,))


# -- well-formed, or nearly so


def _message(chance: Random, token: bytes) -> bytes:
    make = chance.choice(_KINDS)
    method, target, fields, body = make(chance, token)
    lines = [(b"Host", chance.choice(_HOSTS)), (b"X-Token", token), *fields]
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        more = _PLAIN_LINES if chance.randrange(4) else _ODD_LINES
        lines.insert(chance.randrange(len(lines) + 1), chance.choice(more))
    framing, body = _framed(chance, body, token)
    lines += framing
    version = b"HTTP/1.1" if chance.randrange(24) else chance.choice(_VERSIONS)
    end = b"\r\n" if chance.randrange(64) else b"\n"
    head = end.join(
        [b"%b %b %b" % (method, target, version), *(b"%b: %b" % line for line in lines), b"", b""]
    )
    return head + body


_Made = tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]


def _charge(chance: Random, token: bytes) -> _Made:
    account = token if chance.randrange(8) else token + chance.choice(_SEGMENTS)
    query = b"" if chance.randrange(4) else chance.choice(_QUERIES)
    target = b"/pay/v1/accounts/%b/charges%b" % (account, query)
    json = (b"Content-Type", b"application/json")
    return b"POST", target, [*_control(chance, token), json], _json(chance, token)


def _case(chance: Random, token: bytes) -> _Made:
    fields = [*_control(chance, token), (b"Content-Type", chance.choice(_JSON_TYPES))]
    return b"POST", b"/pay/v1/cases", fields, _json(chance, token)


def _form(chance: Random, token: bytes) -> _Made:
    fields = [(b"Content-Type", b"application/x-www-form-urlencoded"), *_control(chance, token)]
    body = b"id=%b&%b" % (token, chance.choice(_FORMS))
    return b"POST", b"/pay/v1/forms", fields, body


def _parts(chance: Random, token: bytes) -> _Made:
    mark = chance.choice((b"b", b"b--", b"-"))
    quoted = b'"%b"' % mark if chance.randrange(2) else mark
    fields = [*_control(chance, token)]
    fields.append((b"Content-Type", b"multipart/form-data; boundary=%b" % quoted))
    named = b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    body = named % (mark, b"id", token) + named % (mark, chance.choice(_NAMES), b"x")
    return b"PUT", b"/pay/v1/parts", fields, body + b"--%b--\r\n" % mark


def _thing(chance: Random, token: bytes) -> _Made:
    target = b"/pay/v1/things?id=%b%b" % (
        token,
        chance.choice((b"", b"", b"&b=1", b"", b"&id=2", b"&a[]=%00", b"?")),
    )
    return b"DELETE", target, _control(chance, token), b""


def _passage(chance: Random, token: bytes) -> _Made:
    method = chance.choice((b"GET", b"GET", b"HEAD", b"OPTIONS"))
    body = b"" if chance.randrange(4) else token * 3
    return method, b"/pay/v1/report/" + token, [], body


def _own(chance: Random, token: bytes) -> _Made:
    method = chance.choice((b"POST", b"GET", b"PUT"))
    body = b'{"entity":"%b"}' % token if chance.randrange(2) else _json(chance, token)
    json = [(b"Content-Type", b"application/json")]
    return method, chance.choice(_OWN_PATHS), json, body


def _anything(chance: Random, token: bytes) -> _Made:
    return chance.choice(_METHODS), chance.choice(_TARGETS), _control(chance, token), b""


_KINDS: tuple[Callable[[Random, bytes], _Made], ...] = (
    *(_charge, _charge, _case, _form, _parts, _thing, _passage, _own, _anything),
)


def _control(chance: Random, token: bytes) -> list[tuple[bytes, bytes]]:
    key, fence = b"k-" + token, b"%d" % chance.randrange(1, 9)
    if not chance.randrange(6):
        key = (
            chance.choice((b'"%b"', b"%b,", b'"%b', b"%b;a=1", b"%b b", b"\xe9%b", b'"\\%b"')) % key
        )
    if not chance.randrange(6):
        fence = chance.choice(_FENCES)
    lines = [(b"Idempotency-Key", key), (b"X-Execution-Fence", fence)]
    return lines if chance.randrange(6) else lines[chance.randrange(2) :][:1]


def _json(chance: Random, token: bytes) -> bytes:
    if chance.randrange(3):
        return b'{"id":"%b","amount":100}' % token
    inner = chance.choice(_VALUES)
    return chance.choice((b'{"id":"%b","a":%b}', b'{"a":"%b","id":%b}', b'["%b",%b]')) % (
        token,
        inner,
    )


def _framed(chance: Random, body: bytes, token: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    length, chunked = (b"Content-Length", b"%d" % len(body)), (b"Transfer-Encoding", b"chunked")
    how = chance.randrange(24)
    if how < 14:
        return ([length] if body or chance.randrange(2) else []), body
    if how < 21:
        return [chunked], _chunks(chance, body, token)
    if how == 21:
        wrong = chance.choice(_LENGTHS) % len(body)
        return [(b"Content-Length", wrong)], body
    if how == 22:
        return [(b"Transfer-Encoding", chance.choice(_CODINGS))], _chunks(chance, body, token)
    both = [length, chunked]
    return (both if chance.randrange(2) else both[::-1]), _chunks(chance, body, token)


def _chunks(chance: Random, body: bytes, token: bytes) -> bytes:
    at = chance.randrange(len(body) + 1)
    size = b"%x" if chance.randrange(12) else chance.choice(_SIZES)
    wire = b"".join(
        b"%b\r\n%b\r\n" % (size % len(piece), piece) for piece in (body[:at], body[at:]) if piece
    )
    last = (
        b"0\r\n" if chance.randrange(12) else chance.choice((b"00\r\n", b"0;x\r\n", b"0 \r\n", b""))
    )
    trailer = b"" if chance.randrange(4) else chance.choice(_TRAILERS).replace(TOKEN, token)
    return wire + last + trailer + b"\r\n"


# -- damage


def _flip(chance: Random, data: bytes) -> bytes:
    if not data:
        return data
    at = chance.randrange(len(data))
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]


def _insert(chance: Random, data: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(_SPLINTERS) + data[at:]


def _in_head(chance: Random, data: bytes) -> bytes:
    """Where a line ends or a field begins: where readers differ."""
    ends = [at for at in range(len(data)) if data[at : at + 1] in (b"\r", b":", b" ")]
    at = chance.choice(ends) if ends else 0
    return data[:at] + chance.choice(_SPLINTERS) + data[at + chance.randrange(2) :]


def _cut(chance: Random, data: bytes) -> bytes:
    at, more = chance.randrange(len(data) + 1), chance.choice((1, 2, 3, 40))
    return data[:at] + data[at + more :]


def _break_off(chance: Random, data: bytes) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _double_line(chance: Random, data: bytes) -> bytes:
    lines = data.split(b"\r\n")
    at = chance.randrange(len(lines))
    return b"\r\n".join([*lines[: at + 1], *lines[at:]])


def _in_front(chance: Random, data: bytes) -> bytes:
    return (
        chance.choice((b"\r\n", b"\n", b"\r\n\r\n", b"\r", b"\0", b" ", b"PRI * HTTP/2.0\r\n\r\n"))
        + data
    )


def _swell(chance: Random, data: bytes) -> bytes:
    """Beyond some limit."""
    at = data.find(b"\r\n") + 2
    line = chance.choice((b"X-Long: %b\r\n", b"%b: 1\r\n", b"Idempotency-Key: %b\r\n"))
    return data[:at] + line % (b"a" * chance.choice((300, 9_000, 66_000))) + data[at:]


_Damage = Callable[[Random, bytes], bytes]
_DAMAGE: tuple[_Damage, ...] = (
    *(
        _flip,
        _flip,
        _insert,
        _insert,
        _in_head,
        _in_head,
        _cut,
        _break_off,
        _double_line,
        _in_front,
    ),
    _swell,
)

_HOSTS = (b"localhost",) * 120 + (
    *(b"127.0.0.1", b"[::1]:80", b"", b"localhost, evil", b"evil.example", b"localhost@evil"),
    *(b"localhost:", b"localhost:99999999", b"a b", b"[::1", b"LOCALHOST", b"localhost\xff"),
)
_VERSIONS = (
    b"HTTP/1.0",
    b"HTTP/1.0",
    b"HTTP/0.9",
    b"HTTP/2.0",
    b"HTTP/1.2",
    b"",
    b"http/1.1",
    b"RTSP/1.0",
)
_METHODS = (
    b"GET",
    b"POST",
    b"TRACE",
    b"CONNECT",
    b"PATCH",
    b"get",
    b"BREW",
    b"PROPFIND",
    b"M-SEARCH",
    b"",
)
_TARGETS = (
    *(
        b"*",
        b"/",
        b"//evil/pay/v1/cases",
        b"http://localhost/pay/v1/cases",
        b"http://evil/pay/v1/cases",
    ),
    *(
        b"localhost:80",
        b"/pay/../healthz",
        b"/pay/v1/%2e%2e/cases",
        b"/pay/v1/cases#x",
        b"/pay//v1/cases",
    ),
    *(
        b"/pay/v1/cases%00",
        b"/pay\\v1\\cases",
        b"/pay/v1/cases;a=1",
        b"@evil/pay/v1/cases",
        b"?x",
        b"",
    ),
    *(
        b"/pay/v1/caf\xc3\xa9",
        b"/healthz",
        b"/metrics",
        b"/openapi.json",
        b"/%68ealthz",
        b"/readyz?x=1",
    ),
)
_OWN_PATHS = (
    *(b"/v1/fences", b"/v1/jobs", b"/v1/jobs/claim", b"/v1/jobs/heartbeat", b"/v1/jobs/end"),
    *(b"/v1/evidence", b"/v1/nothing", b"/v1/jobs/00000000-0000-0000-0000-000000000000/cancel"),
)
_SEGMENTS = (
    b"%31",
    b"%2F..",
    b"%00",
    b"..",
    b";a",
    b"%E2%80%AE",
    b"%",
    b"%zz",
    b"+",
    b"%C3%A9",
    b"a%CC%81",
)
_QUERIES = (
    b"?",
    b"?a=1",
    b"?a=1&a=2",
    b"?_method=DELETE",
    b"?%5Fmethod=PUT",
    b'?a[b]="',
    b"?\xff",
    b"??",
    b"?a=%",
)
_JSON_TYPES = (
    *(b"application/json", b"application/json", b"application/json; charset=utf-16", b"text/plain"),
    *(
        b"application/x+json",
        b'application/json;charset="utf-8"',
        b"",
        b"application/json, text/plain",
    ),
)
_FORMS = (
    *(
        b"a=1",
        b"a=2",
        b"a=%41",
        b"b=",
        b"a[b]=1",
        b"c",
        b"a=1",
        b"a=1",
        b"id[]=2",
        b"_method=DELETE",
        b"id=2",
        b"%69d=2",
        b"a=%zz",
        b"a=\xff",
        b"&&=",
        b"id%00=1",
    ),
    *(b"a[b][c][d][e][f][g]=1", b"iD=2", b".method=PUT", b"a;id=3", b"+id=1"),
)
_NAMES = (
    b"a",
    b"b",
    b"c",
    b"d",
    b"a",
    b"id",
    b"id[]",
    b"_method",
    b'x\\"; name=\\"id',
    b"",
    b"a\xc3\xa9",
    b"a%22",
)
_FENCES = (
    *(b"", b"0", b"-1", b"+1", b"01", b"1.0", b"1e3", b"1, 2", b"4611686018427387904", b"9" * 400),
    *(b"\xb2", b"0x10", b"1 2", b"4611686018427387903", b"null"),
)
_VALUES = (
    *(
        b"1",
        b"1.0",
        b"-0",
        b"1e400",
        b"NaN",
        b"null",
        b"true",
        b'"\\ud800"',
        b'"\\u0000"',
        b"9" * 400,
    ),
    *(
        b"[" * 300,
        b'{"id":1,"id":2}',
        b"[[[]]]",
        b'"\xff"',
        b"\xef\xbb\xbf1",
        b"1e999999999999",
        b'"\\x"',
    ),
)
_LENGTHS = (
    *(
        b"+%d",
        b"-%d",
        b"0%d",
        b"%d, %d".replace(b", %d", b", 0"),
        b"%d;",
        b"0x%x",
        b"%d 0",
        b"\t%d",
    ),
    *(b"9999999999999999999%d", b"%d.0", b"%d\x0b", b"1%d", b"00000000000000000000%d"),
)
_CODINGS = (
    *(b"Chunked", b"gzip, chunked", b"chunked, chunked", b"identity", b"chunked;q=1", b"xchunked"),
    *(b"\x0bchunked", b"chunked\t", b"chunked, identity", b",chunked", b"", b'"chunked"'),
)
_SIZES = (
    b"%X",
    b"0%x",
    b"%x;a=b",
    b'%x;a="\r\n"',
    b"0x%x",
    b"%x ",
    b" %x",
    b"+%x",
    b"fffffffffffffff%x",
    b"%x\n",
)
_TRAILERS = (
    *(
        b"X-Trailer: 1\r\n",
        b"Idempotency-Key: TOKEN\r\n",
        b"X-Execution-Fence: 9\r\n",
        b"a b: 1\r\n",
    ),
    *(b"Content-Length: 5\r\n", b" folded\r\n", b"X-Trailer: 1\n", b"no colon\r\n"),
)
_PLAIN_LINES = (
    *((b"Connection", b"close"), (b"Connection", b"keep-alive, X-Hop"), (b"Prefer", b"wait=0")),
    *((b"TE", b"trailers"), (b"Via", b"1.1 other"), (b"X-Forwarded-For", b"1.2.3.4")),
    *((b"Cookie", b"a=b"), (b"X-A", b"\x80\xff"), (b"X-A", b""), (b"X-Request-Id", b"a b")),
    *((b"Expect", b"100-continue"), (b"Trailer", b"X-Trailer"), (b"Proxy-Connection", b"close")),
)
_ODD_LINES = (
    *((b"Connection", b"idempotency-key"), (b"Connection", b"X-Token"), (b"Upgrade", b"h2c")),
    *((b"Connection", b"upgrade"), (b"Expect", b"x"), (b"X-HTTP-Method-Override", b"GET")),
    *((b"Idempotency_Key", b"x"), (b"X.Execution.Fence", b"9"), (b"X-Execution-Entity", b"a:x")),
    *((b"Transfer_Encoding", b"chunked"), (b"Content-Encoding", b"gzip"), (b"X A", b"1")),
    *((b"Content-Length ", b"3"), (b"Transfer-Encoding ", b"chunked"), (b"X-A\xe9", b"1")),
    *((b"Authorization", b"Bearer fg_x"), (b"X-A", b"a\x00b"), (b"X-A", b"a\rb"), (b"", b"1")),
    *((b"X-A", b"a\r\n b"), (b"Origin", b"https://evil.example"), (b"Via", b"1.1 fencegate-0")),
)
_SPLINTERS = (
    *(
        b"\r",
        b"\n",
        b"\r\n",
        b"\0",
        b" ",
        b"\t",
        b"\x0b",
        b"\x0c",
        b":",
        b"\r\n ",
        b"\r\n\r\n",
        b"\n\n",
        b"\x85",
    ),
    *(
        b"\xa0",
        b"\xff",
        b"%",
        b"\r\nHost: evil\r\n",
        b"\r\nContent-Length: 0\r\n",
        b",",
        b";",
        b"\x7f",
    ),
    *(
        b"\r\nTransfer-Encoding: chunked\r\n",
        b"0\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ),
)
