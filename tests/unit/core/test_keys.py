"""The grammar of keys: every rule, and an oracle."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.keys import KEY_LIMIT, Refusal, check_key, parse_key


def refused(line: bytes) -> str:
    result = parse_key([line])
    assert isinstance(result, Refusal), result
    assert result.type == "key-invalid"
    return result.detail


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b"k-1", "k-1"),
        (b'"k-1"', "k-1"),
        (b" \tk-1\t ", "k-1"),
        (b' "k-1" ', "k-1"),
        (b"9f1c2d3e-0000-4000-8000-00000000000a", "9f1c2d3e-0000-4000-8000-00000000000a"),
        (b"b:c", "b:c"),
        (b'"a,b;c"', "a,b;c"),
        (b'"a\\"b"', 'a"b'),
        (b'a"b', 'a"b'),
        (b'"a\\\\b"', "a\\b"),
        (b"a\\b", "a\\b"),
        (b"!", "!"),
        (b"~", "~"),
    ],
)
def test_both_spellings_name_the_same_key(line: bytes, key: str) -> None:
    assert parse_key([line]) == key


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "empty"),
        (b" \t ", "empty"),
        (b'""', "empty"),
        (b"a b", "blank"),
        (b'"a b"', "blank"),
        (b"a\tb", "blank"),
        (b"a\x00b", "control"),
        (b"a\x7fb", "control"),
        (b"a\r\nb", "control"),
        ("к".encode() * 127, "non-ASCII"),
        (b"a,b", "comma"),
        (b'"a", "b"', "after its closing quote"),
        (b"a;v=1", "semicolon"),
        (b'"a";v=1', "after its closing quote"),
        (b'"a', "no closing quote"),
        (b'"', "no closing quote"),
        (b'"a\\', "backslash"),
        (b'"a\\n"', "backslash"),
    ],
)
def test_what_is_not_one_key_is_refused_with_a_reason(line: bytes, says: str) -> None:
    assert says in refused(line)


def test_case_is_kept() -> None:
    assert parse_key([b"K-1"]) != parse_key([b"k-1"])


def test_missing_is_not_invalid() -> None:
    result = parse_key([])
    assert isinstance(result, Refusal)
    assert result.type == "key-missing"


@pytest.mark.parametrize("lines", [[b"a", b"b"], [b"a", b"a"], [b"a", b""]])
def test_two_lines_are_never_one_key(lines: list[bytes]) -> None:
    result = parse_key(lines)
    assert isinstance(result, Refusal)
    assert result.type == "key-invalid"


def test_the_limit_counts_characters_and_nothing_is_cut_off() -> None:
    longest = b"a" * KEY_LIMIT
    assert parse_key([longest]) == longest.decode()
    assert parse_key([b'"' + longest + b'"']) == longest.decode()
    assert parse_key([b'"' + b'\\"' * KEY_LIMIT + b'"']) == '"' * KEY_LIMIT
    for size in (256, 300, 4096, 9000):
        assert str(size) in refused(b"a" * size)
        assert str(size) in refused(b'"' + b"a" * size + b'"')


_BARE = re.compile(rb"(?!\")[!-+\--:<-~]{1,255}")
_QUOTED = re.compile(rb"\"(?:[!#-\[\]-~]|\\[\"\\]){1,255}\"")


@given(st.binary(max_size=300) | st.from_regex(_QUOTED, fullmatch=True) | st.from_regex(_BARE))
@example(b'"\\')
def test_any_bytes_are_a_key_exactly_when_the_grammar_says_so(line: bytes) -> None:
    value = line.strip(b" \t")
    legal = bool(_BARE.fullmatch(value) or _QUOTED.fullmatch(value))
    result = parse_key([line])
    assert isinstance(result, str) == legal
    if isinstance(result, str):
        assert check_key(result) == result


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255))
def test_every_key_can_be_quoted(key: str) -> None:
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    assert parse_key([f'"{quoted}"'.encode()]) == key
