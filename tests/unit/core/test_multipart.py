"""Multipart bodies: what is equal, and where readers might cut differently."""

from __future__ import annotations

import re
from email.parser import BytesParser
from email.policy import HTTP

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.core.canonical import Unreadable, parse_pointer
from gateway.core.multipart import MAX_PART_HEAD, MAX_PARTS, Multipart, read_multipart

FIELD = b'Content-Disposition: form-data; name="%b"\r\n\r\n%b'
FILE = (
    b'Content-Disposition: form-data; name="f"; filename="a.txt"\r\n'
    b"Content-Type: text/plain\r\n\r\nx"
)


def body(*parts: bytes, boundary: bytes = b"AAA") -> bytes:
    lines = b"".join(b"--%b\r\n%b\r\n" % (boundary, part) for part in parts)
    return lines + b"--%b--\r\n" % boundary


def field(name: bytes, value: bytes) -> bytes:
    return FIELD % (name, value)


def read(raw: bytes, content_type: bytes = b"multipart/form-data; boundary=AAA") -> Multipart:
    result = read_multipart(raw, content_type)
    assert isinstance(result, Multipart), result
    return result


def refused(raw: bytes, content_type: bytes = b"multipart/form-data; boundary=AAA") -> str:
    result = read_multipart(raw, content_type)
    assert isinstance(result, Unreadable), result
    return result.reason


BASE = body(field(b"a", b"1"), FILE)


@pytest.mark.parametrize(
    "other",
    [
        BASE[:-2],
        BASE + b"\r\n",
        b"\r\n" + BASE,
        BASE.replace(b"Content-Type: text/plain", b"content-TYPE:\ttext/plain "),
    ],
)  # fmt: skip
def test_what_does_not_count(other: bytes) -> None:
    assert other != BASE
    assert read(other).compared() == read(BASE).compared()


@pytest.mark.parametrize(
    "other",
    [
        body(FILE, field(b"a", b"1")),
        body(field(b"a", b"1")),
        body(field(b"a", b"1"), FILE, FILE),
        body(field(b"a", b"2"), FILE),
        body(field(b"a", b"1\r\n"), FILE),
        body(field(b"b", b"1"), FILE),
        BASE.replace(b"a.txt", b"b.txt"),
        BASE.replace(b"text/plain", b"text/html"),
        BASE.replace(b"Content-Type: text/plain\r\n", b""),
        BASE.replace(b"Content-Type: text/plain", b"X: 1\r\nContent-Type: text/plain"),
        body(),
    ],
)
def test_what_counts(other: bytes) -> None:
    assert read(other).compared() != read(BASE).compared()


def test_the_type_counts_without_its_boundary() -> None:
    raw = body(b"\r\nx")
    same = [
        b'multipart/related; start="a"; boundary=AAA',
        b'Multipart/RELATED; start="a";boundary="AAA"',
        b'multipart/related ; start="a"; BOUNDARY=AAA ',
    ]
    assert len({read(raw, value).compared() for value in same}) == 1
    others = [
        b"multipart/related; boundary=AAA",
        b'multipart/related; start="b"; boundary=AAA',
        b"multipart/mixed; boundary=AAA",
    ]
    assert len({read(raw, value).compared() for value in (*others, same[0])}) == 4


@pytest.mark.parametrize(
    "boundary",
    [b"a", b"----WebKitFormBoundary7MA4YWxkTrZu0gW", b"------------------------d74496d66958873e",
     b"formdata-undici-012345678901", b"=_Part_1_2.3", b"a b", b"x" * 70, b"a'()+_-./:=?b"],
)  # fmt: skip
def test_every_legal_boundary(boundary: bytes) -> None:
    value = b'multipart/form-data; boundary="%b"' % boundary
    assert (
        read(body(field(b"a", b"1"), FILE, boundary=boundary), value).compared()
        == read(BASE).compared()
    )


