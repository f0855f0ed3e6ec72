"""What an answer means to a worker."""

from __future__ import annotations

from typing import get_args

import pytest

from gateway.core.problems import PREFIX, TYPES
from gateway.worker.actions import ACTIONS, Act, Action, Settled, Strange, read_answer


def problem(name: str, **members: object) -> dict[str, object]:
    kind = TYPES.get(name)  # type: ignore[call-overload]
    usual = {"sent": kind.sent, "retry": kind.retry} if kind else {}
    return {"type": PREFIX + name, "detail": "do it so", **usual, **members}


def test_every_problem_type_has_an_action() -> None:
    assert ACTIONS.keys() == TYPES.keys()
    assert set(ACTIONS.values()) == set(get_args(Action))


@pytest.mark.parametrize("name", TYPES)
def test_no_action_repeats_what_the_gateway_says_never_helps(name: str) -> None:
    kind, action = TYPES[name], ACTIONS[name]  # type: ignore[index]
    if kind.retry == "never" and name != "unauthenticated":
        assert action in ("stop", "refused", "executed")
    if kind.retry == "same-key":
        assert action == "retry"


@pytest.mark.parametrize("name", TYPES)
def test_a_problem_is_read_as_the_table_says(name: str) -> None:
    meaning = read_answer("rejected", TYPES[name].status, problem(name))  # type: ignore[index]
    assert isinstance(meaning, Act)
    assert (meaning.type, meaning.detail) == (name, "do it so")
    assert meaning.action == ("retry" if TYPES[name].retry == "same-key" else ACTIONS[name])  # type: ignore[index]


@pytest.mark.parametrize("outcome", ["applied", "replayed", "unguarded"])
@pytest.mark.parametrize("status", [200, 404, 412, 500])
def test_the_upstreams_final_answer_is_the_answer(outcome: str, status: int) -> None:
    assert read_answer(outcome, status, None) == Settled()


@pytest.mark.parametrize("outcome", ["applied", "replayed", "unguarded"])
@pytest.mark.parametrize("name", ["fence-stale", "key-reused", "unauthenticated", "later"])
def test_a_problem_of_a_gateway_behind_this_one_is_an_answer_like_any_other(
    outcome: str, name: str
) -> None:
    assert read_answer(outcome, 412, problem(name)) == Settled()


@pytest.mark.parametrize("name", ["fence-stale", "response-incomplete", "key-reused"])
def test_what_did_nothing_is_asked_again_whatever_it_says(name: str) -> None:
    meaning = read_answer("not-executed", 429, problem(name))
    assert isinstance(meaning, Act)
    assert (meaning.action, meaning.type) == ("retry", "not-executed")


@pytest.mark.parametrize("name", ["not-sent", "outcome-unknown"])
def test_a_safe_request_without_an_answer_is_asked_again(name: str) -> None:
    meaning = read_answer("unguarded", 502, problem(name, retry="same-key"))
    assert isinstance(meaning, Act)
    assert meaning.action == "retry"


def test_an_answer_that_was_cut_short_is_this_gateways_own_word() -> None:
    meaning = read_answer("applied", 502, problem("response-incomplete"))
    assert isinstance(meaning, Act)
    assert meaning.action == "executed"


@pytest.mark.parametrize("name", ["response-incomplete", "outcome-unknown"])
def test_the_member_retry_of_a_document_goes_before_its_type(name: str) -> None:
    meaning = read_answer("not-executed", 502, problem(name, retry="same-key"))
    assert isinstance(meaning, Act)
    assert meaning.action == "retry"


def test_what_the_upstream_did_not_do_is_sent_again() -> None:
    meaning = read_answer("not-executed", 429, None)
    assert isinstance(meaning, Act)
    assert (meaning.action, meaning.maybe) == ("retry", False)


@pytest.mark.parametrize(
    ("retry", "action"), [("same-key", "retry"), ("wait", "wait"), ("never", "refused")]
)
def test_a_type_of_a_later_release_is_read_by_its_retry(retry: str, action: str) -> None:
    meaning = read_answer("rejected", 400, problem("not-known-here", retry=retry))
    assert isinstance(meaning, Act)
    assert meaning.action == action


@pytest.mark.parametrize("document", [None, [], {"type": "about:blank"}, {"type": 7}])
def test_what_is_not_the_gateways_says_nothing(document: object) -> None:
    assert read_answer(None, 503, document) == Strange()
    assert read_answer("rejected", 503, document) == Strange()


def test_a_command_that_may_be_on_its_way_is_marked_so() -> None:
    for name, sent, maybe in (
        ("in-flight", "unknown", True),
        ("outcome-unknown", "yes", True),
        ("entity-busy", "no", False),
        ("overloaded", "no", False),
    ):
        meaning = read_answer("rejected", 409, problem(name, sent=sent))
        assert isinstance(meaning, Act)
        assert meaning.maybe == maybe, name


@pytest.mark.parametrize(
    ("name", "members", "undone"),
    [
        ("not-sent", {}, True),
        ("entity-busy", {}, True),
        ("entity-unresolved", {}, True),
        ("not-sent", {"sent": "unknown"}, False),
        # Said before the key was looked up.
        ("overloaded", {}, False),
        ("store-unavailable", {}, False),
        ("unauthenticated", {}, False),
        ("in-flight", {}, False),
    ],
)
def test_that_nothing_happened_is_known_only_of_a_key_that_was_looked_up(
    name: str, members: dict[str, object], undone: bool
) -> None:
    meaning = read_answer("rejected", 409, problem(name, **members))
    assert isinstance(meaning, Act)
    assert meaning.undone == undone


def test_an_outcome_of_a_later_release_says_nothing() -> None:
    assert read_answer("postponed", 409, problem("fence-stale")) == Strange()
