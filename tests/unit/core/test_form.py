"""Forms: what is equal, what is refused, and which parameter a pointer names."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote_from_bytes, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.canonical import Pointer, Unreadable, parse_pointer
from gateway.core.form import MAX_PARAMETERS, Parameters, read_form, spelled


def form(raw: bytes) -> Parameters:
    result = read_form(raw)
    assert isinstance(result, Parameters), result
    return result


def written(raw: bytes, *ignore: str) -> bytes:
    return form(raw).without([parse_pointer(text) or () for text in ignore]).compared()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"a=1&b=2", b"b=2&a=1"),
        (b"a=A", b"%61=%41"),
        (b"a=x+y", b"a=x%20y"),
        (b"a=x%2fy", b"a=x%2Fy"),
        (b"a[b]=1", b"a%5Bb%5D=1"),
        (b"a=1&&b=2&", b"a=1&b=2"),
        (b"a[][x]=1&c=3&a[][y]=2", b"c=3&a[][x]=1&a[][y]=2"),
        (b"a=1=2", b"a=1%3D2"),
        (b"", b"&"),
        (b"a=[1]", b"a=%5B1%5D"),
    ],
)
def test_equal_forms(one: bytes, other: bytes) -> None:
    assert written(one) == written(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"a=1", b"a=2"),
        (b"a=1", b"A=1"),
        (b"a=1", b"a=1&a=1"),
        (b"a=1&a=2", b"a=2&a=1"),
        (b"a=1&A=2", b"A=2&a=1"),
        (b"a[][x]=1&a[][y]=2", b"a[][y]=2&a[][x]=1"),
        (b"a[x]=1&a[y]=2", b"a[y]=2&a[x]=1"),
        (b"a=1&a[x]=2", b"a[x]=2&a=1"),
        (b"a", b"a="),
        (b"a=", b""),
        (b"=", b""),
        (b"a=1&b=2", b"a=1%26b=2"),
        (b"a=1&b=2", b"a%3D1&b=2"),
        (b"a=1+2", b"a=1%2B2"),
        (b"a=%2541", b"a=%41"),
        (b"a=caf%C3%A9", b"a=cafe%CC%81"),
        # Names that some take for others: nobody can tell the roots.
        (b"a.b=1&a_b=2", b"a_b=2&a.b=1"),
        (b"a.b=1&a[b]=2", b"a[b]=2&a.b=1"),
        (b"+a=1&a=2", b"a=2&+a=1"),
        (b"a[b=1&a_b=2", b"a_b=2&a[b=1"),
        (b"a%00=1&a=2", b"a=2&a%00=1"),
    ],
)
def test_other_forms(one: bytes, other: bytes) -> None:
    assert written(one) != written(other)


@pytest.mark.parametrize(
    ("raw", "mend"),
    [
        (b"a=%", "send it as %25"),
        (b"a=%4", "send it as %25"),
        (b"%zz=1", "send it as %25"),
        (b"a=1;b=2", "send %3B"),
        (b"a;b", "send %3B"),
        (b"&" * MAX_PARAMETERS, "send fewer"),
    ],
)
def test_forms_with_two_readings_are_refused(raw: bytes, mend: str) -> None:
    result = read_form(raw)
    assert isinstance(result, Unreadable)
    assert mend in result.reason


def test_the_most_parameters() -> None:
    assert len(form(b"a&" * (MAX_PARAMETERS - 1) + b"a").fields) == MAX_PARAMETERS


@pytest.mark.parametrize(
    ("pointer", "name"),
    [
        ("/trace_id", b"trace_id"),
        ("/metadata/trace_id", b"metadata[trace_id]"),
        ("/a/0/b", b"a[0][b]"),
        ("/a/", b"a[]"),
        ("/a~1b", b"a/b"),
    ],
)
def test_a_pointer_names_a_parameter(pointer: str, name: bytes) -> None:
    assert spelled(parse_pointer(pointer) or ()) == name


def test_what_is_ignored_is_gone_with_what_is_nested_in_it() -> None:
    assert written(b"a=1&metadata[trace_id]=x&b=2", "/metadata/trace_id") == written(b"a=1&b=2")
    assert written(b"a=1&t=x&t=y&b=2", "/t") == written(b"a=1&b=2")
    assert written(b"a=1&t[x][y]=1&t[]=2", "/t") == written(b"a=1")
    for kept in (b"metadata[trace_id2]=x", b"metadata=x", b"T=x", b"tt=1", b"metadata.trace_id=1"):
        assert written(kept, "/metadata/trace_id", "/t") == written(kept)
    # A name that is not plain and ignored does not tie the order of the others.
    assert written(b"a=1&x.y=0&b=2", "/x.y") == written(b"b=2&a=1")


@pytest.mark.parametrize(
    ("raw", "members"),
    [
        (b"a=1&b", {"a": "1", "b": None}),
        (b"m[x]=1&m[y][z]=2", {"m": {"x": "1", "y": {"z": "2"}}}),
        (b"a[]=1&a[]=2", {"a": {"": ["1", "2"]}}),
        (b"a=1&a[b]=2", {"a": "1", "a[b]": "2"}),
        (b"a[b]=2&a=1", {"a": "1", "a[b]": "2"}),
        (b"a.b=%C3%BC", {"a.b": "\xc3\xbc"}),
        (b"a=%FF", {"a": "a=%FF"}),
        (b"", {}),
    ],
)
def test_members_for_an_outline(raw: bytes, members: object) -> None:
    assert form(raw).members() == members


plain = st.text("ab_-", min_size=1, max_size=2)
names = st.builds(
    lambda root, rest: root + "".join(f"[{step}]" for step in rest),
    plain,
    st.lists(st.text("xy0", max_size=1), max_size=2),
)
pairs = st.lists(st.tuples(names, st.text(max_size=3)), max_size=8)
any_pairs = st.lists(
    st.tuples(st.text(min_size=1, max_size=3) | names, st.text(max_size=3)), max_size=4
)


def encoded(items: list[tuple[str, str]]) -> bytes:
    return urlencode(items).encode("ascii")


def root(name: str) -> str:
    return name.partition("[")[0]


@given(pairs, st.randoms(use_true_random=False))
def test_the_order_of_roots_never_counts(items: list[tuple[str, str]], random: object) -> None:
    roots = sorted({root(name) for name, _ in items})
    random.shuffle(roots)  # type: ignore[attr-defined]
    moved = [item for wanted in roots for item in items if root(item[0]) == wanted]
    assert written(encoded(moved)) == written(encoded(items))


@given(any_pairs, any_pairs)
def test_equal_forms_hold_the_same_pairs(
    one: list[tuple[str, str]], other: list[tuple[str, str]]
) -> None:
    if written(encoded(one)) == written(encoded(other)):
        assert sorted(one) == sorted(other)


@given(pairs, st.data())
def test_the_order_within_a_root_counts(items: list[tuple[str, str]], data: st.DataObject) -> None:
    name = data.draw(plain)
    moved = [(f"{name}[x]", "1"), (f"{name}[]", "2")]
    at = data.draw(st.integers(0, len(items)))
    one, other = (encoded(items[:at] + two + items[at:]) for two in (moved, moved[::-1]))
    assert written(one) != written(other)


@given(any_pairs, st.data())
def test_no_spelling_of_the_same_bytes_counts(
    items: list[tuple[str, str]], data: st.DataObject
) -> None:
    def spelling(text: str) -> str:
        return "".join(
            data.draw(st.sampled_from([quote_from_bytes(bytes([byte])), f"%{byte:02x}"]))
            if byte != 32
            else data.draw(st.sampled_from(["+", "%20"]))
            for byte in text.encode("utf-8")
        )

    other = "&".join(f"{spelling(name)}={spelling(value)}" for name, value in items)
    assert written(other.encode("ascii")) == written(encoded(items))


@given(st.binary(max_size=40) | st.text("ab[]=&%4 +;.", max_size=30).map(str.encode))
def test_no_bytes_make_it_fail(raw: bytes) -> None:
    result = read_form(raw)
    if isinstance(result, Parameters):
        assert isinstance(result.compared(), bytes)
        result.members()
        # Python's own reader, where it does not guess at characters.
        read = parse_qsl(raw.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
        ours = [
            (field.name.decode("latin-1"), (field.value or b"").decode("latin-1"))
            for field in result.fields
        ]
        assert ours == read


@given(st.lists(st.text("a/~0[]", max_size=3), min_size=1, max_size=3).map(tuple))
def test_every_pointer_spells_a_name(pointer: Pointer) -> None:
    assert spelled(pointer).startswith(pointer[0].encode())
