"""What makes two requests the same command."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.body import Body, BodyMode
from gateway.core.canonical import Document, Unreadable
from gateway.core.fingerprint import (
    Parts,
    Recipe,
    body_type,
    chosen_headers,
    fingerprint,
    key_digest,
    rule_version,
    upstream_key,
)
from gateway.core.form import Parameters
from gateway.core.model import Headers
from gateway.core.multipart import Multipart

SALT = bytes(range(16))
JSON: Headers = ((b"Content-Type", b"application/json"),)
FORM: Headers = ((b"Content-Type", b"application/x-www-form-urlencoded"),)
PARTS = Parts(
    "POST", b"/p/x", b"a=1", "invoice:1", ((b"v", (b"1",)),), b"a/b", "json", b"{}", b"v" * 8
)


@pytest.mark.parametrize(
    "other",
    [
        replace(PARTS, method="PUT"),
        replace(PARTS, path=b"/p/%78"),
        replace(PARTS, query=b"a=2"),
        replace(PARTS, query=b""),
        replace(PARTS, path=b"/p/xa", query=b"=1"),
        replace(PARTS, entity="invoice:2"),
        replace(PARTS, headers=((b"v", (b"2",)),)),
        replace(PARTS, headers=((b"v", ()),)),
        replace(PARTS, headers=((b"v", (b"1", b"1")),)),
        replace(PARTS, headers=((b"v", (b"",)),)),
        replace(PARTS, headers=()),
        replace(PARTS, type=b""),
        replace(PARTS, type=b"a/b+json"),
        replace(PARTS, form="raw"),
        replace(PARTS, form="form"),
        replace(PARTS, form="multipart"),
        replace(PARTS, body=b"[]"),
        replace(PARTS, version=b"w" * 8),
    ],
)
def test_every_part_counts(other: Parts) -> None:
    assert fingerprint(SALT, other) != fingerprint(SALT, PARTS)


def test_a_fingerprint_is_stable_and_salted() -> None:
    assert len(fingerprint(SALT, PARTS)) == 32
    assert fingerprint(SALT, PARTS) == fingerprint(SALT, replace(PARTS))
    assert fingerprint(SALT, PARTS) != fingerprint(bytes(16), PARTS)
    # Pinned: another value here means that ALGORITHM must change.
    assert fingerprint(SALT, PARTS).hex()[:16] == "52f422ed8beadb17"
    assert rule_version(Recipe(), "invoice:{path.x}").hex() == "beddccebe111f50f"


@pytest.mark.parametrize("salt", [b"", b"x" * 15, b"x" * 32])
def test_a_salt_of_another_length_is_a_bug(salt: bytes) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        key_digest(salt, "k")


def test_key_digest_and_upstream_key() -> None:
    keys = ["k-1", "K-1", "b" * 254 + "x", "b" * 254 + "y"]
    assert len({key_digest(SALT, key) for key in keys}) == len(keys)
    assert len({upstream_key(SALT, key) for key in keys}) == len(keys)
    assert len(key_digest(SALT, "k")) == 16
    assert key_digest(SALT, "k") != key_digest(bytes(16), "k")
    assert upstream_key(SALT, "k") != upstream_key(bytes(16), "k")
    assert (
        upstream_key(SALT, "k") == "fg-31348f881a9ae64c3c41b2ff80326c80"
    )  # for ever: upstreams remember it
    assert upstream_key(SALT, "k")[3:] != key_digest(SALT, "k").hex()


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(body="raw"),
        Recipe(body="form"),
        Recipe(body="multipart"),
        Recipe(ignore=(("a",),)),
        Recipe(ignore=(("a", "b"),)),
        Recipe(ignore=(("a",), ("b",))),
        Recipe(headers=(b"a",)),
        Recipe(headers=(b"a", b"b")),
    ],
)
def test_a_recipe_has_its_own_version(recipe: Recipe) -> None:
    versions = {rule_version(recipe, "e"), rule_version(Recipe(), "e"), rule_version(recipe, "f")}
    assert len(versions) == 3
    assert {len(version) for version in versions} == {8}


@pytest.mark.parametrize(
    ("content_type", "form"),
    [
        (b"application/json", "json"),
        (b"Application/JSON; charset=utf-8", "json"),
        (b" application/json ;x", "json"),
        (b"application/merge-patch+json", "json"),
        (b"application/problem+JSON", "json"),
        (b"text/json", "raw"),
        (b"text/plain", "raw"),
        (b"application/jsonl", "raw"),
        (b"application/json-seq", "raw"),
        (b"application/x-www-form-urlencoded", "form"),
        (b"Application/X-WWW-Form-Urlencoded ; charset=UTF-8", "form"),
        (b"multipart/form-data; boundary=a", "multipart"),
        (b"Multipart/Mixed; boundary=a", "multipart"),
        (b"multipart/x+json; boundary=a", "multipart"),
        (b"application/x-www-form-urlencoded, a/b+json", "raw"),
        (b"multipart/", "raw"),
        (b"multipart", "raw"),
        (b"+json", "raw"),
        (b"", "raw"),
    ],
)
def test_auto_goes_by_content_type(content_type: bytes, form: str) -> None:
    raw = b"--a\r\n\r\n\r\n--a--" if form == "multipart" else b"{}"
    body = Body(raw, ((b"content-type", content_type),), "auto")
    assert body.form == form
    kinds = {"json": Document, "form": Parameters, "multipart": Multipart, "raw": Unreadable}
    assert isinstance(body.document(), kinds[form])


@pytest.mark.parametrize(
    ("raw", "headers", "mode", "form"),
    [
        (b"{}", (), "auto", "raw"),
        (b"{}", JSON + JSON, "auto", "raw"),
        (b"", JSON, "auto", "raw"),
        (b"{}", ((*JSON, (b"Content-Encoding", b"gzip"))), "auto", "raw"),
        (b"{}", ((*JSON, (b"Content-Encoding", b"Identity"))), "auto", "json"),
        (b"{}", JSON, "raw", "raw"),
        (b"{}", (), "json", "json"),
        (b"a=1", FORM, "auto", "form"),
        (b"a=1", FORM, "form", "form"),
        (b"a=1", FORM, "raw", "raw"),
        (b"", FORM, "auto", "raw"),
        (b"", (), "form", "form"),
        (b"a=1", (*FORM, (b"Content-Encoding", b"gzip")), "auto", "raw"),
        (b"a=1", FORM + FORM, "auto", "raw"),
    ],
)
def test_forms(raw: bytes, headers: Headers, mode: BodyMode, form: str) -> None:
    body = Body(raw, headers, mode)
    assert body.form == form
    assert body.compared(()) == raw


@pytest.mark.parametrize(
    ("raw", "headers", "mode"),
    [
        (b"{", JSON, "auto"),
        (b"", (), "json"),
        (b"{}", ((b"Content-Encoding", b"br"),), "json"),
        (b'{"a":"&a=2&"}', FORM, "json"),
        (b"{}", ((b"Content-Type", FORM[0][1] + b", application/json"),), "json"),
        (b"{}", ((b"Content-Type", b"multipart/form-data; boundary=a"),), "json"),
        (b"a=%", FORM, "form"),
        (b"a=1", (*FORM, (b"Content-Encoding", b"br")), "form"),
        (b"a=1", (), "form"),
        (b"a=1", JSON, "form"),
        (b"a=1", FORM + FORM, "form"),
        (b"a=1", FORM, "multipart"),
        (b"", (), "multipart"),
        (b"--a\r\n", ((b"Content-Type", b"multipart/form-data; boundary=a"),), "multipart"),
    ],
)
def test_a_body_that_says_json_and_is_none(raw: bytes, headers: Headers, mode: BodyMode) -> None:
    assert isinstance(Body(raw, headers, mode).compared(()), Unreadable)


@pytest.mark.parametrize(
    ("parameters", "readable"),
    [
        (b"; charset=utf-8", True),
        (b";charset=UTF-8;v=1", True),
        (b'; v=1; Charset="Utf-8" ', True),
        (b"; charset=us-ascii", True),
        (b"; charset=utf-7", False),
        (b"; charset=utf-16le", False),
        (b'; charset="iso-8859-1"', False),
        (b"; charset=utf-8; charset=utf-8", False),
        (b"; charset=utf-8; CHARSET=utf-16", False),
        (b"; charset=utf-8, application/json; charset=utf-16", False),
        (b"; charset=utf-8x", False),
        (b"; charset=", False),
        (b"; charset", False),
        (b"; charset*=utf-16''x", False),
        (b'; v=";charset=utf-16"', False),
        (b'; charset="utf-8', False),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "json", "raw"])
def test_json_is_utf_8_whatever_a_framework_decodes_by(
    parameters: bytes, readable: bool, mode: BodyMode
) -> None:
    headers = ((b"Content-Type", b"application/json" + parameters),)
    body = Body(b"{}", headers, mode)
    assert isinstance(body.document(), Document) == readable
    assert isinstance(body.compared(()), bytes) == (readable or mode == "raw")


@pytest.mark.parametrize("mode", ["auto", "form", "raw"])
def test_forms_are_utf_8_too(mode: BodyMode) -> None:
    for charset, ascii_only, other in (
        (b"utf-8", True, True),
        (b"utf-7", False, False),
        (b"iso-8859-1", True, False),
        (b"LATIN1", True, False),
        (b'"windows-1252"', True, False),
        (b"us-ascii", True, False),
    ):
        headers = ((b"Content-Type", FORM[0][1] + b"; charset=" + charset),)
        assert isinstance(Body(b"a=1%41", headers, mode).document(), Parameters) == ascii_only
        for raw in (b"a=%C3%BC", "a=ü".encode(), b"%FC=1"):
            assert isinstance(Body(raw, headers, mode).document(), Parameters) == other


@pytest.mark.parametrize(("head", "content", "readable"), [
    (b"", b"1", True), (b"", b"\xfc", False), (b"X: \xfc\r\n", b"1", False),
    (b'Content-Disposition: form-data; name="a"; filename="b"\r\n', b"\xfc", True),
])  # fmt: skip
def test_a_multipart_charset_decodes_all_but_files(
    head: bytes, content: bytes, readable: bool
) -> None:
    raw = b"--a\r\n" + head + b"\r\n" + content + b"\r\n--a--"
    media = b"multipart/form-data; charset=ISO-8859-1; boundary=a"
    found = Body(raw, ((b"Content-Type", media),), "multipart").document()
    assert isinstance(found, Multipart) == readable


def test_json_in_ascii_is_ascii() -> None:
    headers = ((b"Content-Type", b"application/json; charset=us-ascii"),)
    assert isinstance(Body(b'"\\u00fc"', headers, "auto").compared(()), bytes)
    assert isinstance(Body('"ü"'.encode(), headers, "auto").compared(()), Unreadable)


@pytest.mark.parametrize(
    ("raw", "media"),
    [
        (b"<a>10% &amp; 5%</a>", FORM[0][1]),  # XML under curl's default type
        (b"a=1;b=2", FORM[0][1]),
        (b"a=\xfc", FORM[0][1] + b"; charset=iso-8859-1"),
        (b"--a\n\nx\n--a--\n", b"multipart/related; boundary=a"),  # bare LF
        (b"x", b"multipart/form-data"),
    ],
)
def test_what_cannot_be_read_is_compared_byte_by_byte(raw: bytes, media: bytes) -> None:
    for mode in ("auto", "raw"):
        body = Body(raw, ((b"Content-Type", media),), mode)  # type: ignore[arg-type]
        assert (body.form, body.compared((("a",),))) == ("raw", raw)
        assert isinstance(body.document(), Unreadable)
    kind = "multipart" if media.startswith(b"multipart") else "form"
    strict = Body(raw, ((b"Content-Type", media),), kind)  # type: ignore[arg-type]
    assert isinstance(strict.compared(()), Unreadable)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # Kubernetes patches an object in two ways by these.
        (
            (b"application/merge-patch+json", None),
            (b"application/strategic-merge-patch+json", None),
        ),
        ((b"text/plain", None), (b"application/xml", None)),
        ((b"text/plain", None), (None, None)),
        ((b"application/json", b"gzip"), (b"application/json", None)),
        ((b"application/json", b"gzip"), (b"application/json", b"gzip, gzip")),
    ],
)
def test_the_type_of_a_body_counts(
    one: tuple[bytes | None, bytes | None], other: tuple[bytes | None, bytes | None]
) -> None:
    assert typed(*one) != typed(*other)


def typed(media: bytes | None, coding: bytes | None = None) -> bytes:
    lines = ((b"Content-Type", media), (b"content-encoding", coding))
    return body_type(tuple((name, value) for name, value in lines if value is not None))


def test_the_spelling_of_a_type_does_not_count() -> None:
    assert typed(b"Application/JSON ; charset=utf-8", b"Identity") == typed(b"application/json")
    assert typed(b"a/b", b"GZIP ,br") == typed(b"a/b", b"gzip,br")
    assert typed(b"multipart/x; boundary=1") == typed(b"multipart/x; boundary=2")


def test_two_types_are_none() -> None:
    body = Body(b"{}", JSON + JSON, "json")
    assert body.document() == Unreadable("has more than one Content-Type; send one")


def test_the_charset_of_what_is_no_json_is_none_of_our_business() -> None:
    headers = ((b"Content-Type", b"text/plain; charset=utf-16"),)
    assert Body(b"x", headers, "auto").compared(()) == b"x"
    assert isinstance(Body(b"{}", headers, "json").compared(()), Unreadable)


def test_a_body_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    body = Body(b'{"a":1,"t":2}', JSON, "auto")
    first = body.document()
    monkeypatch.setattr("gateway.core.body.read_json", None)
    assert body.document() is first
    assert body.compared((("t",),)) == b'{"a":1}'


def test_chosen_headers_keep_all_lines_and_tell_absent_from_empty() -> None:
    headers: Headers = ((b"V", b" 1 "), (b"x", b""), (b"v", b"2"))
    assert chosen_headers(headers, (b"v", b"x", b"y")) == (
        (b"v", (b"1", b"2")),
        (b"x", (b"",)),
        (b"y", ()),
    )


lists = st.lists(st.binary(max_size=3), max_size=3).map(tuple)
fields = st.lists(st.tuples(st.binary(max_size=2), lists), max_size=3).map(tuple)
parts = st.builds(
    Parts,
    method=st.sampled_from(["POST", "PUT"]),
    path=st.binary(max_size=3),
    query=st.binary(max_size=3),
    entity=st.text("ab", max_size=3),
    headers=fields,
    form=st.sampled_from(["json", "form", "multipart", "raw"]),
    body=st.binary(max_size=3),
    version=st.just(b"v" * 8),
)


@given(parts, st.integers(0, 6))
def test_where_one_part_ends_and_the_next_begins_counts(one: Parts, cut: int) -> None:
    joined = one.path + one.query
    other = replace(one, path=joined[:cut], query=joined[cut:])
    assert (fingerprint(SALT, one) == fingerprint(SALT, other)) == (one == other)


@given(parts, parts)
def test_parts_never_run_into_each_other(one: Parts, other: Parts) -> None:
    assert (fingerprint(SALT, one) == fingerprint(SALT, other)) == (one == other)


_LINES = st.text(st.sampled_from("aB/; \t=,"), max_size=8).map(str.encode)
_CODINGS = st.lists(st.sampled_from([b"identity", b" ,Identity", b"gzip", b""]), max_size=2)


@given(st.lists(_LINES, max_size=2), _CODINGS)
def test_a_body_that_is_not_coded_has_the_type_that_counts(
    lines: list[bytes], codings: list[bytes]
) -> None:
    headers = (
        *((b"content-type", line) for line in lines),
        *((b"content-encoding", line) for line in codings),
    )
    body = Body(b"{}", headers, "auto")
    assert body.is_coded or body.media == body_type(headers)
