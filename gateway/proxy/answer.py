"""The answer to one request, whoever made it, before it becomes bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gateway.core.decide import SettledBy
from gateway.core.headers import LOOP, relayable
from gateway.core.model import Headers, Response
from gateway.core.problems import Problem, ProblemType, body_of
from gateway.core.value import value
from gateway.upstream import Transfer

__all__ = ["Answer", "Evidence", "Label", "of_problem", "relay", "replay"]

Label = Literal[
    "applied", "replayed", "not-sent", "not-executed", "unknown", "rejected", "unguarded"
]
"""The values of ``Gateway-Outcome``."""

Evidence = Literal["operator", "probe", "report"]
"""The values of ``Gateway-Evidence``: on whose word a command counts as executed, where no response
to it came. Its own response, in time or late, needs no word."""

_EVIDENCE: Mapping[SettledBy, Evidence] = {
    "resolved": "operator",
    "probe": "probe",
    "report": "report",
}

_PROBLEM_TYPE = (b"content-type", b"application/problem+json")


@value(frozen=True, slots=True)
class Answer:
    """``stream``: where the rest of a large body comes from, behind ``body``; whoever sends the
    answer relays or closes it. ``compared`` is false where the key was
    recorded under other fingerprint rules. ``evidence``: on whose word it is."""

    status: int
    headers: Headers
    body: bytes
    outcome: Label
    stream: Transfer | None = None
    problem: ProblemType | None = None
    compared: bool = True
    evidence: Evidence | None = None


def relay(response: Response, outcome: Label, stream: Transfer | None = None) -> Answer:
    """The upstream's own response, its bytes unchanged."""
    return Answer(response.status, relayable(response.headers), response.body, outcome, stream)


def replay(response: Response, settled_by: SettledBy, *, compared: bool) -> Answer:
    """The recorded response; what a probe or a report brought is marked as that."""
    return Answer(
        *(response.status, response.headers, response.body, "replayed"),
        compared=compared,
        evidence=_EVIDENCE.get(settled_by),
    )


def of_problem(
    problem: Problem, outcome: Label, request_id: str, settled_by: SettledBy = "answer"
) -> Answer:
    """A problem document with the fields that go with it."""
    kind = problem.kind
    error = kind.error if problem.error is None else problem.error
    status = b"fencegate; error=%b" % error.encode("ascii") if error else b"fencegate"
    if problem.received_status is not None:
        status += b"; received-status=%d" % problem.received_status
    headers: list[tuple[bytes, bytes]] = [_PROBLEM_TYPE, (b"proxy-status", status)]
    if problem.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % problem.retry_after_s))
    if problem.type == "unauthenticated":
        headers.append((b"www-authenticate", b'Bearer realm="fencegate"'))
    refused = problem.members.get("refused")
    if isinstance(refused, str):
        headers.append((LOOP, refused.encode("ascii")))
    compared = problem.members.get("fingerprint") != "not-compared"
    return Answer(
        kind.status,
        tuple(headers),
        body_of(problem, request_id),
        outcome,
        problem=problem.type,
        compared=compared,
        evidence=_EVIDENCE.get(settled_by),
    )
