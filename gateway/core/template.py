"""What a template may take from a request, in exactly one spelling.

A value names a business thing, so two spellings of it must not be two things, and one spelling must
not be read as two. Each reader below gives the one value, or says that it is missing, or why it
cannot be told:

- Values are 1 to 255 printable ASCII characters without blanks at either end. Other alphabets have
  several forms of one text (composed, decomposed, full width), which upstreams fold or do not.
  Case is kept: ``ACC-1`` and ``acc-1`` are two.
- A path segment is percent-decoded exactly once. Nothing that another hop may read as structure is
  taken: ``/`` and ``\\`` after decoding, a ``%`` after decoding (encoded twice), ``;`` before
  decoding (parameters, RFC 3986 §3.3), ``.`` and ``..``.
- A query value is percent-decoded once; ``+`` (a plus or a blank) and ``;`` (a separator to some)
  are refused, and so is a name that occurs twice, in any case.
- A header has one line without a comma, which may be two lines joined (RFC 9110 §5.3).
- A JSON body gives strings only, so ``1048`` and ``"1048"`` are never two entities.
- A form, or multipart/form-data, gives one parameter under its own name. Beside it stands nothing
  that a framework may take for it or nest with it: ``Customer``, ``customer[]``, ``customer.id``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.body import Content
from gateway.core.canonical import Absent, Document, Json, Pointer, Unreadable, lookup
from gateway.core.form import Field, percent_decode, spelled, well_encoded
from gateway.core.headers import folded
from gateway.core.keys import KEY_LIMIT, OWS, Refusal, parse_key

__all__ = [
    "VALUE_LIMIT",
    "Invalid",
    "Missing",
    "Value",
    "check_value",
    "find_field",
    "read_body",
    "read_header",
    "read_key_header",
    "read_query",
    "read_segment",
]

VALUE_LIMIT = KEY_LIMIT
"""Characters of a value and of what is rendered from it: the same as a key, which it may become."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The request does not carry the value; ``what`` names where it belongs."""

    what: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """The value is there, and cannot be used; ``reason`` is a sentence without its full stop."""

    reason: str


Value = str | Missing | Invalid


def check_value(text: str, what: str) -> str | Invalid:
    """``text`` if it is printable ASCII of a legal length; ``what`` names its place."""
    if len(text) > VALUE_LIMIT:
        return Invalid(f"{what} is longer than {VALUE_LIMIT} characters")
    if not text.isascii() or not text.isprintable():
        return Invalid(f"{what} holds a control or non-ASCII character; use printable ASCII")
    if text != text.strip(" "):
        return Invalid(f"{what} begins or ends with a blank")
    return text


def read_segment(raw: bytes, what: str) -> Value:
    """The value of one non-empty raw path segment."""
    if b";" in raw:
        return Invalid(f"{what} holds a semicolon, which begins parameters; send it as %3B")
    if not well_encoded(raw):
        return Invalid(f"{what} has a % that begins no percent-encoding; send it as %25")
    text = _ascii(percent_decode(raw), what)
    if isinstance(text, Invalid):
        return text
    if "/" in text or "\\" in text:
        return Invalid(f"{what} holds an encoded slash or backslash")
    if "%" in text:
        return Invalid(f"{what} is still percent-encoded after decoding; encode it once")
    if text in (".", ".."):
        return Invalid(f"{what} is a dot segment")
    return text


def read_query(raw_query: bytes, name: str, what: str) -> Value:
    """The value of the one query parameter ``name``."""
    if b";" in raw_query:
        return Invalid(f"{what} cannot be told: the query holds a semicolon; send it as %3B")
    if not well_encoded(raw_query):
        return Invalid("the query has a % that begins no percent-encoding; send it as %25")
    wanted = name.encode("ascii")
    found: list[tuple[bytes, bytes]] = []
    for pair in raw_query.split(b"&"):
        key, _, value = pair.partition(b"=")
        key = percent_decode(key)
        # Some upstreams compare names without case, so a twin in another case is a second value.
        if key.lower() == wanted.lower():
            found.append((key, value))
    if not found:
        return Missing(what)
    if len(found) > 1:
        return Invalid(f"{what} is sent more than once; send it once")
    key, value = found[0]
    if key != wanted or not value:
        return Missing(what)
    if b"+" in value:
        return Invalid(f"{what} holds a plus, which may be a blank; send %2B or %20")
    return _ascii(percent_decode(value), what)