@pytest.mark.parametrize(
    "content_type",
    [
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b'multipart/form-data; boundary=""',
        b"multipart/form-data; boundary=AAA; boundary=BBB",
        b"multipart/form-data; boundary=AAA; boundary=AAA",
        b"multipart/form-data; boundary=AAA; Boundary*0=B",
        b"multipart/form-data; boundary*=utf-8''AAA",
        b"multipart/form-data; x=\"boundary=BBB\"; boundary=AAA",
        b"multipart/form-data, boundary=AAA",
        b"multipart/form-data; boundary=AAA, multipart/mixed",
        b"multipart/form-data; boundary=A A",
        b"multipart/form-data; boundary=A=A",
        b"multipart/form-data; boundary=AAA x=1",
        b'multipart/form-data; boundary="AAA',
        b'multipart/form-data; boundary="AAA "',
        b'multipart/form-data; boundary="A\\AA"',
        b"multipart/form-data; boundary='AAA",
        b"multipart/form-data; boundary=" + b"A" * 71,
        "multipart/form-data; boundary=Ä".encode(),
        b"multipart/form-data; aboundary=AAA",
    ],
)  # fmt: skip
def test_a_boundary_that_cannot_be_told(content_type: bytes) -> None:
    reason = refused(BASE, content_type)
    assert "; send " in reason


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"x",
        b"preamble\r\n" + BASE,
        b"\n" + BASE,
        b"\r\n\r\n" + BASE,
        BASE + b"epilogue",
        BASE + b"\r\n\r\n",
        BASE[:-2] + b" \r\n",
        BASE[:-2] + b"\n",
        BASE[:-2] + b"-\r\n",
        BASE[:-4],
        BASE[:-4] + b"\r\n",
        BASE[:-9],
        BASE.replace(b"\r\n", b"\n"),
        BASE.replace(b"--AAA\r\n", b"--AAA \r\n"),
        BASE.replace(b"--AAA\r\n", b"--AAA\n"),
        body(field(b"a", b"x--AAA")),
        body(field(b"a", b"x\n--AAA\r\ny")),
        body(field(b"a", b"x\r--AAA")),
        body(field(b"a", b"x\r\n--AAAA")),
        body(field(b"a", b"x\r\n--AAA y")),
        body(field(b"a", b"x\r\n--AAA--\r\ny")),
        body(field(b"--AAA", b"x")),
        b"--AAA\r\n--AAA--\r\n",
        b"--AAA\r\n\r\n--AAA\r\n--AAA--\r\n",
        body(b""),
        body(b"a: b"),
        body(b"a: b\r\n"),
        body(b"no header\r\n\r\nx"),
        body(b"a : b\r\n\r\nx"),
        body(b"a: b\r\n folded\r\n\r\nx"),
        body(b"a: b\nc: d\r\n\r\nx"),
        body(b"a: b\x00\r\n\r\nx"),
        body(b": b\r\n\r\nx"),
        body(b"a: " + b"b" * MAX_PART_HEAD + b"\r\n\r\nx"),
        body(*[b"\r\nx"] * (MAX_PARTS + 1)),
    ],
    ids=lambda raw: repr(raw[:60]),
)
def test_bodies_with_two_readings_are_refused(raw: bytes) -> None:
    assert "; send " in refused(raw)


def test_the_smallest_and_the_largest() -> None:
    assert read(b"--AAA--").parts == ()
    assert [part.content for part in read(body(b"\r\n")).parts] == [b""]
    assert len(read(body(*[b"\r\nx"] * MAX_PARTS)).parts) == MAX_PARTS


@pytest.mark.parametrize(
    ("line", "name", "is_file"),
    [
        (b'form-data; name="a"', b"a", False),
        (b"Form-Data;name=a", b"a", False),
        (b'form-data; name=""', None, False),
        (b'form-data; name="a[b]"', b"a[b]", False),
        (b'form-data; filename="x"; name="a"', None, False),
        (b"form-data; name=\"a\"; filename*=utf-8''x", b"a", True),
        (b'form-data; name="a"; other=1', None, False),
        (b'form-data; name="a"; filename="C:\\x\\a\\"b.txt"', b"a", True),
        (b"form-data; name=a; filename=\"a b.txt\"; filename*=utf-8''a%20b.txt", b"a", True),
        (b"form-data; name=a; filename=it's.txt", b"a", True),
        ('form-data; name="a"; filename="ä;ö.txt"'.encode(), b"a", True),
        (b'form-data; name="a"; filename="=?utf-8?Q?x?="', b"a", True),
        (b"form-data", None, False),
        (b'form-data; name="a"; name="b"', None, False),
        (b"form-data; name=\"a\"; name*=utf-8''b", None, False),
        (b'form-data; name="a"; filename="x\\"; name="b"', None, False),
        (b'form-data; name="a%22b"', None, False),
        (b'form-data; name="a" x', None, False),
        (b'attachment; name="a"', None, False),
        (b'form-data; name="a', None, False),
    ],
)
def test_names_of_fields(line: bytes, name: bytes | None, is_file: bool) -> None:
    (part,) = read(body(b"Content-Disposition: %b\r\n\r\nx" % line)).parts
    assert (part.name, part.is_file) == (name, is_file and name is not None)
    (part,) = read(
        body(b"Content-Disposition: %b\r\n\r\nx" % line), b"multipart/mixed; boundary=AAA"
    ).parts
    assert part.name is None


