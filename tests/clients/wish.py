"""One request in the words that every client understands, and what the client heard."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

__all__ = ["Client", "Fields", "Heard", "Wish"]

Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be sent. Field values hold one character for each byte (latin-1).

    At most one of ``body``, ``form``, ``parts`` (name, file name or "", content) and ``chunks``,
    which the client writes without saying a length. ``follow``: redirects, as the client does by
    itself. ``tries``: how often at most; the client's own retries, else a loop around it.
    ``timeout_s``: of one try.
    """

    method: str
    url: str
    fields: Fields = ()
    body: bytes | None = None
    form: tuple[tuple[str, str], ...] | None = None
    parts: tuple[tuple[str, str, bytes], ...] | None = None
    chunks: tuple[bytes, ...] | None = None
    follow: bool = False
    tries: int = 1
    timeout_s: float = 20.0

    def at(self, url: str) -> Wish:
        return replace(self, url=url)


@dataclass(frozen=True, slots=True)
class Heard:
    """The last answer as the client shows it, decoded where it decodes. ``status`` 0: none, and
    ``error`` says why."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    error: str = field(default="", compare=False)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


class Client(Protocol):
    """A client under test."""

    name: str

    def send(self, wish: Wish) -> Heard: ...
