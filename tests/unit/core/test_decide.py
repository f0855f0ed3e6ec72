"""The decision table: each row once by name, and first match wins over every combination."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.decide import (
    Decision,
    Facts,
    Forward,
    Known,
    Lapsed,
    Open,
    Probe,
    RejectExpired,
    RejectNotHeld,
    RejectNotRetained,
    RejectReused,
    RejectStale,
    RejectUnknown,
    RejectUnresolved,
    Repeat,
    Replay,
    TakeOver,
    WaitForEntity,
    WaitForKey,
    decide,
    hindrance,
)
from gateway.core.model import Response

OWN, OTHER = UUID(int=1), UUID(int=2)
OK = Response(200, ((b"A", b"b"),), b"done")

KNOWN = Known(OTHER, "in-flight", same=True, remaining_ms=900)
KEPT = replace(KNOWN, state="settled", status=200, response=OK, settled_by="answer")
NOT_KEPT = replace(KEPT, response=None)
UNKNOWN = replace(KNOWN, state="unknown", remaining_ms=-5, evidence_status=503)
RESENDABLE = replace(UNKNOWN, unknown="resend", age_ms=999, upstream_key="fg-1", account_same=True)
ASKABLE = replace(UNKNOWN, unknown="probe", account_same=True)
BUSY = Open("earlier", "in-flight", 700)
STUCK = Open("earlier", "unknown", -1)
FREE = Facts(attempt=OWN, fence=7, mark=7, known=None, open=None, held=None, issuer_here=False)
INSERTED = replace(FREE, known=replace(KNOWN, attempt=OWN))


def facts(known: Known | None, held: Open | None = None, *, fence: int | None = 7) -> Facts:
    return replace(FREE, known=known, open=held, fence=fence)


def here(given: Facts, held: int | None, *, policy: bool = False) -> Facts:
    """The same on an entity whose fences are issued here, or under such a policy."""
    return replace(given, held=held, issuer_here=policy)


def rules_now(given: Facts) -> Facts:
    """The same under a policy that can send again within a second, and ask."""
    return replace(given, resend_within_ms=1_000, probes=True)


REJECTED = RejectUnknown(503, compared=True)


def other_rules(known: Known) -> Known:
    """The same row, fingerprinted by other rules, so that nothing can be compared."""
    return replace(known, same=None)


ROWS: dict[str, tuple[Facts, Decision]] = {
    "1 stale": (facts(None, fence=6), RejectStale(6, 7)),
    "1 stale, though settled": (facts(KEPT, fence=6), RejectStale(6, 7)),
    "1 stale, though in flight": (facts(KNOWN, fence=6), RejectStale(6, 7)),
    "1 stale, though reused": (facts(replace(KNOWN, same=False), fence=6), RejectStale(6, 7)),
    "1 stale, though busy": (facts(None, BUSY, fence=6), RejectStale(6, 7)),
    "1 stale, though issued here": (here(facts(None, fence=6), 7, policy=True), RejectStale(6, 7)),
    "2 not held, the entity says so": (
        here(facts(None, fence=8), 7),
        RejectNotHeld(8, 7, 7),
    ),
    "2 not held, the policy says so": (
        here(facts(None), None, policy=True),
        RejectNotHeld(7, 7, None),
    ),
    "2 not held, nobody's": (here(facts(None), 0), RejectNotHeld(7, 7, 0)),
    "2 not held, though settled": (here(facts(KEPT), 0), RejectNotHeld(7, 7, 0)),
    "2 not held, though reused": (
        here(facts(replace(KNOWN, same=False)), 0),
        RejectNotHeld(7, 7, 0),
    ),
    "2 not held, though busy": (here(facts(None, BUSY), 0), RejectNotHeld(7, 7, 0)),
    "held, settled": (here(facts(KEPT), 7, policy=True), Replay(OK, "answer", compared=True)),
    "held, without a fence": (here(facts(None, BUSY, fence=None), 7), WaitForEntity(BUSY)),
    "3 reused, in flight": (
        facts(replace(KNOWN, same=False)),
        RejectReused(replace(KNOWN, same=False)),
    ),
    "3 reused, settled": (
        facts(replace(KEPT, same=False)),
        RejectReused(replace(KEPT, same=False)),
    ),
    "3 reused, unknown": (
        facts(replace(UNKNOWN, same=False)),
        RejectReused(replace(UNKNOWN, same=False)),
    ),
    "4 settled, kept": (facts(KEPT), Replay(OK, "answer", compared=True)),
    "4 settled late": (
        facts(replace(KEPT, settled_by="late")),
        Replay(OK, "late", compared=True),
    ),
    "4 settled, not compared": (facts(other_rules(KEPT)), Replay(OK, "answer", compared=False)),
    "4 settled, though busy": (facts(KEPT, BUSY), Replay(OK, "answer", compared=True)),
    "4 settled, without a fence": (
        facts(KEPT, fence=None),
        Replay(OK, "answer", compared=True),
    ),
    "5 settled, not kept": (facts(NOT_KEPT), RejectNotRetained(200, "answer", compared=True)),
    "5 resolved as executed": (
        facts(replace(NOT_KEPT, status=None, settled_by="resolved")),
        RejectNotRetained(None, "resolved", compared=True),
    ),
    "5 not kept, not compared": (
        facts(other_rules(NOT_KEPT)),
        RejectNotRetained(200, "answer", compared=False),
    ),
    "7 resend": (rules_now(facts(RESENDABLE)), TakeOver(OTHER, "fg-1", REJECTED)),
    "7 not now, by the policy": (facts(RESENDABLE), REJECTED),
    "7 another account": (rules_now(facts(replace(RESENDABLE, account_same=False))), REJECTED),
    "7 no key was sent": (rules_now(facts(replace(RESENDABLE, upstream_key=None))), REJECTED),
    "7 too old": (rules_now(facts(replace(RESENDABLE, age_ms=1_000))), REJECTED),
    "7 not compared": (
        rules_now(facts(other_rules(RESENDABLE))),
        RejectUnknown(503, compared=False),
    ),
    "7 another holds the slot": (rules_now(facts(RESENDABLE, BUSY)), REJECTED),
    "7 reused": (
        rules_now(facts(replace(RESENDABLE, same=False))),
        RejectReused(replace(RESENDABLE, same=False)),
    ),
    "7 stale": (rules_now(facts(RESENDABLE, fence=6)), RejectStale(6, 7)),
    "7 in flight": (rules_now(facts(replace(RESENDABLE, state="in-flight"))), WaitForKey(-5)),
    "8 probe": (rules_now(facts(ASKABLE)), Probe(OTHER, REJECTED)),
    "8 not compared": (
        rules_now(facts(other_rules(ASKABLE))),
        Probe(OTHER, RejectUnknown(503, compared=False)),
    ),
    "8 though another holds the slot": (rules_now(facts(ASKABLE, BUSY)), Probe(OTHER, REJECTED)),
    "8 no probe now": (facts(ASKABLE), REJECTED),
    "8 another account": (rules_now(facts(replace(ASKABLE, account_same=False))), REJECTED),
    "9 held, whatever the policy says now": (
        rules_now(facts(replace(ASKABLE, unknown="hold", upstream_key="fg-1"))),
        REJECTED,
    ),
    "6 in flight": (facts(KNOWN), WaitForKey(900)),
    "6 in flight, not compared": (facts(other_rules(KNOWN)), WaitForKey(900)),
    "6 in flight, though busy": (facts(KNOWN, BUSY), WaitForKey(900)),
    "9 unknown": (facts(UNKNOWN), RejectUnknown(503, compared=True)),
    "9 unknown, nothing heard": (
        facts(replace(UNKNOWN, evidence_status=None)),
        RejectUnknown(None, compared=True),
    ),
    "9 unknown, not compared": (facts(other_rules(UNKNOWN)), RejectUnknown(503, compared=False)),
    "9 unknown, though stuck": (facts(UNKNOWN, STUCK), RejectUnknown(503, compared=True)),
    "11 entity unresolved": (facts(None, STUCK), RejectUnresolved(STUCK)),
    "12 entity busy": (facts(None, BUSY), WaitForEntity(BUSY)),
    "12 entity busy, without a fence": (facts(None, BUSY, fence=None), WaitForEntity(BUSY)),
    "13 new": (INSERTED, Forward(OWN)),
    "13 new, without entity row": (
        replace(INSERTED, fence=None, mark=None),
        Forward(OWN),
    ),
    "released in between": (FREE, Repeat()),
    "released in between, without entity row": (replace(FREE, fence=None, mark=None), Repeat()),
}


@pytest.mark.parametrize("row", ROWS)
def test_each_row_of_the_table_has_its_decision(row: str) -> None:
    given_facts, expected = ROWS[row]
    assert decide(given_facts) == expected


def test_an_equal_or_higher_fence_is_not_stale() -> None:
    assert decide(facts(KEPT, fence=7)) == Replay(OK, "answer", compared=True)
    assert decide(replace(facts(KEPT), fence=8, mark=8)) == Replay(OK, "answer", compared=True)


def test_fence_zero_is_a_fence() -> None:
    assert decide(replace(facts(None), fence=0, mark=1)) == RejectStale(0, 1)


# The attempt's own row: a repeated admit after a lost commit answer.


def test_the_own_row_is_forwarded_though_its_fence_was_overtaken_meanwhile() -> None:
    """It was admitted with a good fence; newer serial commands wait for it (G2)."""
    assert decide(replace(INSERTED, fence=6, mark=9)) == Forward(OWN)


def test_the_own_row_is_forwarded_though_its_fence_is_no_longer_held() -> None:
    assert decide(here(INSERTED, 0, policy=True)) == Forward(OWN)


def test_the_own_row_past_its_deadline_is_never_sent() -> None:
    lapsed = replace(INSERTED, known=replace(UNKNOWN, attempt=OWN))
    assert decide(lapsed) == Lapsed(OWN)
    assert decide(replace(lapsed, fence=6, mark=9)) == Lapsed(OWN)


def test_the_own_row_that_a_person_resolved_is_not_sent() -> None:
    resolved = replace(NOT_KEPT, attempt=OWN, status=None, settled_by="resolved")
    assert decide(replace(INSERTED, known=resolved)) == RejectNotRetained(None, "resolved", True)


# Every combination.

STATES: tuple[Known, ...] = (
    *(KNOWN, UNKNOWN, RESENDABLE, replace(RESENDABLE, age_ms=2_000), ASKABLE, KEPT, NOT_KEPT),
    *(replace(each, account_same=False) for each in (RESENDABLE, ASKABLE)),
)
KNOWNS: tuple[Known | None, ...] = (
    None,
    *(
        replace(state, attempt=attempt, same=same)
        for state in STATES
        for attempt in (OWN, OTHER)
        for same in (True, False, None)
    ),
)
OPENS = (None, BUSY, STUCK)
FENCES = ((None, None), (None, 7), (6, 7), (7, 7))
ISSUED = ((None, False), (None, True), (0, False), (0, True), (7, False), (7, True))
EVERYTHING = tuple(
    Facts(OWN, fence, mark, known, opened, held, issuer_here, *now, expired)
    for known, opened, (fence, mark), (held, issuer_here), now, expired in itertools.product(
        KNOWNS, OPENS, FENCES, ISSUED, ((None, False), (1_000, True)), (False, True)
    )
)

Row = tuple[str, Callable[[Facts], bool], type[object]]


def _foreign(facts: Facts) -> Known | None:
    return facts.known if facts.known is not None and facts.known.attempt != OWN else None


def _own(facts: Facts, state: str) -> bool:
    known = facts.known
    return known is not None and known.attempt == OWN and known.state == state


def _state(facts: Facts, state: str) -> bool:
    """Of the row under the key, whoever's it is: an own settled one is replayed like another."""
    return facts.known is not None and facts.known.state == state


