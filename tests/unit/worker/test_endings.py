"""What becomes of a lease when its handler is out."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.jobs import DELAY_LIMIT_MS, ERROR_LIMIT, PAYLOAD_LIMIT
from gateway.worker.endings import (
    Completed,
    End,
    Failed,
    HandedBack,
    Next,
    Outcome,
    Raised,
    Returned,
    body_of,
    ending,
)
from gateway.worker.errors import (
    Executed,
    LeaseLost,
    NotSent,
    OutcomeUnknown,
    OwnershipUnknown,
    Refused,
    RetryLater,
    Unretryable,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def end_of(outcome: Outcome) -> End | None:
    return ending(outcome, lost=None, drained=False)


@given(JSON)
def test_what_is_returned_is_the_result(value: object) -> None:
    end = end_of(Returned(value))
    if isinstance(end, Failed):  # infinities are no JSON
        assert "not JSON" in end.error
    else:
        assert isinstance(end, Completed)
        assert json.loads(end.result) == value


def test_a_next_stage_carries_its_result() -> None:
    following = Next("charge", "account:1", True, {"case": 1})
    assert end_of(Returned(following)) == Completed('{"case": 1}', following)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (object(), "type object"),
        ({"at": {1, 2}}, "type dict is not JSON: Object of type set"),
        (float("inf"), "not JSON"),
        ("x" * PAYLOAD_LIMIT, f"{PAYLOAD_LIMIT + 2} bytes"),
    ],
)
def test_what_cannot_be_kept_fails_for_good(value: object, told: str) -> None:
    end = end_of(Returned(value))
    assert isinstance(end, Failed)
    assert not end.retry
    assert told in end.error


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        (Unretryable("no"), False),
        (Refused("key-reused", "no"), False),
        (Executed("yes"), False),
        (NotSent("no"), True),
        (OutcomeUnknown("perhaps"), True),
        (OwnershipUnknown("perhaps"), True),
        (KeyError("x"), True),
        (SystemExit(1), True),
        (asyncio.CancelledError(), True),
    ],
)
def test_what_is_raised_fails_the_attempt(error: BaseException, retry: bool) -> None:
    end = end_of(Raised(error))
    assert isinstance(end, Failed)
    assert (end.retry, end.delay_s) == (retry, 0)
    assert type(error).__name__ in end.error


@pytest.mark.parametrize(("asked", "given"), [(7, 7), (-1, 0), (1e12, DELAY_LIMIT_MS / 1000)])
def test_an_attempt_may_be_put_off_by_a_week_at_most(asked: float, given: float) -> None:
    end = end_of(Raised(RetryLater("later", asked)))
    assert isinstance(end, Failed)
    assert (end.retry, end.delay_s) == (True, given)


def test_a_lease_that_is_lost_gets_no_end_but_a_result_as_evidence() -> None:
    assert ending(Raised(KeyError()), lost="taken", drained=False) is None
    assert ending(Raised(asyncio.CancelledError()), lost="taken", drained=True) is None
    assert ending(Returned(1), lost="taken", drained=False) == Completed("1")
    assert end_of(Raised(LeaseLost("taken"))) is None


def test_a_handler_that_the_stop_cancelled_is_handed_back() -> None:
    assert ending(Raised(asyncio.CancelledError()), lost=None, drained=True) == HandedBack()
    failed = ending(Raised(KeyError()), lost=None, drained=True)
    assert isinstance(failed, Failed)


class Untold(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_any_error_can_be_told() -> None:
    for error in (Untold(), ValueError("\ud800" * 10_000)):
        end = end_of(Raised(error))
        assert isinstance(end, Failed)
        assert 0 < len(end.error) <= ERROR_LIMIT
        end.error.encode()


REFERENCE = {"job": "j", "entity": "e", "fence": 7}


@pytest.mark.parametrize(
    ("end", "members"),
    [
        (Completed('{"a":  1}'), {"how": "completed", "result": {"a": 1}}),
        (
            Completed("1", Next("s", None, False, 1)),
            {"how": "completed", "result": 1, "next": {"name": "s", "wait": False}},
        ),
        (Failed("e"), {"how": "failed", "error": "e", "retry": True}),
        (
            Failed("e", retry=False, delay_s=2.5),
            {"how": "failed", "error": "e", "retry": False, "delay_s": 2.5},
        ),
        (HandedBack(), {"how": "handed-back"}),
        (HandedBack(60), {"how": "handed-back", "delay_s": 60}),
    ],
)
def test_the_body_of_an_end(end: End, members: dict[str, object]) -> None:
    body = body_of(REFERENCE, "w", end)
    assert json.loads(body) == {"worker": "w", "ends": [{"lease": REFERENCE, **members}]}
    if isinstance(end, Completed):
        assert end.result.encode() in body  # as it was encoded, for its digest
