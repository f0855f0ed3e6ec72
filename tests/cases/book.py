"""The cases: those of the book, and further inputs of the same kinds.

A fault's whole kind must be right, not only the input by which somebody met it. ``BOOK`` is
``cases.jsonl``; ``FURTHER`` names for each of its cases what else goes wrong in the same way.
"""

from __future__ import annotations

from pathlib import Path

from tests.cases import (
    on_boundary,
    on_commands,
    on_entities,
    on_framing,
    on_jobs,
    on_messages,
    on_outcomes,
    on_sameness,
    on_security,
)
from tests.cases.driver import Case, load

__all__ = ["BOOK", "FURTHER"]

BOOK: list[Case] = load(Path(__file__).parent / "cases.jsonl")

FURTHER: list[Case] = [
    *on_messages.CASES,
    *on_framing.CASES,
    *on_outcomes.CASES,
    *on_commands.CASES,
    *on_entities.CASES,
    *on_sameness.CASES,
    *on_security.CASES,
    *on_jobs.CASES,
    *on_boundary.CASES,
]
