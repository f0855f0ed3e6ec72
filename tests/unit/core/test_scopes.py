"""What a gateway key may do: which words there are, and what each of them allows."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.auth import Principal
from gateway.core.scopes import (
    ALL,
    ANY_POLICY,
    BEFORE,
    DEFAULT,
    Work,
    allows,
    forbidden,
    is_scope,
    ordered,
    policies_named,
    policy_scope,
)
from gateway.policy import fields

WORDS = get_args(Work)
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?", fullmatch=True)
SCOPES = st.sampled_from([*WORDS, ANY_POLICY]) | NAMES.map(policy_scope)


def principal(*scopes: str) -> Principal:
    return Principal(7, "worker", "billing", bytes(16), "abcdefgh22", scopes=frozenset(scopes))


@given(NAMES)
def test_every_name_of_a_policy_makes_a_scope_and_nothing_else_does(name: str) -> None:
    assert fields.slug(name) == name
    assert is_scope(policy_scope(name))


@pytest.mark.parametrize(
    "text",
    [
        *("", "policy", "policy:", "policy: pay", "policy:Pay", "policy:pay/charge", "policy:p*"),
        *("policy:**", "policy:-pay", "policy:pay-", "policy:pay\n", "policy:" + "x" * 65),
        *("*", "all", "Work", "work ", "works", "operate,audit", "enqueue\x00", "audit:*"),
    ],
)
def test_what_is_no_scope(text: str) -> None:
    assert not is_scope(text)
    assert not any(allows(frozenset({text}), wanted) for wanted in (*WORDS, "policy:pay"))


@given(st.frozensets(SCOPES), SCOPES)
def test_a_scope_allows_itself_and_only_any_policy_allows_more(
    held: frozenset[str], wanted: str
) -> None:
    by_any = ANY_POLICY in held and wanted.startswith("policy:")
    assert allows(held, wanted) == (wanted in held or by_any)


@given(st.frozensets(SCOPES), SCOPES, SCOPES)
def test_granting_takes_nothing_away_and_withdrawing_gives_nothing(
    held: frozenset[str], more: str, wanted: str
) -> None:
    if allows(held, wanted):
        assert allows(held | {more}, wanted)
    else:
        assert not allows(held - {more}, wanted)


def test_what_keys_may_do_by_default() -> None:
    assert ordered(DEFAULT) == ("policy:*", "enqueue", "work")
    assert ordered(BEFORE) == ("policy:*", "enqueue", "work", "operate")
    assert ordered(ALL) == ("policy:*", "enqueue", "work", "operate", "audit")


def test_they_are_shown_in_one_order_each_once() -> None:
    shown = ordered(["audit", "policy:b", "work", "policy:a", "policy:*", "work", "later:x"])
    assert shown == ("later:x", "policy:*", "policy:a", "policy:b", "work", "audit")
    assert policies_named(shown) == {"a", "b"}


def test_a_scope_of_a_later_release_allows_nothing_that_is_known_here() -> None:
    held = principal("later", "policies", "policy:pay:read", "operate-all")
    wanted = [*WORDS, "policy:pay", ANY_POLICY]
    assert all(forbidden(held, each) is not None for each in wanted)


def test_the_refusal_names_the_scope_and_the_command_that_grants_it() -> None:
    assert forbidden(principal("policy:pay"), "policy:pay") is None
    problem = forbidden(principal("policy:pay", "work"), "policy:cases")
    assert problem is not None
    assert (problem.type, problem.members) == ("forbidden", {"scope": "policy:cases"})
    assert (
        "`fencegate keys grant abcdefgh22 --tenant billing --scope policy:cases`" in problem.detail
    )
