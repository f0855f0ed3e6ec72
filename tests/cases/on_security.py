"""Further inputs: who may call, and what is told to whoever no longer may; what is written down of
it, and what a body may become."""

from __future__ import annotations

import json
from typing import Any

from tests.cases.driver import Case
from tests.cases.steps import (
    CREATED,
    NOT_KEPT,
    Step,
    answers,
    applied,
    bytes_of,
    case,
    http,
    refused,
    replayed,
    unknown,
)

__all__ = ["CASES"]

# -- security-and-observability

FORBIDDEN = refused(403, "forbidden")
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

# -- idempotency-scope-replay-expiry

_AGAIN = http("r2")


def _auth(text: str) -> Step:
    return {"auth": text}


def _afterwards(name: str, *changes: str, r2: Any) -> Case:
    """A command, a change of its caller's rights, and the command again."""
    steps = [http(), CREATED, *map(_auth, changes), _AGAIN]
    return case("IDEM-11", name, steps, 1, r1=applied(), r2=r2, commands={"k-1": "settled"})


RIGHTS = [
    _afterwards("scope-withdrawn", "withdraw policy:* from tenant-A", r2=FORBIDDEN),
    _afterwards(
        "scope-of-another-policy",
        "grant policy:other to tenant-A",
        "withdraw policy:* from tenant-A",
        r2=FORBIDDEN,
    ),
    _afterwards(
        "scope-by-name",
        "withdraw policy:* from tenant-A",
        "grant policy:pay to tenant-A",
        r2=replayed(),
    ),
    _afterwards(
        "scope-given-back",
        "withdraw policy:* from tenant-A",
        "grant policy:* to tenant-A",
        r2=replayed(),
    ),
    _afterwards("other-scopes-withdrawn", "withdraw enqueue from tenant-A", r2=replayed()),
    case(
        "IDEM-11",
        "another-key-than-the-first-ones",
        [http(), CREATED, _auth("revoke tenant-A"), http("r2", key="k-2")],
        1,
        r1=applied(),
        r2=refused(401, "unauthenticated", headers=_CHALLENGE),
        commands={"k-2": None},
    ),
    case(
        "IDEM-11",
        "another-tenant",
        [http(), CREATED, http("r2", token="Bearer tenant-B"), CREATED],
        2,
        r1=applied(),
        r2=applied(),
    ),
    case(
        "IDEM-11",
        "stale-and-revoked",
        [http(), CREATED, _auth("revoke tenant-A"), http("r2", fence="41")],
        1,
        r1=applied(),
        r2=refused(401, "unauthenticated", headers=_CHALLENGE),
        audit=[],
    ),
]


def _forged(name: str, what: Step) -> Case:
    """Refused, whatever it wanted to write into a log or an audit row; the driver looks at every
    line that was written."""
    return case("SEC-01", name, [what], 0, r1=refused(400, "request-invalid"), entities=0, audit=[])


def _customer(text: str) -> Step:
    return http(path="/v1/cases", body=json.dumps({"input": {"customer_id": text}}))


_LINE = '\n{"time":"2026-01-01T00:00:00Z","level":"error","event":"rows_lost"}'
_QUOTED = r'"k\"\\,=cmd"'  # a string of RFC 8941, with both of its escapes
_MISMATCH = refused(403, "entity-mismatch")