@pytest.mark.parametrize(
    ("lines", "sure"),
    [
        (b"", True),
        (b"\r\nContent-Type: text/plain; charset=UTF-8", True),
        (b"\r\nContent-Transfer-Encoding: 8bit", True),
        (b"\r\nContent-Type: text/plain; charset=utf-7", False),
        (b"\r\nContent-Type: application/json", False),
        (b"\r\nContent-Transfer-Encoding: base64", False),
        (b'\r\nContent-Disposition: form-data; name="b"', False),
        (b'; filename="x"', False),
    ],
)
def test_values_that_can_be_told(lines: bytes, sure: bool) -> None:
    part = b'Content-Disposition: form-data; name="a"' + lines + b"\r\n\r\n1"
    (found,) = read(body(part)).fields
    assert (found.flaw is None) == sure
    if sure:
        assert (found.name, found.value) == (b"a", b"1")


def test_ignored_fields() -> None:
    def written(raw: bytes, *ignore: str) -> bytes:
        return read(raw).without([parse_pointer(text) or () for text in ignore]).compared()

    rest = body(field(b"a", b"1"), FILE)
    for traced in (b"metadata[t]", b"metadata[t][x]"):
        assert written(
            body(field(b"a", b"1"), field(traced, b"9"), FILE), "/metadata/t"
        ) == written(rest)
    assert written(rest, "/f") == written(rest)  # a file is never passed over
    assert written(rest, "/b") == written(rest)
    json = b'Content-Disposition: form-data; name="t"\r\nContent-Type: application/json\r\n\r\n{}'
    assert written(body(json), "/t") == written(body())


def test_members_for_an_outline() -> None:
    assert read(BASE).members() == {
        "a": "1",
        "f": {
            "content-disposition": 'form-data; name="f"; filename="a.txt"',
            "content-type": "text/plain",
            "content": "x",
        },
    }
    assert read(body(b"a: b\r\n\r\nx")).members() == [{"a": "b", "content": "x"}]


boundaries = st.from_regex(re.compile(rb"[A-Za-z0-9'()+_./:=?-]{1,70}"), fullmatch=True)
contents = st.binary(max_size=20) | st.text("-\r\nA", max_size=20).map(str.encode)
heads = st.lists(
    st.tuples(st.sampled_from([b"a", b"b"]), st.sampled_from([b"", b"x", b"x y"])),
    max_size=2,
)  # fmt: skip
parts = st.tuples(heads, contents)


def spelled(part: tuple[list[tuple[bytes, bytes]], bytes]) -> bytes:
    lines, content = part
    return b"".join(b"%b: %b\r\n" % line for line in lines) + b"\r\n" + content


def written(items: list[tuple[list[tuple[bytes, bytes]], bytes]], boundary: bytes) -> bytes:
    whole = [spelled(part) for part in items]
    assume(not any(b"--" + boundary in part for part in whole))
    raw = body(*whole, boundary=boundary)
    assume(raw.count(b"--" + boundary) == len(items) + 1)
    return read(raw, b'multipart/form-data; boundary="%b"' % boundary).compared()


@given(st.lists(parts, max_size=4), boundaries, boundaries)
def test_a_boundary_never_counts(
    items: list[tuple[list[tuple[bytes, bytes]], bytes]], one: bytes, other: bytes
) -> None:
    assert written(items, one) == written(items, other)


@given(st.lists(parts, max_size=3), st.lists(parts, max_size=3), boundaries)
def test_anything_else_counts(
    one: list[tuple[list[tuple[bytes, bytes]], bytes]],
    other: list[tuple[list[tuple[bytes, bytes]], bytes]],
    boundary: bytes,
) -> None:
    assert (written(one, boundary) == written(other, boundary)) == (one == other)


pieces = st.sampled_from(
    [b"--AAA", b"--", b"\r\n", b"\n", b"\r", b"A", b": ", b"x", b"-", b" ", field(b"a", b"1")]
)


@given(st.lists(pieces, max_size=14).map(b"".join))
def test_what_is_read_is_what_another_reader_reads(middle: bytes) -> None:
    raw = b"--AAA\r\n" + middle + b"\r\n--AAA--\r\n"
    result = read_multipart(raw, b"multipart/mixed; boundary=AAA")
    if isinstance(result, Multipart):
        head = b"Content-Type: multipart/mixed; boundary=AAA\r\n\r\n"
        message = BytesParser(policy=HTTP).parsebytes(head + raw)
        theirs = [part.get_payload(decode=True) for part in message.iter_parts()]
        assert [part.content for part in result.parts] == theirs
