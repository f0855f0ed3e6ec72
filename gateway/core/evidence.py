"""What a status query proves about a command whose outcome is unknown.

A probe is evidence only where the upstream was reached and its whole answer is one that the policy
names: it proves that the command was *applied*, or says that it is *absent*. Whatever else comes
back is nothing, and so is an answer that would be both. Absence said once is no proof: the store
counts such answers, and when they were asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.core.canonical import Absent, Document, Json, canonical, lookup, read_json
from gateway.core.headers import values
from gateway.core.model import Exchange, Fault, Headers, ProbeRules, Proof, Response, Stage

__all__ = ["PROBE_LIMIT", "Judged", "Probed", "Verdict", "judge"]

PROBE_LIMIT = 256 * 1024
"""Bytes of a probe's answer that are read: some thousand entries of a list, in a millisecond."""

Verdict = Literal["applied", "absent", "nothing"]

Probed = Literal[
    "resolved",  # decided now, and audited
    "absent-once",  # the first "not executed" that counts; it takes a second
    "asked",  # nothing is proven yet
    "too-early",  # it says "not executed", and the upstream may still act
    "changed",  # another attempt holds the key
    "missing",  # its key was given back
    "settled",  # its answer came meanwhile, or somebody decided
    "in-flight",  # never, of what was unknown; conclude's word for an attempt that is under way
]
"""What became of a command by what a probe showed."""


@dataclass(frozen=True, slots=True)
class Judged:
    """``why`` goes to the audit: it names no value of the answer but its status. ``status`` and
    ``fault``: what came, and why no more did."""

    verdict: Verdict
    why: str
    status: int | None = None
    fault: Fault | None = None


def judge(exchange: Exchange, rules: ProbeRules) -> Judged:
    """What the answer to a probe proves."""
    response = exchange.response
    if response is None:
        why = f"the probe got no answer ({exchange.fault})"
        return Judged("nothing", why, None, exchange.fault)
    status = response.status
    if exchange.stage is not Stage.BODY_COMPLETE or exchange.oversize:
        why = f"the probe's answer {status} did not come whole"
        return Judged("nothing", why, status, exchange.fault)
    applied = _holds(rules.applied, response)
    absent = rules.absent is not None and _holds(rules.absent, response)
    match (applied, absent):
        case (True, False):
            return Judged("applied", f"a probe was answered {status}, as applied", status)
        case (False, True):
            return Judged("absent", f"a probe was answered {status}, as absent", status)
        case (True, True):
            why = "which the policy reads both ways"
        case _:
            why = "which proves nothing"
    return Judged("nothing", f"a probe was answered {status}, {why}", status)


def _holds(proof: Proof, response: Response) -> bool:
    if response.status not in proof.status:
        return False
    if proof.where is None:
        return True
    document = _document(response.headers, response.body)
    if document is None:
        return False
    found = lookup(document.value, proof.where)
    if isinstance(found, Absent):
        return False
    return _is(found, proof)


def _is(found: Json, proof: Proof) -> bool:
    if proof.items is not None:
        return isinstance(found, list) and bool(found) == (proof.items == "some")
    return proof.equals is not None and canonical(found) in proof.equals


def _document(headers: Headers, body: bytes) -> Document | None:
    """The body as JSON, whatever its type says; coded ones are not decoded."""
    codings = {line.strip().lower() for line in values(headers, b"content-encoding")}
    if codings - {b"identity"}:
        return None
    found = read_json(body)
    return found if isinstance(found, Document) else None
