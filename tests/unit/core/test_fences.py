"""The grammar of fences in fields and bodies, and ``Prefer: wait``."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.canonical import Document, Json, read_json
from gateway.core.fences import ISSUED_LIMIT, OUTSIDE_LIMIT, fence_of_json, parse_fence
from gateway.core.keys import Refusal
from gateway.core.prefer import WAIT_CAP_S, WAIT_DEFAULT_S, parse_wait


def refused(result: object) -> str:
    assert isinstance(result, Refusal), result
    assert result.type == "fence-invalid"
    return result.detail


@pytest.mark.parametrize(
    ("line", "fence"), [(b"0", 0), (b"42", 42), (b"\t42 ", 42), (b"%d" % OUTSIDE_LIMIT, 2**62 - 1)]
)
def test_plain_decimal_digits_are_a_fence(line: bytes, fence: int) -> None:
    assert parse_fence([line], limit=OUTSIDE_LIMIT) == fence


def test_absent_is_no_fence() -> None:
    assert parse_fence([], limit=OUTSIDE_LIMIT) is None


@pytest.mark.parametrize(
    "line",
    [
        b"", b" ", b"+42", b"-42", b"-0", b"042", b"00", b"4 2", b"4_2", b"42.0", b"4e1", b"0x2a",
        b"41, 42", b"42,", b"42;a", b'"42"', "٤٢".encode(), "４２".encode(),
        b"4\xb2", b"42\x00", b"42\n", b"9" * 10_000_000,
    ],
    ids=lambda line: repr(line[:20]),
)  # fmt: skip
def test_anything_else_is_refused(line: bytes) -> None:
    refused(parse_fence([line], limit=OUTSIDE_LIMIT))


@pytest.mark.parametrize("lines", [[b"41", b"42"], [b"42", b"42"], [b"42", b""]])
def test_two_lines_are_never_one_fence(lines: list[bytes]) -> None:
    assert "one line" in refused(parse_fence(lines, limit=OUTSIDE_LIMIT))


@pytest.mark.parametrize("limit", [OUTSIDE_LIMIT, ISSUED_LIMIT])
def test_the_limit_is_the_last_legal_fence(limit: int) -> None:
    assert parse_fence([b"%d" % limit], limit=limit) == limit
    assert str(limit) in refused(parse_fence([b"%d" % (limit + 1)], limit=limit))


@given(st.binary(max_size=25) | st.from_regex(rb"[0-9]{1,20}", fullmatch=True))
def test_any_bytes_are_a_fence_exactly_when_the_grammar_says_so(line: bytes) -> None:
    value = line.strip(b" \t")
    legal = bool(re.fullmatch(rb"0|[1-9][0-9]*", value)) and int(value) <= OUTSIDE_LIMIT
    result = parse_fence([line], limit=OUTSIDE_LIMIT)
    assert result == int(value) if legal else isinstance(result, Refusal)


def body_value(text: bytes) -> Json:
    document = read_json(text)
    assert isinstance(document, Document)
    return document.value


@pytest.mark.parametrize("text", [b"42", b'"42"', b'"\\u0034\\u0032"'])
def test_a_body_gives_an_integer_or_a_string_of_digits(text: bytes) -> None:
    assert fence_of_json(body_value(text), limit=OUTSIDE_LIMIT) == 42


@pytest.mark.parametrize(
    "text",
    [
        b"42.0", b"4.2e1", b"42e0", b"-0", b"-1", b"true", b"false", b"null", b"[42]", b"{}",
        b'""', b'"042"', b'" 42"', b'"42.0"', '"٤٢"'.encode(), b'"\\ud800"', b"9" * 30, b"9" * 900,
    ],
)  # fmt: skip
def test_a_body_gives_nothing_else(text: bytes) -> None:
    refused(fence_of_json(body_value(text), limit=OUTSIDE_LIMIT))


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        ([], WAIT_DEFAULT_S),
        ([b"wait=3"], 3.0),
        ([b"wait=0"], 0.0),
        ([b"WAIT = 3"], 3.0),
        ([b'wait="3"'], 3.0),
        ([b"wait=003"], 3.0),
        ([b"wait=600"], WAIT_CAP_S),
        ([b"wait=" + b"9" * 100_000], WAIT_CAP_S),
        ([b"respond-async, wait=7;x=1"], 7.0),
        ([b"respond-async", b"wait=7"], 7.0),
        ([b"wait=7, wait=8"], 7.0),
        ([b"wait=7", b"wait=8"], 7.0),
        ([b'foo="a, wait=1", wait=2'], 2.0),
        ([b'foo="a\\", wait=1", wait=2'], 2.0),
        ([b"foo; wait=1"], WAIT_DEFAULT_S),
        ([b"wait"], WAIT_DEFAULT_S),
        ([b"wait="], WAIT_DEFAULT_S),
        ([b"wait=-1"], WAIT_DEFAULT_S),
        ([b"wait=1.5"], WAIT_DEFAULT_S),
        ([b"wait=x, wait=5"], WAIT_DEFAULT_S),
        (["wait=٣".encode()], WAIT_DEFAULT_S),
    ],
)
def test_prefer_wait(lines: list[bytes], seconds: float) -> None:
    assert parse_wait(lines) == seconds


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_prefer_never_fails(lines: list[bytes]) -> None:
    assert 0 <= parse_wait(lines) <= WAIT_CAP_S
