"""Further inputs: what names a command, its entity and its fence, and what is recorded."""

from __future__ import annotations

from tests.cases.driver import Case
from tests.cases.steps import (
    ACCOUNT,
    CREATED,
    STALE,
    Fields,
    answers,
    applied,
    case,
    http,
    nothing,
    refused,
    replayed,
    twice,
    unknown,
)

__all__ = ["CASES"]

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

CASES: list[Case] = [*FP, *KEYS, *FENCES, *IDEM, *DB]
