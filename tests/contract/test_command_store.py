"""What every command store promises the proxy. The fake runs it too: that is why it is trusted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from gateway.core.command import Command, Hold, Release, Settle
from gateway.core.decide import (
    Decision,
    Facts,
    Forward,
    Lapsed,
    Open,
    RejectNotHeld,
    RejectNotRetained,
    RejectReused,
    RejectStale,
    RejectUnknown,
    RejectUnresolved,
    Replay,
    WaitForEntity,
    WaitForKey,
    decide,
)
from gateway.core.headers import recordable
from gateway.core.model import Response
from tests.contract.subjects import Fake, Postgres, Subject
from tests.integration.test_store_model import Bench
from tests.kit.commands import (
    DEADLINE_MS,
    OK,
    SETTLE_DELAY_S,
    attempt,
    command,
    digest,
    response,
)
from tests.kit.db import Server
from tests.kit.model import FIRST_ISSUED

BUSY_PAGE = response(503, b"try later")
RECORDED = Response(OK.status, recordable(OK.headers), OK.body)


@pytest.fixture(scope="module")
def bench(postgres: Server) -> Iterator[Bench]:
    with postgres.database() as dsn:
        made = Bench(dsn)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(params=["postgres", "fake"])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "fake":
        return Fake()
    return Postgres(request.getfixturevalue("bench"))


class Caller:
    """Short words for what the tests do to a store."""

    _numbers = itertools.count(1_000_000)

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.store = subject.store

    def new(self, key: str = "k", **about: object) -> Command:
        by = attempt(next(self._numbers))
        return command(key, by=by, tenant=self.subject.tenant, **about)  # type: ignore[arg-type]

    def facts(self, *commands: Command) -> list[Facts]:
        return self.subject.run(self.store.admit(commands))

    def admit(self, made: Command) -> Decision:
        (facts,) = self.facts(made)
        return decide(facts)

    def forwarded(self, key: str = "k", **about: object) -> Command:
        made = self.new(key, **about)
        assert self.admit(made) == Forward(made.attempt)
        return made

    def settle(self, made: Command, answer: Response = OK, *, keep: bool = True) -> str:
        (result,) = self.subject.run(self.store.settle([Settle(made, answer, keep)]))
        return str(result)

    def release(self, made: Command) -> bool:
        (done,) = self.subject.run(self.store.release([Release(made, "status 429")]))
        return bool(done)

    def hold(self, made: Command, evidence: Response | None = None) -> bool:
        (done,) = self.subject.run(self.store.hold([Hold(made, "no answer", evidence)]))
        return bool(done)

    def ready(self, key: str, entity: str) -> tuple[bool, bool]:
        tenant = self.subject.tenant
        keys, entities = self.subject.run(
            self.store.ready([(tenant, digest(key))], [(tenant, entity)])
        )
        return bool(keys), bool(entities)


@pytest.fixture
def caller(subject: Subject) -> Caller:
    return Caller(subject)


# Admit.


def test_a_new_command_is_admitted_under_its_own_attempt(caller: Caller) -> None:
    made = caller.new(fence=4)
    (facts,) = caller.facts(made)
    assert decide(facts) == Forward(made.attempt)
    assert (facts.mark, facts.open) == (4, None)
    assert facts.known is not None
    assert facts.known.remaining_ms == DEADLINE_MS


def test_the_same_attempt_again_recognises_its_own_row(caller: Caller) -> None:
    made = caller.forwarded()
    assert caller.admit(made) == Forward(made.attempt)


def test_the_same_attempt_past_its_deadline_is_not_sent(caller: Caller) -> None:
    made = caller.forwarded()
    caller.subject.advance(DEADLINE_MS)
    assert caller.admit(made) == Lapsed(made.attempt)


def test_the_deadline_itself_is_already_unknown(caller: Caller) -> None:
    caller.forwarded()
    caller.subject.advance(DEADLINE_MS - 1)
    assert caller.admit(caller.new()) == WaitForKey(1)
    caller.subject.advance(1)
    assert caller.admit(caller.new()) == RejectUnknown(None, compared=True)


def test_a_lower_fence_is_refused_with_evidence_and_an_equal_one_passes(caller: Caller) -> None:
    first = caller.forwarded("a", fence=5)
    caller.settle(first)
    stale = caller.new("b", fence=4)
    assert caller.admit(stale) == RejectStale(4, 5)
    assert caller.subject.events(stale) == ["fence_stale"]
    assert isinstance(caller.admit(caller.new("c", fence=5)), Forward)


def test_a_lower_fence_is_refused_though_its_key_is_settled(caller: Caller) -> None:
    first = caller.forwarded(fence=4)
    caller.settle(first)
    caller.forwarded("other", fence=5)
    (facts,) = caller.facts(caller.new(fence=4))
    assert decide(facts) == RejectStale(4, 5)
    assert facts.known is not None
    assert facts.known.response is None  # nobody stale sees a response


@pytest.mark.parametrize("then", ["replayed", "reused", "busy"])
def test_a_good_fence_is_remembered_whatever_the_later_rows_say(caller: Caller, then: str) -> None:
    first = caller.forwarded(fence=1)
    if then == "replayed":
        caller.settle(first)
    other = {"replayed": caller.new(fence=9), "reused": caller.new(fence=9, body="other")}
    caller.admit(other.get(then) or caller.new("another", fence=9))
    assert caller.subject.mark(first.entity) == 9


def test_without_a_fence_nothing_is_compared_or_raised(caller: Caller) -> None:
    caller.settle(caller.forwarded("a", fence=5))
    caller.settle(caller.forwarded("b", fence=None))
    assert caller.subject.mark("invoice:1") == 5


def test_once_a_fence_was_issued_here_only_the_one_that_is_held_is_admitted(
    caller: Caller,
) -> None:
    held = caller.subject.issue("invoice:1")
    caller.subject.advance(2 * 86_400_000)  # long enough for the row to be touched anyway
    higher = caller.new("b", fence=held + 5)
    assert caller.admit(higher) == RejectNotHeld(held + 5, held, held)
    assert caller.subject.events(higher) == ["fence_refused"]
    assert caller.subject.mark("invoice:1") == held  # or it would stand above every lease
    caller.forwarded("c", fence=held)
    assert caller.subject.issue("invoice:1") == held + 1
    assert caller.admit(caller.new("d", fence=held)) == RejectStale(held, held + 1)


def test_a_policy_that_issues_here_admits_none_before_the_first(caller: Caller) -> None:
    early = caller.new(fence=3, issuer_here=True)
    assert caller.admit(early) == RejectNotHeld(3, 0, None)
    held = caller.subject.issue("invoice:1")
    assert held == FIRST_ISSUED
    caller.forwarded(fence=held, issuer_here=True)


def test_the_first_fence_issued_here_leaves_those_of_an_outside_issuer_far_behind(
    caller: Caller,
) -> None:
    caller.settle(caller.forwarded("a", fence=41))
    assert caller.subject.issue("invoice:1") == 42 + 2**20
    assert caller.subject.issue("invoice:1") == 43 + 2**20
    late = caller.new("b", fence=42)
    assert caller.admit(late) == RejectStale(42, 43 + 2**20)


def test_so_does_the_first_on_an_entity_of_which_no_outside_fence_was_seen(caller: Caller) -> None:
    """Two workers: one has the outside issuer's 1 and was not heard of yet."""
    held = caller.subject.issue("invoice:1")
    late = caller.new("late", fence=1)
    assert caller.admit(late) == RejectStale(1, held)
    caller.forwarded("rightful", fence=held)


