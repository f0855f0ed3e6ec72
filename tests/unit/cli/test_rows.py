"""Rows on paper: one line each, and nothing from outside is obeyed."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from gateway.cli.rows import Format, Writer

NASTY = 'a\nb\x1b[31m\u2028,"c"\ttail'


def written(
    capsys: pytest.CaptureFixture[str], format: Format, *rows: tuple[object, ...]
) -> list[str]:
    writer = Writer(format, ("one", "two"))
    for row in rows:
        writer.add(row)  # type: ignore[arg-type]
    assert writer.close() == len(rows)
    out = capsys.readouterr().out
    assert out == "" or out.endswith("\n")
    return out.split("\n")[:-1]


@pytest.mark.parametrize("format", ["table", "jsonl", "csv"])
def test_a_row_is_one_physical_line_without_controls(
    capsys: pytest.CaptureFixture[str], format: Format
) -> None:
    lines = written(capsys, format, (NASTY, None), ("x", 2))
    assert len(lines) == (2 if format == "jsonl" else 3)
    assert all(line.isprintable() for line in lines)


def test_json_lines_keep_every_value(capsys: pytest.CaptureFixture[str]) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678900, timezone(timedelta(hours=2)))
    lines = written(
        capsys, "jsonl", (NASTY, None), (b"\x00\xff", moment), (UUID(int=1), 2**62), (True, "")
    )
    assert [json.loads(line) for line in lines] == [
        {"one": NASTY, "two": None},
        {"one": "00ff", "two": "2026-01-02T01:04:05.678Z"},
        {"one": "00000000-0000-0000-0000-000000000001", "two": 2**62},
        {"one": True, "two": ""},
    ]


def test_csv_can_be_read_back_and_holds_no_formula(capsys: pytest.CaptureFixture[str]) -> None:
    lines = written(
        capsys,
        "csv",
        ('=HYPERLINK("http://x")', "+1"),
        ("-2", "@x"),
        ("plain, with comma", 'and "quotes"'),
        (-3, datetime(2026, 1, 1, tzinfo=UTC)),
    )
    rows = list(csv.reader(io.StringIO("\n".join(lines))))
    assert rows == [
        ["one", "two"],
        ['\'=HYPERLINK("http://x")', "'+1"],
        ["'-2", "'@x"],
        ["plain, with comma", 'and "quotes"'],
        ["-3", "2026-01-01T00:00:00.000Z"],
    ]


def test_a_table_is_aligned_and_never_cuts_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("x" * 5, 1), *(("y", number) for number in range(300)), ("z" * 40, 2)]
    lines = written(capsys, "table", *rows)
    assert lines[0] == "ONE    TWO"
    assert lines[1] == "xxxxx  1"
    assert lines[2] == "y      0"
    assert lines[-1] == "z" * 40 + "  2"
    assert len(lines) == 303


def test_a_table_without_rows_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert written(capsys, "table") == []
