"""Values that must not be shown: whoever needs one says so by name.

What holds a secret may end up in a traceback, a log line or a test's output by its ``repr``.
Nothing but ``reveal`` gives it away, and it cannot be pickled or formatted.
"""

from __future__ import annotations

from typing import NoReturn

from gateway.core.model import Headers

__all__ = ["Secret", "SecretFields", "revealed"]

_SHOWN = "Secret(…)"


class Secret:
    """Bytes that only ``reveal`` shows. Two are equal if what they hold is."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """The value, for where it is used."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return _SHOWN

    def __str__(self) -> str:
        return _SHOWN

    def __format__(self, spec: str) -> str:
        return format(_SHOWN, spec)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")


SecretFields = tuple[tuple[bytes, Secret], ...]
"""Field lines whose values are secrets; the names are not."""


def revealed(fields: SecretFields) -> Headers:
    """The field lines as they are sent."""
    return tuple((name, value.reveal()) for name, value in fields)
