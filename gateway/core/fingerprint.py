"""What makes two requests under one key the same command, as 32 bytes.

Method, raw path, raw query, entity, the listed headers, the body and its type are always part of
it; each is written with its length in front, so no two lists of parts have the same bytes. The
digest is keyed with the tenant's salt: a fingerprint in a log says nothing about a body that
somebody can guess, and nothing across tenants.

The rule version stands for how the fingerprint was made. Fingerprints with different versions are
not compared. Change ``ALGORITHM`` whenever a change here, in ``body`` or in its readers gives other
bytes for the same request, or one in ``outline`` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

from gateway.core.body import BodyMode, Form, media_of
from gateway.core.canonical import Pieces, Pointer
from gateway.core.headers import values
from gateway.core.keys import OWS
from gateway.core.model import Headers
from gateway.core.value import value

__all__ = [
    "ALGORITHM",
    "SALT_BYTES",
    "Parts",
    "Recipe",
    "body_type",
    "chosen_headers",
    "fingerprint",
    "key_digest",
    "rule_version",
    "upstream_key",
]

ALGORITHM = 3
SALT_BYTES = 16
"""Of a tenant's salt; ``blake2b`` takes up to 64 as its key."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A policy's choice: which headers count (lower case), and which members of a body that
    can be read do not."""

    body: BodyMode = "auto"
    ignore: tuple[Pointer, ...] = ()
    headers: tuple[bytes, ...] = ()


@value(frozen=True, slots=True)
class Parts:
    """Everything of a request that its fingerprint covers, but the salt. ``headers``: lower-case
    names with their lines, in the policy's order. ``type``: as ``body_type`` gave it. ``body``: as
    ``Body.compared`` did."""

    method: str
    path: bytes
    query: bytes
    entity: str
    headers: tuple[tuple[bytes, tuple[bytes, ...]], ...]
    type: bytes
    form: Form
    body: bytes
    version: bytes
    pieces: Pieces = field(default=(), repr=False, compare=False)
    """Of a body that is an object of few plain members: these, as they stand in ``body``."""


def rule_version(recipe: Recipe, entity: str, *, lowers: bool = False) -> bytes:
    """8 bytes over everything that decides how a fingerprint is made. ``entity``: the text of the
    policy's template; ``lowers``: its values are taken in lower case."""
    digest = blake2b(digest_size=8, person=b"fg-rules")
    _add(digest, b"%d" % ALGORITHM, recipe.body.encode("ascii"), entity.encode("utf-8"))
    _add(digest, b"%d" % len(recipe.ignore))
    for pointer in recipe.ignore:
        _add(digest, b"%d" % len(pointer), *(token.encode("utf-8") for token in pointer))
    _add(digest, *recipe.headers)
    if lowers:
        _add(digest, b"entity in lower case")  # no field has blanks in its name
    return digest.digest()


def fingerprint(salt: bytes, parts: Parts) -> bytes:
    """32 bytes, for a tenant's ``salt`` of ``SALT_BYTES``."""
    listed = [parts.version, parts.method.encode("ascii"), parts.path, parts.query]
    listed += (parts.entity.encode("ascii"), b"%d" % len(parts.headers))
    for name, lines in parts.headers:
        listed += (name, b"%d" % len(lines), *lines)
    listed += (parts.type, parts.form.encode("ascii"))
    digest = _keyed(salt).copy()
    digest.update(_measured(listed) + len(parts.body).to_bytes(8, "big"))
    digest.update(parts.body)
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
    if not names:
        return ()
    return tuple((name, tuple(line.strip(OWS) for line in values(headers, name))) for name in names)


def body_type(headers: Headers) -> bytes:
    """What the same bytes are taken for: media types without their parameters, and content codings,
    in lower case. Of parameters, ``charset`` makes no difference to what is read here, and a
    boundary changes with every try."""
    lines, coded = values(headers, b"content-type"), values(headers, b"content-encoding")
    codings = [name for line in coded for name in line.split(b",")]
    named = [name for name in map(_lower, codings) if name not in (b"", b"identity")]
    return media_of(lines) + b"".join(b" " + name for name in named)


def _lower(value: bytes) -> bytes:
    return value.strip(OWS).lower()


def _add(digest: blake2b, *parts: bytes) -> None:
    digest.update(_measured(parts))


def _measured(parts: Sequence[bytes]) -> bytes:
    """Each with its length in front."""
    written: list[bytes] = []
    for part in parts:
        size = len(part)
        written += (_SIZES[size] if size < _FEW else size.to_bytes(8, "big"), part)
    return b"".join(written)


_FEW = 1024
_SIZES = [size.to_bytes(8, "big") for size in range(_FEW)]


@lru_cache(256)
def _keyed(salt: bytes) -> blake2b:
    """Only ever copied: setting a keyed hash up costs more than what a copy does."""
    return blake2b(key=_checked(salt), digest_size=32, person=b"fg-fingerprint")


def _checked(salt: bytes) -> bytes:
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a tenant's salt has {SALT_BYTES} bytes, not {len(salt)}")
    return salt
