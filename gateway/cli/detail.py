"""One command in full, as ``commands show`` prints it."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import fields

from gateway.cli.audit import BRIEF, brief
from gateway.cli.meaning import meaning
from gateway.cli.rows import Cell, Writer, plain, shown
from gateway.core.model import Headers
from gateway.observe.text import one_line
from gateway.policy.compiled import CompiledCommand
from gateway.store.audit import Row
from gateway.store.operator import CommandDetail, CommandInfo

__all__ = ["print_json", "print_text", "print_trail"]

_BODY_SHOWN = 2048
"""Bytes of a body that are shown: as much as is kept of evidence."""

_INFO = tuple(each.name for each in fields(CommandInfo))
_BLOBS = ("headers", "body", "evidence")
_MORE = tuple(each.name for each in fields(CommandDetail) if each.name not in ("info", *_BLOBS))


def print_text(found: CommandDetail, rows: Sequence[Row], policy: CompiledCommand | None) -> None:
    """For people: one line per column, the response and evidence escaped, what that means, then the
    audit. ``policy``: the command's, where it is at hand."""
    values = _values(found)
    width = max(map(len, values)) + 2
    for name, value in values.items():
        print(f"{name.ljust(width)}{shown(value)}")
    for field, line in found.headers:
        print(f"{'header'.ljust(width)}{_bytes(field)}: {_bytes(line)}")
    for name, blob in (("body", found.body), ("evidence", found.evidence)):
        if blob is not None:
            print(f"{name.ljust(width)}{len(blob)} bytes: {_bytes(blob[:_BODY_SHOWN])}")
        elif name == "body":
            print(f"{name.ljust(width)}not kept")
    print(f"\n{meaning(found, policy)}")
    if rows:
        print("\naudit:")
        print_trail(rows)


def print_json(found: CommandDetail, rows: Sequence[Row]) -> None:
    """For programs: one object on one line; bodies as base64, other bytes as hex."""
    document: dict[str, object] = {name: plain(value) for name, value in _values(found).items()}
    document |= {
        "headers": _pairs(found.headers),
        "body": _base64(found.body),
        "evidence": _base64(found.evidence),
        "audit": [dict(zip(BRIEF, map(plain, brief(row)), strict=True)) for row in rows],
    }
    print(json.dumps(document, ensure_ascii=True))


def print_trail(rows: Sequence[Row]) -> None:
    """The audit of one key as a table."""
    writer = Writer("table", BRIEF)
    for row in rows:
        writer.add(brief(row))
    writer.close()


def _values(found: CommandDetail) -> dict[str, Cell]:
    return {name: getattr(found.info, name) for name in _INFO} | {
        name: getattr(found, name) for name in _MORE
    }


def _bytes(raw: bytes) -> str:
    return one_line(raw.decode("utf-8", "backslashreplace"))


def _pairs(headers: Headers) -> list[list[str]]:
    return [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else b64encode(raw).decode("ascii")
