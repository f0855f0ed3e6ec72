"""Inputs for the code that reads what comes from outside, one function for each reader.

Each makes one input and lets it be read. It fails if the reader raises anything but what it
declares, or gives a value that breaks what is promised of it. The chance is a ``random.Random``, as
in ``raw.py``.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from uuid import UUID

from gateway.api import jobs_in
from gateway.core import forwarded, framing, headers, local, prefer
from gateway.core.asking import object_in
from gateway.core.body import Body
from gateway.core.canonical import Document, Unreadable, canonical, read_json
from gateway.core.fences import ISSUED_LIMIT, OUTSIDE_LIMIT, parse_fence
from gateway.core.form import Parameters, read_form
from gateway.core.keys import KEY_LIMIT, Refusal, parse_key
from gateway.core.model import Headers
from gateway.core.multipart import Multipart, read_multipart
from gateway.core.outline import Differences
from gateway.core.reporting import evidence_in
from gateway.core.template import VALUE_LIMIT
from gateway.policy import (
    Derived,
    Match,
    Policies,
    PolicyErrors,
    check_head,
    check_passage,
    derive,
    load,
    render_report,
)
from gateway.policy.derive import key_and_fence
from gateway.policy.matcher import PatternError, parse_pattern
from gateway.policy.templates import TemplateError, parse
from tests.fuzz.range import COMMANDS
from tests.fuzz.raw import CORPUS
from tests.kit.gateway import policy

__all__ = ["READERS", "body_seeds", "policy_seeds", "read_body", "read_policy"]

_SALT = bytes(16)


def body_seeds() -> list[tuple[str, bytes]]:
    """Name and bytes of each body in the corpus; the name begins with the kind."""
    return [(path.name, path.read_bytes()) for path in sorted((CORPUS / "bodies").iterdir())]


def policy_seeds() -> list[tuple[str, str]]:
    found = sorted((CORPUS / "policies").glob("*.toml"))
    return [(path.stem, path.read_text(encoding="utf-8")) for path in found]


# -- one at a time


def key(chance: Random) -> None:
    lines = [_line(chance, _KEYS) for _ in range(chance.choice((1, 1, 1, 0, 2)))]
    found = parse_key(lines)
    if isinstance(found, str):
        assert 0 < len(found) <= KEY_LIMIT
        assert all("!" <= letter <= "~" for letter in found)
    else:
        _refused(found)


def fence(chance: Random) -> None:
    lines = [_line(chance, _FENCES) for _ in range(chance.choice((1, 1, 1, 0, 2)))]
    limit = chance.choice((OUTSIDE_LIMIT, ISSUED_LIMIT))
    found = parse_fence(lines, limit=limit)
    if isinstance(found, int):
        assert 0 <= found <= limit
        assert lines[0].strip(b" \t") == b"%d" % found
    elif found is None:
        assert not lines
    else:
        _refused(found)


def head(chance: Random) -> None:
    fields, target = _fields(chance), _line(chance, _TARGETS)
    version = chance.choice(("1.1", "1.1", "1.0", "0.9", "2.0"))
    for wrong in (
        framing.check_head(version, fields, target),
        framing.check_message("POST", target, fields, chance.choice((0, 2))),
        local.foreign(fields),
    ):
        assert wrong is None or wrong.endswith(".")
    line = b"POST %b HTTP/1.1\r\n" % target
    read = _damaged(chance, chance.choice((b"", b"\r\n", b"\n", b"x")) + line + b"A: b\r\n\r\n")
    is_fine = framing.check_request_line(line, read) is None
    assert is_fine == (line in read and set(read[: read.find(line)]) <= set(b"\r\n")) or not is_fine
    assert isinstance(framing.expects_continue(version, fields), bool)
    assert 0 <= prefer.parse_wait([_line(chance, _PREFER)]) <= prefer.WAIT_CAP_S


def hops(chance: Random) -> None:
    fields = _fields(chance)
    trusted = forwarded.parse_trusted("10.0.0.0/8, 127.0.0.0/8, ::1")
    peer = chance.choice(("127.0.0.1", "::1", "192.0.2.1", None, "unix"))
    caller = forwarded.caller_of(fields, peer, trusted)
    assert caller is None or len(caller) <= 64
    assert set(headers.sendable(fields, frozenset())) <= set(fields)
    kept = forwarded.passed_on(fields, peer, trusted)
    assert len(kept) <= len(fields)
    last = headers.last_hop(fields)
    assert last is None or last.decode("ascii").startswith("fencegate-")
    assert headers.nominated(fields) is not None
    assert headers.loops(fields, b"fencegate-0") in (True, False)
    with contextlib.suppress(ValueError):  # which is what it declares
        forwarded.parse_trusted(_line(chance, _NETWORKS).decode("latin-1"))


def json(chance: Random) -> None:
    read_body("json", _damaged(chance, _body(chance, "json")))


def form(chance: Random) -> None:
    read_body("form", _damaged(chance, _body(chance, "form")))


def multipart(chance: Random) -> None:
    read_body("multipart", _damaged(chance, _body(chance, "multipart")))


def read_body(kind: str, raw: bytes) -> None:
    """Read as what it is said to be, and as a body that nobody said anything of."""
    if kind == "json":
        found = read_json(raw)
        if isinstance(found, Document):
            again = read_json(b" \n" + raw + b"\t\r")
            assert isinstance(again, Document)
            assert canonical(again.value) == canonical(found.value)
        else:
            assert isinstance(found, Unreadable)
    elif kind == "form":
        assert isinstance(read_form(raw), Parameters | Unreadable)
    else:
        media = b"multipart/form-data; boundary=b"
        assert isinstance(read_multipart(raw, media), Multipart | Unreadable)
    for mode in ("auto", "json", "form", "multipart", "raw"):
        body = Body(raw, ((b"content-type", _MEDIA[kind]),), mode)  # type: ignore[arg-type]
        for compared in (body.compared(()), body.compared((("id",),))):
            assert isinstance(compared, bytes | Unreadable)
        assert isinstance(body.document(), Document | Parameters | Multipart | Unreadable)
        assert body.unfit is None or isinstance(body.unfit, Unreadable)
        assert isinstance(body.says_method, bool)
        if isinstance(body.compared(()), bytes):
            body.members(())


def question(chance: Random) -> None:
    """What the management API is asked."""
    raw = _damaged(chance, chance.choice(_QUESTIONS))
    fields = ((b"content-type", chance.choice((b"application/json", b"text/plain", b""))),)
    for answer in (
        object_in(raw, fields, '{"a": 1}'),
        evidence_in(raw, fields),
        jobs_in.read_jobs(raw, fields, lambda: UUID(int=1)),
        jobs_in.read_claim(raw, fields),
        jobs_in.read_beat(raw, fields),
        jobs_in.read_ends(raw, fields),
        jobs_in.read_reason(raw, fields),
        jobs_in.read_session(raw, fields),
    ):
        if isinstance(answer, Refusal):
            _refused(answer)


def template(chance: Random) -> None:
    text = _damaged(chance, _line(chance, _TEMPLATES)).decode("latin-1")
    wrong = None
    try:
        made = parse(text)
    except TemplateError as error:
        wrong = error
    else:
        assert made.text == text
        assert len(made.literals) == len(made.placeholders) + 1
    assert wrong is None or (wrong.problem.startswith("column ") and wrong.mend)


def pattern(chance: Random) -> None:
    text = _damaged(chance, _line(chance, _PATTERNS)).decode("latin-1")
    wrong = None
    try:
        parse_pattern(text)
    except PatternError as error:
        wrong = error
    assert wrong is None or (wrong.problem and wrong.mend)


def request(chance: Random, policies: Policies | None = None) -> None:
    """The whole way of a command through the core."""
    policies = policies or _policies()
    method, path, kind = chance.choice(_REQUESTS)
    path, query = _damaged(chance, path), _damaged(chance, _line(chance, _QUERIES))
    fields = (*_fields(chance), *_control(chance), (b"content-type", _MEDIA[kind]))
    body = _damaged(chance, _body(chance, kind))
    match = policies.match(method, path)
    if not isinstance(match, Match):
        return
    for refusal in (check_head(match, query, fields), check_passage(fields, query)):
        if refusal is not None:
            _refused(refusal)
    key_and_fence(match, query, fields, chance.choice((None, body)))
    found = derive(match, method, path, query, fields, body)
    if isinstance(found, Refusal):
        _refused(found)
        return
    assert isinstance(found, Derived)
    assert 0 < len(found.entity) <= VALUE_LIMIT
    assert all("!" <= letter <= "~" for letter in found.entity)
    assert len(found.fingerprint(_SALT)) == 32
    assert len(found.outline(_SALT)) <= 256
    assert found.differences(_SALT, found.outline(_SALT)) == Differences((), (), 0)


def policies(chance: Random) -> None:
    read_policy(_damaged(chance, chance.choice(_POLICY_TEXTS).encode(), most=4))


def read_policy(raw: bytes) -> None:
    """A folder with this file is compiled, or each mistake is named with its mend."""
    with tempfile.TemporaryDirectory(prefix="fencegate-fuzz-") as name:
        (Path(name) / "fuzz.toml").write_bytes(raw)
        wrong: PolicyErrors | None = None
        try:
            made = load(Path(name), {"SECRET": "x"})
        except PolicyErrors as errors:
            wrong = errors
        else:
            assert made.mounts
            assert render_report(made)
        assert wrong is None or all(each.problem and each.mend for each in wrong.errors)


READERS: Mapping[str, Callable[[Random], None]] = {
    each.__name__: each
    for each in (
        *(key, fence, head, hops, json, form, multipart, question, template, pattern, request),
        policies,
    )
}


# -- what they are made of


def _refused(refusal: Refusal) -> None:
    assert refusal.detail.endswith(".")
    assert refusal.detail.isascii()
    assert refusal.detail.isprintable()
    assert len(refusal.detail) < 4_096


def _line(chance: Random, seeds: tuple[bytes, ...]) -> bytes:
    return _damaged(chance, chance.choice(seeds))


def _damaged(chance: Random, data: bytes, most: int = 2) -> bytes:
    for _ in range(chance.choice((0, 1, 1, most))):
        at, more = chance.randrange(len(data) + 1), chance.choice((0, 0, 1, 3, 30))
        splinter = chance.choice(_SPLINTERS)
        if not chance.randrange(4):
            splinter = bytes([chance.randrange(256)])
        data = data[:at] + splinter + data[at + more :]
    return data


def _fields(chance: Random) -> Headers:
    names = [chance.choice(_NAMES) for _ in range(chance.randrange(6))]
    return ((b"host", b"localhost"), *((name, _line(chance, _FIELD_VALUES)) for name in names))


def _control(chance: Random) -> Headers:
    keys, fences = _line(chance, _KEYS[:2]), _line(chance, _FENCES[:2])
    lines = ((b"idempotency-key", keys), (b"x-execution-fence", fences))
    return lines if chance.randrange(8) else lines[:1]


def _body(chance: Random, kind: str) -> bytes:
    return chance.choice(_BODIES[kind] or _BODIES["json"])


def _policies() -> Policies:
    if not _LOADED:
        with tempfile.TemporaryDirectory(prefix="fencegate-fuzz-") as name:
            text = policy("http://127.0.0.1:1", *COMMANDS)
            (Path(name) / "fuzz.toml").write_text(text, encoding="utf-8")
            _LOADED.append(load(Path(name), {}))
    return _LOADED[0]


_LOADED: list[Policies] = []

_MEDIA = {
    "json": b"application/json",
    "form": b"application/x-www-form-urlencoded",
    "multipart": b"multipart/form-data; boundary=b",
}
_PART = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
_BODIES = {
    "json": (
        *(b'{"id":"c-1","amount":100}', b'{"id":1.0,"a":[1,2,{"b":null}]}', b"[[1e5,-0.1,true]]"),
        *(b'{"a":"\\ud83d\\ude00\\u0000"}', b'"text"', b"1e400", b'{"id":"1","id":"2"}', b""),
        *(b"[" * 200 + b"]" * 200, b"9" * 1200, b'{"' + b"k" * 300 + b'":"v"}'),
    ),
    "form": (
        *(b"id=c-1&a=1&a=2", b"id=%63-1&b[c]=1&b[]=2", b"id=1;a=2", b"&&==", b"_method=PUT", b""),
        *(b"a[b][c][d][e][f]=1&a=2", b"x=" + b"%41" * 300, b"id=%F0%9F%98%80"),
    ),
    "multipart": (
        _PART % (b"id", b"c-1") + _PART % (b"a", b"1") + b"--b--\r\n",
        _PART % (b"id", b"c-1") + b"--b--",
        b"preamble\r\n" + _PART % (b"f", b"\0\xff--b-") + b"--b--\r\nepilogue",
        (
            b'--b\r\nContent-Disposition: form-data; name="a"; filename="x.txt"\r\n'
            b"Content-Type: text/plain; charset=utf-8\r\n\r\nx\r\n--b--\r\n"
        ),
        b"--b--\r\n",
    ),
}
_KEYS = (
    b"k-1",
    b'"k-1"',
    b'"a\\"b"',
    b"018f4a3e-7b1c-7000-8000-000000000000",
    b"a" * 255,
    b"",
    b":YQ==:",
)
_FENCES = (b"42", b"0", b"4611686018427387903", b"9223372036854775807", b"1e3", b"", b"-1", b"042")
_TARGETS = (
    *(b"/pay/v1/cases", b"http://localhost/pay", b"HTTPS://a:1?", b"*", b"//a/b", b"a:80", b"/a#b"),
)
_PREFER = (
    b"wait=10",
    b"respond-async, wait=5",
    b'wait="1"; a=b',
    b'a="b, wait=1"',
    b"wait=" + b"9" * 400,
)
_NETWORKS = (b"10.0.0.0/8", b"::1, 10.0.0.1", b"0.0.0.0/0", b"10.0.0.1/8", b"::ffff:10.0.0.1/128")
_NAMES = (
    *(b"host", b"connection", b"via", b"forwarded", b"x-forwarded-for", b"x-real-ip", b"upgrade"),
    *(
        b"content-length",
        b"transfer-encoding",
        b"expect",
        b"idempotency_key",
        b"origin",
        b"content-type",
    ),
    *(b"x-execution-entity", b"content-encoding", b"x.http.method", b"te", b"", b"\xff"),
)
_FIELD_VALUES = (
    *(
        b"localhost",
        b"close, x-a",
        b"1.1 fencegate-00ff, 1.0 other (a, b)",
        b'for="[::1]:80";by=x, for=_a',
    ),
    *(
        b"10.0.0.1, 192.0.2.1",
        b"chunked",
        b"12",
        b"100-continue",
        b"https://a.example",
        b"",
        b"gzip",
    ),
    *(b"application/json; charset=utf-16", b"account:c-1", b"for=10.0.0.1", b"unknown", b"[::1]"),
)
_QUESTIONS = (
    b'{"jobs":[{"tool":"pay","entity":"e","payload":{"a":1},"key":"k","priority":1,"delay_s":0.5}]}',
    b'{"tools":["pay"],"worker":"w","most":3,"claim":"018f4a3e-7b1c-7000-8000-000000000000"}',
    b'{"leases":[{"job":"018f4a3e-7b1c-7000-8000-000000000000","fence":1,"token":"x"}]}',
    b'{"ends":[{"job":"018f4a3e-7b1c-7000-8000-000000000000","fence":1,"how":"complete","result":1}]}',
    b'{"reason":"because"}',
    b'{"key":"k","verdict":"executed","reason":"r","response":{"status":201,"body":"x"}}',
    b'{"session":"s","reason":"r"}',
    b'{"entity":"e","lease_s":1e308,"run_at":"2026-01-01T00:00:00Z"}',
)
_TEMPLATES = (
    *(
        b"account:{path.account}",
        b"{body./input/id}:{query.x}",
        b"{header.X-A}",
        b"a{path.b}c{path.d}",
    ),
    *(b"{body./a~1b~0c}", b"{", b"}", b"{path.}", b"{query.a}{query.b}", b"{nothing.x}"),
)
_PATTERNS = (
    *(
        b"POST /v1/accounts/{account}/charges",
        b"PUT /a",
        b"POST /{a}/{a}",
        b"GET /x/",
        b"POST a",
        b"",
    ),
    *(b"post /a", b"POST /%41", b"POST /a/../b", b"POST /{}", b"POST  /a"),
)
_QUERIES = (b"", b"", b"a=1", b"id=c-1", b"id=1&id=2", b"a[b]=1", b"_method=PUT", b"%00", b"id=%31")
_REQUESTS = (
    ("POST", b"/pay/v1/accounts/acc-1/charges", "json"),
    ("POST", b"/pay/v1/cases", "json"),
    ("POST", b"/pay/v1/forms", "form"),
    ("PUT", b"/pay/v1/parts", "multipart"),
    ("DELETE", b"/pay/v1/things", "json"),
)
_SPLINTERS = (
    *(
        b"",
        b"",
        b"\0",
        b"\r\n",
        b"\n",
        b" ",
        b"\t",
        b'"',
        b"'",
        b"\\",
        b"%",
        b"%00",
        b"%zz",
        b"&",
        b"=",
        b";",
    ),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b"/",
        b"..",
        b"#",
        b"\xff",
        b"\xc3\xa9",
        b"\xe2\x80\xae",
        b"e999999",
    ),
    *(
        b"-",
        b"0",
        b"9" * 40,
        b"null",
        b"\\u0000",
        b"\\ud800",
        b"--b",
        b"--b--",
        b"\r\n--b\r\n",
        b"__",
        b"a" * 300,
    ),
    *(
        b"\xf0\x9f\x98\x80",
        b"\xed\xa0\x80",
        b"\x85",
        b"~1",
        b"true",
        b"\n[[commands]]\n",
        b"\n[x]\n",
    ),
)
_POLICY_TEXTS = (policy("https://api.example", *COMMANDS), *(text for _, text in policy_seeds()))
