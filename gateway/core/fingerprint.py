"""What makes two requests under one key the same command, as 32 bytes.

Method, raw path, raw query, entity, the listed headers and the body are always part of it; each is
written with its length in front, so no two lists of parts have the same bytes. The digest is keyed
with the tenant's salt: a fingerprint in a log says nothing about a body that somebody can guess,
and nothing across tenants.

The rule version stands for how the fingerprint was made. Fingerprints with different versions are
not compared. Change ``ALGORITHM`` whenever a change here or in ``canonical`` gives other bytes for
the same request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from gateway.core.canonical import Document, Pointer, Unreadable, canonical, read_json, without
from gateway.core.headers import values
from gateway.core.keys import OWS
from gateway.core.model import Headers

__all__ = [
    "ALGORITHM",
    "SALT_BYTES",
    "Body",
    "BodyMode",
    "Form",
    "Parts",
    "Recipe",
    "chosen_headers",
    "fingerprint",
    "key_digest",
    "rule_version",
    "upstream_key",
]

ALGORITHM = 1
SALT_BYTES = 16
"""Of a tenant's salt; ``blake2b`` takes up to 64 as its key."""

BodyMode = Literal["auto", "json", "raw"]
Form = Literal["json", "raw"]
"""How a body was compared: as its canonical JSON, or byte by byte."""

# RFC 9110 §5.6.6; UTF-8 holds US-ASCII, and many clients leave its dash out.
_UTF_8 = re.compile(rb";[ \t]*charset=(\"?)(?:utf-?8|us-ascii)\1[ \t]*(?:;|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A policy's choice: which headers count (lower case), and which members of a JSON body do
    not."""

    body: BodyMode = "auto"
    ignore: tuple[Pointer, ...] = ()
    headers: tuple[bytes, ...] = ()


class Body:
    """One request body: read as JSON at most once, whoever asks.

    It is a value: its answers never change, only the first reading is put off.
    """

    __slots__ = ("_document", "_why_not", "form", "raw")

    def __init__(self, raw: bytes, headers: Headers, mode: BodyMode):
        self.raw = raw
        coded = _is_coded(headers)
        declared = mode == "json" or _says_json(headers)
        self._document: Document | Unreadable | None = None
        self._why_not = _why_not(coded=coded, declared=declared) or _why_not_utf_8(headers)
        # No body at all is no JSON, and the many clients that label it so mean no harm.
        as_json = mode == "json" or (mode == "auto" and declared and not coded and bool(raw))
        self.form: Form = "json" if as_json else "raw"

    def document(self) -> Document | Unreadable:
        """The body as JSON, for the fingerprint and for templates alike."""
        if self._document is None:
            self._document = Unreadable(self._why_not) if self._why_not else read_json(self.raw)
        return self._document

    def compared(self, ignore: tuple[Pointer, ...]) -> bytes | Unreadable:
        """The bytes that are equal for equal bodies of this form."""
        if self.form == "raw":
            return self.raw
        document = self.document()
        if isinstance(document, Unreadable):
            return document
        return canonical(without(document.value, ignore))


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything of a request that its fingerprint covers, but the salt. ``headers``: lower-case
    names with their lines, in the policy's order. ``body``: as ``Body.compared`` gave it."""

    method: str
    path: bytes
    query: bytes
    entity: str
    headers: tuple[tuple[bytes, tuple[bytes, ...]], ...]
    form: Form
    body: bytes
    version: bytes


def rule_version(recipe: Recipe, entity: str) -> bytes:
    """8 bytes over everything that decides how a fingerprint is made. ``entity``: the text of the
    policy's template."""
    digest = blake2b(digest_size=8, person=b"fg-rules")
    _add(digest, b"%d" % ALGORITHM, recipe.body.encode("ascii"), entity.encode("utf-8"))
    _add(digest, b"%d" % len(recipe.ignore))
    for pointer in recipe.ignore:
        _add(digest, b"%d" % len(pointer), *(token.encode("utf-8") for token in pointer))
    _add(digest, *recipe.headers)
    return digest.digest()


def fingerprint(salt: bytes, parts: Parts) -> bytes:
    """32 bytes, for a tenant's ``salt`` of ``SALT_BYTES``."""
    digest = blake2b(key=_checked(salt), digest_size=32, person=b"fg-fingerprint")
    _add(digest, parts.version, parts.method.encode("ascii"), parts.path, parts.query)
    _add(digest, parts.entity.encode("ascii"), b"%d" % len(parts.headers))
    for name, lines in parts.headers:
        _add(digest, name, b"%d" % len(lines), *lines)
    _add(digest, parts.form.encode("ascii"), parts.body)
    return digest.digest()


def key_digest(salt: bytes, key: str) -> bytes:
    """16 bytes that stand for a tenant's ``key`` as a primary key. They cover the whole key."""
    digest = blake2b(key.encode("ascii"), key=_checked(salt), digest_size=16, person=b"fg-key")
    return digest.digest()


def upstream_key(salt: bytes, key: str) -> str:
    """The key that an upstream which deduplicates is sent: the same at every attempt, and made of
    nothing but tenant and key. It tells the upstream nothing, and two tenants' keys never meet."""
    digest = blake2b(key.encode("ascii"), key=_checked(salt), digest_size=16, person=b"fg-upstream")
    return f"fg-{digest.hexdigest()}"


def chosen_headers(
    headers: Headers, names: tuple[bytes, ...]
) -> tuple[tuple[bytes, tuple[bytes, ...]], ...]:
    """All lines of the fields ``names``, blanks around them aside; absent is not empty."""
    return tuple((name, tuple(line.strip(OWS) for line in values(headers, name))) for name in names)


def _add(digest: blake2b, *parts: bytes) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)


def _checked(salt: bytes) -> bytes:
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a tenant's salt has {SALT_BYTES} bytes, not {len(salt)}")
    return salt


def _why_not(*, coded: bool, declared: bool) -> str | None:
    if coded:
        return "has a Content-Encoding, so it cannot be read as JSON; send it uncoded"
    if not declared:
        return "is not declared as JSON; send Content-Type: application/json"
    return None


def _why_not_utf_8(headers: Headers) -> str | None:
    """RFC 8259 knows no charset, but there are frameworks that decode by it."""
    lines = values(headers, b"content-type")
    if len(lines) > 1:
        return "has more than one Content-Type; send one"
    value = lines[0].strip(OWS) if lines else b""
    # Whatever looks like the parameter counts: readers differ in how they take a field apart.
    named = value.lower().count(b"charset")
    if named > 1 or (named and not _UTF_8.search(value)):
        return "names a charset that is not UTF-8, or more than one; send charset=utf-8 or none"
    return None


def _says_json(headers: Headers) -> bool:
    """One ``Content-Type`` of ``application/json`` or ``*/*+json`` (RFC 6839 §3.1)."""
    lines = values(headers, b"content-type")
    if len(lines) != 1:
        return False
    media = lines[0].partition(b";")[0].strip(OWS).lower()
    main, _, sub = media.partition(b"/")
    return media == b"application/json" or (bool(main) and sub.endswith(b"+json"))


def _is_coded(headers: Headers) -> bool:
    return any(
        line.strip(OWS).lower() not in (b"", b"identity")
        for line in values(headers, b"content-encoding")
    )
