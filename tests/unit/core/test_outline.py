"""Which parts of a request differ from the first one under its key."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.canonical import ABSENT, Json, canonical, pieces
from gateway.core.fingerprint import Parts
from gateway.core.outline import (
    EXPANDED_LIMIT,
    MAX_ENTRIES,
    MAX_FIELDS,
    MAX_NAMED,
    OUTLINE_LIMIT,
    Differences,
    Members,
    differences,
    outline,
)

SALT = bytes(range(16))
KEY = "pay-1"
SAME = Differences((), (), 0)
PARTS = Parts(
    "POST", b"/p", b"a=1", "invoice:1", ((b"stripe-version", (b"1",)),), b"a/b", "json", b"", b""
)


def of(members: Members, parts: Parts = PARTS) -> tuple[Parts, Members]:
    """A request whose body has ``members``."""
    body = b"raw" if members is ABSENT else canonical(members)  # type: ignore[arg-type]
    return replace(parts, body=body), members


def compared(first: tuple[Parts, Members], second: tuple[Parts, Members]) -> Differences:
    """By majority of three salts: its digests are short, so that two may meet by chance."""
    salts = [SALT, bytes(16), bytes(reversed(SALT))]
    results = Counter(differences(x, KEY, *second, outline(x, KEY, *first)) for x in salts)
    return results.most_common(1)[0][0]


FIRST: dict[str, Json] = {"amount": 1, "input": {"id": "c-1", "lines": ["a", "b"]}, "note": None}


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (FIRST, SAME),
        ({**FIRST, "amount": 2}, Differences(("body /amount",), (), 0)),
        ({**FIRST, "amount": "1"}, Differences(("body /amount",), (), 0)),
        ({**FIRST, "amount": True}, Differences(("body /amount",), (), 0)),
        ({**FIRST, "note": {"a": 1}}, Differences(("body /note",), (), 0)),
        ({**FIRST, "input": {"id": "c", "lines": ["a"]}}, Differences(("body /input/id",), (), 1)),
        ({**FIRST, "input": {"id": "c-1", "lines": ["a"]}}, Differences((), (), 1)),
        ({**FIRST, "input": 1}, Differences((), ("body /input",), 3)),
        ({**FIRST, "a/b": {"~": 1}}, Differences((), ("body /a~1b/~0",), 0)),
        ({}, Differences((), ("body",), 5)),
        (5, Differences((), ("body",), 5)),
    ],
)  # fmt: skip
def test_paths_that_differ_are_named(second: Json, expected: Differences) -> None:
    assert compared(of(FIRST), of(second)) == expected


@pytest.mark.parametrize(
    ("other", "label"),
    [
        (replace(PARTS, method="PUT"), "method"),
        (replace(PARTS, path=b"/q"), "path"),
        (replace(PARTS, query=b""), "query"),
        (replace(PARTS, entity="invoice:2"), "entity"),
        (replace(PARTS, type=b"a/b+json"), "type"),
        (replace(PARTS, form="raw"), "body"),
        (replace(PARTS, headers=((b"stripe-version", (b"2",)),)), "field Stripe-Version"),
        (replace(PARTS, headers=((b"stripe-version", ()),)), "field Stripe-Version"),
        (replace(PARTS, headers=((b"stripe-version", (b"1", b"")),)), "field Stripe-Version"),
    ],
)
def test_other_parts_that_differ_are_named(other: Parts, label: str) -> None:
    assert compared(of(FIRST), of(FIRST, other)) == Differences((label,), (), 0)
    assert compared(of(FIRST, other), of(FIRST)) == Differences((label,), (), 0)


def test_a_body_without_members_is_one_part() -> None:
    parts = replace(PARTS, form="raw")
    first = (replace(parts, body=b"x"), ABSENT)
    assert compared(first, first) == SAME
    assert compared(first, (replace(parts, body=b"y"), ABSENT)) == Differences(("body",), (), 0)


def test_a_large_body_is_one_part() -> None:
    large = of({"a": "x" * EXPANDED_LIMIT, "b": 1})
    assert len(outline(SALT, KEY, *large)) == len(outline(SALT, KEY, *of(5)))
    assert compared(large, large) == SAME
    assert compared(large, of({"a": "x", "b": 1})) == Differences(("body",), (), 0)
    assert compared(of({"a": "x", "b": 1}), large) == Differences(("body",), (), 0)


def test_what_does_not_fit_stands_as_its_container() -> None:
    wide: Json = {"few": {"x": 1}, "many": list(range(MAX_ENTRIES))}
    other: Json = {"few": {"x": 2}, "many": [9, *range(1, MAX_ENTRIES)]}
    assert compared(of(wide), of(other)) == Differences(("body /few/x", "body /many"), (), 0)
    wider: Json = list(range(MAX_ENTRIES + 1))
    assert compared(of(wider), of(wide)) == Differences(("body",), (), 0)
    # The record of the small one knows its members; the wider request is walked to them.
    assert compared(of([0, 1]), of([0, 2, 3])) == Differences(("body /1",), ("body /2",), 0)


def test_names_are_bounded() -> None:
    many: Json = {f"m{index}": index for index in range(MAX_NAMED + 1)}
    result = compared(of({"x": 1}), of(many))
    assert (len(result.added), result.absent) == (MAX_NAMED, 1)


def test_the_largest_outline() -> None:
    headers = tuple((b"x-%d" % index, (b"1",)) for index in range(MAX_FIELDS))
    members: Json = {f"m{index}": index for index in range(MAX_ENTRIES)}
    assert len(outline(SALT, KEY, *of(members, replace(PARTS, headers=headers)))) == 236
    assert OUTLINE_LIMIT >= 236


def test_an_outline_is_bound_to_salt_and_key() -> None:
    first = outline(SALT, KEY, *of(FIRST))
    # Pinned: another value here means that ALGORITHM must change, as for a fingerprint.
    assert first.hex()[:24] == "33794d30184dec75af780ccd"
    assert not set(entries(first)) & set(entries(outline(SALT, "pay-2", *of(FIRST))))
    assert not set(entries(first)) & set(entries(outline(bytes(16), KEY, *of(FIRST))))
    # The same value in two places does not show as such.
    twice = entries(outline(SALT, KEY, *of({"a": "x", "b": "x"})))
    assert twice[0][3:] != twice[1][3:]


def entries(recorded: bytes) -> list[bytes]:
    start = 2 * (6 + len(PARTS.headers))
    return [recorded[at : at + 5] for at in range(start, len(recorded), 5)]


@pytest.mark.parametrize("recorded", [b"", b"x" * 13, b"x" * 15, b"x" * 16])
def test_an_outline_of_other_rules_is_refused(recorded: bytes) -> None:
    with pytest.raises(ValueError, match="other rules"):
        differences(SALT, KEY, *of(FIRST), recorded)


def test_a_salt_of_another_length_is_a_bug() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        outline(b"x", KEY, *of(FIRST))


names = st.text(st.characters(), max_size=4) | st.sampled_from(["a", "b", "/", "~", "\ud800"])
plain = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
documents: st.SearchStrategy[Json] = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(names, inner, max_size=8),
    max_leaves=60,
)


def shuffled(value: Json) -> Json:
    """The same document with its members in another order."""
    if isinstance(value, dict):
        return {name: shuffled(value[name]) for name in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(documents)
def test_equal_requests_have_equal_outlines(document: Json) -> None:
    first, second = of(document), of(shuffled(document))
    assert outline(SALT, KEY, *first) == outline(SALT, KEY, *second)
    assert compared(first, second) == SAME
    assert len(outline(SALT, KEY, *first)) <= 2 * 7 + 5 * MAX_ENTRIES


def leaves(value: Json, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    found = [leaf for name, inner in pairs for leaf in leaves(inner, (*path, name))]
    return found or [path]


def changed_at(value: Json, path: tuple[str | int, ...]) -> Json:
    if not path:
        return [value, "changed"]
    step, rest = path[0], path[1:]
    copied: Json = dict(value) if isinstance(value, dict) else list(value)  # type: ignore[arg-type]
    copied[step] = changed_at(copied[step], rest)  # type: ignore[index]
    return copied


def label(path: tuple[str | int, ...]) -> str:
    pointer = "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
    return f"body {pointer}" if pointer else "body"


@given(documents, st.data())
def test_one_changed_leaf_is_named_or_its_container_is(document: Json, data: st.DataObject) -> None:
    every = leaves(document)
    path = data.draw(st.sampled_from(every))
    result = compared(of(document), of(changed_at(document, path)))
    assert not result.added
    assert result.absent == 0
    (named,) = result.changed
    if len(every) <= MAX_ENTRIES:
        assert named == label(path)
    else:
        assert named in {label(path[:depth]) for depth in range(len(path) + 1)}


@given(documents, documents)
def test_no_two_documents_make_it_fail(one: Json, other: Json) -> None:
    result = compared(of(one), of(other))
    assert (result == SAME) == (canonical(one) == canonical(other))


@given(st.dictionaries(st.text(max_size=4) | st.just("~/" * 80), plain, max_size=40))
def test_pieces_that_are_written_already_make_the_same_outline(members: dict[str, Json]) -> None:
    parts, _ = of(members)
    written = replace(parts, pieces=pieces(members))
    assert outline(SALT, KEY, written, members) == outline(SALT, KEY, parts, members)
