"""When asking again for an unknown outcome helps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.model import UnknownMode
from gateway.core.recheck import ASKING_S, RECHECK_S, after_attempt, until_asked
from tests.kit.commands import rules


@pytest.mark.parametrize(
    ("unknown", "settle_delay_s", "first", "repeat"),
    [
        ("hold", 300, 30, 30),
        ("hold", 0, 30, 30),
        ("probe", 300, 5, 5),
        ("resend", 300, 5, 30),
        ("resend", 10, 5, 10),
        ("resend", 1.5, 2, 2),
        ("resend", 0, 1, 1),
    ],
)
def test_it_is_sooner_where_the_gateway_or_a_repeat_finds_out(
    unknown: UnknownMode, settle_delay_s: float, first: int, repeat: int
) -> None:
    policy = replace(rules(), unknown=unknown, settle_delay_s=settle_delay_s)
    assert after_attempt(policy, resent=False) == first
    assert after_attempt(policy, resent=True) == repeat


def test_sixteen_attempts_at_this_pace_outlast_the_default_settle_delay() -> None:
    policy = replace(rules(), unknown="resend", settle_delay_s=300)
    paces = [after_attempt(policy, resent=number > 0) for number in range(16)]
    assert sum(paces) > policy.settle_delay_s


@given(st.none() | st.integers())
def test_the_next_query_is_told_within_bounds(due_s: int | None) -> None:
    told = until_asked(due_s)
    assert 1 <= told <= RECHECK_S
    if due_s is None:
        assert told == ASKING_S
    elif 1 <= due_s <= RECHECK_S:
        assert told == due_s