FORGED = [
    _forged("carriage-return-in-the-entity", http(path="/v1/accounts/x%0d%0aevil/charges")),
    _forged("escape-in-the-entity", http(path="/v1/accounts/x%1b%5b2J/charges")),
    _forged("c1-control-in-the-entity", http(path="/v1/accounts/x%c2%9b2J/charges")),
    _forged("line-separator-in-the-entity", http(path="/v1/accounts/x%e2%80%a8y/charges")),
    _forged("turned-writing-in-the-entity", http(path="/v1/accounts/x%e2%80%aey/charges")),
    _forged("a-whole-log-line-in-the-body", _customer(f"c{_LINE}")),
    _forged("escape-in-the-body", _customer("c\x1b]0;title\x07")),
    _forged("turned-writing-in-the-body", _customer("c\u202e1")),
    _forged("delete-in-a-field", http(fields=[("X-Note", "a\x7fb")])),
    _forged("nul-in-a-field", http(fields=[("X-Note", "a\x00b")])),
    case(
        "SEC-01",
        "escape-in-the-key",
        [http(key="k\x1b[2J")],
        0,
        r1=refused(400, "request-invalid"),
        entities=0,
    ),
    case(
        "SEC-01",
        "entity-that-is-no-ascii",
        [http(fields=[("X-Execution-Entity", "account:\x9b2J\xe2\x80\xae")])],
        0,
        r1=_MISMATCH,
        audit=[{"event": "entity_mismatch", "entity": "account:acc-1"}],
    ),
    case(
        "SEC-01",
        "request-id-that-is-a-line",
        [http(fields=[("X-Request-Id", 'r","level":"error","x":"')]), CREATED],
        1,
        r1=applied(),
    ),
    case(
        "SEC-01",
        "quotes-in-the-key",
        [http(key=_QUOTED), CREATED, http("r2", key=_QUOTED, body="{}")],
        1,
        r1=applied(),
        r2=refused(422, "key-reused"),
        audit=[{"event": "key_reused"}],
    ),
    case(
        "SEC-01",
        "lines-in-an-answer-that-says-nothing",
        [http(), answers(500, f"\x1b[2J{_LINE}", [("X-Note", "\x9b2J")])],
        1,
        r1=unknown("yes"),
        audit=[{"event": "outcome_unknown"}],
    ),
    case(
        "SEC-01",
        "escapes-in-a-reason",
        [http(), bytes_of("HTTP/1.1 201 \x1b[2J\x9b\r\nContent-Length: 0\r\n\r\n")],
        1,
        r1=applied(),
    ),
]


def _zeros(name: str, size: str, coding: str, *, kept: bool) -> Case:
    """Its bytes are relayed as they are, whatever they say that they would become."""
    made = f"gzip({size} zeros)"
    fields = [["Content-Encoding", coding]]
    said = {"status": 201, "headers": fields, "body_generator": made}
    same = {"headers": fields, "body_generator": made}
    return case(
        "SEC-06",
        name,
        [http("r1"), {"upstream": {"respond": said}}, http("r2")],
        1,
        r1=applied(**same),
        r2=replayed(**same) if kept else NOT_KEPT,
        peak_growth_mib_max=64,
    )


_GZIPPED = [("Content-Encoding", "gzip")]

BOMBS = [
    _zeros("recorded", "900 MiB", "gzip", kept=True),
    _zeros("too-large-to-record", "8 GiB", "gzip", kept=False),
    _zeros("under-another-name", "900 MiB", "br", kept=True),
    _zeros("twice-coded", "900 MiB", "gzip, gzip", kept=True),
    case(
        "SEC-06",
        "beside-an-ambiguous-status",
        [
            http(),
            {
                "upstream": {
                    "respond": {
                        "status": 500,
                        "headers": [["Content-Encoding", "gzip"]],
                        "body_generator": "gzip(1 GiB zeros)",
                    }
                }
            },
        ],
        1,
        r1=unknown("yes"),
        peak_growth_mib_max=64,
    ),
    case(
        "SEC-06",
        "streamed-through",
        [
            http(method="GET", path="/v1/reports", body="", key=None, fence=None),
            {
                "upstream": {
                    "respond": {
                        "status": 200,
                        "headers": [["Content-Encoding", "gzip"]],
                        "body_generator": "gzip(4 GiB zeros)",
                    }
                }
            },
        ],
        1,
        r1={"status": 200, "outcome": "unguarded", "body_generator": "gzip(4 GiB zeros)"},
        peak_growth_mib_max=64,
    ),
    case(
        "SEC-06",
        "from-the-caller",
        [http(body_generator="gzip(1 GiB zeros)", fields=_GZIPPED), CREATED],
        1,
        r1=applied(),
        peak_growth_mib_max=64,
    ),
    case(
        "SEC-06",
        "from-the-caller-where-the-body-would-be-read",
        [http(path="/v1/cases", body_generator="gzip(1 GiB zeros)", fields=_GZIPPED)],
        0,
        r1=refused(400, "body-unreadable"),
        entities=0,
        peak_growth_mib_max=64,
    ),
]

CASES: list[Case] = [*SEC, *RIGHTS, *FORGED, *BOMBS]
