"""A secret in a file, as container platforms hand it out: its path stands in ``NAME_FILE``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["MAX_SECRET", "NotRead", "read_secret"]

MAX_SECRET = 64 * 1024
"""Bytes: as much as a whole head of a request may have, and far from what a wrong path may hold."""


@dataclass(frozen=True, slots=True)
class NotRead:
    """Why there is no value, and the mend. Neither holds any of it."""

    problem: str
    mend: str


def read_secret(variable: str, path: str) -> str | NotRead:
    """The text of the file that ``variable`` names, without one line end behind it."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_SECRET + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return NotRead(
            f"the file that {variable} names cannot be read ({reason})",
            "name a file that this user may read",
        )
    except ValueError:  # a path with a NUL
        return NotRead(f"{variable} is not a path", "name a file that this user may read")
    if len(raw) > MAX_SECRET:
        return NotRead(
            f"the file that {variable} names is larger than {MAX_SECRET} bytes",
            "name the file that holds this one secret",
        )
    try:
        text = raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        return NotRead(f"the file that {variable} names is not UTF-8", "write the secret as text")
    if not text:
        return NotRead(f"the file that {variable} names is empty", "write the secret into it")
    return text
