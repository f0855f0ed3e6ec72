"""The model asks the product's own core whatever it has to decide; answers are remembered."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Literal
from uuid import UUID

from gateway.core.decide import Decision, Facts, Known, Open, decide
from gateway.core.evidence import Verdict, judge
from gateway.core.leases import fits, trusted_until
from gateway.core.model import Exchange, Fault, ProbeRules, Proof, Response, Stage
from gateway.core.settle import Answered, NotExecuted, NotSent, Outcome, after_resend, classify
from tests.kit.commands import rules as policy
from tests.model.state import NOBODY, Mode, SettledBy, Store
from tests.model.store import Rules

__all__ = ["End", "decided", "end_of", "of_resent", "outcome", "read_probe", "trust_after"]

TICK_MS = 60_000
"""A tick, where the core counts in milliseconds."""

RULES = replace(policy(), unknown="resend", resend_within_s=60, resend_conflict=frozenset({409}))
PROBE = ProbeRules(Proof(frozenset({200})), Proof(frozenset({404})), interval_s=120, replays=False)

End = Literal["settle", "release", "hold"]


def decided(rules: Rules, store: Store, key: int, fence: int, attempt: int) -> Decision:
    """What one admit comes to, by the facts that the store has committed."""
    at = rules.entity_of[key]
    entity, row = store.entities[at], store.rows[key]
    other = None
    if entity.open_key not in (NOBODY, key):
        holder = store.rows[entity.open_key]
        other = "unknown" if holder is None else rules.state(holder)
    return _decided(
        *(attempt, fence, entity.mark, entity.held),
        None if row is None else (row.attempt, rules.state(row), row.by, row.age),
        *(other, rules.mode, rules.terms.within),
    )


@cache
def _decided(
    attempt: int,
    fence: int,
    mark: int,
    held: int | None,
    row: tuple[int, Literal["in-flight", "unknown", "settled"], SettledBy | None, int] | None,
    other: Literal["in-flight", "unknown"] | None,
    mode: Mode,
    within: int,
) -> Decision:
    known = None
    if row is not None:
        by, state, settled_by, age = row
        heard = Response(200, (), b"") if settled_by in ("answer", "late") else None
        known = Known(
            attempt=UUID(int=by + 1),
            state=state,
            same=True,
            remaining_ms=0,
            status=200 if heard else None,
            response=heard,
            settled_by=settled_by,
            unknown=mode,
            age_ms=age * TICK_MS,
            upstream_key="k" if mode == "resend" else None,
            account_same=True,
        )
    return decide(
        Facts(
            attempt=UUID(int=attempt + 1),
            fence=fence,
            mark=mark,
            known=known,
            open=None if other is None else Open("other", other, 0),
            held=held,
            issuer_here=False,
            resend_within_ms=within * TICK_MS if mode == "resend" else None,
            probes=mode == "probe",
        )
    )


@cache
def outcome(stage: Stage, fault: Fault | None, status: int | None) -> Outcome:
    """What an exchange proves that ended so."""
    response = None if status is None else Response(status, (), b"")
    return classify(Exchange(stage, response, fault), RULES)


def end_of(found: Outcome) -> End:
    """How that is recorded."""
    match found:
        case Answered():
            return "settle"
        case NotSent() | NotExecuted():
            return "release"
        case _:
            return "hold"


def of_resent(found: Outcome) -> Outcome:
    """The same, of an attempt that took over."""
    return after_resend(found, RULES)


@cache
def read_probe(status: int) -> Verdict:
    """What this answer to a status query proves."""
    return judge(Exchange(Stage.BODY_COMPLETE, Response(status, (), b"")), PROBE).verdict


@cache
def trust_after(asked_ago: int, remaining: int) -> int:
    """Ticks for which a worker may believe in a lease, of which it asked so long ago."""
    until_s = trusted_until(0.0, remaining * TICK_MS)
    left = 0
    while fits((asked_ago + left) * TICK_MS / 1000, until_s, 0.0):
        left += 1
    return left
