"""Further inputs: what belongs to one hop, field lines, codings, and where a message ends."""

from __future__ import annotations

import base64
import gzip
import zlib
from typing import Any

from tests.cases.driver import Case
from tests.cases.steps import (
    CREATED,
    NOT_KEPT,
    Fields,
    Step,
    answers,
    applied,
    bytes_of,
    case,
    chunks,
    early,
    http,
    nothing,
    refused,
    replayed,
    twice,
    unknown,
)

__all__ = ["CASES"]

# -- hop-by-hop


def _hop(name: str, fields: Fields, *absent: str, present: Fields = ()) -> Case:
    """One request whose ``fields`` end here, ``absent`` by name."""
    sees = {"headers_absent": list(absent), "headers_present": [list(pair) for pair in present]}
    return case("HOP-01", name, [http(fields=fields), CREATED], 1, r1=applied(), upstream_sees=sees)


HOP = [
    _hop(
        "empty-members-and-blanks",
        [("Connection", " ,\tX-HOP ,, "), ("x-Hop", "1"), ("X-Hopper", "2")],
        *("X-Hop", "Connection"),
        present=[("X-Hopper", "2")],
    ),
    _hop(
        "without-being-named",
        [
            *(("TE", "trailers"), ("Trailer", "X-A"), ("HTTP2-Settings", "AA")),
            *(("Proxy-Connection", "keep-alive"), ("Proxy-Foo", "1"), ("Proxy-Status", "a; b=1")),
        ],
        *("TE", "Trailer", "HTTP2-Settings", "Proxy-Connection", "Proxy-Foo"),
        present=[("Proxy-Status", "a; b=1")],
    ),
    _hop("named-and-absent", [("Connection", "X-None, close")], "X-None", "Connection"),
    _hop(
        "twin-of-a-named-field", [("Connection", "X-Hop"), ("X_Hop", "1"), ("X.Hop", "2")], "X_Hop"
    ),
    nothing(
        "HOP-01",
        "names-the-key",
        http(fields=[("Connection", "idempotency-key")]),
        400,
        "request-invalid",
    ),
    nothing(
        "HOP-01",
        "names-the-length",
        http(fields=[("Connection", "Content-Length")]),
        400,
        "request-invalid",
    ),
    twice(
        "HOP-01",
        "of-the-response",
        answers(
            201,
            "x",
            [("Connection", "x-hop, keep-alive"), ("X-Hop", "1"), ("Keep-Alive", "timeout=9")],
        ),
        applied(headers_absent=["X-Hop", "Keep-Alive"], body="x"),
        replayed(headers_absent=["X-Hop", "Keep-Alive", "Connection"], body="x"),
    ),
]

# -- duplicate-and-multi-valued-headers


def _lines(name: str, fields: Fields, *, of: str = "MULTI-04", body: str = "x") -> Case:
    """Every line in its place, fresh and replayed."""
    wanted = [list(pair) for pair in fields]
    return twice(
        of,
        name,
        answers(201, body, fields),
        applied(lines=wanted, body=body),
        replayed(lines=wanted, body=body),
    )


MULTI = [
    _lines("apart-and-in-other-case", [("Link", "<a>"), ("X-B", "1"), ("LINK", "<b>")]),
    _lines("equal-lines", [("Vary", "Accept"), ("Vary", "Accept")]),
    _lines("empty-lines", [("X-A", ""), ("X-A", "1"), ("X-A", "")]),
    _lines("commas-stay", [("Warning", '199 - "a, b"'), ("Warning", '199 - "c"')]),
    twice(
        "MULTI-04",
        "cookies",
        answers(201, "x", [("Set-Cookie", "a=1; Expires=Thu, 01 Jan"), ("Set-Cookie", "b=2")]),
        applied(lines=[["Set-Cookie", "a=1; Expires=Thu, 01 Jan"], ["Set-Cookie", "b=2"]]),
        replayed(headers_absent=["Set-Cookie"]),
    ),
]

# -- content-encoding


def _latin(data: bytes) -> str:
    return data.decode("latin-1")


def _coded(name: str, coding: str, body: bytes, *more: tuple[str, str], of: str = "CE-02") -> Case:
    """Bytes and ``Content-Encoding`` as they came, whatever they are worth."""
    fields = [("Content-Encoding", coding), *more]
    lines = [list(pair) for pair in fields]
    said = {"status": 201, "headers": lines, "body_latin1": _latin(body)}
    length = ["Content-Length", str(len(body))]
    return twice(
        of,
        name,
        {"upstream": {"respond": said}},
        applied(lines=lines, body=_latin(body), headers=[length]),
        replayed(lines=lines, body=_latin(body), headers=[length]),
    )