def _may_be_sent_again(f: Facts) -> bool:
    known = f.known
    return (
        known is not None
        and known.state == "unknown"
        and (known.unknown, known.same, known.account_same) == ("resend", True, True)
        and known.upstream_key is not None
        and f.resend_within_ms is not None
        and known.age_ms < f.resend_within_ms
        and f.open is None
    )


IN_ORDER: tuple[Row, ...] = (
    ("own, in flight", lambda f: _own(f, "in-flight"), Forward),
    ("own, past its deadline", lambda f: _own(f, "unknown"), Lapsed),
    (
        "1",
        lambda f: (
            not _own(f, "settled")
            and f.fence is not None
            and f.mark is not None
            and f.fence < f.mark
        ),
        RejectStale,
    ),
    (
        "2",
        lambda f: (
            not _own(f, "settled")
            and f.fence is not None
            and (f.issuer_here or f.held is not None)
            and f.fence != f.held
        ),
        RejectNotHeld,
    ),
    ("3", lambda f: f.known is not None and f.known.same is False, RejectReused),
    (
        "4",
        lambda f: _state(f, "settled") and f.known is not None and f.known.response is not None,
        Replay,
    ),
    ("5", lambda f: _state(f, "settled"), RejectNotRetained),
    ("6", lambda f: _state(f, "in-flight"), WaitForKey),
    ("7", lambda f: _may_be_sent_again(f), TakeOver),
    (
        "8",
        lambda f: (
            _state(f, "unknown")
            and f.known is not None
            and (f.known.unknown, f.known.account_same, f.probes) == ("probe", True, True)
        ),
        Probe,
    ),
    ("9", lambda f: _state(f, "unknown"), RejectUnknown),
    ("10", lambda f: f.expired, RejectExpired),
    ("11", lambda f: f.open is not None and f.open.state == "unknown", RejectUnresolved),
    ("12", lambda f: f.open is not None, WaitForEntity),
    ("repeat", lambda f: True, Repeat),
)


