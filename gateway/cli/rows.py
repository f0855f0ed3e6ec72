"""Rows for people and for programs: a table, JSON lines, or CSV; one physical line each.

Much of what is shown came from callers. Whatever is not printable is escaped, so that no value can
begin a line or command a terminal, and no CSV cell is a formula to the program that opens it.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

from gateway.observe.text import one_line

__all__ = ["Cell", "Cells", "Format", "Writer", "conclude", "plain", "shown", "shown_time"]

Format = Literal["table", "jsonl", "csv"]
Cell = str | int | bool | bytes | UUID | datetime | None
Cells = Sequence[Cell]

_SAMPLE = 200
"""Rows from which a table's column widths are taken; the others only follow."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Writer:
    """Writes rows to stdout as they come; ``close`` writes what is held back."""

    def __init__(self, format: Format, columns: Sequence[str]) -> None:
        self._format = format
        self._columns = columns
        self._held: list[list[str]] | None = []
        self._widths: list[int] = []
        self._csv = csv.writer(sys.stdout, lineterminator="\n")
        self._count = 0
        if format == "csv":
            self._csv.writerow(columns)

    def add(self, cells: Cells) -> None:
        """Write one row."""
        self._count += 1
        match self._format:
            case "jsonl":
                row = dict(zip(self._columns, map(plain, cells), strict=True))
                print(json.dumps(row, ensure_ascii=True))
            case "csv":
                self._csv.writerow(map(_csv_cell, cells))
            case "table":
                self._table([shown(cell) for cell in cells])

    def close(self) -> int:
        """Finish; the number of rows. A table without rows is nothing at all."""
        self._flush()
        return self._count

    def _table(self, cells: list[str]) -> None:
        if self._held is None:
            self._line(cells)
            return
        self._held.append(cells)
        if len(self._held) >= _SAMPLE:
            self._flush()

    def _flush(self) -> None:
        held, self._held = self._held, None
        if not held:
            return
        rows = [[name.upper() for name in self._columns], *held]
        self._widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            self._line(row)

    def _line(self, cells: list[str]) -> None:
        padded = (cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True))
        print("  ".join(padded).rstrip())


def conclude(count: int, format: Format, limit: int | None, *, nothing: str) -> None:
    """Say what the rows do not: that there are none, or that there may be more."""
    if count == 0 and format == "table":
        print(nothing)
    elif count == limit:
        print(
            f"fencegate: stopped at {count} rows, there may be more; --limit 0 shows all",
            file=sys.stderr,
        )


def plain(cell: Cell) -> str | int | bool | None:
    """A value for JSON. Bytes are hex, times RFC 3339 in UTC."""
    match cell:
        case datetime():
            return shown_time(cell)
        case bytes():
            return cell.hex()
        case UUID():
            return str(cell)
        case _:
            return cell


def shown(cell: Cell) -> str:
    """A value for people; ``-`` where there is none."""
    return "-" if cell is None else one_line(str(plain(cell)))


def shown_time(time: datetime) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _csv_cell(cell: Cell) -> str | int:
    if cell is None:
        return ""
    value = plain(cell)
    if isinstance(value, int):
        return value
    text = one_line(str(value))
    return f"'{text}" if text.startswith(_FORMULA) else text
