"""Questions to the gateway's own routes: JSON objects, and what is wrong with their members.

A ``Form`` reads one object by name and remembers every mistake by its path, so that a caller hears
all of them at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from gateway.core.body import Body
from gateway.core.canonical import Document, Json, Number, Unreadable
from gateway.core.jobs import cleaned
from gateway.core.keys import Refusal
from gateway.core.model import Headers

__all__ = ["Form", "object_in"]

_SHOWN = 20
"""Mistakes that one answer lists; the rest are counted."""

_INT_LIMIT = 2**63 - 1

_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")

# RFC 3339 §5.6; fromisoformat alone reads much more.
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
    r"(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def object_in(raw: bytes, headers: Headers, example: str) -> dict[str, Json] | Refusal:
    """The JSON object that the body is; ``example`` shows one to whoever sent another thing."""
    body = Body(raw, headers, "json")
    # By the type, not by the bytes: a web page may send any text to this machine unasked, but none
    # that is declared as JSON.
    if body.declared != "json":
        return Refusal(
            "body-unreadable",
            "The body is not declared as JSON; send Content-Type: application/json.",
        )
    match body.document():
        case Unreadable(reason):
            return Refusal("body-unreadable", f"The body {reason}.")
        case Document(dict() as members):
            return dict(members)
        case _:
            return Refusal("request-invalid", f"Send a JSON object: {example}.")


class Form:
    """One object. Each method takes a member, or says why not and gives a value that is legal to
    go on with; ``mistakes`` is shared by all forms of a request."""

    def __init__(
        self, members: Mapping[str, Json], path: str = "", outer: Form | None = None
    ) -> None:
        self._members = dict(members)
        self._path = path
        self._outer = outer
        self.mistakes: list[str] = []
        self._sound = True

    def text(self, name: str, longest: int, *, shortest: int = 1) -> str:
        """A string that must be there, of so many characters."""
        value = self.optional_text(name, longest, shortest=shortest, required=True)
        return value or ""

    def optional_text(
        self, name: str, longest: int, *, shortest: int = 1, required: bool = False
    ) -> str | None:
        """A string; ``None`` where it is absent or null."""
        value = self._take(name, required=required)
        if value is None:
            return None
        if not isinstance(value, str):
            self.wrong(name, "send a string")
        elif not shortest <= len(value) <= longest:
            self.wrong(name, f"{len(value)} characters are not within {shortest} to {longest}")
        elif value != cleaned(value):
            self.wrong(name, "take out U+0000 and lone surrogates")
        else:
            return value
        return None

    def choice(self, name: str) -> str | None:
        """A string of which the caller says what it may be; ``None`` for all else."""
        value = self._take(name)
        return value if isinstance(value, str) else None

    def long_text(self, name: str) -> str:
        """A string of any length and content that must be there."""
        value = self._take(name, required=True)
        if isinstance(value, str):
            return value
        if value is not None:
            self.wrong(name, "send a string")
        return ""

    def number(
        self, name: str, least: int, most: int = _INT_LIMIT, *, default: int | None = None
    ) -> int:
        """A plain integer; it must be there where there is no default."""
        value = self._take(name, required=default is None)
        if value is None:
            return least if default is None else default
        # bool is a subclass of int.
        if type(value) is not int:
            self.wrong(name, "send a plain integer")
        elif not least <= value <= most:
            self.wrong(name, f"{value} is not within {least} to {most}")
        else:
            return value
        return least

    def seconds(self, name: str, most: float) -> float:
        """A number from 0 to ``most``; 0 where it is absent."""
        value = self._take(name)
        if value is None:
            return 0.0
        if isinstance(value, Number):
            # An exponent may be a thousand million: float() is quick with it, and gives 0 or inf.
            sign = "-" if value.negative else ""
            found = float(f"{sign}{value.digits}e{value.exponent}")
        elif type(value) is int:
            found = float(value)
        else:
            self.wrong(name, "send a number")
            return 0.0
        if not 0 <= found <= most:
            self.wrong(name, f"it is not within 0 to {most:g} s")
            return 0.0
        return found

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(name, "send true or false")
            return default
        return value

    def uuid(self, name: str) -> UUID:
        """A uuid that must be there."""
        return self.optional_uuid(name, required=True) or UUID(int=0)

    def optional_uuid(self, name: str, *, required: bool = False) -> UUID | None:
        value = self._take(name, required=required)
        if value is None:
            return None
        if not isinstance(value, str) or not _UUID.fullmatch(value):
            self.wrong(name, "send a uuid in its usual form: 8-4-4-4-12 hex digits")
            return None
        return UUID(value)

    def time(self, name: str) -> datetime | None:
        """A time with its zone (RFC 3339)."""
        value = self._take(name)
        if value is None:
            return None
        try:
            if isinstance(value, str) and _TIME.fullmatch(value):
                return datetime.fromisoformat(value.upper())
        except ValueError:
            pass
        self.wrong(name, "send a time with its zone, e.g. 2026-11-30T08:14:13Z")
        return None

    def form(self, name: str, *, required: bool = True) -> Form | None:
        """The object under ``name``, for reading on."""
        value = self._take(name, required=required)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.wrong(name, "send an object")
            return None
        return self._inner(value, self._path + name)

    def forms(self, name: str, most: int) -> Iterator[tuple[int, Form]]:
        """The 1 to ``most`` objects of an array that must be there, numbered from 0."""
        for number, value in enumerate(self._list(name, most)):
            if isinstance(value, dict):
                yield number, self._inner(value, f"{self._path}{name}[{number}]")
            else:
                self.wrong(f"{name}[{number}]", "send an object")

    def texts(self, name: str, most: int, longest: int) -> list[str]:
        """The 1 to ``most`` strings of an array that must be there."""
        found = []
        for number, value in enumerate(self._list(name, most)):
            if isinstance(value, str) and 1 <= len(value) <= longest and value == cleaned(value):
                found.append(value)
            else:
                self.wrong(f"{name}[{number}]", f"send a string of 1 to {longest} characters")
        return found

    def passed(self, *names: str) -> None:
        """These are read by other means."""
        for name in names:
            self._members.pop(name, None)

    def close(self) -> None:
        """No other members may be there. To be called once all are read."""
        for name in self._members:
            self.wrong(_printed(name), "is not a member; remove it")
        self._members.clear()

    @property
    def sound(self) -> bool:
        """Whether no mistake was found in this form, or in one within it, so far."""
        return self._sound

    def wrong(self, name: str, why: str) -> None:
        """Remember a mistake in the member ``name``."""
        self._mark()
        self.mistakes.append(f"{self._path}{name}: {why}")

    def refusal(self) -> Refusal | None:
        """What was wrong with this form and those within it."""
        if not self.mistakes:
            return None
        shown = "; ".join(self.mistakes[:_SHOWN])
        more = len(self.mistakes) - _SHOWN
        rest = f"; and {more} more" if more > 0 else ""
        return Refusal("request-invalid", f"Correct the body: {shown}{rest}.")

    def _mark(self) -> None:
        self._sound = False
        if self._outer is not None:
            self._outer._mark()

    def _inner(self, members: Mapping[str, Json], path: str) -> Form:
        made = Form(members, f"{path}.", self)
        made.mistakes = self.mistakes
        return made

    def _list(self, name: str, most: int) -> Sequence[Json]:
        value = self._take(name, required=True)
        if value is None:
            return ()
        if not isinstance(value, list):
            self.wrong(name, "send an array")
            return ()
        if not 1 <= len(value) <= most:
            self.wrong(name, f"{len(value)} elements are not within 1 to {most}")
            return ()
        return value

    def _take(self, name: str, *, required: bool = False) -> Json:
        value = self._members.pop(name, None)
        if value is None and required:
            self.wrong(name, "is missing")
        return value


def _printed(name: str) -> str:
    """A member's name in a sentence: a line at most, without control characters."""
    return ascii(name)[1:-1][:64]
