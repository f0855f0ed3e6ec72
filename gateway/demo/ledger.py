"""The verdict: what was intended, held against what the API's ledger says really happened.

The SQLite file is read directly, so that neither the API nor the gateway can colour it.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Command", "Effect", "Row", "Scenario", "differences", "read", "requests", "table"]


@dataclass(frozen=True, slots=True)
class Command:
    """Something that is meant to happen one time: `kind` on `subject` with this JSON body."""

    kind: str
    subject: str
    body: str
    path: str
    key: str


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that did happen."""

    kind: str
    subject: str
    body: str
    caller: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scene and the commands that it means to be performed, all on one subject."""

    title: str
    intended: tuple[Command, ...]

    @property
    def subject(self) -> str:
        return self.intended[0].subject


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the final table."""

    title: str
    intended: int
    without: int
    with_gateway: int


def read(path: Path) -> list[Effect]:
    """All effects in a ledger, in order."""
    with _open(path) as db:
        rows = db.execute("select kind, subject, body, caller from effects order by id").fetchall()
    return [Effect(kind, subject, _canonical(body), caller) for kind, subject, body, caller in rows]


def requests(path: Path) -> int:
    """How many requests for an effect have reached the API."""
    with _open(path) as db:
        (count,) = db.execute("select count(*) from requests").fetchone()
    return int(count)


def table(
    scenarios: Sequence[Scenario], without: Sequence[Effect], with_gateway: Sequence[Effect]
) -> list[Row]:
    """The effects counted by scenario, and their sum."""
    before, after = _by_subject(without), _by_subject(with_gateway)
    rows = [
        Row(each.title, len(each.intended), before[each.subject], after[each.subject])
        for each in scenarios
    ]
    intended = sum(row.intended for row in rows)
    return [*rows, Row("all effects in the ledger", intended, len(without), len(with_gateway))]


def differences(
    scenarios: Sequence[Scenario], without: Sequence[Effect], with_gateway: Sequence[Effect]
) -> list[str]:
    """Where the ledgers contradict the story: none if, with the gateway, the effects are the
    intended commands and nothing else, and each scene made too many effects without it."""
    found = _against_intended(scenarios, with_gateway)
    before = _by_subject(without)
    for each in scenarios:
        if before[each.subject] <= len(each.intended):
            found.append(
                f"without the gateway, {each.title!r} was to show duplicates, but the ledger has "
                f"{before[each.subject]} effects for {len(each.intended)} intended"
            )
    return found


def _against_intended(scenarios: Sequence[Scenario], effects: Sequence[Effect]) -> list[str]:
    wanted = Counter(_named(command) for each in scenarios for command in each.intended)
    seen = Counter(_named(effect) for effect in effects)
    return [
        f"with the gateway, the ledger has {seen[name]} instead of {wanted[name]} times: {name}"
        for name in sorted(wanted.keys() | seen.keys())
        if wanted[name] != seen[name]
    ]


def _named(thing: Command | Effect) -> str:
    return f"{thing.kind} {thing.subject} {_canonical(thing.body)}"


def _by_subject(effects: Sequence[Effect]) -> Mapping[str, int]:
    return Counter(effect.subject for effect in effects)


def _canonical(body: str) -> str:
    return json.dumps(json.loads(body), sort_keys=True)


def _open(path: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True))
