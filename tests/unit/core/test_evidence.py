"""What the answer to a probe proves: only what the policy names, whole, and never both ways."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.canonical import canonical, read_json
from gateway.core.evidence import judge
from gateway.core.model import Exchange, Fault, ProbeRules, Proof, Response, Stage

SOME = Proof(frozenset({200}), ("data",), items="some")
NONE = Proof(frozenset({200}), ("data",), items="none")
LISTED = ProbeRules(SOME, NONE, 60, replays=False)
STATE = ProbeRules(
    Proof(frozenset({200}), ("state",), equals=frozenset({canonical("done"), canonical(1)})),
    Proof(frozenset({404})),
    60,
    replays=False,
)


def answered(status: int, body: bytes, *headers: tuple[bytes, bytes]) -> Exchange:
    return Exchange(Stage.BODY_COMPLETE, Response(status, headers, body))


@pytest.mark.parametrize(
    ("status", "body", "verdict"),
    [
        (200, {"data": [1]}, "applied"),
        (200, {"data": [None]}, "applied"),
        (200, {"data": []}, "absent"),
        (200, {"data": {}}, "nothing"),
        (200, {"data": ""}, "nothing"),
        (200, {"data": None}, "nothing"),
        (200, {"data": 0}, "nothing"),
        (200, {}, "nothing"),
        (200, [], "nothing"),
        (201, {"data": [1]}, "nothing"),
        (404, {"data": []}, "nothing"),
    ],
)
def test_a_list_is_one_only_where_it_is_a_list(status: int, body: Any, verdict: str) -> None:
    assert judge(answered(status, json.dumps(body).encode()), LISTED).verdict == verdict


@pytest.mark.parametrize(
    ("status", "body", "verdict"),
    [
        (200, b'{"state":"done"}', "applied"),
        (200, b'{"state":"d\\u006fne"}', "applied"),
        (200, b'{"state":1.0}', "applied"),
        (200, b'{"state":true}', "nothing"),
        (200, b'{"state":"Done"}', "nothing"),
        (200, b'{"state":["done"]}', "nothing"),
        (200, b'{"state":"done","state":"done"}', "nothing"),
        (200, b"", "nothing"),
        (404, b"", "absent"),
        (404, b"<html>", "absent"),
        (410, b"", "nothing"),
    ],
)
def test_a_value_is_one_of_those_listed(status: int, body: bytes, verdict: str) -> None:
    assert judge(answered(status, body), STATE).verdict == verdict


@pytest.mark.parametrize("coding", [b"gzip", b"identity, gzip", b"br"])
def test_what_is_coded_is_not_read(coding: bytes) -> None:
    exchange = answered(200, b'{"data":[1]}', (b"Content-Encoding", coding))
    assert judge(exchange, LISTED).verdict == "nothing"
    plain = answered(200, b'{"data":[1]}', (b"content-encoding", b"Identity"))
    assert judge(plain, LISTED).verdict == "applied"


def test_an_answer_that_is_both_is_neither() -> None:
    both = replace(LISTED, absent=Proof(frozenset({200})))
    assert judge(answered(200, b'{"data":[1]}'), both).verdict == "nothing"
    assert judge(answered(200, b'{"data":[]}'), both).verdict == "absent"


def test_without_a_proof_of_absence_there_is_none() -> None:
    only = replace(LISTED, absent=None)
    assert judge(answered(200, b'{"data":[]}'), only).verdict == "nothing"


@given(
    st.sampled_from([each for each in Stage if each < Stage.BODY_COMPLETE]),
    st.sampled_from(get_args(Fault)),
    st.sampled_from([200, 404]),
    st.sampled_from([b'{"data":[1]}', b'{"data":[]}', b'{"state":"done"}']),
)
def test_what_did_not_come_whole_proves_nothing(
    stage: Stage, fault: Fault, status: int, body: bytes
) -> None:
    response = Response(status, (), body) if stage >= Stage.STATUS_SEEN else None
    for rules in (LISTED, STATE):
        assert judge(Exchange(stage, response, fault), rules).verdict == "nothing"
        whole = Exchange(Stage.BODY_COMPLETE, Response(status, (), body), oversize=True)
        assert judge(whole, rules).verdict == "nothing"


def test_a_list_that_is_cut_short_or_too_long_is_no_empty_list() -> None:
    """Though what is there of it could be read."""
    response = Response(200, (), b'{"data":[]}')
    assert judge(Exchange(Stage.STATUS_SEEN, response, "closed"), LISTED).verdict == "nothing"
    whole = Exchange(Stage.BODY_COMPLETE, response, oversize=True)
    assert judge(whole, LISTED).verdict == "nothing"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["data", "state", "x"]), inner),
)


@given(JSON, st.integers(200, 599))
def test_a_verdict_has_its_reason_in_the_answer(body: Any, status: int) -> None:
    judged = judge(answered(status, json.dumps(body).encode()), LISTED)
    found = body.get("data") if isinstance(body, dict) else None
    is_list = status == 200 and isinstance(found, list)
    expected = ("applied" if found else "absent") if is_list else "nothing"
    assert judged.verdict == expected
    assert str(status) in judged.why
    read_json(json.dumps(body).encode())
