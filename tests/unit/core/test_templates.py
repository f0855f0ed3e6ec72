"""The one value that a request gives for a placeholder, and why it gives none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.canonical import Unreadable, parse_pointer, read_json
from gateway.core.form import percent_decode, read_form, well_encoded
from gateway.core.multipart import read_multipart
from gateway.core.template import (
    Invalid,
    Missing,
    read_body,
    read_header,
    read_key_header,
    read_query,
    read_segment,
)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"acc-1", "acc-1"),
        (b"acc%2D1", "acc-1"),
        (b"acc%2d1", "acc-1"),
        (b"%61cc-1", "acc-1"),
        (b"ACC-1", "ACC-1"),
        (b"a%20b", "a b"),
        (b"a+b", "a+b"),
        (b"a%3Bb", "a;b"),
        (b"a:b@c", "a:b@c"),
    ],
)
def test_a_segment_is_decoded_once(raw: bytes, value: str) -> None:
    assert read_segment(raw, "it") == value


@pytest.mark.parametrize(
    "raw",
    [
        b"a%2Fb", b"a%2fb", b"a%5Cb", b"acc%252D1", b"100%25", b"a;v=1", b"a%0d%0aSet-Cookie:x",
        b"a%00", b"a%7F", b"caf%C3%A9", b"cafe%CC%81", b"a%ff", b"\xc3\xa9", b"%20a", b"a%20",
        b"%2e%2e", b"..", b".", b"a%zz", b"a%", b"a" * 256,
    ],
)  # fmt: skip
def test_a_segment_with_two_readings_is_refused(raw: bytes) -> None:
    assert isinstance(read_segment(raw, "it"), Invalid)


@pytest.mark.parametrize(
    ("query", "value"),
    [
        (b"id=1", "1"),
        (b"x=2&id=1", "1"),
        (b"%69d=%31", "1"),
        (b"id=a%2Bb", "a+b"),
        (b"id=a=b", "a=b"),
    ],
)
def test_a_query_value_is_decoded_once(query: bytes, value: str) -> None:
    assert read_query(query, "id", "it") == value


@pytest.mark.parametrize("query", [b"", b"x=1", b"id", b"id=", b"ID=1", b"id[]=1"])
def test_a_query_value_is_missing(query: bytes) -> None:
    assert read_query(query, "id", "it") == Missing("it")


@pytest.mark.parametrize(
    "query",
    [
        b"id=1&id=2", b"id=1&id=1", b"id=1&%69d=2", b"id=1&ID=2", b"id=1;id=2", b"id=a+b",
        b"id=%zz", b"id=caf%C3%A9", b"id=%0a", b"x=%&id=1",
    ],
)  # fmt: skip
def test_a_query_value_with_two_readings_is_refused(query: bytes) -> None:
    assert isinstance(read_query(query, "id", "it"), Invalid)


def test_a_header_has_one_line() -> None:
    assert read_header([b" job:1\t"], "it") == "job:1"
    assert read_header([], "it") == Missing("it")
    assert read_header([b"  "], "it") == Missing("it")
    for lines in ([b"a", b"a"], [b"a", b""], [b"a, b"], [b"caf\xe9"], [b"a\x00b"], [b"a" * 256]):
        assert isinstance(read_header(lines, "it"), Invalid)


def test_the_key_header_reads_both_spellings() -> None:
    assert read_key_header([b'"k-1"'], "it") == "k-1" == read_key_header([b"k-1"], "it")
    assert read_key_header([], "it") == Missing("it")
    assert isinstance(read_key_header([b"a b"], "it"), Invalid)


def body(raw: bytes, pointer: str = "/input/customer_id") -> object:
    return read_body(read_json(raw), parse_pointer(pointer) or (), "it")


def test_a_body_gives_a_string() -> None:
    assert body(b'{"input":{"customer_id":"c-1"}}') == "c-1"
    assert body(b'{"input":{"customer_id":"\\u0063-1"}}') == "c-1"
    assert body(b'[["a"]]', "/0/0") == "a"


@pytest.mark.parametrize(
    "raw", [b"null", b"[]", b'"x"', b"{}", b'{"input":null}', b'{"input":{"customer_id":""}}']
)
def test_a_body_value_is_missing(raw: bytes) -> None:
    assert body(raw) == Missing("it")


@pytest.mark.parametrize(
    "value",
    [
        b"1048", b"1048.0", b"true", b"null", b'["c-1"]', b"{}", b'"\\ud800"', b'"caf\\u00e9"',
        b'" c-1"', b'"c\\u0000"', b'"' + b"c" * 256 + b'"', b'"c","Customer_ID":"d"',
    ],
)  # fmt: skip
def test_a_body_value_of_another_kind_is_refused(value: bytes) -> None:
    assert isinstance(body(b'{"input":{"customer_id":%b}}' % value), Invalid)


def test_an_unreadable_body_says_why() -> None:
    assert isinstance(body(b"{"), Unreadable)


def form(raw: bytes, pointer: str = "/customer") -> object:
    return read_body(read_form(raw), parse_pointer(pointer) or (), "it")


@pytest.mark.parametrize(
    ("raw", "pointer", "value"),
    [
        (b"customer=c-1&x=2", "/customer", "c-1"),
        (b"%63ustomer=%63-1", "/customer", "c-1"),
        (b"customer=a+b", "/customer", "a b"),
        (b"customer=a%2Bb", "/customer", "a+b"),
        (b"customer=a=b", "/customer", "a=b"),
        (b"customer=%2541", "/customer", "%41"),
        (b"customer_id=1&customer=2&customers=3&x[customer]=4", "/customer", "2"),
        (b"metadata%5Border%5D=o-1&metadata[x]=2", "/metadata/order", "o-1"),
        (b"items[0][id]=a&items[1][id]=b", "/items/0/id", "a"),
        (b"_charset_=UTF-8&customer=c", "/customer", "c"),
    ],
)
def test_a_form_gives_one_parameter(raw: bytes, pointer: str, value: str) -> None:
    assert form(raw, pointer) == value


@pytest.mark.parametrize("raw", [b"", b"x=1", b"customer", b"customer="])
def test_a_parameter_is_missing(raw: bytes) -> None:
    assert form(raw) == Missing("it")


@pytest.mark.parametrize(
    "beside",
    [
        b"customer=1", b"customer=2", b"Customer=2", b"customer[]=2", b"customer[x]=2", b"customer",
        b"customer.id=2", b"customer[=2", b"+customer=2", b"customer%00=2", b"customer%00x=2",
        b"customer]=2", b"CUSTOMER%5Bx%5D=2", b"_charset_=utf-7", b"_charset_",
    ],
)  # fmt: skip
def test_a_parameter_with_a_twin_is_refused(beside: bytes) -> None:
    for raw in (b"customer=1&" + beside, beside + b"&x=y&customer=1"):
        assert isinstance(form(raw), Invalid)


@pytest.mark.parametrize(
    "beside",
    [
        b"metadata=2", b"metadata[]=2", b"metadata[order]=2", b"metadata[order][x]=2",
        b"metadata[Order]=2", b"Metadata[order]=2", b"metadata.order=2", b"metadata[order][]=2",
        b"metadata%00=2",
    ],
)  # fmt: skip
def test_a_nested_parameter_with_a_twin_is_refused(beside: bytes) -> None:
    assert isinstance(form(b"metadata[order]=1&" + beside, "/metadata/order"), Invalid)


@pytest.mark.parametrize(
    ("wanted", "beside"),
    [("customer_id", b"customer.id=2"), ("customer_id", b"customer+id=2"), ("a-b", b"a_b=2")],
)
def test_names_that_php_takes_for_one_are_twins(wanted: str, beside: bytes) -> None:
    assert isinstance(form(wanted.encode() + b"=1&" + beside, "/" + wanted), Invalid)


@pytest.mark.parametrize(
    "value", [b"caf%C3%A9", b"%20c", b"c+", b"%00", b"%0A", b"c" * 256, b"%FF"]
)
def test_a_parameter_of_another_alphabet_is_refused(value: bytes) -> None:
    assert isinstance(form(b"customer=" + value), Invalid)


def test_a_form_that_cannot_be_read_says_why() -> None:
    assert isinstance(form(b"customer=1;x=2"), Unreadable)
    assert isinstance(form(b"customer=%"), Unreadable)


NAMED = b'Content-Disposition: form-data; name="customer"'


def parts(*raw: bytes, kind: bytes = b"form-data") -> object:
    lines = b"".join(b"--A\r\n%b\r\n" % part for part in raw) + b"--A--"
    return read_body(read_multipart(lines, b"multipart/%b; boundary=A" % kind), ("customer",), "it")


def test_a_multipart_field_gives_its_value() -> None:
    file = b'Content-Disposition: form-data; name="doc"; filename="x"\r\n\r\n\xff'
    assert parts(NAMED + b"\r\n\r\nc-1") == "c-1"
    assert parts(file, NAMED + b"\r\n\r\nc-1") == "c-1"
    assert parts(file) == Missing("it")
    assert parts(NAMED + b"\r\n\r\n") == Missing("it")


@pytest.mark.parametrize(
    "raw",
    [
        (NAMED + b'; filename="x"\r\n\r\nc-1',),
        (NAMED + b"\r\nContent-Type: application/json\r\n\r\n1",),
        (NAMED + b"\r\nContent-Transfer-Encoding: base64\r\n\r\nYQ==",),
        (NAMED + b"\r\n\r\na", NAMED + b"\r\n\r\na"),
        (NAMED + b"\r\n\r\na", NAMED.replace(b"cus", b"Cus") + b"\r\n\r\nb"),
        (NAMED + b"\r\n\r\na", NAMED + b'; filename="x"\r\n\r\nb'),
        (NAMED + b"\r\n\r\na", b"\r\nnameless"),
        (NAMED + b"\r\n\r\na\r\nb",),
    ],
)
def test_a_multipart_field_with_two_readings_is_refused(raw: tuple[bytes, ...]) -> None:
    assert isinstance(parts(*raw), Invalid)


def test_another_multipart_kind_has_no_fields() -> None:
    assert isinstance(parts(NAMED + b"\r\n\r\na", kind=b"mixed"), Invalid)


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_reading_a_form_never_fails(raw: bytes, name: bytes) -> None:
    value = form(raw + b"&customer=1&" + name.replace(b"%", b"") + b"=2")
    if isinstance(value, str):
        assert value == "1"


@given(st.binary(max_size=300), st.binary(max_size=60), st.lists(st.binary(max_size=9), max_size=3))
def test_readers_never_fail_and_give_only_safe_text(
    segment: bytes, query: bytes, lines: list[bytes]
) -> None:
    for value in (
        read_segment(segment or b"x", "it"),
        read_query(query, "a", "it"),
        read_header(lines, "it"),
        read_key_header(lines, "it"),
    ):
        if isinstance(value, str):
            assert 1 <= len(value) <= 255
            assert value.isascii()
            assert value.isprintable()
            assert value == value.strip()


@given(st.binary(max_size=30))
def test_decoding_undoes_encoding(raw: bytes) -> None:
    encoded = b"".join(b"%%%02x" % byte for byte in raw)
    assert well_encoded(encoded)
    assert percent_decode(encoded) == raw
