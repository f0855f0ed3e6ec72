"""A mistake of ours as text that may be kept: of what kind it is, and where; nothing else.

An exception's own message is made of what was being handled: ``invalid literal for int(): '…'``
holds a piece of somebody's request, and asyncio's holds whole arguments. So no message is kept but
the system's words for an error number, and the server's code of a database error.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["brief", "loop_error", "trace"]

_FRAMES = 40
"""Of each exception, its innermost: a recursion has a thousand that say nothing new."""

_CHAIN = 10
"""Exceptions that led to one another."""


def brief(error: BaseException) -> str:
    """One line: ``ValueError at prober.py:123 in look``."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return _kind(error)
    last = frames[-1]
    return f"{_kind(error)} at {Path(last.filename).name}:{last.lineno} in {last.name}"


def trace(error: BaseException) -> str:
    """The kinds and places of ``error`` and of what led to it, the first cause first."""
    return "\n".join(line for each in reversed(list(_chain(error))) for line in _told(each))


def loop_error(context: Mapping[str, Any]) -> tuple[str, str | None]:
    """What an event loop says of an exception that nobody took: its words without the values in
    them, and the trace."""
    said = str(context.get("message", ""))
    words = "Exception in callback" if said.startswith("Exception in callback") else said
    error = context.get("exception")
    return (
        words.partition("(")[0].partition("<")[0].strip()[:100],
        trace(error) if isinstance(error, BaseException) else None,
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen and len(seen) < _CHAIN:
        seen.add(id(found))
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def _told(error: BaseException) -> Iterator[str]:
    for frame in traceback.extract_tb(error.__traceback__)[-_FRAMES:]:
        yield f"{frame.filename}:{frame.lineno} in {frame.name}"
    yield _kind(error)
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions[:_CHAIN]:
            yield f"of several: {brief(each)}"


def _kind(error: BaseException) -> str:
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    if isinstance(error, OSError) and isinstance(error.errno, int) and error.errno > 0:
        return f"{name} ({os.strerror(error.errno)})"
    code = getattr(error, "sqlstate", None)
    return f"{name} ({code})" if isinstance(code, str) else name
