"""What becomes of a lease when its handler is out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.jobs import DELAY_LIMIT_MS, ERROR_LIMIT, PAYLOAD_LIMIT
from gateway.worker.endings import (
    FINAL,
    Completed,
    End,
    Failed,
    Gone,
    HandedBack,
    Next,
    Outcome,
    Raised,
    Returned,
    body_of,
    ending,
    why_of,
)
from gateway.worker.errors import (
    Executed,
    LeaseLost,
    Misuse,
    NoAnswer,
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
        (Misuse("no"), False),
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


@pytest.mark.parametrize(
    ("error", "delay_s"),
    [
        (OutcomeUnknown("perhaps", step="a"), 60),
        (OutcomeUnknown("perhaps", retry_after_s=300), 300),
        (OutcomeUnknown("perhaps", retry_after_s=1e9), DELAY_LIMIT_MS / 1000),
        (NotSent("waits", unresolved=True, retry_after_s=30), 60),
    ],
)
def test_what_waits_for_a_decision_is_handed_back(error: BaseException, delay_s: float) -> None:
    assert end_of(Raised(error)) == HandedBack(delay_s)


def test_what_nothing_runs_is_handed_back() -> None:
    assert end_of(Gone("no thread")) == HandedBack(60)
    assert ending(Gone("no thread"), lost="taken", drained=False) is None


def status_error(status: int, *, final: bool) -> httpx.HTTPStatusError:
    extensions = {FINAL: "a"} if final else {}
    request = httpx.Request("POST", "http://h/a")
    response = httpx.Response(status, request=request, extensions=extensions)
    with pytest.raises(httpx.HTTPStatusError) as caught:
        response.raise_for_status()
    return caught.value


@pytest.mark.parametrize("status", [302, 402, 500])
def test_a_final_status_fails_for_good_and_says_what_to_do(status: int) -> None:
    end = end_of(Raised(status_error(status, final=True)))
    assert isinstance(end, Failed)
    assert not end.retry
    assert f"answer {status} is final for this key" in end.error
    assert "a new job, with a new key" in end.error


def test_another_status_is_a_failure_like_any_other() -> None:
    end = end_of(Raised(status_error(503, final=False)))
    assert isinstance(end, Failed)
    assert end.retry


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([KeyError("x"), OutcomeUnknown("perhaps"), Unretryable("no")], HandedBack(60)),
        ([OutcomeUnknown("perhaps"), LeaseLost("taken")], None),
    ],
)
def test_of_a_group_the_most_careful_decides(
    errors: list[Exception], expected: HandedBack | None
) -> None:
    assert end_of(Raised(ExceptionGroup("g", errors))) == expected
    nested = ExceptionGroup("g", [ValueError(), ExceptionGroup("h", errors)])
    assert end_of(Raised(nested)) == expected


def test_a_group_of_failures_fails_as_its_gravest() -> None:
    end = end_of(Raised(ExceptionGroup("g", [KeyError("x"), Unretryable("no")])))
    assert isinstance(end, Failed)
    assert not end.retry
    later = end_of(Raised(ExceptionGroup("g", [RetryLater("later", 7)])))
    assert isinstance(later, Failed)
    assert later.delay_s == 7


class Odd(dict[str, int]):
    def items(self) -> Any:
        raise SystemExit(3)


def test_a_value_whose_own_code_fails_is_no_json() -> None:
    end = end_of(Returned(Odd(a=1)))
    assert isinstance(end, Failed)
    assert not end.retry
    assert "type Odd is not JSON" in end.error


def test_only_the_librarys_own_sentences_are_told() -> None:
    for own in (Misuse("m"), NoAnswer("n"), OutcomeUnknown("o"), Refused("t", "d"), Executed("e")):
        assert why_of(own) == str(own)
    assert "402" in (why_of(status_error(402, final=True)) or "")

    class Theirs(Refused):
        pass

    for other in (
        ValueError("v"),
        Unretryable("u"),
        RetryLater("l", 1),
        Theirs("t", "d"),
        status_error(503, final=False),
    ):
        assert why_of(other) is None


@pytest.mark.parametrize("delay_s", ["5", None, float("nan"), True])
def test_a_delay_that_is_no_number_is_told_when_it_is_made(delay_s: Any) -> None:
    with pytest.raises(Misuse, match="seconds as a number"):
        RetryLater("later", delay_s)


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
    body = body_of(REFERENCE, end)
    assert json.loads(body) == {"lease": REFERENCE, **members}
    if isinstance(end, Completed):
        assert end.result.encode() in body  # as it was encoded, for its digest