_JSON = b'{"id":"ch_1"}' * 50
_GZIP = gzip.compress(_JSON, mtime=0)

CODED = [
    _coded("gzip", "gzip", _GZIP, ("ETag", '"1"'), ("Vary", "Accept-Encoding")),
    _coded("deflate", "deflate", zlib.compress(_JSON)),
    _coded("two-layers", "gzip, gzip", gzip.compress(_GZIP, mtime=0)),
    twice(
        "CE-02",
        "gzip-in-chunks",
        bytes_of(
            "HTTP/1.1 201 Created\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
            f"{len(_GZIP):x}\r\n{_latin(_GZIP)}\r\n0\r\n\r\n",
            "keep",
        ),
        applied(lines=[["Content-Encoding", "gzip"]], body=_latin(_GZIP)),
        replayed(lines=[["Content-Encoding", "gzip"]], body=_latin(_GZIP)),
    ),
    case(
        "CE-02",
        "of-the-request",
        [
            http(
                fields=[("Content-Encoding", "gzip")],
                body_b64=base64.b64encode(_GZIP).decode(),
            ),
            CREATED,
        ],
        1,
        r1=applied(),
        upstream_sees={
            "headers_present": [["Content-Encoding", "gzip"]],
            "body_b64": base64.b64encode(_GZIP).decode(),
        },
    ),
    _coded("cut-gzip", "gzip", _GZIP[:20], of="CE-03"),
    _coded("no-such-coding", "x-none", b"declined", of="CE-03"),
    _coded("identity-is-said", "identity", b"declined", of="CE-03"),
    _coded("empty", "br", b"", of="CE-03"),
    _lines(
        "no-json-though-it-says-so", [("Content-Type", "application/json")], of="CE-03", body="{"
    ),
    _lines(
        "two-types", [("Content-Type", "text/plain"), ("Content-Type", "text/html")], of="CE-03"
    ),
]

# -- bodyless-interim-trailers


def _bodiless(name: str, text: str, status: int, *gone: str) -> Case:
    """An answer without a body, and the next command on the same connection."""
    steps = [
        *(http("r1"), bytes_of(text, "keep"), http("r2", same_connection=True)),
        *(http("r3", key="k-2", same_connection=True), CREATED),
    ]
    nowhere = {"headers_absent": ["Content-Length", "Transfer-Encoding", *gone], "body": ""}
    return case(
        *("MSG-01", name, steps, 2),
        r1=applied(status, **nowhere),
        r2=replayed(status, **nowhere),
        r3=applied(body='{"id":"ch_1"}'),
    )


def _expecting(name: str, status: int, kind: str, **about: Any) -> Case:
    """Refused by its head: no body is asked for, and the connection ends."""
    fields = [("Expect", "100-continue"), ("Content-Length", about.pop("length", "1048576"))]
    return case(
        "MSG-02",
        name,
        [http(wait_for_100=True, fields=fields, **about)],
        0,
        r1=refused(status, kind, interim=[], headers=[["Connection", "close"]]),
        entities=0,
        audit=[],
    )


def _expects(label: str, **about: Any) -> Step:
    return http(label, wait_for_100=True, fields=[("Expect", "100-continue")], **about)


_ASKED: dict[str, Any] = {"interim": [100]}

