"""Strict reading of JSON, and the form in which equal documents have equal bytes."""

from __future__ import annotations

import json
import time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.canonical import (
    ABSENT,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_PIECES,
    MAX_VALUES,
    Document,
    Json,
    Unreadable,
    canonical,
    joined,
    lookup,
    parse_pointer,
    pieces,
    read_json,
    without,
)


def value_of(raw: bytes) -> Json:
    document = read_json(raw)
    assert isinstance(document, Document), document
    return document.value


def form(raw: bytes) -> bytes:
    return canonical(value_of(raw))


def why_not(raw: bytes) -> str:
    document = read_json(raw)
    assert isinstance(document, Unreadable), document
    return document.reason


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a":1,"b":2}', b' {"b" : 2,\n"a":1 } '),
        (b'{"s":"caf\\u00e9"}', '{"s":"café"}'.encode()),
        (b'"\\ud83d\\ude00"', '"😀"'.encode()),
        (b'"\\/"', b'"/"'),
        (b"1", b"1.0"),
        (b"1", b"1e0"),
        (b"1", b"10E-1"),
        (b"1", b"0.1e+1"),
        (b"0", b"-0"),
        (b"0", b"-0.00e999"),
        (b"0.5", b"5e-1"),
        (b"-1.50", b"-15e-1"),
        (b"1" + b"0" * 400, b"1e400"),
        (b"123" + b"0" * 37, b"123e37"),
        (b"123" + b"0" * 38, b"123e38"),
        (b"1e0001", b"10"),
    ],
)
def test_equal_documents(one: bytes, other: bytes) -> None:
    assert form(one) == form(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"[1,2]", b"[2,1]"),
        (b"1", b'"1"'),
        (b"1", b"true"),
        (b"0", b"false"),
        (b"null", b'"null"'),
        (b"null", b"{}"),
        (b"{}", b"[]"),
        (b"[1.5]", b"[2.5]"),
        (b"[1.5,2.5]", b"[2.5,1.5]"),
        (b"0.1", b"0.10000000000000001"),
        (b"9007199254740992", b"9007199254740993"),
        (b"1e400", b"1e401"),
        (b"1e400", b"-1e400"),
        (b'"NaN"', b"1.5"),
        (b'"1.5"', b"1.5"),
        (b'["\\n5e-1"]', b"[0.5]"),
        ('"caf\u00e9"'.encode(), '"cafe\u0301"'.encode()),
        (b'"a"', b'"A"'),
        (b'"\\ud800"', b'"\\ud801"'),
        (b'"\\ud800"', b'"\\\\ud800"'),
        (b'"a\\u0000"', b'"a"'),
    ],
)
def test_different_documents(one: bytes, other: bytes) -> None:
    assert form(one) != form(other)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{} {}", "not JSON"),
        (b"{'a':1}", "not JSON"),
        (b'{"a":1,}', "not JSON"),
        (b"01", "not JSON"),
        (b"+1", "not JSON"),
        (b".5", "not JSON"),
        ("٣".encode(), "not JSON"),
        (b'"a\nb"', "not JSON"),
        (b"\x0b1", "not JSON"),
        (b'{"a":1,"a":1}', "duplicate"),
        (b'{"a":1,"\\u0061":2}', "duplicate"),
        (b'[{"x":{"a":1,"b":2,"a":3}}]', "duplicate"),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ("{}".encode("utf-16"), "UTF-8"),
        ("{}".encode("utf-16-le"), "not JSON"),
        (b'"\xff"', "UTF-8"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b"1e9999999999", "exponent"),
        (b"[" * 100_000, "deep"),
        (b'{"a":' * 100_000, "deep"),
        (b"[" * 129 + b"]" * 129, "deep"),
        (b"1" * (MAX_DIGITS + 1), "digits"),
        (b"0." + b"1" * MAX_DIGITS, "digits"),
        (b"[" + b"0," * MAX_VALUES + b"0]", "values"),
    ],
    ids=lambda item: repr(item[:20]),
)
def test_what_two_readers_may_read_differently_is_refused(raw: bytes, says: str) -> None:
    assert says in why_not(raw)


def test_the_limits_are_inclusive() -> None:
    nested = b"[" * MAX_DEPTH + b"1" + b"]" * MAX_DEPTH
    assert form(nested) == nested
    wide = b"[" + b"[]," * 200 + b"1]"
    assert form(wide) == wide
    assert form(b"1" * MAX_DIGITS)
    assert form(b"1e999999999") != form(b"1e999999998")


def test_commas_and_brackets_inside_strings_are_no_values() -> None:
    text = b'"' + b',[{\\"' * MAX_VALUES + b'"'
    assert form(text)


def test_hostile_text_costs_linear_time() -> None:
    started = time.perf_counter()
    why_not(b'"\\' * 2_000_000 + b"," * MAX_VALUES)
    why_not(b'"' + b'\\"' * 2_000_000 + b"," * MAX_VALUES)
    assert time.perf_counter() - started < 5


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.decimals(allow_nan=False, allow_infinity=False).filter(lambda d: abs(d.adjusted()) < 900)
    | st.text(st.characters(exclude_categories=()))
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def spelled(value: object, data: st.DataObject) -> str:
    """``value`` as JSON, in a spelling that is drawn."""
    match value:
        case bool() | None:
            return json.dumps(value)
        case int() | Decimal():
            return _number(Decimal(value), data)
        case str():
            return '"' + "".join(_character(char, data) for char in value) + '"'
        case list():
            return (
                "[" + _blank(data).join(["", ",".join(spelled(item, data) for item in value)]) + "]"
            )
        case dict():
            members = data.draw(st.permutations(list(value.items())))
            inner = ",".join(
                f"{spelled(name, data)}{_blank(data)}:{spelled(item, data)}"
                for name, item in members
            )
            return "{" + inner + "}"
        case _:
            raise AssertionError(value)


