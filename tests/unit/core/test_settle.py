"""What an exchange proves: the table of design §5, and that it is total."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import get_args

import pytest

from gateway.core.model import Exchange, Fault, Response, Stage
from gateway.core.settle import (
    EVIDENCE_LIMIT,
    Answered,
    NotExecuted,
    NotSent,
    Outcome,
    Unknown,
    after_resend,
    classify,
    sent_of,
)
from tests.kit.commands import rules

RULES = rules()
FAULTS: tuple[Fault, ...] = get_args(Fault)
BEFORE_THE_FIRST_BYTE = (Stage.CONNECTING, Stage.CONNECTED)
UNANSWERED = (Stage.SENDING_HEADERS, Stage.SENDING_BODY, Stage.SENT)
NOT_EXECUTED, AMBIGUOUS = (401, 407, 421, 425, 429), (408, 500, 502, 503, 504)
PLAIN = (200, 201, 204, 301, 400, 404, 409, 412, 422, 501, 599)


def answer(status: int, body: bytes = b"body") -> Response:
    return Response(status, ((b"A", b"b"),), body)


def complete(status: int) -> Exchange:
    return Exchange(Stage.BODY_COMPLETE, answer(status))


def cut(status: int, fault: Fault = "closed") -> Exchange:
    return Exchange(Stage.STATUS_SEEN, answer(status), fault)


def oversize(status: int) -> Exchange:
    return Exchange(Stage.STATUS_SEEN, answer(status), oversize=True)


TABLE: dict[str, tuple[Exchange, Outcome]] = {
    "no address": (Exchange(Stage.CONNECTING, fault="dns"), NotSent("dns")),
    "refused": (Exchange(Stage.CONNECTING, fault="refused"), NotSent("refused")),
    "no connection in time": (
        Exchange(Stage.CONNECTING, fault="connect-timeout"),
        NotSent("connect-timeout"),
    ),
    "TLS": (Exchange(Stage.CONNECTING, fault="tls"), NotSent("tls")),
    "no slot": (Exchange(Stage.CONNECTING, fault="pool"), NotSent("pool")),
    "paused before the first write": (
        Exchange(Stage.CONNECTED, fault="paused"),
        NotSent("paused"),
    ),
    "paused before the second write": (
        Exchange(Stage.SENDING_BODY, fault="paused"),
        Unknown("paused", "unknown"),
    ),
    "complete, not executed": (complete(429), NotExecuted(answer(429), complete=True)),
    "complete, ambiguous": (complete(503), Unknown(None, "yes", answer(503))),
    "complete, success": (complete(200), Answered(answer(200), kept=True, complete=True)),
    "complete, refusal by the upstream": (
        complete(422),
        Answered(answer(422), kept=True, complete=True),
    ),
    "cut, not executed": (cut(429), NotExecuted(answer(429), complete=False)),
    "cut, ambiguous": (cut(503), Unknown("closed", "yes", answer(503))),
    "cut, success": (cut(200), Answered(answer(200), kept=False, complete=False)),
    "oversize, success": (oversize(200), Answered(answer(200), kept=False, complete=True)),
    "oversize, not executed": (oversize(429), NotExecuted(answer(429), complete=True)),
    "oversize, ambiguous": (oversize(503), Unknown(None, "yes", answer(503))),
    "write broke": (
        Exchange(Stage.SENDING_HEADERS, fault="reset"),
        Unknown("reset", "unknown"),
    ),
    "no answer": (Exchange(Stage.SENT, fault="timeout"), Unknown("timeout", "yes")),
    "no HTTP": (Exchange(Stage.SENT, fault="protocol"), Unknown("protocol", "yes")),
    "closed after the request": (
        Exchange(Stage.SENT, fault="closed"),
        Unknown("closed", "yes"),
    ),
}


@pytest.mark.parametrize("row", TABLE)
def test_each_row_of_the_table_has_its_outcome(row: str) -> None:
    seen, expected = TABLE[row]
    assert classify(seen, RULES) == expected


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stage", BEFORE_THE_FIRST_BYTE)
def test_whatever_happens_before_the_first_byte_was_not_sent(stage: Stage, fault: Fault) -> None:
    assert classify(Exchange(stage, fault=fault), RULES) == NotSent(fault)
    assert sent_of(stage) == "no"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stage", UNANSWERED)
def test_whatever_happens_after_it_without_a_status_is_unknown(stage: Stage, fault: Fault) -> None:
    """Also faults that elsewhere prove that nothing left: the stage decides, not the fault."""
    sent = "yes" if stage is Stage.SENT else "unknown"
    assert classify(Exchange(stage, fault=fault), RULES) == Unknown(fault, sent)


ANSWERED = tuple(
    Exchange(stage, answer(status), fault, oversize=big)
    for stage, status, fault, big in itertools.product(
        (Stage.SENDING_HEADERS, Stage.SENDING_BODY, Stage.STATUS_SEEN, Stage.BODY_COMPLETE),
        (*NOT_EXECUTED, *AMBIGUOUS, *PLAIN),
        (None, *FAULTS),
        (False, True),
    )
)


def test_a_status_that_was_seen_decides_whatever_else_happened() -> None:
    """An early response to a body still being sent counts too."""
    for seen in ANSWERED:
        assert seen.response is not None
        outcome = classify(seen, RULES)
        match seen.response.status:
            case status if status in NOT_EXECUTED:
                assert isinstance(outcome, NotExecuted)
            case status if status in AMBIGUOUS:
                assert isinstance(outcome, Unknown)
                assert outcome.sent == "yes"
            case _:
                assert isinstance(outcome, Answered)


SELF, OTHER = b"fencegate-000000000000", b"fencegate-ffffffffffff"


def looped(status: int, *hops: bytes) -> Response:
    return Response(status, tuple((b"Gateway-Loop", hop) for hop in hops), b"body")


@pytest.mark.parametrize("stage", [Stage.STATUS_SEEN, Stage.BODY_COMPLETE])
def test_a_loop_that_a_gateway_refused_to_us_executed_nothing(stage: Stage) -> None:
    response = looped(508, SELF)
    outcome = classify(Exchange(stage, response), RULES, SELF)
    assert outcome == NotExecuted(response, complete=stage is Stage.BODY_COMPLETE)


@pytest.mark.parametrize("hops", [(OTHER,), (b"other",), (SELF, OTHER), (SELF, SELF), (b"",)])
def test_a_loop_that_was_refused_to_anybody_else_proves_nothing(hops: tuple[bytes, ...]) -> None:
    outcome = classify(Exchange(Stage.BODY_COMPLETE, looped(508, *hops)), RULES, SELF)
    assert outcome == Unknown(None, "yes", looped(508, *hops))


@pytest.mark.parametrize("response", [looped(508), looped(409, SELF), looped(200, SELF)])
def test_another_answer_is_no_loop(response: Response) -> None:
    outcome = classify(Exchange(Stage.BODY_COMPLETE, response), RULES, SELF)
    assert outcome == Answered(response, kept=True, complete=True)


def test_after_a_take_over_a_loop_proves_nothing_of_the_first_attempt() -> None:
    outcome = classify(Exchange(Stage.BODY_COMPLETE, looped(508, SELF)), RULES, SELF)
    assert isinstance(after_resend(outcome, RULES), Unknown)


def test_only_a_whole_body_within_the_limit_is_kept() -> None:
    for seen in ANSWERED:
        outcome = classify(seen, RULES)
        if isinstance(outcome, Answered):
            assert outcome.kept == (seen.stage is Stage.BODY_COMPLETE)


def test_a_body_that_was_cut_short_is_never_called_complete() -> None:
    for status in (*NOT_EXECUTED, *PLAIN):
        outcome = classify(cut(status, "reset"), RULES)
        assert isinstance(outcome, NotExecuted | Answered)
        assert not outcome.complete


def test_the_policys_own_lists_decide() -> None:
    lists = rules()
    other = type(lists)(
        **{name: getattr(lists, name) for name in lists.__slots__}
        | {"not_executed": frozenset({503}), "ambiguous": frozenset({200})}
    )
    assert classify(complete(503), other) == NotExecuted(answer(503), complete=True)
    assert classify(complete(200), other) == Unknown(None, "yes", answer(200))
    assert classify(complete(429), other) == Answered(answer(429), kept=True, complete=True)


def test_evidence_is_the_start_of_the_body() -> None:
    body = b"x" * (EVIDENCE_LIMIT + 1)
    outcome = classify(Exchange(Stage.BODY_COMPLETE, answer(500, body)), RULES)
    assert outcome == Unknown(None, "yes", answer(500, body[:EVIDENCE_LIMIT]))


@pytest.mark.parametrize("stage", Stage)
def test_what_may_be_said_of_the_bytes_only_ever_rises(stage: Stage) -> None:
    order = ("no", "unknown", "yes")
    ranks = [order.index(sent_of(each)) for each in Stage]
    assert ranks == sorted(ranks)
    assert (sent_of(stage) == "no") == (stage < Stage.SENDING_HEADERS)


RESENT = replace(rules(), resend_conflict=frozenset({409}))


@pytest.mark.parametrize("status", [*NOT_EXECUTED, *AMBIGUOUS, 409])
def test_a_status_proves_nothing_about_an_attempt_that_was_taken_over(status: int) -> None:
    outcome = after_resend(classify(complete(status), RESENT), RESENT)
    assert outcome == Unknown(None, "yes", answer(status))


def test_not_sending_proves_nothing_about_an_attempt_that_was_taken_over() -> None:
    for stage, fault in itertools.product(BEFORE_THE_FIRST_BYTE, FAULTS):
        outcome = after_resend(classify(Exchange(stage, fault=fault), RESENT), RESENT)
        assert outcome == Unknown(fault, "unknown")


@pytest.mark.parametrize("status", sorted({*PLAIN} - {409}))
def test_a_final_answer_to_the_attempt_that_took_over_settles(status: int) -> None:
    for exchange in (complete(status), cut(status)):
        outcome = classify(exchange, RESENT)
        assert isinstance(outcome, Answered)
        assert after_resend(outcome, RESENT) == outcome
