"""Further inputs: who may call."""

from __future__ import annotations

from tests.cases.driver import Case
from tests.cases.steps import (
    CREATED,
    applied,
    case,
    http,
    refused,
)

__all__ = ["CASES"]

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

CASES: list[Case] = [*SEC]