def _blank(data: st.DataObject) -> str:
    return data.draw(st.sampled_from(["", " ", "\n\t"]))


def _character(char: str, data: st.DataObject) -> str:
    must = char in '"\\' or ord(char) < 0x20 or "\ud800" <= char <= "\udfff"
    if must or data.draw(st.booleans()):
        units = char.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    return char


def _number(value: Decimal, data: st.DataObject) -> str:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0") or "0"
    shift = data.draw(st.integers(0, 3))
    if text != "0":
        text, exponent = text + "0" * shift, exponent - shift
    return f"{'-' if sign else ''}{text}{data.draw(st.sampled_from('eE'))}{exponent:+d}"


@given(documents, st.data())
def test_a_document_has_one_form_however_it_is_spelled(value: object, data: st.DataObject) -> None:
    one, other = (spelled(value, data).encode("utf-8") for _ in range(2))
    assert form(one) == form(other)


@given(documents, documents, st.data())
def test_different_documents_have_different_forms(
    one: object, other: object, data: st.DataObject
) -> None:
    forms = [form(spelled(value, data).encode("utf-8")) for value in (one, other)]
    assert (forms[0] == forms[1]) == (_exact(one) == _exact(other))


def _exact(value: object) -> object:
    match value:
        case bool() | None | str():
            return repr(value)
        case int() | Decimal():
            # Not arithmetic: the context would round.
            sign, digits, exponent = Decimal(value).as_tuple()
            assert isinstance(exponent, int)
            text = "".join(map(str, digits)).lstrip("0")
            cut = text.rstrip("0")
            return (sign, cut, exponent + len(text) - len(cut)) if cut else (0, "", 0)
        case list():
            return ["list", *map(_exact, value)]
        case dict():
            return {name: _exact(item) for name, item in value.items()}
        case _:
            raise AssertionError(value)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    document = read_json(raw)
    if isinstance(document, Document):
        assert canonical(document.value) == form(raw)


@pytest.mark.parametrize(
    ("pointer", "tokens"),
    [("", ()), ("/a/0", ("a", "0")), ("/a~1b/~0", ("a/b", "~")), ("/", ("",)), ("/~01", ("~1",))],
)
def test_pointers(pointer: str, tokens: tuple[str, ...]) -> None:
    assert parse_pointer(pointer) == tokens


@pytest.mark.parametrize("pointer", ["a", "/~", "/~2", "#/a"])
def test_what_is_no_pointer(pointer: str) -> None:
    assert parse_pointer(pointer) is None


def test_lookup() -> None:
    value = value_of(b'{"a":[{"b":null}],"":1}')
    assert lookup(value, ("a", "0", "b")) is None
    assert lookup(value, ("",)) == 1
    for pointer in ("/a/1", "/a/-", "/a/00", "/a/+0", "/a/" + "9" * 400, "/x", "/a/0/b/c"):
        assert lookup(value, parse_pointer(pointer) or ()) is ABSENT


def test_ignored_members_are_removed_from_a_copy() -> None:
    value = value_of(b'{"a":{"t":1,"k":2},"l":[{"t":1},5]}')
    kept = without(value, [("a", "t"), ("l", "0", "t"), ("l", "1"), ("no", "such")])
    assert kept == {"a": {"k": 2}, "l": [{}, 5]}
    assert value == value_of(b'{"a":{"t":1,"k":2},"l":[{"t":1},5]}')


_TEXTS = st.text(st.sampled_from('ab",:{}[]\\é\ud800 '), max_size=3) | st.just("k" * 200)
_PLAIN_TEXTS = _TEXTS | st.integers() | st.booleans() | st.none()
_SPELLED = st.sampled_from(["1.0", "-0", "1e5", "NaN", "01", "1" * 41, "1" * 5000, "[]", "{}", ""])
_FLAT = st.lists(
    st.tuples(_TEXTS.map(json.dumps), _PLAIN_TEXTS.map(json.dumps) | _SPELLED), max_size=4
).map(lambda pairs: "{" + ",".join(f"{name}: {value}" for name, value in pairs) + "}")


@given(_FLAT, st.sampled_from(["", " ", "x", ","]))
def test_an_object_alone_reads_as_it_does_in_a_list(text: str, behind: str) -> None:
    """Alone it is read without a look at each pair, where that tells."""
    raw = (text + behind).encode()
    alone, inner = read_json(raw), read_json(b"[%b]" % raw)
    if isinstance(alone, Document):
        assert inner == Document([alone.value])
    else:
        assert isinstance(inner, Unreadable)


@given(st.dictionaries(_TEXTS, _PLAIN_TEXTS | st.just([1]), max_size=40))
def test_pieces_are_the_whole(value: dict[str, Json]) -> None:
    found = pieces(value)
    plain = 0 < len(value) <= MAX_PIECES and [1] not in value.values()
    assert bool(found) == plain
    if found:
        assert joined(found) == canonical(value)
        assert found == tuple((name, canonical(value[name])) for name in sorted(value))
