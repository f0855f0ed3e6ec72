"""What a run has found: as JSON, on the terminal, in docs/benchmarks.md, and as a plot."""

from benchmarks.report.document import Document, read, write
from benchmarks.report.page import replaced, written
from benchmarks.report.plot import svg
from benchmarks.report.tables import last_line, targets, text

__all__ = [
    "Document",
    "last_line",
    "read",
    "replaced",
    "svg",
    "targets",
    "text",
    "write",
    "written",
]
