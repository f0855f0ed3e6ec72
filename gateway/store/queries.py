"""SQL by name: each `sql/<file>.sql` holds statements under `-- name:` lines, each with a line
that states its guard."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

__all__ = ["load"]

_NAME = re.compile(r"^-- name: (\w+)\n-- guard: ", re.MULTILINE)


def load(file: str) -> Mapping[str, str]:
    """The statements of ``sql/<file>.sql``, by name."""
    text = files("gateway.store").joinpath("sql", f"{file}.sql").read_text(encoding="utf-8")
    starts = list(_NAME.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return {
        start.group(1): text[start.start() : end].strip().removesuffix(";")
        for start, end in zip(starts, ends, strict=True)
    }
