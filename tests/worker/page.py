"""docs/worker.md, in pieces."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["blocks", "rows", "section", "words"]

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "worker.md"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    """The code blocks of one language, in order."""
    text = _PAGE.read_text(encoding="utf-8")
    return [code for found, code in _FENCE.findall(text) if found == language]


def section(heading: str) -> str:
    text = _PAGE.read_text(encoding="utf-8")
    return text[text.index(f"\n{heading}\n") :].split("\n## ")[1]


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, without heads and rules."""
    found: list[list[str]] = []
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.strip().splitlines() if line.startswith("|")]
        found += [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return found


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)
