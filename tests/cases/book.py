"""The cases: those of the book, and further inputs of the same kinds.

A fault's whole kind must be right, not only the input by which somebody met it. ``BOOK`` is
``cases.jsonl``; ``FURTHER`` names for each of its cases what else goes wrong in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cases.driver import Case, load

__all__ = ["BOOK", "FURTHER"]

BOOK: list[Case] = load(Path(__file__).parent / "cases.jsonl")

Fields = Sequence[tuple[str, str]]
Step = Mapping[str, Any]

CHARGES = "/v1/accounts/acc-1/charges"
HASTY = "/v1/accounts/acc-1/hasty"
LISTS = "/v1/accounts/acc-1/lists"
ACCOUNT = "account:acc-1"
CREATED: Step = {"upstream": {"respond": {"status": 201, "body": '{"id":"ch_1"}'}}}
HANGS: Step = {"upstream": {"fault": "no_response_before_deadline_after_full_request"}}


# -- steps


def http(
    label: str = "r1",
    *,
    path: str = CHARGES,
    key: str | None = "k-1",
    fence: str | None = "42",
    token: str | None = "Bearer tenant-A",
    fields: Fields = (),
    **more: Any,
) -> Step:
    """The default command, or what a case changes of it; ``None`` leaves a field out. ``more``:
    body, body_latin1, body_generator, chunked, client."""
    headers = [["Host", "gw.test"], ["Content-Type", "application/json"]]
    for name, value in (
        ("Authorization", token),
        ("Idempotency-Key", key),
        ("X-Execution-Fence", fence),
    ):
        if value is not None:
            headers.append([name, value])
    headers += [list(pair) for pair in fields]
    client = {"client": more.pop("client")} if "client" in more else {}
    request = {"method": "POST", "path": path, "headers": headers, "body": '{"amount":100}'}
    return {"http": {**request, **more}, "label": label, **client}


def answers(status: int, body: str = "", headers: Fields = (), **more: Any) -> Step:
    said = {"status": status, "body": body, "headers": [list(pair) for pair in headers]}
    return {"upstream": {"respond": said}, **more}


def bytes_of(text: str, then: str = "close") -> Step:
    return {"upstream": {"raw_latin1": text, "then": then}}


# -- expectations


def refused(status: int, kind: str, **more: Any) -> dict[str, Any]:
    return {"status": status, "type": kind, "outcome": "rejected", "sent": "no", **more}


def applied(status: int = 201, **more: Any) -> dict[str, Any]:
    return {"status": status, "outcome": "applied", **more}


def replayed(status: int = 201, **more: Any) -> dict[str, Any]:
    return {"status": status, "outcome": "replayed", **more}


def unknown(sent: str) -> dict[str, Any]:
    return {"status": 504, "type": "outcome-unknown", "outcome": "unknown", "sent": sent}


STALE = refused(412, "fence-stale")
INCOMPLETE = {"status": 502, "type": "response-incomplete", "outcome": "applied", "sent": "yes"}
NOT_KEPT = {"status": 410, "type": "response-not-retained", "outcome": "rejected", "sent": "yes"}


def case(of: str, name: str, steps: Sequence[Step], calls: int, **expected: Any) -> Case:
    """``expected``: the answers ``r1``, ``r2``, …, and what else must show."""
    responses = {key: expected.pop(key) for key in list(expected) if key[0] == "r" and key[1:]}
    return {
        "id": f"{of}/{name}",
        "input": {"steps": list(steps)},
        "expected": {"responses": responses, "upstream_calls": calls, **expected},
    }


def nothing(of: str, name: str, step: Step, status: int, kind: str) -> Case:
    """One request that is refused and leaves nothing."""
    return case(of, name, [step], 0, r1=refused(status, kind), entities=0, audit=[])


def twice(of: str, name: str, answer: Step, first: Any, second: Any, **more: Any) -> Case:
    """The same request twice, answered once by the upstream."""
    path = more.pop("path", CHARGES)
    steps = [http("r1", path=path), answer, http("r2", path=path)]
    return case(of, name, steps, 1, r1=first, r2=second, **more)


# -- duplicate-and-multi-valued-headers


def _doubled(*lines: str, name: str = "X-Execution-Fence") -> Step:
    return http(fence=None, fields=[(name, line) for line in lines])


MULTI = [
    nothing("MULTI-03", "equal-lines", _doubled("42", "42"), 400, "fence-invalid"),
    nothing(
        "MULTI-03", "other-case", http(fields=[("x-execution-fence", "99")]), 400, "fence-invalid"
    ),
    nothing("MULTI-03", "comma-without-blank", _doubled("41,42"), 400, "fence-invalid"),
    nothing("MULTI-03", "trailing-comma", _doubled("42,"), 400, "fence-invalid"),
    nothing("MULTI-03", "empty-second-line", _doubled("42", ""), 400, "fence-invalid"),
    nothing("MULTI-03", "three-lines", _doubled("1", "2", "3"), 400, "fence-invalid"),
    nothing("MULTI-03", "two-keys", http(fields=[("Idempotency-Key", "k-2")]), 400, "key-invalid"),
    nothing(
        "MULTI-03", "equal-keys", http(fields=[("idempotency-key", "k-1")]), 400, "key-invalid"
    ),
    nothing("MULTI-03", "joined-keys", http(key="k-1, k-2"), 400, "key-invalid"),
    nothing(
        "MULTI-03",
        "two-entities",
        http(fields=[("X-Execution-Entity", ACCOUNT), ("X-Execution-Entity", ACCOUNT)]),
        *(400, "request-invalid"),
    ),
    nothing(
        "MULTI-03",
        "two-lines-that-make-the-entity",
        http(path="/v1/by-field", fields=[("X-Account", "a"), ("X-Account", "b")]),
        *(400, "request-invalid"),
    ),
    nothing("MULTI-03", "query-twice", http(path="/v1/by-query?id=a&id=b"), 400, "request-invalid"),
    nothing(
        "MULTI-03",
        "body-and-header-differ",
        http(path="/v1/fenced", body='{"id":"a","fence":41}'),
        *(400, "fence-invalid"),
    ),
]

# -- http-client-automatism

_COOKIE = [("Set-Cookie", "sid=A; Path=/")]

CLIENT = [
    case(
        "CLIENT-02",
        "same-tenant",
        [http("r1", key="k-1"), answers(201, headers=_COOKIE), http("r2", key="k-2"), CREATED],
        2,
        r1=applied(headers=[["Set-Cookie", "sid=A; Path=/"]]),
        r2=applied(),
        upstream_sees={"headers_absent": ["Cookie"]},
    ),
    case(
        "CLIENT-02",
        "callers-own-cookie-goes-up-unmixed",
        [
            *(http("r1", key="k-1"), answers(201, headers=_COOKIE)),
            *(http("r2", key="k-2", fields=[("Cookie", "mine=1")]), CREATED),
            *(http("r3", key="k-3", token="Bearer tenant-B"), CREATED),
        ],
        3,
        r1=applied(),
        r2=applied(),
        r3=applied(headers_absent=["Set-Cookie"]),
    ),
    case(
        "CLIENT-02",
        "challenge-is-not-answered",
        [http(), answers(401, headers=[("WWW-Authenticate", 'Basic realm="x"')])],
        1,
        r1={"status": 401, "outcome": "not-executed"},
        upstream_sees={"headers_absent": ["Authorization"]},
    ),
    case(
        "CLIENT-02",
        "redirect-is-not-followed",
        [http("r1"), answers(307, headers=[("Location", "/v1/elsewhere")]), http("r2")],
        1,
        r1=applied(307, headers=[["Location", "/v1/elsewhere"]]),
        r2=replayed(307, headers=[["Location", "/v1/elsewhere"]]),
    ),
    case(
        "CLIENT-02",
        "retry-after-is-not-obeyed",
        [http(path=LISTS), answers(503, headers=[("Retry-After", "0")])],
        1,
        r1={"status": 503, "outcome": "not-executed"},
    ),
    case(
        "CLIENT-02",
        "coded-body-is-not-decoded",
        [http("r1"), answers(201, "not gzip", [("Content-Encoding", "gzip")]), http("r2")],
        1,
        r1=applied(body="not gzip", headers=[["Content-Encoding", "gzip"]]),
        r2=replayed(body="not gzip", headers=[["Content-Encoding", "gzip"]]),
        upstream_sees={"headers_absent": ["Accept-Encoding", "User-Agent", "Accept"]},
    ),
]

# -- size-and-slowness


def _large(name: str, step: Step) -> Case:
    return case(
        "SIZE-01",
        name,
        [step],
        0,
        r1=refused(413, "body-too-large", headers=[["Connection", "close"]]),
        entities=0,
        peak_growth_mib_max=32,
    )


SIZE = [
    _large("chunked", http(body_generator="11 MiB of 'x'", chunked=True)),
    _large("one-byte-over", http(body_generator="10485761 B of 'x'")),
    _large("one-byte-over-chunked", http(body_generator="10485761 B of 'x'", chunked=True)),
    _large("much-larger", http(body_generator="60 MiB of 'x'")),
    case(
        "SIZE-01",
        "the-limit-itself",
        [http(body_generator="10 MiB of 'x'", fields=[("X-Kind", "raw")], key="k-1")],
        0,
        r1=refused(400, "body-unreadable"),
        entities=0,
    ),
    nothing(
        "SIZE-01",
        "unauthenticated-and-large",
        http(token="Bearer nobody", body_generator="11 MiB of 'x'"),
        *(401, "unauthenticated"),
    ),
    nothing(
        "SIZE-01",
        "no-policy-and-large",
        http(path="/v1/none", body_generator="11 MiB of 'x'", chunked=True),
        *(404, "no-policy"),
    ),
]

# -- client-disconnect-and-settlement


def _gone(name: str, answer: Step, second: Any, **more: Any) -> Case:
    steps = [http("r1", client="close once it is on its way"), answer, http("r2")]
    return case("SETTLE-01", name, steps, 1, r2=second, **more)


SETTLE = [
    _gone(
        "not-found",
        answers(404, "none", delay_ms=1),
        replayed(404, body="none"),
        log=[{"event": "answer_not_delivered"}],
    ),
    _gone("ambiguous", answers(502, delay_ms=1), unknown("yes"), commands={"k-1": "unknown"}),
    _gone(
        "cut-short",
        bytes_of("HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nabc"),
        NOT_KEPT,
        commands={"k-1": "settled"},
    ),
    case(
        "SETTLE-01",
        "not-executed-gives-the-key-back",
        [http("r1", client="close"), answers(429, delay_ms=1), http("r2"), CREATED],
        2,
        r2=applied(),
        commands={"k-1": "settled"},
    ),
    case(
        "SETTLE-01",
        "next-command-of-the-entity-waits",
        [http("r1", client="close"), answers(201, delay_ms=1), http("r2", key="k-2"), CREATED],
        2,
        r2=applied(),
        commands={"k-1": "settled", "k-2": "settled"},
    ),
]

# -- upstream-failure-classification


def _silent(name: str, answer: Step) -> Case:
    steps = [
        *(http("r1", path=HASTY), answer),
        *(http("r2", path=HASTY), http("r3", path=HASTY, fence="43")),
        http("r4", path=HASTY, key="k-2", fence="43"),
    ]
    return case(
        "UP-03",
        name,
        steps,
        1,
        r1=unknown("yes"),
        r2=unknown("unknown"),
        r3=unknown("unknown"),
        r4=refused(409, "entity-unresolved"),
        marks={ACCOUNT: 43},
        commands={"k-1": "unknown", "k-2": None},
        audit=[{"event": "outcome_unknown", "fence": 42}],
    )


UP_SILENT = [
    _silent("hangs", HANGS),
    _silent("closes", bytes_of("")),
    _silent("resets", bytes_of("", "reset")),
    _silent("stops-in-the-head", bytes_of("HTTP/1.1 201 Created\r\nX-A: 1", "keep")),
    _silent("only-interim", bytes_of("HTTP/1.1 102 Processing\r\n\r\n", "keep")),
    _silent("no-http", bytes_of("\x16\x03\x01 hello")),
]

_HEAD_FIXED = "HTTP/1.1 {} X\r\nContent-Length: 10\r\n\r\n"
_HEAD_CHUNKED = "HTTP/1.1 {} X\r\nTransfer-Encoding: chunked\r\n\r\n"


def _cut(name: str, text: str, then: str = "close", status: int = 201) -> Case:
    return twice(
        "UP-05",
        name,
        bytes_of(text.format(status), then),
        INCOMPLETE,
        NOT_KEPT,
        commands={"k-1": "settled"},
        audit=[],
    )


UP_CUT = [
    _cut("no-byte-of-the-body", _HEAD_FIXED),
    _cut("nine-of-ten", _HEAD_FIXED + "123456789"),
    _cut("reset", _HEAD_FIXED + "abc", "reset"),
    _cut("chunked-without-last-chunk", _HEAD_CHUNKED + "3\r\nabc\r\n"),
    _cut("chunk-cut", _HEAD_CHUNKED + "a\r\nabc"),
    _cut("last-chunk-without-its-end", _HEAD_CHUNKED + "3\r\nabc\r\n0\r\n"),
    _cut("chunk-size-broken", _HEAD_CHUNKED + "3\r\nabc\r\nxyz\r\n"),
    _cut("error-status", _HEAD_FIXED + "abc", status=422),
    twice(
        "UP-05",
        "stalls",
        bytes_of((_HEAD_FIXED + "abc").format(201), "keep"),
        INCOMPLETE,
        NOT_KEPT,
        path=HASTY,
        audit=[],
    ),
    twice(
        "UP-05",
        "close-delimited-is-complete",
        bytes_of("HTTP/1.1 201 Created\r\nX-A: 1\r\n\r\nabc"),
        applied(body="abc"),
        replayed(body="abc"),
    ),
    twice(
        "UP-05",
        "http-1-0-is-complete",
        bytes_of("HTTP/1.0 200 OK\r\n\r\nabc"),
        applied(200, body="abc"),
        replayed(200, body="abc"),
    ),
]

UP_AMBIGUOUS = [
    *(
        twice(
            "UP-06",
            str(status),
            answers(status, "try later", [("Retry-After", "1")]),
            unknown("yes"),
            unknown("yes"),
            commands={"k-1": "unknown"},
            audit=[{"event": "outcome_unknown"}],
        )
        for status in (408, 500, 502, 503)
    ),
    twice(
        "UP-06",
        "500-that-the-policy-takes-as-final",
        answers(500, "no such plan"),
        applied(500, body="no such plan"),
        replayed(500, body="no such plan"),
        path=LISTS,
    ),
    case(
        "UP-06",
        "503-that-the-policy-takes-as-not-executed",
        [http("r1", path=LISTS), answers(503, "full"), http("r2", path=LISTS), CREATED],
        2,
        r1={"status": 503, "outcome": "not-executed", "body": "full"},
        r2=applied(),
        audit=[{"event": "released"}],
    ),
    twice("UP-06", "501-is-final", answers(501), applied(501), replayed(501)),
    twice("UP-06", "507-is-final", answers(507), applied(507), replayed(507)),
]

# -- fingerprint-and-json

_CASE_BODIES = {
    "list": ("[]", "entity-missing"),
    "text": ('"x"', "entity-missing"),
    "number": ("1", "entity-missing"),
    "parent-null": ('{"input":null}', "entity-missing"),
    "parent-list": ('{"input":[{"customer_id":"c-1"}]}', "entity-missing"),
    "null": ('{"input":{"customer_id":null}}', "request-invalid"),
    "true": ('{"input":{"customer_id":true}}', "request-invalid"),
    "float": ('{"input":{"customer_id":1048.0}}', "request-invalid"),
    "object": ('{"input":{"customer_id":{"id":"c-1"}}}', "request-invalid"),
    "blank": ('{"input":{"customer_id":" "}}', "request-invalid"),
    "twin-in-case": ('{"input":{"customer_id":"a","CUSTOMER_ID":"b"}}', "request-invalid"),
    "control-character": ('{"input":{"customer_id":"a\\u0007"}}', "request-invalid"),
    "doubled-member": ('{"input":{"customer_id":"a","customer_id":"b"}}', "body-unreadable"),
    "cut-json": ('{"input":{"customer_id":"a"', "body-unreadable"),
    "two-documents": ('{"input":{"customer_id":"a"}}{}', "body-unreadable"),
    "empty": ("", "body-unreadable"),
}

FP = [
    *(
        nothing("FP-11", name, http(path="/v1/cases", body=body), 400, kind)
        for name, (body, kind) in _CASE_BODIES.items()
    ),
    case(
        "FP-11",
        "digits-in-a-string",
        [http(path="/v1/cases", body='{"input":{"customer_id":"1048"}}'), CREATED],
        1,
        r1=applied(),
        marks={"customer:1048": 42},
        entities=1,
    ),
]

# -- idempotency-key-syntax

_255 = "a" * 255

KEYS = [
    nothing("KEY-03", "4096", http(key="a" * 4096), 400, "key-invalid"),
    nothing("KEY-03", "quoted-256", http(key=f'"{_255}a"'), 400, "key-invalid"),
    nothing("KEY-03", "escapes-count-once", http(key='"' + '\\"' * 256 + '"'), 400, "key-invalid"),
    case(
        "KEY-03",
        "quoted-255",
        [http("r1", key=f'"{_255}"'), CREATED, http("r2", key=_255)],
        1,
        r1=applied(),
        r2=replayed(),
    ),
    case(
        "KEY-03",
        "shared-start-of-254",
        [http("r1", key=_255[1:] + "x"), CREATED, http("r2", key=_255[1:] + "y"), CREATED],
        2,
        r1=applied(),
        r2=applied(),
    ),
    case(
        "KEY-04",
        "case",
        [http("r1", key="K-1"), CREATED, http("r2", key="k-1"), CREATED],
        2,
        r1=applied(),
        r2=applied(),
    ),
    case(
        "KEY-04",
        "blanks-around-are-no-part",
        [http("r1", key="k-1"), CREATED, http("r2", key="  k-1\t"), http("r3", key='"k-1"')],
        1,
        r1=applied(),
        r2=replayed(),
        r3=replayed(),
    ),
    case(
        "KEY-04",
        "same-key-of-two-tenants",
        [http("r1"), CREATED, http("r2", token="Bearer tenant-B"), CREATED],
        2,
        r1=applied(),
        r2=applied(),
    ),
    case(
        "KEY-04",
        "delimiters",
        [
            *(http("r1", key="a/b:c|d"), CREATED, http("r2", key="a/b:c|"), CREATED),
            *(http("r3", key="a/b"), CREATED, http("r4", key='"a,b;c"'), CREATED),
            *(http("r5", key="%6b-1"), CREATED, http("r6", key="k-1"), CREATED),
        ],
        6,
        **{f"r{number}": applied() for number in range(1, 7)},
    ),
    nothing("KEY-04", "inner-blank", http(key="k 1"), 400, "key-invalid"),
]

# -- fence-syntax-and-semantics

_FENCED = "/v1/fenced"

FENCES = [
    case(
        "FENCE-05",
        "zero-is-a-fence",
        [
            *(http("r1", key="a", fence="0"), CREATED, http("r2", key="b", fence="0"), CREATED),
            *(http("r3", key="c", fence="1"), CREATED, http("r4", key="d", fence="0")),
        ],
        3,
        r1=applied(),
        r2=applied(),
        r3=applied(),
        r4=STALE,
        audit=[{"event": "fence_stale", "fence": 0, "high_water_mark": 1}],
    ),
    case(
        "FENCE-05",
        "numbers-not-text",
        [http("r1", key="a", fence="9"), CREATED, http("r2", key="b", fence="10"), CREATED],
        2,
        r1=applied(),
        r2=applied(),
        marks={ACCOUNT: 10},
    ),
    case(
        "FENCE-05",
        "near-the-limit",
        [
            *(http("r1", key="a", fence=str(2**62 - 1)), CREATED),
            *(http("r2", key="b", fence=str(2**62 - 1)), CREATED),
            *(http("r3", key="c", fence=str(2**62 - 2)), http("r4", key="d", fence=str(2**62))),
        ],
        2,
        r1=applied(),
        r2=applied(),
        r3=STALE,
        r4=refused(400, "fence-invalid"),
        marks={ACCOUNT: 2**62 - 1},
    ),
    case(
        "FENCE-05",
        "a-refused-command-raises-it-too",
        [
            *(http("r1", key="a", fence="5"), CREATED),
            *(http("r2", key="a", fence="7", body="{}"), http("r3", key="b", fence="6")),
        ],
        1,
        r1=applied(),
        r2=refused(422, "key-reused"),
        r3=STALE,
        marks={ACCOUNT: 7},
    ),
    case(
        "FENCE-08",
        "unknown-key",
        [
            *(http("r1", fence="41"), answers(500)),
            *(http("r2", fence="42"), http("r3", fence="41")),
        ],
        1,
        r1=unknown("yes"),
        r2=unknown("yes"),
        r3=STALE,
    ),
    case(
        "FENCE-08",
        "with-another-body",
        [
            *(http("r1", fence="41"), CREATED, http("r2", key="k-2", fence="42"), CREATED),
            http("r3", fence="41", body="{}"),
        ],
        2,
        r1=applied(),
        r2=applied(),
        r3=STALE,
        audit=[{"event": "fence_stale", "fence": 41, "high_water_mark": 42}],
    ),
    case(
        "FENCE-08",
        "raised-by-a-replay",
        [http("r1", fence="41"), CREATED, http("r2", fence="50"), http("r3", fence="41")],
        1,
        r1=applied(),
        r2=replayed(),
        r3=STALE,
        marks={ACCOUNT: 50},
    ),
    nothing("FENCE-10", "empty-fence", http(fence=""), 400, "fence-invalid"),
    nothing("FENCE-10", "word", http(fence="none"), 400, "fence-invalid"),
    nothing(
        "FENCE-10",
        "underscore-twin",
        http(fence=None, fields=[("X_Execution_Fence", "42")]),
        428,
        "fence-required",
    ),
    nothing(
        "FENCE-10",
        "missing-in-the-body",
        http(path=_FENCED, fence=None, body='{"id":"a"}'),
        428,
        "fence-required",
    ),
    nothing(
        "FENCE-10", "only-in-the-field", http(path=_FENCED, body='{"id":"a"}'), 400, "fence-invalid"
    ),
    nothing(
        "FENCE-10",
        "empty-entity-field",
        http(fields=[("X-Execution-Entity", "")]),
        400,
        "request-invalid",
    ),
    nothing("FENCE-10", "no-entity-field", http(path="/v1/by-field"), 400, "entity-missing"),
    nothing("FENCE-10", "empty-query", http(path="/v1/by-query?id="), 400, "entity-missing"),
]

# -- idempotency-scope-replay-expiry

_TYPED: Fields = [("Content-Type", "text/plain; charset=iso-8859-1"), ("ETag", 'W/"7"')]


def _kept(name: str, status: int, body: str, headers: Fields) -> Case:
    wanted = [list(pair) for pair in headers]
    return twice(
        "IDEM-06",
        name,
        answers(status, body, headers),
        applied(status, headers=wanted),
        replayed(status, headers=wanted, same_as="r1"),
    )


_ALL_BYTES = "".join(map(chr, range(256)))

IDEM = [
    _kept("204", 204, "", [("ETag", '"v2"'), ("Location", "/v1/charges/ch_1")]),
    _kept("200-text", 200, "plain", _TYPED),
    _kept("404", 404, '{"error":"none"}', [("Content-Type", "application/problem+json")]),
    _kept("303", 303, "", [("Location", "https://elsewhere.example/x?y=%41")]),
    _kept("empty-201", 201, "", [("Location", "/1"), ("Content-Language", "de")]),
    _kept("repeated-fields", 201, "x", [("Link", "<a>"), ("X-B", "1"), ("Link", "<b>")]),
    twice(
        "IDEM-06",
        "all-bytes",
        {"upstream": {"respond": {"status": 201, "body_latin1": _ALL_BYTES}}},
        applied(body=_ALL_BYTES),
        replayed(body=_ALL_BYTES),
    ),
]

# -- database


def _stored(name: str, body: str) -> Case:
    return twice(
        "DB-11",
        name,
        {"upstream": {"respond": {"status": 201, "body_latin1": body}}},
        applied(body=body),
        replayed(body=body),
    )


DB = [
    _stored("escaped-nul", '{"a":"\\u0000"}'),
    _stored("nul-byte", "a\x00b"),
    _stored("big-number", '{"n":1e400,"m":123456789012345678901234567890.0}'),
    _stored("lone-surrogate", '{"s":"\\ud800"}'),
    _stored("no-utf-8", "caf\xe9 \xff\xfe"),
    _stored("order-and-blanks", '{ "b" : 1 ,\r\n\t"a":2 }'),
    _stored("no-json", "<a>&amp;</a>"),
    _stored("backslashes", "\\x00\\\\ \\N"),
    twice(
        "DB-11",
        "header-bytes",
        answers(201, "x", [("X-Name", "r\u00e9sum\u00e9"), ("X-Colon", "a:b: c"), ("X-Empty", "")]),
        applied(),
        replayed(headers=[["X-Colon", "a:b: c"], ["X-Empty", ""]]),
    ),
    case(
        "DB-11",
        "request-with-nul",
        [http("r1", body='{"a":"\\u0000"}'), CREATED, http("r2", body='{ "a": "\\u0000" }')],
        1,
        r1=applied(),
        r2=replayed(),
    ),
]

# -- security-and-observability

_CHALLENGE = [["WWW-Authenticate", 'Bearer realm="fencegate"']]


def _nobody(name: str, *lines: str) -> Case:
    fields = [("Authorization", line) for line in lines]
    return case(
        "SEC-04",
        name,
        [http(token=None, fields=fields)],
        0,
        r1=refused(401, "unauthenticated", headers=_CHALLENGE),
        entities=0,
    )


SEC = [
    _nobody("none"),
    _nobody("empty", ""),
    _nobody("scheme-only", "Bearer"),
    _nobody("basic", "Basic dXNlcjpwYXNz"),
    _nobody("shorter", "Bearer fg_1_abcdefghij_x"),
    _nobody("no-utf-8", "Bearer \xff\xfe"),
    _nobody("utf-8", "Bearer " + "caf\u00e9".encode().decode("latin-1")),
    _nobody("longer", "Bearer tenant-A_x"),
    _nobody("non-ASCII-behind", "Bearer tenant-A\xe9"),
    _nobody("equal-lines", "Bearer tenant-A", "Bearer tenant-A"),
    _nobody("joined", "Bearer tenant-A, Bearer tenant-B"),
    _nobody("very-long", "Bearer " + "x" * 20_000),
    case(
        "SEC-04",
        "scheme-in-lower-case",
        [http(token="bearer tenant-A"), CREATED],
        1,
        r1=applied(),
    ),
]

FURTHER: list[Case] = [
    *MULTI,
    *CLIENT,
    *SIZE,
    *SETTLE,
    *UP_SILENT,
    *UP_CUT,
    *UP_AMBIGUOUS,
    *FP,
    *KEYS,
    *FENCES,
    *IDEM,
    *DB,
    *SEC,
]
