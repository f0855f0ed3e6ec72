"""The verdict on one variant: what was claimed, held against what was heard, done and recorded.

Pure: everything comes in as values.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

__all__ = ["CLAIMS", "LATE_EFFECTS", "STEPS", "Answer", "AuditRow", "Claim", "Facts", "judge"]

CLAIMS = {
    "renewal-refused": "W1's renewal is refused",
    "result-refused": "W1's result is refused and recorded",
    "effect-refused": "W1's second effect is refused: 412",
    "one-effect": "each step has one effect",
    "fences-named": "the audit names both fences",
    "result-published": "only W2's result is published",
    "library-refused": "W1's own library sends nothing",
}
"""In the order in which they are told."""

STEPS = ("capture", "notify")
LATE_EFFECTS = ("effect", "own-key")
"""The second effect, under the step's own key and under another, as workers have them that make a
key for each attempt: then only the fence can tell."""

_TELLING = ("ownership_unknown", "heartbeat_lost")

_OVER = frozenset({"expired", "taken", "cancelled", "ended"})


@dataclass(frozen=True, slots=True)
class Answer:
    """What W1 heard to one of its late requests, or what reached it when it was dead. ``status`` 0:
    nothing."""

    status: int
    document: Mapping[str, object] = field(default_factory=dict)

    @property
    def problem(self) -> str:
        return str(self.document.get("type", "")).rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class AuditRow:
    """As much of a row of the audit as is needed here."""

    at: datetime
    event: str
    fence: int | None
    mark: int | None
    request_id: str | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of one variant at its end. ``effects``: the steps in the upstream's ledger with
    who asked. ``library``: what W1's library raised, ``None`` if it sent; ``events``: what it
    logged of the job. Neither counts where W1 was not ``alive``."""

    first: int
    second: int
    answers: Mapping[str, Answer]
    request_ids: Mapping[str, str]
    effects: Sequence[tuple[str, str]]
    audit: Sequence[AuditRow]
    state: str
    result: object
    wanted: object
    alive: bool
    library: str | None
    events: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim and its evidence, in a line."""

    name: str
    holds: bool
    evidence: str

    @property
    def words(self) -> str:
        return CLAIMS[self.name]


def judge(facts: Facts) -> list[Claim]:
    """Every claim that can be made of the variant, in the order of ``CLAIMS``."""
    claims = [
        _renewal(facts),
        _result(facts),
        _effect(facts),
        _ledger(facts),
        _fences(facts),
        _published(facts),
    ]
    return [*claims, _library(facts)] if facts.alive else claims


def _renewal(facts: Facts) -> Claim:
    answer = facts.answers["renewal"]
    lost = _of_one(answer, "leases", "lost")
    holds = answer.status == 200 and lost in _OVER
    return Claim("renewal-refused", holds, f"{answer.status}, lost: {lost}")


def _result(facts: Facts) -> Claim:
    answer = facts.answers["result"]
    rejected = _of_one(answer, "ends", "rejected")
    rows = [r for r in facts.audit if r.event == "result_rejected" and r.fence == facts.first]
    holds = answer.status == 200 and rejected in _OVER and bool(rows)
    row = f"at {_time(rows[0])}, fence {facts.first}" if rows else "no row in the audit"
    return Claim("result-refused", holds, f"{answer.status}, rejected: {rejected}; {row}")


def _effect(facts: Facts) -> Claim:
    answers = [facts.answers[name] for name in LATE_EFFECTS]
    holds = all(
        each.status == 412 and each.problem in ("fence-stale", "fence-not-held") for each in answers
    )
    own, other = (f"{each.status} {each.problem}".strip() for each in answers)
    return Claim("effect-refused", holds, f"{own}; under another key {other}")


def _ledger(facts: Facts) -> Claim:
    counted = Counter(step for step, _ in facts.effects)
    told = ", ".join(
        f"{step} {counted[step]} ({', '.join(who for s, who in facts.effects if s == step)})"
        for step in sorted(counted)
    )
    return Claim("one-effect", counted == Counter(STEPS), told or "nothing")


def _fences(facts: Facts) -> Claim:
    ids = {facts.request_ids[name] for name in LATE_EFFECTS}
    rows = [each for each in facts.audit if each.request_id in ids]
    named = [r for r in rows if r.fence == facts.first and r.mark == facts.second]
    holds = len(named) == len(ids) and facts.second > facts.first
    told = "; ".join(f"{r.event} at {_time(r)}, fence {r.fence}, mark {r.mark}" for r in rows)
    if holds:
        told = f"fence {facts.first} below mark {facts.second}, at {', '.join(map(_time, rows))}"
    return Claim("fences-named", holds, told or f"no row names {facts.first} and {facts.second}")


def _published(facts: Facts) -> Claim:
    holds = facts.state == "succeeded" and facts.result == facts.wanted
    return Claim("result-published", holds, f"{facts.state}, {json.dumps(facts.result)}")


def _library(facts: Facts) -> Claim:
    holds = facts.library in ("LeaseLost", "OwnershipUnknown")
    logged = ", ".join(each for each in facts.events if each.startswith(_TELLING))
    return Claim("library-refused", holds, f"{facts.library or 'it sent'}; logged: {logged}")


def _time(row: AuditRow) -> str:
    return f"{row.at:%H:%M:%S}.{row.at.microsecond // 1000:03d}Z"


def _of_one(answer: Answer, member: str, wanted: str) -> object:
    """A member of the one entry of a list in the answer."""
    listed = answer.document.get(member)
    if isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], dict):
        return listed[0].get(wanted)
    return None
