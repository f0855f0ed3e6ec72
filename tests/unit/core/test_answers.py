"""Every refusal says in one sentence what to do, and never more than is known."""

from __future__ import annotations

from typing import get_args
from uuid import UUID

import pytest

from gateway.core.answers import (
    Refusal,
    incomplete,
    no_answer,
    not_sent,
    outcome_unknown,
    refusal,
    rows_lost,
)
from gateway.core.decide import (
    Known,
    Lapsed,
    Open,
    RejectExpired,
    RejectNotHeld,
    RejectNotRetained,
    RejectReused,
    RejectStale,
    RejectUnknown,
    RejectUnresolved,
    Repeat,
    WaitForEntity,
    WaitForKey,
)
from gateway.core.model import Fault, Response
from gateway.core.problems import Problem
from gateway.core.settle import NotSent, Unknown

FIRST = Known(UUID(int=2), "settled", same=False, remaining_ms=0, status=201)
REFUSALS: dict[str, tuple[Refusal, str]] = {
    "stale": (RejectStale(6, 7), "fence-stale"),
    "not held": (RejectNotHeld(8, 7, 7), "fence-not-held"),
    "nobody's": (RejectNotHeld(7, 7, 0), "fence-not-held"),
    "never issued": (RejectNotHeld(7, 7, None), "fence-not-held"),
    "reused": (RejectReused(FIRST), "key-reused"),
    "expired": (RejectExpired(), "key-expired"),
    "not kept": (RejectNotRetained(200, "answer", True), "response-not-retained"),
    "resolved": (RejectNotRetained(None, "resolved", True), "response-not-retained"),
    "in flight": (WaitForKey(1500), "in-flight"),
    "unknown": (RejectUnknown(None, True), "outcome-unknown"),
    "unknown with evidence": (RejectUnknown(503, False), "outcome-unknown"),
    "unresolved": (RejectUnresolved(Open("first", "unknown", -1)), "entity-unresolved"),
    "busy": (WaitForEntity(Open("first", "in-flight", 700)), "entity-busy"),
    "lapsed": (Lapsed(UUID(int=1)), "not-sent"),
    "repeat": (Repeat(), "overloaded"),
}
OUTCOMES: dict[str, Problem] = {
    **{f"not sent: {fault}": not_sent(NotSent(fault)) for fault in get_args(Fault)},
    **{f"unknown: {fault}": outcome_unknown(Unknown(fault, "yes")) for fault in get_args(Fault)},
    "rows lost": rows_lost("the database lost what it had acknowledged"),
    "ambiguous": outcome_unknown(Unknown(None, "yes", Response(503, (), b"later"))),
    "incomplete": incomplete(Response(200, (), b"")),
    **{f"safe: {fault}": no_answer(Unknown(fault, "yes")) for fault in get_args(Fault)},
    "incomplete, not executed": incomplete(Response(429, (), b""), repeatable=True),
}
PROBLEMS = {name: refusal(decision) for name, (decision, _) in REFUSALS.items()} | OUTCOMES
IMPERATIVES = ("Stop", "Use", "Do not", "Repeat", "Wait", "Ask")


def test_every_refusal_is_covered() -> None:
    assert {type(decision) for decision, _ in REFUSALS.values()} == set(get_args(Refusal))


@pytest.mark.parametrize("name", REFUSALS)
def test_each_refusal_has_its_type(name: str) -> None:
    decision, expected = REFUSALS[name]
    assert refusal(decision).type == expected


@pytest.mark.parametrize("name", PROBLEMS)
def test_each_begins_with_what_to_do(name: str) -> None:
    detail = PROBLEMS[name].detail
    assert detail.startswith(IMPERATIVES)
    assert detail.endswith(".")
    assert "\n" not in detail


@pytest.mark.parametrize("name", PROBLEMS)
def test_waiting_has_a_time_exactly_where_it_helps(name: str) -> None:
    problem = PROBLEMS[name]
    retry = problem.retry or problem.kind.retry
    if retry == "wait":
        assert problem.retry_after_s is not None
        assert 1 <= problem.retry_after_s <= 30
    if retry == "never":
        assert problem.retry_after_s is None


