"""Asking for a fence: one JSON object with one entity, in the one spelling that entities have."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.answers import entity_leased
from gateway.core.issuing import EntityLeased, entity_asked_for
from gateway.core.keys import Refusal
from gateway.core.model import Headers

JSON: Headers = ((b"content-type", b"application/json"),)


def refused(raw: bytes, headers: Headers = JSON) -> str:
    found = entity_asked_for(raw, headers)
    assert isinstance(found, Refusal)
    assert found.detail.endswith(".")
    return found.type


@pytest.mark.parametrize(
    "raw",
    [
        b'{"entity":"invoice:123"}',
        b' {"entity" : "invoice\\u003a123"}\n',
    ],
)
@pytest.mark.parametrize(
    "kind", [b"application/json", b"application/json; charset=UTF-8", b"application/x+json"]
)
def test_one_entity_is_read(raw: bytes, kind: bytes) -> None:
    assert entity_asked_for(raw, ((b"content-type", kind),)) == "invoice:123"


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"{}", "entity-missing"),
        (b'{"entity":""}', "entity-missing"),
        (b'{"entity":null}', "request-invalid"),
        (b'{"entity":7}', "request-invalid"),
        (b'{"entity":["a"]}', "request-invalid"),
        (b'{"entity":"a","tenant":"b"}', "request-invalid"),
        (b'{"entity":"' + b"a" * 256 + b'"}', "request-invalid"),
        (b'{"entity":" a"}', "request-invalid"),
        (b'{"entity":"a\\u0000"}', "request-invalid"),
        ('{"entity":"é"}'.encode(), "request-invalid"),
        (b'"a"', "request-invalid"),
        (b"null", "request-invalid"),
        (b'[{"entity":"a"}]', "request-invalid"),
        (b'{"entity":"a","entity":"a"}', "body-unreadable"),
        (b"{", "body-unreadable"),
        (b"", "body-unreadable"),
        (b"entity=a", "body-unreadable"),
        (b'{"entity":"\xff"}', "body-unreadable"),
    ],
)
def test_what_is_not_one_entity_is_refused(raw: bytes, kind: str) -> None:
    assert refused(raw) == kind


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((b"content-type", b"text/plain"),),
        ((b"content-type", b"application/x-www-form-urlencoded"),),
        ((b"content-type", b"multipart/form-data; boundary=x"),),
        ((b"content-type", b"application/json; charset=utf-16"),),
        ((b"content-type", b"application/json"), (b"content-type", b"application/json")),
        (*JSON, (b"content-encoding", b"gzip")),
    ],
)
def test_only_what_is_declared_as_json_is_read(headers: Headers) -> None:
    """A page in a browser may send the other types here without asking."""
    assert refused(b'{"entity":"a"}', headers) == "body-unreadable"


@given(st.text(min_size=1, max_size=300))
def test_an_entity_is_taken_unchanged_or_not_at_all(entity: str) -> None:
    found = entity_asked_for(json.dumps({"entity": entity}).encode(), JSON)
    legal = entity.isascii() and entity.isprintable() and entity == entity.strip(" ")
    assert (found == entity) == (legal and len(entity) <= 255)
    assert found == entity or isinstance(found, Refusal)


@pytest.mark.parametrize(
    ("remaining_ms", "after_s"), [(-5, 1), (0, 1), (1, 1), (1500, 2), (600_000, 30)]
)
def test_a_leased_entity_says_who_has_it_and_when_to_ask_again(
    remaining_ms: int, after_s: int
) -> None:
    problem = entity_leased(EntityLeased(UUID(int=7), remaining_ms))
    assert (problem.type, problem.retry_after_s) == ("entity-leased", after_s)
    assert problem.members == {"job": str(UUID(int=7)), "remaining_ms": remaining_ms}
