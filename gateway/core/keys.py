"""The grammar of ``Idempotency-Key``, read by hand.

Two spellings name the same key: a structured-field string (``"pay-17"``, RFC 9651 §3.3.3) and a
bare token (``pay-17``), because an unquoted UUID is no structured-field item and yet what most
clients send. What could be read in two ways is refused rather than guessed:

- A key is 1 to 255 characters of visible ASCII (0x21 to 0x7E) in both spellings, so characters
  and bytes are the same count and no Unicode form matters. Blanks inside quotes are refused too.
- A bare key holds no comma (it may be two lines that a hop joined, RFC 9110 §5.3) and no
  semicolon (it may begin the parameters of an RFC 9651 item). In quotes both are plain characters.
- A quoted key carries no parameters, and only ``\\"`` and ``\\\\`` are escapes.
- Blanks (SP, HTAB) around the value are not part of it. Case is kept; nothing is cut off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.problems import ProblemType

__all__ = ["KEY_LIMIT", "OWS", "Refusal", "check_key", "parse_key"]

KEY_LIMIT = 255
"""Characters. What the contract promises, and far below the 2,700 bytes of a btree row."""

OWS = b" \t"
"""Optional white space around a field value (RFC 9110 §5.6.3)."""

_QUOTE, _ESCAPE, _COMMA, _SEMICOLON = b'"\\,;'
_FIRST_VISIBLE, _LAST_VISIBLE = 0x21, 0x7E

_PLAIN = re.compile(rb'"([!#-\[\]-~]{1,%d})"' % KEY_LIMIT)
"""A key in quotes in which nothing is escaped."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request cannot become a command, as a problem type and a sentence that says how to
    mend it. ``members``: further members of the problem document."""

    type: ProblemType
    detail: str
    members: tuple[tuple[str, str], ...] = ()


def parse_key(lines: Sequence[bytes]) -> str | Refusal:
    """The key in all lines of one ``Idempotency-Key`` field.

    Refused as ``key-missing`` without a line, as ``key-invalid`` where the lines are not one key.
    """
    if not lines:
        return Refusal(
            "key-missing",
            "Send one Idempotency-Key field: a key for each intended command, the same for its "
            "retries.",
        )
    if len(lines) > 1:
        return _invalid("is sent more than once; send exactly one line")
    value = lines[0].strip(OWS)
    if not value:
        return _invalid("is empty; send 1 to 255 visible ASCII characters")
    plain = _PLAIN.fullmatch(value)
    if plain is not None:  # nearly all are, and need not be gone through by hand
        return plain[1].decode("ascii")
    return _quoted(value) if value[0] == _QUOTE else _bare(value)


def check_key(text: str) -> str | Refusal:
    """``text`` if it can be a key, however it was made; else ``key-invalid``."""
    if not text:
        return _invalid("is empty; a key has 1 to 255 visible ASCII characters")
    if len(text) > KEY_LIMIT:
        return _invalid(f"has {len(text)} characters; send at most {KEY_LIMIT}")
    if not all(_FIRST_VISIBLE <= ord(char) <= _LAST_VISIBLE for char in text):
        return _invalid("holds a blank, control or non-ASCII character; send visible ASCII only")
    return text


def _bare(value: bytes) -> str | Refusal:
    if _COMMA in value:
        return _invalid("holds a comma, so it may be two keys; put the key in double quotes")
    if _SEMICOLON in value:
        return _invalid("holds a semicolon, which begins parameters; put the key in double quotes")
    return check_key(value.decode("latin-1"))


def _quoted(value: bytes) -> str | Refusal:
    text = bytearray()
    at = 1
    while at < len(value):
        byte = value[at]
        if byte == _QUOTE:
            if at + 1 < len(value):
                return _invalid("goes on after its closing quote; send one string, no parameters")
            return check_key(text.decode("latin-1"))
        if byte == _ESCAPE:
            at += 1
            if at == len(value) or value[at] not in (_QUOTE, _ESCAPE):
                return _invalid('has a backslash that escapes neither " nor \\; write \\" or \\\\')
            byte = value[at]
        text.append(byte)
        at += 1
    return _invalid("has no closing quote; end the string or send the key bare")


def _invalid(what: str) -> Refusal:
    return Refusal("key-invalid", f"The idempotency key {what}.")
