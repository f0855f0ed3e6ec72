"""Further inputs: who may call, and what is told to whoever no longer may."""

from __future__ import annotations

from typing import Any

from tests.cases.driver import Case
from tests.cases.steps import (
    CREATED,
    Step,
    applied,
    case,
    http,
    refused,
    replayed,
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

CASES: list[Case] = [*SEC, *RIGHTS]