BODILESS = [
    _bodiless("204-chunked", "HTTP/1.1 204 X\r\nTransfer-Encoding: chunked\r\n\r\n", 204),
    _bodiless("204-with-a-body", "HTTP/1.1 204 X\r\nContent-Length: 4\r\n\r\nabcd", 204),
    _bodiless("304-with-a-length", "HTTP/1.1 304 X\r\nContent-Length: 4\r\nETag: 1\r\n\r\n", 304),
    _bodiless("behind-interim", "HTTP/1.1 103 X\r\nLink: <a>\r\n\r\nHTTP/1.1 204 X\r\n\r\n", 204),
    case(
        "MSG-01",
        "head",
        [
            http("r1", method="HEAD", path="/v1/accounts/acc-1", body=""),
            bytes_of("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", "keep"),
            http("r2", method="HEAD", path="/v1/accounts/acc-1", body="", same_connection=True),
            bytes_of("HTTP/1.1 404 X\r\nContent-Length: 4\r\n\r\n", "keep"),
        ],
        2,
        r1={"status": 200, "outcome": "unguarded", "lines": [["Content-Length", "4"]]},
        r2={"status": 404, "outcome": "unguarded", "lines": [["Content-Length", "4"]]},
        entities=0,
    ),
    _expecting("no-key", 400, "key-missing", key=None),
    _expecting("no-gateway-key", 401, "unauthenticated", token="Bearer nobody"),
    _expecting("no-policy", 404, "no-policy", path="/v1/none"),
    _expecting("no-fence", 428, "fence-required", fence=None),
    _expecting("malformed-fence", 400, "fence-invalid", fence="+1"),
    _expecting("no-entity", 400, "entity-missing", path="/v1/by-query"),
    _expecting("another-charset", 400, "body-unreadable", media="application/json; charset=utf-16"),
    _expecting("over-the-limit", 413, "body-too-large", length=str(11 * 1024 * 1024)),
    case(
        "MSG-02",
        "replayed-and-stale",
        [
            *(_expects("r1"), CREATED, _expects("r2"), _expects("r3", fence="41")),
            *(_expects("r4", key="k-2"), CREATED),
        ],
        2,
        r1=applied(**_ASKED),
        r2=replayed(**_ASKED),
        r3=refused(412, "fence-stale", **_ASKED),
        r4=applied(**_ASKED),
        upstream_sees={"headers_absent": ["Expect"]},
    ),
    case(
        "MSG-02",
        "body-at-once",
        [http(fields=[("Expect", "100-continue")]), CREATED],
        1,
        r1=applied(),
        upstream_sees={"headers_absent": ["Expect"]},
    ),
]

# -- size-and-slowness


def _streamed(name: str, answer: Step, body: str) -> Case:
    return twice(
        "SIZE-05",
        name,
        answer,
        applied(body=body),
        replayed(body=body, headers_absent=["Transfer-Encoding"]),
        commands={"k-1": "settled"},
    )


def _early(name: str, answer: Step, first: Any, second: Any, calls: int = 1, **more: Any) -> Case:
    steps = [
        http(label, media="application/octet-stream", body_generator="8 MiB of 'x'")
        for label in ("r1", "r2")
    ]
    return case(
        "SIZE-06",
        name,
        [steps[0], answer, steps[1], answer],
        calls,
        r1=first,
        r2=second,
        **more,
    )


_CHUNKED = "HTTP/1.1 201 X\r\nTransfer-Encoding: chunked\r\n\r\n"
_EVENTS = "data: 1\n\ndata: 2\n\n"
_LARGE = 1024 * 1024 + 1

STREAMED = [
    _streamed("byte-by-byte", chunks(*'{"a":[1,2]}'), '{"a":[1,2]}'),
    _streamed("no-bytes", chunks(), ""),
    _streamed(
        "events",
        chunks(_EVENTS, _EVENTS, headers=[("Content-Type", "text/event-stream")]),
        _EVENTS * 2,
    ),
    _streamed(
        "extensions-and-trailers",
        bytes_of(f"{_CHUNKED}3;a=b\r\nabc\r\n0;x\r\nX-Sum: 1\r\n\r\n", "keep"),
        "abc",
    ),
    twice(
        "SIZE-05",
        "one-byte-more-than-is-kept",
        {"upstream": {"respond": {"status": 201, "body": {"repeat": ["x", _LARGE]}}}},
        applied(body="x" * _LARGE),
        NOT_KEPT,
        commands={"k-1": "settled"},
    ),
    twice(
        "SIZE-05",
        "as-much-as-is-kept",
        {"upstream": {"respond": {"status": 201, "body": {"repeat": ["x", _LARGE - 1]}}}},
        applied(body="x" * (_LARGE - 1)),
        replayed(same_as="r1"),
    ),
    _early("behind-the-head", early(400, 0), applied(400, body="enough"), replayed(400)),
    _early("success", early(201, 64), applied(201, body="enough"), replayed(201)),
    _early("ambiguous", early(503, 64), unknown("yes"), unknown("yes")),
    _early(
        "not-executed",
        early(429, 64),
        {"status": 429, "outcome": "not-executed", "body": "enough"},
        {"status": 429, "outcome": "not-executed", "body": "enough"},
        2,
        commands={"k-1": None},
        audit=[{"event": "released"}, {"event": "released"}],
    ),
]

CASES: list[Case] = [*HOP, *MULTI, *CODED, *BODILESS, *STREAMED]