@given(st.sampled_from(EVERYTHING))
def test_the_first_row_that_matches_wins(drawn: Facts) -> None:
    _, _, expected = next(row for row in IN_ORDER if row[1](drawn))
    assert type(decide(drawn)) is expected


def test_every_combination_has_a_decision_and_every_decision_a_combination() -> None:
    seen = {type(decide(each)) for each in EVERYTHING}
    assert seen == set(Decision.__args__)


def test_nothing_is_forwarded_but_the_calls_own_attempt() -> None:
    for each in EVERYTHING:
        if isinstance(decide(each), Forward):
            assert each.known is not None
            assert each.known.attempt == each.attempt
            assert each.known.state == "in-flight"
        if _foreign(each) is not None or each.known is None:
            assert not isinstance(decide(each), Forward | Lapsed)


@pytest.mark.parametrize(
    ("known", "about", "why"),
    [
        (UNKNOWN, {}, "held"),
        (ASKABLE, {}, "not-offered"),
        (ASKABLE, {"probes": True}, None),
        (replace(ASKABLE, account_same=False), {"probes": True}, "another-account"),
        (RESENDABLE, {"resend_within_ms": 1_000}, None),
        (RESENDABLE, {}, "not-offered"),
        (RESENDABLE, {"resend_within_ms": 999}, "window-over"),
        (RESENDABLE, {"resend_within_ms": 1_000, "open": STUCK}, "entity-open"),
        (replace(RESENDABLE, upstream_key=None), {"resend_within_ms": 1_000}, "no-key"),
        (replace(RESENDABLE, same=None), {"resend_within_ms": 1_000}, "not-compared"),
        (replace(RESENDABLE, account_same=False), {"resend_within_ms": 1_000}, "another-account"),
    ],
)
def test_why_an_unknown_command_waits_for_somebody(
    known: Known, about: dict[str, object], why: str | None
) -> None:
    given = replace(facts(known), **about)  # type: ignore[arg-type]
    assert hindrance(known, given) == why
    assert isinstance(decide(given), RejectUnknown) == (why is not None)
