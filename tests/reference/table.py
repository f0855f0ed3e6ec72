"""The table of docs/http-reference.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway import __version__
from tests.reference.inputs import INPUTS

__all__ = ["PAGE", "Columns", "on_page", "rows", "version_on_page", "written"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "http-reference.md"

_BEGIN = "<!-- measured: begin (python3 -m tests.reference) -->"
_END = "<!-- measured: end -->"
_HEAD = "| input | what it tries | nginx | the gateway | who is right |"


@dataclass(frozen=True, slots=True)
class Columns:
    """By the input's name: what became of it as a passage and as a command. ``nginx``: nothing
    where there is none."""

    gateway: Mapping[str, tuple[str, str]]
    nginx: Mapping[str, tuple[str, str]] | None


def rows(columns: Columns) -> Iterator[tuple[str, ...]]:
    """As the table has them; nginx's cell is empty where there is none."""
    for each in INPUTS:
        ours = columns.gateway[each.name]
        theirs = columns.nginx[each.name] if columns.nginx is not None else None
        yield (
            each.name,
            each.tries.replace("|", "\\|"),
            "" if theirs is None else _cell(*theirs),
            _cell(*ours),
            each.right or "agree",
        )


def written(page: str, columns: Columns, version: str) -> str:
    """``page`` with the table between its markers."""
    before, found, rest = page.partition(_BEGIN)
    _, ended, after = rest.partition(_END)
    if not found or not ended:
        raise ValueError(f"the page lacks its markers {_BEGIN} and {_END}")
    lines = [f"nginx {version}, Fencegate {__version__}.", "", _HEAD, "|---|---|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows(columns)]
    return "\n".join([before + _BEGIN, *lines, _END + after])


def on_page() -> list[tuple[str, ...]]:
    """The rows that stand there."""
    part = PAGE.read_text(encoding="utf-8").partition(_BEGIN)[2].partition(_END)[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    assert lines[0] == _HEAD
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines[2:]]


def version_on_page() -> str:
    match = re.search(r"^nginx (\S+), Fencegate", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None
    return match[1]


def _cell(passage: str, command: str) -> str:
    return passage if passage == command else f"GET: {passage}; POST: {command}"
