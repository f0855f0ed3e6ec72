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
  are refused.
- A header has one line without a comma, which may be two lines joined (RFC 9110 §5.3).
- A JSON body gives strings only, so ``1048`` and ``"1048"`` are never two entities.
- A query, a form or multipart/form-data gives one parameter under its own name. Beside it stands
  nothing that a framework may take for it or nest with it (``Customer``, ``customer[]``,
  ``customer.id``), no name that is not plain, and no more parameters than all readers take.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.body import Content
from gateway.core.canonical import Absent, Document, Json, Pointer, Unreadable, lookup
from gateway.core.form import (
    ENDS_EARLY,
    MAX_READ,
    Field,
    ends_early,
    percent_decode,
    spelled,
    well_encoded,
)
from gateway.core.keys import KEY_LIMIT, OWS, Refusal, parse_key
from gateway.core.names import alike, is_plain

__all__ = [
    "SURE_SEGMENT",
    "VALUE_LIMIT",
    "Invalid",
    "Missing",
    "Value",
    "check_value",
    "find_beside",
    "find_field",
    "query_fields",
    "read_body",
    "read_header",
    "read_key_header",
    "read_query",
    "read_segment",
]

VALUE_LIMIT = KEY_LIMIT
"""Characters of a value and of what is rendered from it: the same as a key, which it may become."""


SURE_SEGMENT = rb"[A-Za-z0-9_~!$&'()*+,=:@-][A-Za-z0-9._~!$&'()*+,=:@-]*+"
"""A path segment that every reader takes for what it is: nothing is encoded, and it has neither
parameters nor a dot in front."""

_SURE = re.compile(SURE_SEGMENT)


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
    if len(raw) <= VALUE_LIMIT and _SURE.fullmatch(raw):  # nearly all are
        return raw.decode("ascii")
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


def query_fields(raw_query: bytes, what: str) -> tuple[Field, ...] | Invalid:
    """The parameters of a query: names decoded, values as they came."""
    if b";" in raw_query:
        return Invalid(f"{what} cannot be told: the query holds a semicolon; send it as %3B")
    if not well_encoded(raw_query):
        return Invalid("the query has a % that begins no percent-encoding; send it as %25")
    pairs = (pair.partition(b"=") for pair in raw_query.split(b"&") if pair)
    return tuple(
        Field(percent_decode(name), value, ENDS_EARLY if ends_early(value) else None)
        for name, _, value in pairs
    )


def read_query(raw_query: bytes, name: str, what: str) -> Value:
    """The value of the one query parameter ``name``."""
    fields = query_fields(raw_query, what)
    if isinstance(fields, Invalid):
        return fields
    wanted = name.encode("ascii")
    if all(field.name != wanted for field in fields):
        return Missing(what)
    found = _find(fields, wanted, what)
    if isinstance(found, Invalid):
        return found
    if not found:
        return Missing(what)
    if b"+" in found:
        return Invalid(f"{what} holds a plus, which may be a blank; send %2B or %20")
    return _ascii(percent_decode(found), what)


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
    return _find(fields, spelled(pointer), what)


def find_beside(fields: Sequence[Field], wanted: bytes, what: str) -> Invalid | None:
    """Why some reader may take one of ``fields``, which stand elsewhere, for ``wanted``."""
    if len(fields) > MAX_READ:
        return _too_many(what)
    clashes = (_clash(at, field.name, wanted, what) for at, field in enumerate(fields, 1))
    return next((clash for clash in clashes if clash is not None), None)


def _find(fields: Sequence[Field], wanted: bytes, what: str) -> bytes | Invalid | None:
    if len(fields) > MAX_READ:
        return _too_many(what)
    found: list[Field] = []
    for number, field in enumerate(fields, 1):
        if field.name == wanted and is_plain(wanted):
            found.append(field)
        elif field.name.lower() == b"_charset_":
            # RFC 7578 §4.6: readers may decode all the others by it.
            if (field.value or b"").lower() not in _UTF_8:
                return Invalid(f"{what} cannot be told: _charset_ is not UTF-8; leave it out")
        elif clash := _clash(number, field.name, wanted, what):
            return clash
    if len(found) > 1:
        return Invalid(f"{what} is sent more than once; send it once")
    if not found:
        return None
    return Invalid(f"{what} {found[0].flaw}") if found[0].flaw else found[0].value or b""


def _too_many(what: str) -> Invalid:
    return Invalid(
        f"{what} cannot be told among more than {MAX_READ} parameters, since some readers drop the "
        "rest; send fewer"
    )


def _clash(number: int, name: bytes, wanted: bytes, what: str) -> Invalid | None:
    # A name that is not plain is not repeated: it may be a whole body that came as a form.
    if not is_plain(name):
        return Invalid(
            f"{what} cannot be told: parameter {number} has a name that readers may take in two "
            "ways; use letters, digits, _ and well-formed brackets"
        )
    if not alike(name, wanted):
        return None
    twin = name[:_SHOWN].decode("ascii")
    return Invalid(f"{what} may be read from {twin!r} as well; send one of the two")


_UTF_8 = (b"utf-8", b"utf8", b"us-ascii")
_SHOWN = 64
"""Bytes of a caller's name that a sentence repeats."""


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
