"""The part of docs/benchmarks.md between the markers. Pure."""

from __future__ import annotations

from benchmarks.kit import markdown_table, number
from benchmarks.report.document import Document
from benchmarks.report.tables import Wanted, tables, targets

__all__ = ["BEGIN", "END", "replaced", "written"]

BEGIN = "<!-- measured: begin (python3 dev.py bench --write) -->"
END = "<!-- measured: end -->"


def written(document: Document, plot: str) -> str:
    """``plot``: the file name of the plot, from the page."""
    parts = [
        markdown_table(("taken", ""), [(name, told) for name, told in document.taken.items()]),
        markdown_table(("what is wanted", "found", "bound", "met"), map(_row, targets(document))),
        f"![fresh commands by nginx]({plot})",
    ]
    for each in tables(document):
        parts += [f"### {each.title}", markdown_table(each.head, each.rows)]
    parts += [f"Left out: {subject}: {why}" for subject, why in document.absent.items()]
    parts += [f"**Broken**: {' '.join(key)}: {why}" for key, why in document.broken.items()]
    return "\n\n".join([BEGIN, *parts, END])


def replaced(page: str, part: str) -> str:
    """``page`` with this part between its markers. Raises ``ValueError`` where it lacks them."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"the page lacks its markers {BEGIN} and {END}")
    return before + part + after


def _row(each: Wanted) -> tuple[str, ...]:
    bound = f"{'≥' if each.at_least else '≤'} {each.bound:g}"
    met = {True: "yes", False: "**no**", None: "not measured"}[each.met]
    return (each.name, number(each.found), bound, met)
