"""Further inputs: callers that hang up, and upstreams that answer badly or not at all."""

from __future__ import annotations

from typing import Any

from tests.cases.driver import Case
from tests.cases.steps import (
    ACCOUNT,
    CREATED,
    HANGS,
    HASTY,
    INCOMPLETE,
    LISTS,
    NOT_KEPT,
    Step,
    answers,
    applied,
    bytes_of,
    case,
    http,
    refused,
    replayed,
    twice,
    unknown,
)

__all__ = ["CASES"]

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

CASES: list[Case] = [*SETTLE, *UP_SILENT, *UP_CUT, *UP_AMBIGUOUS]
