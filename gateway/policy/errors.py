"""What is wrong with a folder of policies: all of it at once, each with its mend."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["PolicyError", "PolicyErrors", "PolicyWarning"]


@dataclass(frozen=True, slots=True)
class PolicyError:
    """One mistake. ``path``: the field, e.g. ``commands[0].timeout_s``; empty for the file itself.
    Neither text ever holds the value of an environment variable."""

    file: str
    path: str
    problem: str
    mend: str

    def __str__(self) -> str:
        place = f"{self.file}: {self.path}" if self.path else self.file
        return f"{place}: {self.problem}; {self.mend}"


@dataclass(frozen=True, slots=True)
class PolicyWarning:
    """Something legal that is probably not meant."""

    file: str
    path: str
    text: str

    def __str__(self) -> str:
        place = f"{self.file}: {self.path}" if self.path else self.file
        return f"{place}: {self.text}"


class PolicyErrors(Exception):
    """The policies cannot be used. ``errors`` holds every mistake of every file, in file order."""

    def __init__(self, errors: Iterable[PolicyError]):
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors))
