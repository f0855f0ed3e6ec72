"""Who is calling: gateway keys, judged against a snapshot of them.

A token is ``fg_<tenant number>_<key id>_<secret>``. The two numbers in front find the key; only
the secret's SHA-256 is kept, and it is compared in constant time. No fast path tells an unknown
key from a wrong secret or from bytes that are no token at all, and no bytes make it raise: a
compare of ``str`` would, at the first accented letter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from hmac import compare_digest

from gateway.core.value import value

__all__ = ["CallerKey", "Principal", "Snapshot", "Token", "format_token", "parse_token"]

_TOKEN = re.compile(rb"fg_([1-9][0-9]{0,9})_([a-z0-9]{8,12})_([A-Za-z0-9_-]{43})")

_NO_DIGEST = bytes(32)
"""Stands in for an unknown key's digest; no SHA-256 of anything is known to be all zeros."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. ``salt``: the tenant's, 16 bytes. ``key_id`` is ``None`` for the anonymous one.
    ``scopes``: what it may do, in the words of ``gateway.core.scopes``. ``epoch``: 16 bytes that
    change with each erasure in the tenant; empty where they are not known."""

    tenant: int
    name: str
    tenant_name: str
    salt: bytes = field(repr=False)
    key_id: str | None = None
    scopes: frozenset[str] = field(kw_only=True)
    epoch: bytes = field(default=b"", repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class CallerKey:
    """A key that is in force. ``secret_digest``: 32 bytes, SHA-256 of the secret."""

    principal: Principal
    secret_digest: bytes = field(repr=False)


@value(frozen=True, slots=True)
class Token:
    """The parts of a token. ``secret`` is never shown or stored."""

    tenant: int
    key_id: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All keys in force, by (tenant, key id).

    ``anonymous`` is set only while no key has ever existed, revoked ones included: then everybody
    is it, and the gateway serves loopback only. Revoking the last key never opens the gate.
    """

    keys: Mapping[tuple[int, str], CallerKey]
    anonymous: Principal | None = None
    several: bool = field(init=False)
    """Whether more than one tenant has a key in force."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "several", len({tenant for tenant, _ in self.keys}) > 1)

    def authenticate(self, lines: Sequence[bytes]) -> Principal | None:
        """The holder of the one key in all lines of the ``Authorization`` field, else ``None``.

        It never answers ``anonymous``; whether that applies is a question before this one.
        """
        candidate = _bearer(lines)
        parts = _TOKEN.fullmatch(candidate)  # not parse_token: each request comes by here
        found = parts and self.keys.get((int(parts[1]), parts[2].decode("ascii")))
        secret = parts[3] if parts else candidate
        expected = _NO_DIGEST if found is None else found.secret_digest
        equal = compare_digest(sha256(secret).digest(), expected)
        return found.principal if equal and found is not None else None

    def closed(self) -> Snapshot:
        """The same keys, and nobody anonymous."""
        return replace(self, anonymous=None)


def parse_token(text: bytes) -> Token | None:
    """The parts of ``text`` if it is spelled like a token."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        return None
    return Token(int(match[1]), match[2].decode("ascii"), match[3])


def format_token(token: Token) -> str:
    """What the caller sends behind ``Bearer``."""
    return f"fg_{token.tenant}_{token.key_id}_{token.secret.decode('ascii')}"


def _bearer(lines: Sequence[bytes]) -> bytes:
    """The credentials of a single ``Bearer`` line (RFC 9110 §11.4: the scheme in any case), or
    nothing. Two lines are refused: hops differ in which one they would take."""
    if len(lines) != 1:
        return b""
    line = lines[0].strip(b" \t")
    if line.startswith(b"Bearer fg_"):  # as nearly all clients spell it
        return line[7:]
    scheme, _, credentials = line.partition(b" ")
    return credentials.strip(b" ") if scheme.lower() == b"bearer" else b""
