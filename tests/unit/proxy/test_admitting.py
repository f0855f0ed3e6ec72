"""Admit through lost answers: the same attempt again, for a bounded time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest

from gateway.core.command import Command
from gateway.core.decide import Facts, Forward, Known, RejectStale, Repeat
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.proxy import admitting
from gateway.proxy.admitting import Admitted, Admitter
from gateway.store.database import STATEMENT_TIMEOUT_S
from tests.kit.commands import attempt, command
from tests.unit.proxy.rig import ManualClock, run

OWN = attempt(1)
COMMAND = command(by=OWN, fence=5)
ADMITTED = Facts(OWN, 5, 5, Known(OWN, "in-flight", same=True, remaining_ms=9), None, None, False)
STALE = Facts(OWN, 5, 6, None, None, None, False)
RELEASED_BETWEEN = Facts(OWN, 5, 5, None, None, None, False)
DEADLOCK, SERIALIZATION = StoreUnavailable("", code="40P01"), StoreUnavailable("", code="40001")
DOWN, LOST = StoreUnavailable("down", code="57P03"), AnswerLost("reset")


class Scripted:
    """Answers in turn; each answer takes ``takes_s`` of the clock. The last one stays."""

    def __init__(self, clock: ManualClock, *answers: Facts | Exception, takes_s: float = 0) -> None:
        self._clock = clock
        self._answers = deque(answers)
        self._takes_s = takes_s
        self.asked: list[Command] = []

    async def admit(self, commands: Sequence[Command]) -> list[Facts]:
        self.asked.extend(commands)
        self._clock.now += self._takes_s
        answer = self._answers.popleft() if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return [answer]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    made = ManualClock()
    made.pass_in(monkeypatch, admitting)
    return made


def admit(store: Scripted, clock: ManualClock, *, within_s: float = 6.5) -> Admitted:
    return run(Admitter(store, clock).admit(COMMAND, clock.now + within_s))


def test_an_answer_is_named(clock: ManualClock) -> None:
    store = Scripted(clock, ADMITTED)
    assert admit(store, clock) == Admitted(Forward(OWN), None)
    assert store.asked == [COMMAND]


def test_after_a_lost_answer_the_same_attempt_is_admitted_again(clock: ManualClock) -> None:
    store = Scripted(clock, LOST, LOST, ADMITTED)
    found = admit(store, clock)
    assert found.decision == Forward(OWN)
    assert [each.attempt for each in store.asked] == [OWN] * 3


def test_the_lost_try_may_commit_until_one_statement_timeout_after_it_was_lost(
    clock: ManualClock,
) -> None:
    store = Scripted(clock, LOST, STALE, takes_s=1)
    began = clock.now
    found = admit(store, clock)
    assert found == Admitted(RejectStale(5, 6), began + 1 + STATEMENT_TIMEOUT_S)


@pytest.mark.parametrize("failure", [DEADLOCK, SERIALIZATION], ids=["deadlock", "serialization"])
def test_the_loser_of_a_deadlock_tries_again_and_has_lost_nothing(
    clock: ManualClock, failure: StoreUnavailable
) -> None:
    assert admit(Scripted(clock, failure, ADMITTED), clock) == Admitted(Forward(OWN), None)


def test_any_other_refusal_of_the_database_is_final_at_once(clock: ManualClock) -> None:
    store = Scripted(clock, DOWN)
    with pytest.raises(StoreUnavailable, match="down") as caught:
        admit(store, clock)
    assert len(store.asked) == 1
    assert caught.value.lost_until is None


def test_once_an_answer_was_lost_a_refusal_is_not_final(clock: ManualClock) -> None:
    """The database may be restarting, and only it knows whether the lost try committed."""
    store = Scripted(clock, LOST, DOWN, DOWN, ADMITTED)
    assert isinstance(admit(store, clock).decision, Forward)
    assert len(store.asked) == 4


@pytest.mark.parametrize("failure", [LOST, DEADLOCK], ids=["lost", "deadlock"])
def test_no_try_begins_when_its_time_is_over(clock: ManualClock, failure: Exception) -> None:
    """One that began in time may answer late; the send then sees that its own window has passed."""
    store = Scripted(clock, failure, takes_s=0.5)
    until = clock.now + 3
    with pytest.raises(StoreUnavailable):
        admit(store, clock, within_s=3)
    assert until - 0.5 <= clock.now < until + 0.5
    assert 1 < len(store.asked) <= 6


def test_given_up_it_says_for_how_long_the_lost_try_counts(clock: ManualClock) -> None:
    store = Scripted(clock, LOST, DOWN, takes_s=1)
    lost_at = clock.now + 1
    with pytest.raises(StoreUnavailable) as caught:
        admit(store, clock, within_s=3)
    assert caught.value.lost_until == lost_at + STATEMENT_TIMEOUT_S
    assert caught.value.code == "57P03"


def test_a_deadlock_without_a_lost_answer_leaves_nothing_to_release(clock: ManualClock) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        admit(Scripted(clock, DEADLOCK), clock, within_s=1)
    assert (caught.value.lost_until, caught.value.code) == (None, "40P01")


def test_a_key_released_in_between_is_admitted_again(clock: ManualClock) -> None:
    store = Scripted(clock, RELEASED_BETWEEN, RELEASED_BETWEEN, ADMITTED)
    assert isinstance(admit(store, clock).decision, Forward)
    assert clock.slept == []


def test_a_key_that_keeps_changing_hands_is_given_up(clock: ManualClock) -> None:
    store = Scripted(clock, RELEASED_BETWEEN)
    assert admit(store, clock) == Admitted(Repeat(), None)
    assert len(store.asked) == 10


def test_it_does_not_hammer_a_database_that_fails(clock: ManualClock) -> None:
    store = Scripted(clock, LOST, LOST, ADMITTED)
    admit(store, clock)
    assert clock.slept == [0.05, 0.05]


def test_a_repeat_is_never_in_a_batch(clock: ManualClock) -> None:
    """What made its first try fail may be its own, and is shared with nobody twice."""
    lane, alone = Scripted(clock, LOST, ADMITTED), Scripted(clock, LOST, ADMITTED)
    alone.admit_free = lane.admit  # type: ignore[attr-defined]
    admitter = Admitter(alone, clock, batch_limit=9)  # type: ignore[arg-type]
    found = run(admitter.admit(COMMAND, clock.now + 6.5))
    assert found.decision == Forward(OWN)
    assert (len(lane.asked), len(alone.asked)) == (1, 2)
