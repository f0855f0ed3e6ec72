"""The table of docs/comparison.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version

from gateway import __version__
from tests.peers.play import PEERS, Outcome

__all__ = ["BEGIN", "END", "Row", "replaced", "subjects", "written"]

BEGIN = "<!-- measured: begin (python3 dev.py compare) -->"
END = "<!-- measured: end -->"

_HEAD = (
    "| what ran | W1 | W1's result accepted | W1's second effect sent | effects, 2 meant |\n"
    "|---|---|---|---|---|"
)
_SHOWN = {
    "network-cut": "network cut",
    "blocked-loop": "event loop blocked",
    "stopped": "stopped, goes on",
    "killed": "killed, requests delivered later",
    "database-restart": "cut, database crashed",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One play."""

    subject: str
    variant: str
    outcome: Outcome


def subjects() -> Mapping[str, str]:
    """What is compared, as the table calls it: name and version."""
    named = {}
    for peer in PEERS:
        named[peer] = f"{peer} {version(peer)}"
        named[f"{peer}+recipe"] = f"{peer} {version(peer)}, with our recipe"
    return {**named, "fencegate": f"Fencegate's jobs {__version__}"}


def written(rows: Iterable[Row], on: date) -> str:
    """The part between the markers."""
    lines = [f"Measured on {on.isoformat()}.", "", *_HEAD.splitlines(), *map(_line, rows)]
    return "\n".join([BEGIN, *lines, END])


def replaced(page: str, part: str) -> str:
    """``page`` with this part between its markers."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"the page lacks its markers {BEGIN} and {END}")
    return before + part + after


def _line(row: Row) -> str:
    told: Sequence[str] = (
        subjects()[row.subject],
        _SHOWN[row.variant],
        {True: "**yes**", False: "no", None: "none offered"}[row.outcome.accepted],
        "**yes**" if row.outcome.late else "no",
        str(row.outcome.effects) if row.outcome.effects == 2 else f"**{row.outcome.effects}**",
    )
    return f"| {' | '.join(told)} |"
