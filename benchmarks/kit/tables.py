"""Tables for the terminal and for a page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["markdown_table", "number", "text_table"]


def number(value: float | None, digits: int | None = None) -> str:
    """For a cell: three figures, or as many decimals as ``digits`` says; a dash for None."""
    if value is None:
        return "-"
    if digits is None:
        size = abs(value)
        digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.095 or not size else 3
    return f"{value:,.{digits}f}"


def text_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    lines = [f"| {' | '.join(line)} |" for line in (head, *rows)]
    lines.insert(1, f"|---|{'---:|' * (len(head) - 1)}")
    return "\n".join(lines)
