"""What was heard is recorded, however long the database takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gateway.core.command import Hold, Release, Settle, SettleResult
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.proxy import settling
from gateway.proxy.settling import Settler
from tests.kit.commands import OK, attempt, command
from tests.unit.proxy.rig import ManualClock, run

COMMAND = command(by=attempt(1))
SETTLE, RELEASE = Settle(COMMAND, OK, True), Release(COMMAND, "dns")
HOLD = Hold(COMMAND, "timeout", None)


class Failing:
    """Fails in turn, then answers."""

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)
        self.tried: list[object] = []

    def _try(self, ends: Sequence[object]) -> None:
        self.tried.extend(ends)
        if self._failures:
            raise self._failures.pop(0)

    async def settle(self, settles: Sequence[Settle]) -> list[SettleResult]:
        self._try(settles)
        return ["settled"]

    async def release(self, releases: Sequence[Release]) -> list[bool]:
        self._try(releases)
        return [True]

    async def hold(self, holds: Sequence[Hold]) -> list[bool]:
        self._try(holds)
        return [False]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    made = ManualClock()
    made.pass_in(monkeypatch, settling)
    return made


FAILURES = [StoreUnavailable("down"), AnswerLost("gone"), StoreUnavailable("", code="40P01")]


@pytest.mark.parametrize(
    ("operation", "end", "answer"),
    [("settle", SETTLE, "settled"), ("release", RELEASE, True), ("hold", HOLD, False)],
)
def test_each_end_is_repeated_until_it_is_recorded(
    clock: ManualClock, operation: str, end: object, answer: object
) -> None:
    store, heard = Failing(*FAILURES), []
    settler = Settler(store, heard.append)
    assert run(getattr(settler, operation)(end)) == answer
    assert store.tried == [end] * 4
    assert heard == [operation] * 3


def test_pauses_grow_to_a_second_and_no_further(clock: ManualClock) -> None:
    store = Failing(*[StoreUnavailable("down")] * 8)
    run(Settler(store, lambda _: None).settle(SETTLE))
    assert clock.slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_a_bug_is_not_repeated(clock: ManualClock) -> None:
    store = Failing(ValueError("bug"))
    with pytest.raises(ValueError, match="bug"):
        run(Settler(store, lambda _: None).settle(SETTLE))
    assert len(store.tried) == 1


def test_a_large_body_that_never_fits_is_given_up_and_the_outcome_recorded() -> None:
    large = replace(OK, body=b"x" * (settling._LARGE + 1))
    store = Failing(*(AnswerLost("silence") for _ in range(settling._TRIES_WITH_BODY)))
    result = run(Settler(store, lambda _: None).settle(Settle(COMMAND, large, True)))
    assert result == "settled"
    kept = [each.keep_body for each in store.tried if isinstance(each, Settle)]
    assert kept == [True] * settling._TRIES_WITH_BODY + [False]


def test_a_body_is_kept_however_long_the_database_is_away() -> None:
    large = replace(OK, body=b"x" * (settling._LARGE + 1))
    store = Failing(*(StoreUnavailable("refused") for _ in range(5)))
    run(Settler(store, lambda _: None).settle(Settle(COMMAND, large, True)))
    assert all(each.keep_body for each in store.tried if isinstance(each, Settle))


def test_a_repeat_is_never_in_a_batch(clock: ManualClock) -> None:
    """What made its first try fail may be its own, and is shared with nobody twice."""
    lane, alone = Failing(AnswerLost("gone")), Failing(AnswerLost("gone"))
    alone.settle_free = lane.settle  # type: ignore[attr-defined]
    settler = Settler(alone, lambda _: None, batch_limit=9)  # type: ignore[arg-type]
    assert run(settler.settle(SETTLE)) == "settled"
    assert (len(lane.tried), len(alone.tried)) == (1, 2)
