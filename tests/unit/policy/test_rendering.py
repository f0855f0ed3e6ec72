"""The grammar of templates, and what they render."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.body import Body
from gateway.core.canonical import Unreadable
from gateway.core.model import Headers
from gateway.core.template import Invalid, Missing
from gateway.policy.templates import Context, TemplateError, parse

JSON: Headers = ((b"Content-Type", b"application/json"),)


def context(
    headers: Headers = (), query: bytes = b"", body: bytes = b"{}", **variables: bytes
) -> Context:
    return Context(variables, query, headers, Body(body, headers, "json"))


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 1, "is empty"),
        ("a{path.x", 2, "does not end"),
        ("ab}c", 3, "was not opened"),
        ("a:{x}", 3, "not a placeholder"),
        ("a:{}", 3, "not a placeholder"),
        ("{env.HOME}", 1, "not a placeholder"),
        ("{path}", 1, "not a placeholder"),
        ("{path.}", 1, "no usable name"),
        ("{path.a b}", 1, "no usable name"),
        ("{header.a b}", 1, "no usable name"),
        ("{header.X_Fence}", 1, "no usable name"),
        ("{query.}", 1, "no usable name"),
        ("{query.é}", 1, "no usable name"),
        ("{query.a/b}", 1, "no usable name"),  # not plain, so it could never be told
        ("{query.[a]}", 1, "no usable name"),
        ("{body.a}", 1, "no usable name"),
        ("{body.}", 1, "no usable name"),
        ("{body./a~2}", 1, "not a JSON pointer"),
        ("{path.a}{path.b}", 9, "another placeholder at once"),
        ("{{path.a}}", 1, "not a placeholder"),
        ("é:{path.a}", 1, "not printable ASCII"),
        ("a\n", 2, "not printable ASCII"),
    ],
)
def test_mistakes_name_their_column(text: str, column: int, says: str) -> None:
    with pytest.raises(TemplateError) as caught:
        parse(text)
    assert caught.value.problem.startswith(f"column {column}: ")
    assert says in caught.value.problem
    assert caught.value.mend


def test_each_source() -> None:
    template = parse("t:{path.x}/{header.X-A}/{query.q}/{body./a~1b/0}/{header.idempotency-key}")
    rendered = template.render(
        context(
            ((b"x-a", b"h"), (b"Idempotency-Key", b'"k"')),
            b"q=2",
            b'{"a/b":["s"]}',
            x=b"%31",
        )
    )
    assert rendered == "t:1/h/2/s/k"


def test_literals() -> None:
    assert parse("ledger").render(context()) == "ledger"
    assert parse("ledger").start == "ledger"
    assert parse("{path.x}").start == ""
    assert parse("{path.x}").alone is not None
    assert parse("a{path.x}").alone is None
    assert parse("ledger").alone is None


def test_what_is_missing_is_named() -> None:
    assert parse("a:{header.X-A}").render(context()) == Missing("{header.X-A}")
    assert parse("a:{body./x}").render(context()) == Missing("{body./x}")
    assert parse("a:{query.x}").render(context()) == Missing("{query.x}")


def test_a_body_that_cannot_be_read_says_so() -> None:
    assert isinstance(parse("a:{body./x}").render(context(body=b"{")), Unreadable)


def test_no_two_lists_of_values_render_alike() -> None:
    template = parse("{path.a}:{path.b}")
    assert template.render(context(a=b"1", b=b"2:3")) == "1:2:3"
    assert isinstance(template.render(context(a=b"1:2", b=b"3")), Invalid)
    overlapping = parse("{path.a}--{path.b}")
    assert overlapping.render(context(a=b"1", b=b"-2")) == "1---2"
    assert isinstance(overlapping.render(context(a=b"1-", b=b"2")), Invalid)


def test_the_whole_is_bounded() -> None:
    template = parse("ab:{path.x}")
    assert template.render(context(x=b"x" * 252)) == "ab:" + "x" * 252
    assert isinstance(template.render(context(x=b"x" * 253)), Invalid)


names = st.sampled_from(["a", "b"])
placeholders = st.one_of(
    names.map(lambda name: f"{{path.{name}}}"),
    names.map(lambda name: f"{{header.{name}}}"),
    names.map(lambda name: f"{{query.{name}}}"),
    names.map(lambda name: f"{{body./{name}}}"),
    st.just("{header.Idempotency-Key}"),
)
texts = st.lists(placeholders, min_size=1, max_size=3).map(":".join)
fields = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"B", b"idempotency-key", b"content-type"]),
        st.binary(max_size=8) | st.just(b"application/json"),
    ),
    max_size=5,
).map(tuple)
queries = st.binary(max_size=12) | st.sampled_from([b"a=1&b=2", b"a=1&a=2", b"a=%41"])
bodies = st.binary(max_size=20) | st.sampled_from([b'{"a":"1","b":2}', b'{"a":null}', b"[]"])


@given(texts, fields, queries, bodies, st.binary(min_size=1), st.binary(min_size=1))
def test_rendering_never_fails(
    text: str, headers: Headers, query: bytes, body: bytes, a: bytes, b: bytes
) -> None:
    rendered = parse(text).render(
        Context({"a": a, "b": b}, query, headers, Body(body, headers, "json"))
    )
    if isinstance(rendered, str):
        assert 1 <= len(rendered) <= 255
        assert rendered.isascii()
        assert rendered.isprintable()
    else:
        assert isinstance(rendered, Missing | Invalid | Unreadable)


@given(st.text(max_size=30))
def test_any_text_is_a_template_or_a_mistake(text: str) -> None:
    try:
        template = parse(text)
    except TemplateError:
        return
    between = zip(template.literals[1:], template.placeholders, strict=True)
    assert text == template.start + "".join(place.text + tail for tail, place in between)


values = st.lists(st.text("ab-:", min_size=1, max_size=4), min_size=2, max_size=2)


@given(st.sampled_from([":", "--", "a:a", "-:"]), values, values)
def test_equal_texts_have_equal_values(literal: str, one: list[str], other: list[str]) -> None:
    template = parse(f"{{path.a}}{literal}{{path.b}}")
    first, second = (
        template.render(context(a=pair[0].encode(), b=pair[1].encode())) for pair in (one, other)
    )
    if isinstance(first, str) and first == second:
        assert one == other