def read_header(lines: Sequence[bytes], what: str) -> Value:
    """The value of a field that must have exactly one line."""
    if not lines:
        return Missing(what)
    if len(lines) > 1:
        return Invalid(f"{what} is sent more than once; send exactly one line")
    value = lines[0].strip(OWS)
    if not value:
        return Missing(what)
    if b"," in value:
        return Invalid(f"{what} holds a comma, so it may be two lines joined; send one value")
    return _ascii(value, what)


def read_key_header(lines: Sequence[bytes], what: str) -> Value:
    """The idempotency key, so that both of its spellings give the same value."""
    key = parse_key(lines)
    if not isinstance(key, Refusal):
        return key
    return Missing(what) if key.type == "key-missing" else Invalid(key.detail.rstrip("."))


def read_body(body: Content | Unreadable, pointer: Pointer, what: str) -> Value | Unreadable:
    """The non-empty string at ``pointer``; in a form the parameter that it names."""
    match body:
        case Unreadable():
            return body
        case Document(document):
            return _read_member(document, pointer, what)
        case _:
            found = find_field(body.fields, pointer, what)
            if isinstance(found, Invalid):
                return found
            return _ascii(found, what) if found else Missing(what)


def _read_member(document: Json, pointer: Pointer, what: str) -> Value:
    value = lookup(document, pointer)
    if isinstance(value, Absent):
        return Missing(what)
    if not isinstance(value, str):
        return Invalid(f"{what} is not a JSON string; send it in quotes")
    if not value:
        return Missing(what)
    if _has_twin(document, pointer):
        return Invalid(f"{what} has a twin whose name differs only in case; send one")
    return check_value(value, what)


def find_field(fields: Sequence[Field], pointer: Pointer, what: str) -> bytes | Invalid | None:
    """The value of the one parameter that ``pointer`` names; empty for a name alone, ``None``
    without one."""
    wanted = spelled(pointer)
    run = _run(wanted)
    found: list[Field] = []
    for field in fields:
        if field.name == wanted:
            found.append(field)
        elif field.name.lower() == b"_charset_":
            # RFC 7578 §4.6: readers may decode all the others by it.
            if (field.value or b"").lower() not in _UTF_8:
                return Invalid(f"{what} cannot be told: _charset_ is not UTF-8; leave it out")
        elif not field.name or _run(field.name) == run:
            if field.flaw and not field.name:
                return Invalid(f"{what} cannot be told: it {field.flaw}")
            if _alike(field.name, wanted):
                twin = field.name[:_SHOWN].decode("latin-1")
                return Invalid(f"{what} may be read from {twin!a} as well; send one of the two")
    if len(found) > 1:
        return Invalid(f"{what} is sent more than once; send it once")
    if not found:
        return None
    return Invalid(f"{what} {found[0].flaw}") if found[0].flaw else found[0].value or b""


_UTF_8 = (b"utf-8", b"utf8", b"us-ascii")
_SHOWN = 64
"""Bytes of a caller's name that a sentence repeats."""

# PHP cuts a name at NUL and takes . and blanks for _; others nest by [ or by a dot.
_NESTING = re.compile(rb"[\[\].\x00]+")
_RUN = re.compile(rb"[a-z0-9]+")


def _run(name: bytes) -> bytes:
    """The first letters and digits: equal for names that are alike, and quick to find."""
    match = _RUN.search(name.lower())
    return match[0] if match else b""


def _alike(one: bytes, other: bytes) -> bool:
    """Whether some reader takes one for the other, or one for what the other is nested in."""
    if _flat(one) == _flat(other):
        return True
    first, second = _steps(one), _steps(other)
    shorter = min(len(first), len(second))
    return first[:shorter] == second[:shorter]


def _flat(name: bytes) -> bytes:
    return folded(name.strip(b" ").rstrip(b"[].\x00"))


def _steps(name: bytes) -> list[bytes]:
    return [folded(step) for step in _NESTING.split(name.strip(b" ").rstrip(b"[].\x00"))]


def _has_twin(value: Json, pointer: Pointer) -> bool:
    """Whether a reader that ignores case (Go's encoding/json does) may find another value."""
    for depth, token in enumerate(pointer):
        parent = lookup(value, pointer[:depth])
        if isinstance(parent, dict):
            folded = token.casefold()
            if sum(name.casefold() == folded for name in parent) > 1:
                return True
    return False


def _ascii(raw: bytes, what: str) -> str | Invalid:
    """Bytes as text; those above 0x7F become characters that ``check_value`` refuses."""
    return check_value(raw.decode("latin-1"), what)
