"""What is cut out of a document is what stood there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.canonical import Document, read_json
from gateway.core.spans import slices

BLANKS = st.text(alphabet=" \t\n\r", max_size=3)
TEXT = st.text(max_size=8)


@st.composite
def strings(draw: st.DrawFn, text: st.SearchStrategy[str] = TEXT) -> str:
    """A JSON string, each character plain or escaped as somebody else might."""
    made = []
    for character in draw(text):
        units = character.encode("utf-16-be", "surrogatepass")
        escaped = "".join(f"\\u{units[i]:02X}{units[i + 1]:02x}" for i in range(0, len(units), 2))
        is_plain = (
            character not in '"\\' and character >= " " and not 0xD800 <= ord(character) < 0xE000
        )
        made.append(character if is_plain and draw(st.booleans()) else escaped)
    return '"' + "".join(made) + '"'


NUMBERS = st.sampled_from(
    ["0", "-0", "1.0", "10e-1", "1E+400", "-1.50", "9" * 999, "0.10000000000000001", "123456789"]
)
SCALARS = st.one_of(NUMBERS, strings(), st.sampled_from(["true", "false", "null"]))


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    items = [draw(BLANKS) + draw(inner) + draw(BLANKS) for _ in range(draw(st.integers(0, 3)))]
    return "[" + (",".join(items) or draw(BLANKS)) + "]"


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    names = draw(st.lists(TEXT, max_size=3, unique=True))
    return "{" + (",".join(draw(members(name, inner)) for name in names) or draw(BLANKS)) + "}"


@st.composite
def members(draw: st.DrawFn, name: str, inner: st.SearchStrategy[str]) -> str:
    blanks = [draw(BLANKS) for _ in range(4)]
    spelled = draw(strings(st.just(name)))
    return f"{blanks[0]}{spelled}{blanks[1]}:{blanks[2]}{draw(inner)}{blanks[3]}"


VALUES = st.recursive(SCALARS, lambda inner: arrays(inner) | objects(inner), max_leaves=12)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, list[dict[str, str]]]:
    """A document with ``jobs``, and what its elements' members ``payload`` and ``x`` are."""
    expected: list[dict[str, str]] = []
    elements = []
    for _ in range(draw(st.integers(0, 3))):
        names = draw(st.lists(st.sampled_from(["payload", "x", "tool", "jobs"]), unique=True))
        values = {name: draw(VALUES) for name in names}
        expected.append({name: v for name, v in values.items() if name in ("payload", "x")})
        written = [draw(members(name, st.just(value))) for name, value in values.items()]
        elements.append(draw(BLANKS) + "{" + ",".join(written) + "}" + draw(BLANKS))
    around = [draw(members(name, VALUES)) for name in draw(st.sets(st.sampled_from("abc")))]
    jobs = draw(members("jobs", st.just("[" + ",".join(elements) + "]")))
    place = draw(st.integers(0, len(around)))
    return draw(BLANKS) + "{" + ",".join([*around[:place], jobs, *around[place:]]) + "}", expected


@given(documents())
def test_a_slice_is_what_stood_there(made: tuple[str, list[dict[str, str]]]) -> None:
    text, expected = made
    raw = text.encode()
    assert isinstance(read_json(raw), Document)
    found = slices(raw, "jobs", {"payload", "x"})
    assert found == [{name: v.encode() for name, v in each.items()} for each in expected]


@given(VALUES)
def test_a_slice_is_a_document_with_the_same_meaning(value: str) -> None:
    raw = f'{{"jobs":[{{"payload":{value}}}]}}'.encode()
    ((cut,),) = [each.values() for each in slices(raw, "jobs", {"payload"})]
    assert read_json(cut) == Document(_payload(read_json(raw)))


def _payload(read: Any) -> Any:
    return read.value["jobs"][0]["payload"]


@pytest.mark.parametrize(
    "text",
    ["[]", "1", "{}", '{"jobs":{}}', '{"jobs":"[{}]"}', '{"jobs":[]}', '{"x":[{"payload":1}]}'],
)
def test_without_such_an_array_there_is_nothing(text: str) -> None:
    assert slices(text.encode(), "jobs", {"payload"}) == []


def test_elements_that_are_no_objects_have_no_members() -> None:
    raw = b'{"jobs":[1,[{"payload":2}],"{",{"payload":3},null,{"other":{"payload":4}}]}'
    assert slices(raw, "jobs", {"payload"}) == [{}, {}, {}, {"payload": b"3"}, {}, {}]


def test_the_deepest_and_longest_that_is_read() -> None:
    deep = "[" * 120 + "]" * 120
    wide = json.dumps(list(range(100_000)))
    raw = f'{{"jobs":[{{"payload":{deep}}},{{"payload":{wide}}}]}}'.encode()
    assert isinstance(read_json(raw), Document)
    assert slices(raw, "jobs", {"payload"}) == [
        {"payload": deep.encode()},
        {"payload": wide.encode()},
    ]
