"""The code blocks of docs/integrate.md."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["block"]

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "integrate.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def block(heading: str, language: str) -> str:
    """The one block of ``language`` that stands under ``heading`` before the next heading."""
    text = _PAGE.read_text(encoding="utf-8")
    prose = _BLOCK.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)  # a # may be a comment
    starts = [(found.start(), found[1]) for found in _HEADING.finditer(prose)]
    (begin,) = [at for at, title in starts if title == heading]
    end = min((at for at, _ in starts if at > begin), default=len(text))
    (code,) = [code for found, code in _BLOCK.findall(text[begin:end]) if found == language]
    return str(code)