def test_a_fence_that_is_not_held_gets_no_replay(caller: Caller) -> None:
    held = caller.subject.issue("invoice:1")
    caller.settle(caller.forwarded(fence=held))
    (facts,) = caller.facts(caller.new(fence=held + 1))
    assert decide(facts) == RejectNotHeld(held + 1, held, held)
    assert facts.known is not None
    assert facts.known.response is None


def test_without_a_fence_who_issues_it_does_not_matter(caller: Caller) -> None:
    caller.subject.issue("invoice:1")
    caller.forwarded(fence=None)


def test_the_own_row_is_recognised_though_its_fence_is_no_longer_held(caller: Caller) -> None:
    made = caller.forwarded(fence=caller.subject.issue("invoice:1"))
    caller.subject.issue("invoice:1")
    assert caller.admit(made) == Forward(made.attempt)
    assert caller.subject.events(made) == []


def test_a_reused_key_is_refused_with_evidence(caller: Caller) -> None:
    first = caller.forwarded()
    caller.settle(first)
    reused = caller.new(body="other")
    decision = caller.admit(reused)
    assert isinstance(decision, RejectReused)
    assert (decision.first.state, decision.first.status) == ("settled", 200)
    assert decision.first.response is None
    assert caller.subject.events(reused) == ["key_reused"]


