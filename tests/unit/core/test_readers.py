"""What real readers were seen to take from a query, a form or a multipart body, where a template
reads ``customer`` (or ``metadata[order]``) as A: they take B, or both. Who was seen to do so stands
behind it. So the template must not give A.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.body import Body
from gateway.core.canonical import Unreadable
from gateway.core.form import MAX_READ
from gateway.core.names import MAX_LEVELS, alike, hides_method, is_plain, says_method, steps
from gateway.core.template import Invalid, read_body, read_query

FORM = b"application/x-www-form-urlencoded"
MULTIPART = b"multipart/form-data; boundary=abc"
DISPOSITION = b'Content-Disposition: form-data; name="customer"'


def parts(*heads: bytes) -> bytes:
    """A part ``customer`` that is A, and one more with each of ``heads`` that is B."""
    each = [DISPOSITION + b"\r\n\r\nA", *(head + b"\r\n\r\nB" for head in heads)]
    return b"".join(b"--abc\r\n%b\r\n" % part for part in each) + b"--abc--\r\n"


def read(raw: bytes, media: bytes = FORM, pointer: tuple[str, ...] = ("customer",)) -> object:
    body = Body(raw, ((b"content-type", media),), "auto")
    return read_body(body.document(), pointer, "it")


@pytest.mark.parametrize(
    "beside",
    [
        b"[customer]=B",  # Rack, Express
        b"]customer=B",  # Rack, Express
        b"[customer]]=B",  # Rack, Express
        b"customer]=B",  # Rack
        b"+customer=B",  # PHP
        b" customer=B",  # Rack, PHP
        b"customer%00=B",  # PHP
        b"customer%00x=B",  # PHP
        # Nobody was found for these, but they are not plain, or look as if.
        b"%09customer=B",
        b".customer=B",
        b"customer.=B",
        b"%C2%A0customer=B",
        b"'customer'=B",
        b"=B",
        # Too many.
        b"&".join(b"f%d=x" % number for number in range(MAX_READ)),  # PHP, qs: the rest is dropped
        b"&" * MAX_READ + b"x=1",  # qs counts empty pairs
    ],
    ids=lambda raw: repr(raw[:40]),
)
def test_forms_that_somebody_reads_otherwise(beside: bytes) -> None:
    for raw in (b"customer=A&" + beside, beside + b"&customer=A"):
        assert isinstance(read(raw), Invalid)


@pytest.mark.parametrize(
    "beside",
    [
        b"[metadata][order]=B",  # Rack, Express
        b"metadata[[order]=B",  # PHP, qs
        b"metadata[%20order]=B",  # PHP
        b"metadata[order%00]=B",
        b"metadata[order]x=B",  # PHP
        b"metadata%20[order]=B",  # PHP
        b"metadata[][order]=B",  # Rack refuses
        b"metadata.order=B",  # ASP.NET, qs with allowDots
    ],
)
def test_nested_forms_that_somebody_reads_otherwise(beside: bytes) -> None:
    for raw in (b"metadata[order]=A&" + beside, beside + b"&metadata[order]=A"):
        assert isinstance(read(raw, pointer=("metadata", "order")), Invalid)


def test_a_value_in_which_a_name_may_end() -> None:
    for raw in (b"customer=A]=c", b"customer=A%5d=c"):  # qs: the name is customer=A]
        assert isinstance(read(raw), Invalid)
    assert read(b"customer=A%5D%3Dc") == "A]=c"
    assert read(b"customer=A&note=hello world&x=%FC&y=" + "ü".encode()) == "A"


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Disposition: form-data; name='customer'",  # PHP
        b"Content-Disposition: form-data; name=customer?",  # Werkzeug, Rack, Formidable
        b"Content-Disposition: form-data; name=(customer)",
        b"Content-Disposition: form-data; name=customer:",  # Werkzeug, Rack, Formidable
        b"Content-Disposition: form-data; name=customer,x",  # Werkzeug, Bottle, Rack, Formidable
        b"Content-Disposition: form-data; name=customer\xc2\x85",  # Django, Tornado, Bottle
        b'Content-Disposition: form-data; name="\tcustomer"',  # Django
        b'Content-Disposition: form-data; name="customer\t"',  # Django
        b'Content-Disposition: form-data; name="=?utf-8?Q?customer?="',
        b'Content-Disposition: form-data; name="cust\\omer"',
        b"X-" + DISPOSITION + b'\r\nContent-Disposition: form-data; name="note"',  # Rack
        b"Content-Type: x; " + DISPOSITION + b'\r\nContent-Disposition: form-data; name="note"',
        b'Content-Disposition: form-data; name="note"; x="; name=customer"',  # Rack
        b'Content-Disposition: form-data; name="note"; filename="a; name=customer"',  # Rack
        b'Content-Disposition: form-data; name="note"; filename="a\\" name*=customer"',
        b'Content-Disposition: form-data; name="note"; filename="a\\"; name="customer"',
        b'Content-Disposition: form-data; name="note"; filename="a\\"',
        b'Content-Disposition: form-data; filename="x"; name="customer"',
        b"Content-ID: customer",  # Rack
        b"X-J: 1\r\n" + DISPOSITION.replace(b"customer", b"note"),
    ],
)  # fmt: skip
def test_parts_that_somebody_reads_otherwise(head: bytes) -> None:
    assert isinstance(read(parts(head), MULTIPART), Invalid)


def test_long_header_lines() -> None:
    """PHP reads the rest of a line of 5 KiB as a line of its own."""
    head = b"Content-ID: " + b"j" * 5_100 + DISPOSITION
    assert isinstance(read(parts(head), MULTIPART), Unreadable)


@pytest.mark.parametrize(
    "head",
    [
        b'Content-Disposition: form-data; name="f"; filename="C:\\\\dir\\\\a\\"b.txt"',  # requests
        b'Content-Disposition: form-data; name="f"; filename="C:\\dir\\a.txt"',  # browsers, once
        b"Content-Disposition: form-data; name=\"f\"; filename*=utf-8''a%20b.txt",  # requests
        b'Content-Disposition: form-data; name="f"; filename="a%22b.txt"',  # browsers, httpx
        b"Content-Disposition: form-data; name=f; filename=a.txt; filename*=utf-8''a.txt",  # .NET
        b'Content-Disposition: form-data; name="f"; filename="=?UTF-8?Q?=C3=BC.txt?="',  # Spring
        b"Content-Type: image/png\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a\"",
        b'Content-Disposition: form-data; name="f"\r\nContent-Length: 3',  # OkHttp
        b'Content-Disposition: form-data; name="f"\r\nContent-Transfer-Encoding: 8bit',  # Java
        b'content-disposition: form-data; name="a[b]"',  # Dart
    ],
)  # fmt: skip
def test_what_clients_send_beside_it(head: bytes) -> None:
    assert read(parts(head), MULTIPART) == "A"


@pytest.mark.parametrize(
    "line", [b"text/plain; charset=ISO-8859-1", b"text/plain; charset=US-ASCII", b"text/plain"]
)
def test_a_field_in_another_charset(line: bytes) -> None:  # Apache HttpClient
    raw = parts().replace(b"\r\n\r\nA", b"\r\nContent-Type: " + line + b"\r\n\r\nA")
    assert read(raw, MULTIPART) == "A"
    assert isinstance(read(raw.replace(b"\r\n\r\nA", b"\r\n\r\n\xfc"), MULTIPART), Invalid)


@pytest.mark.parametrize(
    "media",
    [
        b"multipart/form-data; x-boundary-y=zzz; boundary=abc",  # PHP: zzz
        b"multipart/form-data; boundary=abc; x-BOUNDARY=zzz",
        b'multipart/form-data; boundary="abc,def"',  # Rack: abc
        b'multipart/form-data; boundary="abc boundary=zzz"',  # Rack: zzz
    ],
)
def test_boundaries_that_somebody_reads_otherwise(media: bytes) -> None:
    for boundary in (b"abc", b"abc,def", b"abc boundary=zzz"):
        assert isinstance(read(parts().replace(b"--abc", b"--" + boundary), media), Unreadable)


@pytest.mark.parametrize(
    "beside",
    [
        b"customer%00=B", b"+customer=B", b"%20customer=B", b"customer[]=B", b"customer[x]=B",
        b"[customer]=B", b".customer=B", b"customer[=B", b"CUSTOMER=B", b"=B", b"a;b",
        b"&".join(b"f%d=x" % number for number in range(MAX_READ)),
    ],
    ids=lambda raw: repr(raw[:40]),
)  # fmt: skip
def test_queries_that_somebody_reads_otherwise(beside: bytes) -> None:
    for raw in (b"customer=A&" + beside, beside + b"&customer=A"):
        assert isinstance(read_query(raw, "customer", "it"), Invalid)
    assert read_query(b"customer=A&x[y]=B&customers=B&&", "customer", "it") == "A"
    assert isinstance(read_query(b"customer=A]=c", "customer", "it"), Invalid)


METHOD = [
    b"_method", b"_METHOD", b".method", b"_method[]", b" _method", b"[_method]", b"_method\x00",
    b"_method\t", b"_method]", b"__proto__[_method]]",
]  # fmt: skip


def encoded(name: bytes) -> bytes:
    return b"".join(b"%%%02x" % byte for byte in name)


@pytest.mark.parametrize("name", METHOD)
def test_what_somebody_takes_for_the_method(name: bytes) -> None:
    assert says_method(name)
    for pair in (encoded(name), name.replace(b" ", b"+").replace(b"\x00", b"%00")):
        assert Body(b"a=1&" + pair + b"=PUT", ((b"content-type", FORM),), "auto").says_method
        assert hides_method(b"a=1&" + pair + b"=PUT")
        assert Body(b"%&" + pair + b"=PUT", ((b"content-type", FORM),), "auto").says_method
        assert Body(b"a=1&" + pair + b"=PUT", (), "auto").says_method  # Rack, without a type


@pytest.mark.parametrize("name", [b"payment_method", b"method", b"_methods", b"x[_method]", b"a.b"])
def test_what_nobody_takes_for_the_method(name: bytes) -> None:
    assert not says_method(name)
    for raw in (name + b"=_method", b"%&<" + name.replace(b"[_", b"") + b">"):
        assert not Body(raw, ((b"content-type", FORM),), "auto").says_method
    assert not Body(b'{"_method":1}', ((b"content-type", b"application/json"),), "auto").says_method


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b'Content-Disposition: form-data; name="_method"', True),
        (b"Content-Disposition: form-data; name='_method'", True),  # PHP
        (b'Content-Disposition: form-data; name="_method\t"', True),  # Django
        (b'Content-Disposition: form-data; name="_method"; name*=x', True),
        (b'Content-Disposition: form-data; name="_method"\r\nX: a\r\nX: b', True),
        (b'Content-Disposition: form-data; name="%5Fmethod"; x=y', True),
        (b'Content-Disposition: form-data; name="_m\\ethod"', True),
        (b"Content-Disposition: form-data; name*0=_me; name*1=thod", True),
        (b'Content-Disposition: form-data; name="=?utf-8?Q?=5Fmethod?="', True),
        (b'Content-Disposition: form-data; name="payment_method"', False),
        (b'Content-Disposition: form-data; name="a"; filename="b_method"; x=1', False),
        (b'Content-Disposition: form-data; name="f%22g"', False),
        (b'X: 1\r\nContent-Disposition: form-data; name="a"; filename="=?utf-8?Q?x?="', False),
    ],
)
def test_parts_that_change_the_method(head: bytes, says: bool) -> None:
    for media in (MULTIPART, b"multipart/mixed; boundary=abc"):  # Rack reads both
        assert Body(parts(head), ((b"content-type", media),), "auto").says_method == says


characters = st.sampled_from([b"a", b"b", b".", b"_", b"-", b"[", b"]", b"[]", b"[a]", b" ", b"A"])
names = st.lists(characters, max_size=6).map(b"".join)


@given(names, names)
def test_alike_is_symmetric_and_holds_for_what_is_nested(one: bytes, other: bytes) -> None:
    assert alike(one, other) == alike(other, one)
    assert alike(one, one)
    if is_plain(one):
        assert alike(one, one + b"[x]")
        assert alike(one, one.swapcase())
        assert alike(one, one.replace(b".", b"_"))
    else:
        assert alike(one, other)


@given(st.lists(st.sampled_from([b"a", b"", b"b.c", b"0"]), max_size=40))
def test_plain_names_have_so_many_levels(inner: list[bytes]) -> None:
    name = b"root" + b"".join(b"[%b]" % step for step in inner)
    assert is_plain(name) == (len(inner) < MAX_LEVELS)
    assert steps(name) == ([b"root", *inner] if len(inner) < MAX_LEVELS else None)


@given(st.binary(max_size=30))
def test_no_bytes_make_it_fail(raw: bytes) -> None:
    assert isinstance(says_method(raw), bool)
    assert alike(raw, raw)
    read(b"customer=A&" + raw)
    read(parts(raw), MULTIPART)


@pytest.mark.parametrize(
    "head", [b'name=1name="a\\"', b"name=a;name=filename x\\", b"name=1name*0", b"name=1name==?"]
)
def test_a_name_in_the_value_of_another_is_looked_at_too(head: bytes) -> None:
    assert hides_method(head, is_head=True)


@pytest.mark.parametrize("piece", [b"name=1", b'name="', b"name*=", b"name", b'1name="a'])
def test_no_head_of_a_part_makes_its_reader_go_back(piece: bytes) -> None:
    """The bound is no measure: who goes back takes ten seconds."""
    began = time.process_time()
    assert not hides_method(piece * 50_000, is_head=True)
    assert time.process_time() - began < 3
