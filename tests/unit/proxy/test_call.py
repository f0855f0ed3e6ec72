"""An attempt's own limits: it stops before the database calls it unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.command import Command
from gateway.proxy.call import ADMIT_WINDOW_S, GRACE_S, Call, plan
from gateway.store.database import STATEMENT_TIMEOUT_S
from tests.kit.commands import attempt, command, rules

STARTED = 1_000.0
TIMEOUTS = st.floats(0.001, 3_600)


@pytest.mark.parametrize(("timeout_s", "first_byte_s"), [(30, 7), (5, 7), (2, 4), (0.5, 2.5)])
def test_the_first_byte_leaves_within_the_send_window(
    timeout_s: float, first_byte_s: float
) -> None:
    assert plan(STARTED, rules(timeout_s=timeout_s)).first_byte == STARTED + first_byte_s


@pytest.mark.parametrize("timeout_s", [1, 30, 600])
def test_it_stops_a_second_before_the_database_calls_it_unknown(timeout_s: float) -> None:
    limits = plan(STARTED, rules(timeout_s=timeout_s))
    assert limits.settled == STARTED + timeout_s + GRACE_S
    assert limits.last == limits.settled - 1


@given(TIMEOUTS, st.floats(0, 20))
def test_no_deadline_lies_behind_the_plan_however_long_the_admit_took(
    timeout_s: float, admit_s: float
) -> None:
    limits = plan(STARTED, rules(timeout_s=timeout_s))
    deadlines = limits.deadlines(STARTED + admit_s)
    assert deadlines.first_byte == limits.first_byte
    assert deadlines.connect <= deadlines.first_byte < limits.last < limits.settled
    assert deadlines.last <= limits.last


@given(TIMEOUTS)
def test_an_answer_at_once_leaves_the_whole_timeout(timeout_s: float) -> None:
    deadlines = plan(STARTED, rules(timeout_s=timeout_s)).deadlines(STARTED)
    assert deadlines.last == STARTED + timeout_s
    assert deadlines.connect == STARTED + min(5, timeout_s)


@given(TIMEOUTS)
def test_an_admit_that_was_given_up_cannot_commit_after_the_send_window(timeout_s: float) -> None:
    assert ADMIT_WINDOW_S >= STATEMENT_TIMEOUT_S
    assert plan(STARTED, rules(timeout_s=timeout_s)).first_byte - STARTED > STATEMENT_TIMEOUT_S


def test_each_round_is_an_attempt_of_its_own() -> None:
    made: Command = command(by=attempt(0))
    call = Call(made, rules(), None, None, 0, "default", lambda: None)  # type: ignore[arg-type]
    rounds = [call.next_round() for _ in range(3)]
    assert len({each.command.attempt for each in rounds} | {made.attempt}) == 4
    assert all(each.command.key == made.key for each in rounds)