def test_other_rules_are_not_compared(caller: Caller) -> None:
    caller.settle(caller.forwarded(rules="v1"))
    assert caller.admit(caller.new(rules="v2")) == Replay(RECORDED, "answer", compared=False)


@pytest.mark.parametrize("other", [{"policy": "pay/refund"}, {"entity": "invoice:2"}])
def test_a_key_of_another_command_or_entity_is_reused_whatever_the_rules(
    caller: Caller, other: dict[str, str]
) -> None:
    """Two commands have two entity templates, so two rule versions: those alone say nothing."""
    caller.settle(caller.forwarded(rules="v1"))
    reused = caller.new(rules="v2", **other)
    assert isinstance(caller.admit(reused), RejectReused)
    assert caller.subject.events(reused) == ["key_reused"]


def test_a_serial_command_waits_for_the_open_one(caller: Caller) -> None:
    caller.forwarded("first")
    blocked = caller.admit(caller.new("second"))
    assert blocked == WaitForEntity(Open("first", "in-flight", DEADLINE_MS))
    caller.subject.advance(DEADLINE_MS + 5)
    stuck = caller.admit(caller.new("second"))
    assert stuck == RejectUnresolved(Open("first", "unknown", -5))


def test_a_parallel_command_neither_takes_nor_looks_at_the_slot(caller: Caller) -> None:
    caller.forwarded("first", serial=False)
    caller.forwarded("second", serial=True)
    caller.forwarded("third", serial=False)


def test_entities_do_not_share_slots_or_fences(caller: Caller) -> None:
    caller.forwarded("a", entity="e1", fence=9)
    caller.forwarded("b", entity="e2", fence=1)


# Batches.


def test_facts_come_back_in_the_order_of_the_batch(caller: Caller) -> None:
    keys = [f"k{number}" for number in range(8)]
    batch = [
        caller.new(key, entity=f"e{9 - number}", fence=number) for number, key in enumerate(keys)
    ]
    facts = caller.facts(*batch)
    assert [each.attempt for each in facts] == [each.attempt for each in batch]
    assert [each.mark for each in facts] == list(range(8))
    assert all(isinstance(decide(each), Forward) for each in facts)


def test_the_commands_of_a_batch_are_judged_each_by_itself(caller: Caller) -> None:
    caller.settle(caller.forwarded("done", entity="e1", fence=5))
    caller.forwarded("open", entity="e2")
    batch = (
        caller.new("new", entity="e3"),
        caller.new("done", entity="e1", fence=5),
        caller.new("blocked", entity="e2"),
        caller.new("open", entity="e4", body="other"),
    )
    kinds = [type(decide(each)) for each in caller.facts(*batch)]
    assert kinds == [Forward, Replay, WaitForEntity, RejectReused]


@pytest.mark.parametrize(
    "second",
    [{"key": "k", "entity": "e2"}, {"key": "k2", "entity": "e1"}],
    ids=["same key", "same entity"],
)
def test_a_batch_with_a_key_or_an_entity_twice_is_a_bug(
    caller: Caller, second: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match="at most one command per key and per entity"):
        caller.facts(caller.new("k", entity="e1"), caller.new(**second))
    assert isinstance(caller.admit(caller.new("k", entity="e1")), Forward)


def test_commands_without_an_entity_row_may_share_its_name(caller: Caller) -> None:
    plain = {"entity": "e1", "serial": False, "fence": None}
    facts = caller.facts(caller.new("a", **plain), caller.new("b", **plain), caller.new("c"))
    assert all(isinstance(decide(each), Forward) for each in facts)
    assert facts[0].mark is None


# Settle.


def test_settled_in_time_is_replayed_to_everybody_with_that_key(caller: Caller) -> None:
    made = caller.forwarded()
    assert caller.settle(made) == "settled"
    assert caller.admit(caller.new()) == Replay(RECORDED, "answer", compared=True)
    assert caller.subject.events(made) == []
    caller.forwarded("next")


def test_a_response_that_is_not_kept_is_still_known_as_executed(caller: Caller) -> None:
    made = caller.forwarded()
    caller.settle(made, response(201), keep=False)
    assert caller.admit(caller.new()) == RejectNotRetained(201, "answer", compared=True)


