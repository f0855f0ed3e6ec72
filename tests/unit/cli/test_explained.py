"""``explain`` speaks of the decision table in the table's own words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from gateway.cli.explain import _header, _target
from gateway.cli.explained import ROWS
from gateway.core.decide import Decision

WIRE = Path(__file__).resolve().parents[3] / "docs" / "wire.md"


def test_rows_are_those_of_the_documented_table() -> None:
    text = WIRE.read_text(encoding="utf-8").partition("## How a command is decided")[2]
    table = re.findall(
        r"^\| (\d+|–) \| (.+?) \| `(\w+)` \|", text.partition("\n## ")[0], re.MULTILINE
    )
    assert {name: (row, words) for row, words, name in table} == {
        kind.__name__: ("–" if row is None else str(row), words)
        for kind, (row, words) in ROWS.items()
    }
    assert set(ROWS) == set(get_args(Decision))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("/a/b?c=%20#d", b"/a/b?c=%20#d"),
        ("http://h:1/a//b?c", b"/a//b?c"),
        ("https://h?c=/d", b"/?c=/d"),
        ("HTTP://h", b"/"),
        ("http://h/a#b?c", b"/a"),
        ("http://[::1]:8080/a", b"/a"),
        ("/\udcff", b"/\xff"),
    ],
)
def test_a_target_is_taken_as_it_is_and_loses_only_its_origin(typed: str, meant: bytes) -> None:
    assert _target(typed) == meant


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("X-A: b", (b"x-a", b"b")),
        ("X-A:b:c \t", (b"x-a", b"b:c")),
        ("X-A:", (b"x-a", b"")),
        ("X-A: \xe9", (b"x-a", b"\xc3\xa9")),
    ],
)
def test_a_field_is_a_name_and_a_value(typed: str, meant: tuple[bytes, bytes]) -> None:
    assert _header(typed) == meant
