"""What a caller printed, read back: the request's lines and the answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Answer", "Exchange", "parse"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; `status` is None where none came. Header names are in lower case."""

    status: int | None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    reason: str = ""
    lines: tuple[str, ...] = ()

    @property
    def problem(self) -> str | None:
        """The name behind `urn:fencegate:problem:`, if this is such a document."""
        named = self.member("type")
        return named.rpartition(":")[2] if isinstance(named, str) else None

    def member(self, name: str) -> object:
        """A member of the problem document; None without one."""
        if self.headers.get("content-type", "").partition(";")[0] != "application/problem+json":
            return None
        document = json.loads(self.body)
        return document.get(name) if isinstance(document, dict) else None

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its answers: one, or one per copy."""

    request: tuple[str, ...]
    answers: tuple[Answer, ...]

    @property
    def answer(self) -> Answer:
        return self.answers[0]


def parse(output: str) -> Exchange:
    """The exchange that a caller printed. Raises `ValueError` if it printed none."""
    request: list[str] = []
    blocks: list[list[str]] = []
    for line in output.splitlines():
        if line.startswith(">"):
            request.append(line)
        elif line.startswith(("!", "< HTTP/")):
            blocks.append([line])
        elif line.startswith("<"):
            blocks[-1].append(line)
    if not blocks:
        raise ValueError("the caller printed no answer")
    return Exchange(tuple(request), tuple(_answer(block) for block in blocks))


def _answer(block: list[str]) -> Answer:
    if block[0].startswith("!"):
        return Answer(None, reason=block[0][2:], lines=tuple(block))
    bare = [line[2:] for line in block]
    end = bare.index("")
    headers = dict(_header(line) for line in bare[1:end])
    status = int(bare[0].split(" ", 2)[1])
    return Answer(status, headers, "\n".join(bare[end + 1 :]), lines=tuple(block))


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(": ")
    return name.lower(), value