def test_an_empty_body_is_kept_as_one(caller: Caller) -> None:
    made = caller.forwarded()
    caller.settle(made, Response(204, (), b""))
    assert caller.admit(caller.new()) == Replay(Response(204, (), b""), "answer", compared=True)


def test_settling_again_changes_nothing(caller: Caller) -> None:
    made = caller.forwarded()
    caller.settle(made)
    assert caller.settle(made, response(500)) == "already"
    assert caller.admit(caller.new()) == Replay(RECORDED, "answer", compared=True)


@pytest.mark.parametrize("became_unknown", ["by time", "by holding"])
def test_an_unknown_command_is_settled_late_by_its_own_response(
    caller: Caller, became_unknown: str
) -> None:
    made = caller.forwarded()
    if became_unknown == "by time":
        caller.subject.advance(DEADLINE_MS)
    else:
        caller.hold(made)
    assert caller.settle(made) == "late"
    assert caller.settle(made) == "already"
    assert caller.admit(caller.new()) == Replay(RECORDED, "late", compared=True)
    assert "late_evidence" in caller.subject.events(made)
    caller.forwarded("next")


def test_a_response_after_the_key_was_given_back_is_recorded_where_it_is_free(
    caller: Caller,
) -> None:
    made = caller.forwarded()
    caller.release(made)
    assert caller.settle(made) == "contradicts"
    assert caller.settle(made) == "already"
    assert caller.admit(caller.new()) == Replay(RECORDED, "late", compared=True)
    assert caller.subject.events(made) == ["late_evidence", "released"]


def test_a_response_after_another_attempt_took_the_key_is_an_alarm(caller: Caller) -> None:
    made = caller.forwarded()
    caller.release(made)
    newer = caller.forwarded()
    assert caller.settle(made) == "duplicate"
    assert caller.settle(made) == "duplicate"
    assert caller.subject.events(made) == ["duplicate_effect_suspected", "released"]
    assert caller.admit(newer) == Forward(newer.attempt)
    assert caller.settle(newer) == "settled"


def test_a_response_after_a_person_said_executed_is_evidence_only(caller: Caller) -> None:
    made = caller.forwarded()
    caller.hold(made)
    assert caller.subject.resolve(made, executed=True) == "resolved"
    assert caller.settle(made) == "resolved"
    assert caller.admit(caller.new()) == RejectNotRetained(None, "resolved", compared=True)
    assert "late_evidence" in caller.subject.events(made)


def test_a_response_after_a_person_said_not_executed_is_recorded(caller: Caller) -> None:
    made = caller.forwarded()
    caller.hold(made)
    caller.subject.advance(SETTLE_DELAY_S * 1000)
    assert caller.subject.resolve(made, executed=False) == "resolved"
    assert caller.settle(made) == "contradicts"


def test_the_results_of_a_batch_come_back_in_its_order(caller: Caller) -> None:
    made = [caller.forwarded(f"k{number}", entity=f"e{number}") for number in range(4)]
    caller.settle(made[2])
    caller.release(made[1])
    caller.hold(made[0])
    batch = [Settle(each, OK, True) for each in reversed(made)]
    results = caller.subject.run(caller.store.settle(batch))
    assert results == ["settled", "already", "contradicts", "late"]


# Release.


def test_releasing_gives_key_and_slot_back_once(caller: Caller) -> None:
    made = caller.forwarded()
    assert caller.release(made) is True
    assert caller.release(made) is False
    assert caller.subject.events(made) == ["released"]
    caller.forwarded("other")
    caller.forwarded("k", entity="invoice:2")


def test_the_mark_stays_when_a_key_is_given_back(caller: Caller) -> None:
    caller.release(caller.forwarded(fence=9))
    assert caller.admit(caller.new(fence=8)) == RejectStale(8, 9)


def test_only_the_attempt_that_holds_the_key_can_give_it_back(caller: Caller) -> None:
    first = caller.forwarded()
    caller.release(first)
    second = caller.forwarded()
    assert caller.release(first) is False
    assert caller.admit(second) == Forward(second.attempt)


def test_a_settled_command_is_never_given_back(caller: Caller) -> None:
    made = caller.forwarded()
    caller.settle(made)
    assert caller.release(made) is False
    assert isinstance(caller.admit(caller.new()), Replay)


