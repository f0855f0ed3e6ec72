"""Bars of ratios to nginx, by hand: one picture does not need a library. Pure."""

from __future__ import annotations

from html import escape

from benchmarks.plan import CONNECTIONS, SUBJECTS, what
from benchmarks.report.document import Document

__all__ = ["svg"]

_COLOURS = ("#0b6e4f", "#7fb069", "#b0b0b0", "#5b8db8", "#c98a4b", "#8d6a9f", "#d3b13f", "#777777")
_WIDTH, _BAR, _GAP, _LEFT, _TOP = 720, 12, 16, 60, 34


def svg(document: Document) -> str:
    """Fresh commands of 200 bytes by nginx: for each number of connections a group of bars."""
    results = document.results
    groups = []
    for connections in CONNECTIONS:
        name = what("fresh", connections)
        ratios = {
            subject: ratio
            for subject in SUBJECTS
            if subject != "nginx"
            and (ratio := results.ratio((subject, name), ("nginx", name))) is not None
        }
        groups.append((connections, ratios))
    most = max((ratio for _, ratios in groups for ratio in ratios.values()), default=1.0)
    shown = [subject for subject in SUBJECTS if any(subject in ratios for _, ratios in groups)]
    colours = {subject: _COLOURS[n % len(_COLOURS)] for n, subject in enumerate(shown)}
    parts, y = [], _TOP
    for connections, ratios in groups:
        if not ratios:
            continue
        middle = y + len(ratios) * _BAR / 2 + 4
        parts.append(f'<text x="{_LEFT - 8}" y="{middle}" text-anchor="end">{connections}</text>')
        for subject, ratio in ratios.items():
            width = max(1.0, (_WIDTH - _LEFT - 300) * ratio / most)
            parts.append(
                f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 2}"'
                f' fill="{colours[subject]}"/>'
                f'<text x="{_LEFT + width + 5:.1f}" y="{y + 9}">{ratio:.3f}'
                f" {escape(SUBJECTS[subject])}</text>"
            )
            y += _BAR
        y += _GAP
    head = "Fresh commands per second, by nginx passing through, at so many connections"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}"'
        f' viewBox="0 0 {_WIDTH} {y}" font-family="sans-serif" font-size="10">\n'
        '<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="{_LEFT}" y="18" font-size="12">{head}</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )
