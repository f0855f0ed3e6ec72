"""Text from outside stays in its line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observe.text import one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("invoice:123", "invoice:123"),
        ("Zürich 北京", "Zürich 北京"),
        ("a\nb\rc", "a\\nb\\rc"),
        ("\x1b[2J\x9b", "\\x1b[2J\\x9b"),
        ("\u2028\u2029\x85", "\\u2028\\u2029\\x85"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
        ("\\n", "\\\\n"),
        ("", ""),
    ],
)
def test_what_is_not_printable_is_escaped(text: str, shown: str) -> None:
    assert one_line(text) == shown


@given(st.text(st.characters(codec=None)))
def test_any_text_becomes_one_printable_line_and_can_be_read_back(text: str) -> None:
    shown = one_line(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    unescaped = shown.encode("latin-1", "backslashreplace").decode("unicode_escape")
    assert unescaped == text
