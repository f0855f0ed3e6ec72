"""What is kept of one settled response: plain bytes, so that the garbage collector has nothing to
look at, and that a process which reads it back can tell whether it is what was written.

An entry is found by its *name*: erasure epoch, key digest, fingerprint, and the digest of upstream
and account. The first three are the tenant's own (the epoch is random, the others are keyed with
its salt), so a name says whose it is. After an erasure in the tenant no name of before is asked for
any more. The last keeps apart what a copy of a database did elsewhere, where both share a Redis.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from hmac import compare_digest
from typing import NamedTuple

from gateway.core.auth import Principal
from gateway.core.command import Command
from gateway.core.headers import decode_lines
from gateway.core.model import Response

__all__ = ["ENTRY_LIMIT", "Entry", "name_of", "pack", "seal", "unpack", "unseal"]

ENTRY_LIMIT = 256 * 1024
"""Bytes of an entry at most. Larger bodies may be recorded without their body after the answer (see
``gateway.proxy.settling``), and one of them would drive out hundreds of others."""

_HEAD = struct.Struct("<dqHI")
_NO_FENCE = -1
_SEAL = 16
_PERSON = b"fg-cached-1"
"""The form of an entry. Change its number with the form: what another release sealed is a miss."""


class Entry(NamedTuple):
    """``end_s``: until when it answers, on the clock of whoever packed it. ``fence``: the one that
    the command was admitted with. ``head``: the fields as the store keeps them."""

    end_s: float
    fence: int | None
    status: int
    head: bytes
    body: bytes

    @property
    def response(self) -> Response:
        """As the store would give it back."""
        return Response(self.status, decode_lines(self.head), self.body)


def name_of(command: Command, principal: Principal) -> bytes:
    """80 bytes; empty where the epoch is not known, and then nothing may be cached."""
    epoch = principal.epoch
    if not epoch:
        return b""
    return epoch + command.key_digest + command.fingerprint + command.upstream_digest


def pack(entry: Entry) -> bytes:
    """``entry`` in one piece."""
    end_s, fence, status, head, body = entry
    start = _HEAD.pack(end_s, _NO_FENCE if fence is None else fence, status, len(head))
    return b"".join((start, head, body))


def unpack(record: bytes) -> Entry:
    """The inverse of ``pack``, for what was packed here or unsealed."""
    end_s, fence, status, length = _HEAD.unpack_from(record)
    body = _HEAD.size + length
    known = None if fence == _NO_FENCE else fence
    return Entry(end_s, known, status, record[_HEAD.size : body], record[body:])


def seal(salt: bytes, name: bytes, record: bytes) -> bytes:
    """``record``, to be kept where others can write: nobody without the tenant's ``salt`` makes one
    that opens, nor one of another name."""
    return _digest(salt, name, record) + record


def unseal(salt: bytes, name: bytes, sealed: bytes) -> bytes | None:
    """The record, if it was sealed under this name and has not changed since."""
    digest, record = sealed[:_SEAL], sealed[_SEAL:]
    return record if compare_digest(digest, _digest(salt, name, record)) else None


def _digest(salt: bytes, name: bytes, record: bytes) -> bytes:
    digest = blake2b(name, key=salt, digest_size=_SEAL, person=_PERSON)
    digest.update(record)
    return digest.digest()