def test_an_unknown_command_is_never_given_back(caller: Caller) -> None:
    """What has been held has no proof any more, whatever a late release believes."""
    made = caller.forwarded()
    caller.hold(made)
    assert caller.release(made) is False
    assert "released" not in caller.subject.events(made)
    assert caller.admit(caller.new()) == RejectUnknown(None, compared=True)


# Hold.


def test_holding_makes_unknown_at_once_and_once(caller: Caller) -> None:
    made = caller.forwarded()
    assert caller.hold(made, BUSY_PAGE) is True
    assert caller.hold(made) is False
    assert caller.admit(caller.new()) == RejectUnknown(503, compared=True)
    assert caller.admit(caller.new("other")) == RejectUnresolved(Open("k", "unknown", 0))
    assert caller.subject.events(made) == ["outcome_unknown"]


def test_no_time_ends_what_is_unknown(caller: Caller) -> None:
    caller.hold(caller.forwarded())
    caller.subject.advance(10 * 365 * 86_400_000)
    assert caller.admit(caller.new()) == RejectUnknown(None, compared=True)


def test_holding_never_moves_a_deadline_ahead(caller: Caller) -> None:
    made = caller.forwarded()
    caller.subject.advance(DEADLINE_MS + SETTLE_DELAY_S * 1000)
    assert caller.hold(made) is True
    assert caller.subject.resolve(made, executed=False) == "resolved"


@pytest.mark.parametrize("ended", ["settle", "release"])
def test_what_has_ended_cannot_be_held(caller: Caller, ended: str) -> None:
    made = caller.forwarded()
    end: Callable[[Command], object] = getattr(caller, ended)
    end(made)
    assert caller.hold(made) is False
    assert "outcome_unknown" not in caller.subject.events(made)


# Resolve.


def test_not_executed_waits_until_the_upstream_cannot_act_any_more(caller: Caller) -> None:
    made = caller.forwarded()
    assert caller.subject.resolve(made, executed=True) == "in-flight"
    caller.hold(made)
    caller.subject.advance(SETTLE_DELAY_S * 1000 - 1)
    assert caller.subject.resolve(made, executed=False) == "too-early"
    caller.subject.advance(1)
    assert caller.subject.resolve(made, executed=False) == "resolved"
    assert caller.subject.resolve(made, executed=False) == "missing"
    again = caller.forwarded()
    assert caller.subject.resolve(made, executed=True) == "changed"
    assert caller.settle(again) == "settled"
    assert caller.subject.resolve(again, executed=True) == "settled"


def test_an_attempt_may_be_resolved_again_where_a_lost_try_admitted_it_again(
    caller: Caller,
) -> None:
    made = caller.forwarded()
    for _ in range(2):
        caller.subject.advance(DEADLINE_MS + SETTLE_DELAY_S * 1000)
        assert caller.subject.resolve(made, executed=False) == "resolved"
        caller.admit(made)
    assert caller.subject.events(made) == ["resolved", "resolved"]


# Ready: whom it is worth waking.


def test_a_key_in_flight_is_not_ready_and_neither_is_its_entity(caller: Caller) -> None:
    assert caller.ready("k", "invoice:1") == (True, True)
    made = caller.forwarded()
    assert caller.ready("k", "invoice:1") == (False, False)
    caller.settle(made)
    assert caller.ready("k", "invoice:1") == (True, True)


@pytest.mark.parametrize("how", ["hold", "time"])
def test_what_became_unknown_is_ready_so_that_its_waiters_hear_of_it(
    caller: Caller, how: str
) -> None:
    made = caller.forwarded()
    if how == "hold":
        caller.hold(made)
    else:
        caller.subject.advance(DEADLINE_MS)
    assert caller.ready("k", "invoice:1") == (True, True)


def test_ready_answers_by_place(caller: Caller) -> None:
    caller.forwarded("b", entity="y")
    tenant = caller.subject.tenant
    keys = [(tenant, digest(key)) for key in ("a", "b", "c")]
    entities = [(tenant, entity) for entity in ("x", "y", "z")]
    found = caller.subject.run(caller.store.ready(keys, entities))
    assert tuple(map(sorted, found)) == ([0, 2], [0, 2])


def test_a_command_of_another_tenant_is_another_command(caller: Caller) -> None:
    made = caller.forwarded()
    (facts,) = caller.subject.run(
        caller.store.admit([command("k", by=attempt(7_000_000 + made.tenant), tenant=-made.tenant)])
    )
    assert isinstance(decide(facts), Forward)
