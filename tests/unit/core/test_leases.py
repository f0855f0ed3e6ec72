"""Lease classes and the arithmetic of time around a lease."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.leases import (
    DRIFT,
    REQUEST_TIMEOUT_S,
    LeaseClass,
    backoff_ms,
    fits,
    mistakes,
    next_beat,
    trusted_until,
)

DEFAULT = LeaseClass()
SECONDS = st.floats(0.1, 1_000)
CHANCE = st.floats(0, 1, exclude_max=True)


def found(**changed: float) -> list[tuple[str, str]]:
    return [(each.field, each.problem) for each in mistakes(replace(DEFAULT, **changed))]


def test_the_default_is_sound() -> None:
    assert found() == []


def test_a_lease_outlasts_its_missed_heartbeats_and_says_with_which_numbers() -> None:
    problem = "47 does not outlast 3 missed heartbeats: 3 × 15 + 2 = 47"
    assert found(lease_s=47) == [("lease_s", problem)]
    assert found(lease_s=47.5) == []


def test_a_heartbeat_and_a_request_remain_at_each_renewal() -> None:
    ((_, problem),) = found(lease_s=36, misses=1)
    assert problem == (
        "36 leaves less than a heartbeat and a request at a renewal: "
        "15 + 2 gone, 15 + 5 to remain = 37"
    )
    assert found(lease_s=37, misses=1) == []


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"total_s": 59, "stage_limit_s": 10}, "total_s"),
        ({"stage_limit_s": 3_601}, "stage_limit_s"),
        ({"backoff_max_s": 4}, "backoff_max_s"),
    ],
)
def test_other_times_fit_each_other(changed: dict[str, float], field: str) -> None:
    assert [name for name, _ in found(**changed)] == [field]


@given(SECONDS, SECONDS, SECONDS, st.integers(1, 9), CHANCE)
def test_a_sound_class_keeps_its_word(
    lease_s: float, heartbeat_s: float, jitter_s: float, misses: int, chance: float
) -> None:
    terms = replace(
        DEFAULT, lease_s=lease_s, heartbeat_s=heartbeat_s, jitter_s=jitter_s, misses=misses
    )
    if any(each.field == "lease_s" for each in mistakes(terms)):
        return
    beat = next_beat(0, terms, chance)
    assert lease_s - beat >= heartbeat_s + REQUEST_TIMEOUT_S - 1e-6
    assert misses * heartbeat_s + jitter_s < lease_s


def test_the_delay_doubles_up_to_its_longest() -> None:
    delays = [backoff_ms(DEFAULT, attempts, 0) for attempts in (1, 2, 3, 7, 8, 9, 1_000)]
    assert delays == [5_000, 10_000, 20_000, 320_000, 600_000, 600_000, 600_000]


@given(st.integers(1, 10_000), CHANCE)
def test_chance_takes_up_to_half_off(attempts: int, chance: float) -> None:
    full = backoff_ms(DEFAULT, attempts, 0)
    assert full / 2 - 1 <= backoff_ms(DEFAULT, attempts, chance) <= full


@given(st.floats(0, 1e6), st.integers(0, 10**7), SECONDS, st.floats(1 - DRIFT / 2, 1 + DRIFT / 2))
def test_a_worker_never_trusts_its_lease_for_longer_than_it_lasts(
    asked: float, remaining_ms: int, until_answered: float, rate: float
) -> None:
    """However long the request was on its way, and whichever clock runs faster within reason:
    the database counted from some moment after it left."""
    ends_on_my_clock = asked + (until_answered + remaining_ms / 1000) * rate
    assert trusted_until(asked, remaining_ms) <= ends_on_my_clock + 1e-6


def test_what_cannot_end_inside_the_window_does_not_fit() -> None:
    assert fits(10.0, 15.0, 4.9)
    assert not fits(10.0, 15.0, 5.0)
    assert not fits(16.0, 15.0, 0.0)
