"""Forms: each member by its own rule, all mistakes at once, each by its path."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from gateway.core.asking import Form, object_in
from gateway.core.canonical import Document, read_json
from gateway.core.keys import Refusal

JSON = ((b"content-type", b"application/json"),)


def form(text: str) -> Form:
    read = read_json(text.encode())
    assert isinstance(read, Document)
    assert isinstance(read.value, dict)
    return Form(read.value)


def mistakes_of(made: Form) -> list[str]:
    made.close()
    return made.mistakes


@pytest.mark.parametrize(
    ("method", "value", "expected"),
    [
        ("text", '"a"', "a"),
        ("text", '"\\u00e9"', "é"),
        ("number", "7", 7),
        ("number", "1", 1),
        ("number", "9", 9),
        ("seconds", "0.25", 0.25),
        ("seconds", "60", 60.0),
        ("seconds", "1e-400", 0.0),
        ("seconds", "1e-999999999", 0.0),
        ("seconds", "-0", 0.0),
        ("uuid", '"00000000-0000-0000-0000-0000000000aF"', UUID(int=0xAF)),
        ("time", '"2026-11-30t08:14:13.5+01:00"', datetime(2026, 11, 30, 7, 14, 13, 500_000, UTC)),
        ("time", '"2026-11-30T08:14:13Z"', datetime(2026, 11, 30, 8, 14, 13, tzinfo=UTC)),
    ],
)
def test_a_good_member_is_taken(method: str, value: str, expected: object) -> None:
    made = form(f'{{"x":{value}}}')
    assert call(made, method) == expected
    assert mistakes_of(made) == []


def call(made: Form, method: str) -> Any:
    arguments: dict[str, tuple[Any, ...]] = {
        "text": ("x", 3),
        "number": ("x", 1, 9),
        "seconds": ("x", 60),
        "uuid": ("x",),
        "time": ("x",),
    }
    return getattr(made, method)(*arguments[method])


@pytest.mark.parametrize(
    ("method", "value", "says"),
    [
        ("text", "1", "send a string"),
        ("text", '""', "0 characters are not within 1 to 3"),
        ("text", '"abcd"', "4 characters"),
        ("text", '"\\u0000"', "U+0000"),
        ("text", '"\\ud800"', "lone surrogates"),
        ("text", "null", "is missing"),
        ("number", "true", "plain integer"),
        ("number", "1.0", "plain integer"),
        ("number", '"1"', "plain integer"),
        ("number", "0", "0 is not within 1 to 9"),
        ("number", "10", "not within"),
        ("seconds", "-1", "not within 0 to 60"),
        ("seconds", "60.5", "not within"),
        ("seconds", "1e999999999", "not within"),
        ("seconds", '"1"', "send a number"),
        ("seconds", "false", "send a number"),
        ("uuid", '"00000000000000000000000000000000"', "8-4-4-4-12"),
        ("uuid", '"{00000000-0000-0000-0000-000000000000}"', "8-4-4-4-12"),
        ("uuid", '"\\u0660' + '0000000-0000-0000-0000-000000000000"', "8-4-4-4-12"),
        ("uuid", "1", "8-4-4-4-12"),
        ("time", '"2026-11-30"', "with its zone"),
        ("time", '"2026-11-30T08:14:13"', "with its zone"),
        ("time", '"2026-11-31T08:14:13Z"', "with its zone"),
        ("time", '"2026-11-30T08:14:60Z"', "with its zone"),
        ("time", '"20261130T081413Z"', "with its zone"),
        ("time", "17", "with its zone"),
    ],
)
def test_a_bad_member_is_named_with_its_mend(method: str, value: str, says: str) -> None:
    made = form(f'{{"x":{value}}}')
    call(made, method)
    (mistake,) = mistakes_of(made)
    assert mistake.startswith("x: ")
    assert says in mistake
    assert not made.sound


def test_all_mistakes_of_inner_forms_come_at_once_in_order_and_bounded() -> None:
    inner = ",".join(['{"a":1,"b":2}'] * 15 + ["3"])
    made = form(f'{{"list":[{inner}],"zz":1,"\\u0007{"y" * 100}":1}}')
    for number, each in made.forms("list", 16):
        each.text("a", 5)
        each.close()
        assert not each.sound, number
    made.close()
    refusal = made.refusal()
    assert refusal is not None
    assert refusal.type == "request-invalid"
    assert refusal.detail.startswith(
        "Correct the body: list[0].a: send a string; list[0].b: is not"
    )
    assert refusal.detail.endswith("; and 13 more.")
    assert len(made.mistakes) == 33
    assert made.mistakes[30:32] == ["list[15]: send an object", "zz: is not a member; remove it"]
    assert made.mistakes[32].startswith("\\x07yyy")
    assert len(made.mistakes[32]) < 100


@pytest.mark.parametrize(
    ("value", "says"),
    [("[]", "0 elements are not within 1 to 2"), ("[1,2,3]", "3 elements"), ("{}", "an array")],
)
def test_a_list_has_its_bounds(value: str, says: str) -> None:
    made = form(f'{{"x":{value}}}')
    assert list(made.forms("x", 2)) == []
    (mistake,) = mistakes_of(made)
    assert says in mistake


def test_a_list_of_words_names_the_wrong_one() -> None:
    made = form('{"x":["a","",1,"bcd"]}')
    assert made.texts("x", 4, 2) == ["a"]
    assert [each.split(":")[0] for each in mistakes_of(made)] == ["x[1]", "x[2]", "x[3]"]


@pytest.mark.parametrize(
    ("raw", "headers", "kind"),
    [
        (b"{}", (), "body-unreadable"),
        (b"{}", ((b"content-type", b"text/plain"),), "body-unreadable"),
        (b"", JSON, "body-unreadable"),
        (b'{"a":1,"a":1}', JSON, "body-unreadable"),
        (b"NaN", JSON, "body-unreadable"),
        (b"[]", JSON, "request-invalid"),
    ],
)
def test_a_body_that_is_no_object_is_refused(raw: bytes, headers: Any, kind: str) -> None:
    found = object_in(raw, headers, '{"a": 1}')
    assert isinstance(found, Refusal)
    assert found.type == kind
