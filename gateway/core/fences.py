"""The grammar of fences, read by hand.

A fence is a number in decimal ASCII digits: no sign, no leading zero, no blanks, no list; ``0`` is
the lowest. Two lines, or one with a comma, are refused even where both numbers are equal: a
zombie that can append a line must not pass (RFC 9110 §5.3). ``int()`` is asked
about digits alone, since it reads ``+4``, ``1_0``, ``٤`` and blanks too.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.canonical import Json
from gateway.core.keys import OWS, Refusal

__all__ = ["ISSUED_LIMIT", "OUTSIDE_LIMIT", "fence_of_json", "fence_of_text", "parse_fence"]

ISSUED_LIMIT = 2**63 - 1
"""The largest fence at all: a Postgres bigint."""

OUTSIDE_LIMIT = 2**62 - 1
"""The largest fence of an outside issuer: half the range is kept, so that an entity can always be
moved to fences that are issued here."""

_DIGITS = len(str(ISSUED_LIMIT))
"""As many as the largest of either kind has."""


def parse_fence(lines: Sequence[bytes], *, limit: int) -> int | Refusal | None:
    """The fence in all lines of one field; ``None`` where the field is absent."""
    if not lines:
        return None
    if len(lines) > 1:
        return _invalid("is sent more than once; send exactly one line")
    return fence_of_text(lines[0].strip(OWS), limit=limit)


def fence_of_text(digits: bytes, *, limit: int) -> int | Refusal:
    """The fence that ``digits`` spells, at most ``limit``."""
    if not digits:
        return _invalid("is empty; send the number that your lease was given")
    # First, so that a megabyte of digits costs nothing.
    if len(digits) > _DIGITS:
        return _invalid(f"is too long; send at most {limit}")
    if not digits.isdigit():  # of bytes: 0 to 9 and nothing else
        return _invalid("is not a plain decimal number; send ASCII digits only")
    fence = int(digits)
    if digits.startswith(b"0") and len(digits) > 1:
        return _invalid("has a leading zero; send the number without it")
    if fence > limit:
        return _invalid(f"is above {limit}; send at most that")
    return fence


def fence_of_json(value: Json, *, limit: int) -> int | Refusal:
    """The fence in a JSON body: an integer (``42``; not ``42.0``, ``4.2e1`` or ``-0``), or a string
    of the same digits as in a header, for callers whose numbers end at 2^53."""
    # bool is a subclass of int.
    if type(value) is int:
        return fence_of_text(str(value).encode("ascii"), limit=limit)
    if isinstance(value, str):
        return fence_of_text(value.encode("utf-8", "replace"), limit=limit)
    return _invalid("in the body is neither an integer nor a string of digits; send e.g. 42")


def _invalid(what: str) -> Refusal:
    return Refusal("fence-invalid", f"The fence {what}.")
