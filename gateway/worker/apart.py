"""The answer to a claim, whose payloads are other people's documents, read one apart from another.

They are spliced into the answer byte for byte, and what `gateway.enqueue` took in SQL need not be
readable here: deeper than this interpreter goes, or with numbers of more digits than it converts.
Read as one document, such a payload would take the other leases of the same claim along.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Unreadable", "read_claim"]

_APART = frozenset({"payload", "previous"})

_LEASE_DEPTH = 3
"""Of a lease's members: the answer's object, the list, the lease's object."""

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_PLAIN = re.compile(r"[^\s,\]}]+")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """In the place of a document that cannot be read. ``why``: as the parser says."""

    why: str


def read_claim(body: bytes) -> object:
    """The answer, with ``Unreadable`` for each payload or result that is so. Raises ``ValueError``
    where the rest of it is no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return _apart(body.decode())


def _apart(text: str) -> object:
    kept: list[str] = []
    spans: list[tuple[int, int]] = []
    end = 0
    for start, stop in _spans(text):
        kept += [text[end:start], str(len(spans))]  # its number stands for it
        spans.append((start, stop))
        end = stop
    document: Any = json.loads("".join([*kept, text[end:]]))
    if isinstance(document, dict) and isinstance(document.get("leases"), list):
        for lease in document["leases"]:
            for name in _APART & lease.keys() if isinstance(lease, dict) else ():
                start, stop = spans[lease[name]]
                lease[name] = _one(text[start:stop])
    return document


def _one(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return Unreadable(str(error))


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Where the values of the members in ``_APART`` stand, by counting brackets: it does not recur,
    and takes any depth."""
    depth, at = 0, 0
    while token := _TOKEN.search(text, at):
        at = token.end()
        match text[token.start()]:
            case "{" | "[":
                depth += 1
            case "}" | "]":
                depth -= 1
            case _:
                colon = _COLON.match(text, at) if depth == _LEASE_DEPTH else None
                if colon is not None and token.group()[1:-1] in _APART:
                    at = _end_of(text, colon.end())
                    yield colon.end(), at


def _end_of(text: str, start: int) -> int:
    """The end of the value that begins here."""
    if text[start : start + 1] not in ("[", "{", '"'):
        plain = _PLAIN.match(text, start)
        return plain.end() if plain is not None else start
    depth, at = 0, start
    while token := _TOKEN.search(text, at):
        at = token.end()
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(text[token.start()], 0)
        if depth == 0:
            return at
    return len(text)
