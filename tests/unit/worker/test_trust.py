"""The trust window against a model of the database: never trusted when the lease is over there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.leases import DRIFT, REQUEST_TIMEOUT_S, LeaseClass, mistakes, next_beat
from gateway.worker.trust import (
    Trust,
    confirmed,
    granted,
    refused,
    retry_in,
    standing,
    usual_timeout_s,
)

LEASE_S, TOTAL_S = 60.0, 600.0


class TrustMachine(RuleBasedStateMachine):
    """Two clocks: the worker's, and the database's, which may go faster or slower by the drift.
    Requests take any time in either direction, and answers may be lost."""

    @initialize(
        rate=st.floats(1 - DRIFT, 1 + DRIFT), out_s=st.floats(0, 50), back_s=st.floats(0, 50)
    )
    def claim(self, rate: float, out_s: float, back_s: float) -> None:
        self.rate = rate
        self.worker_s = self.database_s = 1_000.0
        self.over = False
        asked = self.worker_s
        self._pass(out_s)
        self.total_until_s = self.database_s + TOTAL_S
        self.lease_until_s = self.database_s + LEASE_S
        remaining = int(LEASE_S * 1000), int(TOTAL_S * 1000)
        self._pass(back_s)
        self.trust = granted(asked, self.worker_s, *remaining)

    @rule(seconds=st.floats(0, 200))
    def time_passes(self, seconds: float) -> None:
        self._pass(seconds)

    @rule(out_s=st.floats(0, 50), back_s=st.floats(0, 50), heard=st.booleans())
    def heartbeat(self, out_s: float, back_s: float, heard: bool) -> None:
        asked = self.worker_s
        self._pass(out_s)
        held = self._is_held()
        if held:
            self.lease_until_s = min(self.database_s + LEASE_S, self.total_until_s)
            remaining_ms = int((self.lease_until_s - self.database_s) * 1000)
            total_ms = int((self.total_until_s - self.database_s) * 1000)
        else:
            self.over = True
        self._pass(back_s)
        if heard and held:
            answer = granted(asked, self.worker_s, remaining_ms, total_ms)
            self.trust = confirmed(self.trust, answer)
        elif heard:
            self.trust = refused(self.trust, "expired")

    @precondition(lambda self: self._is_held())
    @rule(age_s=st.floats(0.001, 100))
    def an_old_answer_comes_late(self, age_s: float) -> None:
        asked = self.trust.confirmed_mono_s - age_s
        before = self.trust
        self.trust = confirmed(before, granted(asked, self.worker_s, 60_000, 600_000))
        assert self.trust == before

    @invariant()
    def what_is_trusted_is_held(self) -> None:
        if standing(self.trust, self.worker_s) == "held":
            assert self._is_held()

    @invariant()
    def what_is_said_to_be_over_is_over(self) -> None:
        if self.trust.lost is None and standing(self.trust, self.worker_s) == "lost":
            assert not self._is_held()

    def _is_held(self) -> bool:
        return not self.over and self.database_s < self.lease_until_s

    def _pass(self, seconds: float) -> None:
        self.worker_s += seconds
        self.database_s += seconds * self.rate


TestTrust = TrustMachine.TestCase


def test_the_first_reason_of_a_loss_stays_and_no_answer_undoes_it() -> None:
    trust = refused(refused(granted(0, 1, 60_000, 600_000), "taken"), "expired")
    assert trust.lost == "taken"
    assert confirmed(trust, granted(5, 6, 60_000, 600_000)) is trust
    assert standing(trust, 7) == "lost"


def test_what_does_not_fit_into_the_window_is_not_begun() -> None:
    trust = Trust(confirmed_mono_s=0, until_mono_s=60, over_mono_s=600)
    assert standing(trust, 29.9, 30) == "held"
    assert standing(trust, 30, 30) == "unknown"
    assert standing(trust, 599.9) == "unknown"
    assert standing(trust, 600) == "lost"


@given(st.integers(1, 10_000), st.floats(0.3, 3_600))
def test_a_heartbeat_without_an_answer_is_repeated_soon_and_ever_less_often(
    failures: int, heartbeat_s: float
) -> None:
    assert 0.25 <= retry_in(failures, heartbeat_s) <= retry_in(failures + 1, heartbeat_s)
    assert retry_in(failures, heartbeat_s) <= heartbeat_s


def test_the_first_repeat_comes_after_a_quarter_of_a_second() -> None:
    assert [retry_in(n, 15) for n in (1, 2, 3, 7)] == [0.25, 0.5, 1.0, 15]


def test_a_repeat_never_comes_later_than_the_heartbeat() -> None:
    assert retry_in(1, 0.1) == pytest.approx(0.1)


def test_what_a_try_may_take_is_always_left_while_heartbeats_are_answered() -> None:
    tightest = LeaseClass(lease_s=2 * 0.4 + 0.1 + REQUEST_TIMEOUT_S, heartbeat_s=0.4, jitter_s=0.1)
    for terms in (LeaseClass(), tightest, LeaseClass(lease_s=600, heartbeat_s=100, jitter_s=0)):
        assert not [each for each in mistakes(terms) if each.field == "lease_s"]
        trust = granted(0, 0, int(terms.lease_s * 1000), 3_600_000)
        last = next_beat(0, terms, 1)  # as late as a heartbeat may be
        usual_s = usual_timeout_s(terms)
        assert 4 < usual_s <= 30
        assert standing(trust, last, usual_s) == "held"