def test_a_stale_fence_is_told_both_numbers() -> None:
    problem = refusal(RejectStale(6, 7))
    assert problem.members == {"fence": 6, "high_water_mark": 7}
    assert "6" in problem.detail
    assert "7" in problem.detail


@pytest.mark.parametrize(("held", "says"), [(7, "7"), (0, "nobody"), (None, "none has been")])
def test_a_fence_that_is_not_held_is_told_which_one_is(held: int | None, says: str) -> None:
    problem = refusal(RejectNotHeld(8, 7, held))
    assert problem.members == {"fence": 8, "high_water_mark": 7, "held": held}
    assert says in problem.detail


def test_a_reused_key_is_told_the_first_commands_state_and_nothing_of_its_content() -> None:
    assert refusal(RejectReused(FIRST)).members == {"first": {"state": "settled", "status": 201}}


def test_a_person_resolved_stands_in_place_of_a_status() -> None:
    assert refusal(RejectNotRetained(None, "resolved", True)).members == {"resolved": "executed"}
    kept = refusal(RejectNotRetained(201, "late", True)).members
    assert kept == {"upstream": {"status": 201}}


@pytest.mark.parametrize(
    "decision", [RejectNotRetained(200, "answer", False), RejectUnknown(None, False)]
)
def test_a_fingerprint_that_was_not_compared_is_said(decision: Refusal) -> None:
    assert refusal(decision).members["fingerprint"] == "not-compared"


@pytest.mark.parametrize("other", [WaitForEntity, RejectUnresolved])
def test_a_blocked_command_is_told_by_which(other: type[WaitForEntity]) -> None:
    problem = refusal(other(Open("first", "in-flight", 10)))
    assert problem.members["blocked_by"] == {"key": "first", "state": "in-flight"}


@pytest.mark.parametrize(
    ("remaining_ms", "seconds"), [(-10, 1), (0, 1), (1, 1), (1001, 2), (4200, 5), (60_000, 5)]
)
def test_a_command_in_flight_is_looked_at_again_soon(remaining_ms: int, seconds: int) -> None:
    assert refusal(WaitForKey(remaining_ms)).retry_after_s == seconds


def test_ambiguous_is_told_with_its_evidence_as_text() -> None:
    evidence = Response(503, (), b"caf\xc3\xa9 \xff")
    problem = outcome_unknown(Unknown(None, "yes", evidence))
    assert problem.members == {"upstream": {"status": 503, "body_start": "café �"}}
    assert (problem.sent, problem.received_status, problem.error) == ("yes", 503, "")


@pytest.mark.parametrize("sent", ["no", "unknown", "yes"])
def test_an_unknown_outcome_says_what_is_known_of_the_bytes(sent: str) -> None:
    assert outcome_unknown(Unknown("reset", sent)).sent == sent  # type: ignore[arg-type]


def test_a_known_evidence_status_proves_that_it_was_sent() -> None:
    assert refusal(RejectUnknown(503, True)).sent == "yes"
    assert refusal(RejectUnknown(None, True)).sent == "unknown"


def test_only_proof_that_nothing_was_executed_offers_the_same_key_at_once() -> None:
    """Or a method that executes nothing."""
    offers = {
        name
        for name, problem in OUTCOMES.items()
        if (problem.retry or problem.kind.retry) == "same-key"
    }
    proofs = {name for name in OUTCOMES if name.startswith(("not sent", "safe"))}
    assert offers == proofs | {"incomplete, not executed"}


def test_a_cut_response_never_calls_a_command_executed_that_was_not() -> None:
    assert "counts as executed" in OUTCOMES["incomplete"].detail
    assert "was executed" not in OUTCOMES["incomplete"].detail  # its request may not be whole
    assert "executed" not in OUTCOMES["incomplete, not executed"].detail
    assert OUTCOMES["incomplete, not executed"].members == {"upstream": {"status": 429}}
