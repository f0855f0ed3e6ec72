"""Requests that came before, byte for byte, and the commands that they are.

Which command a request is takes longer to find out than all else about a replay: its body is read
strictly, its entity and fingerprint made. All of it follows from the policy and the bytes, so for
the same bytes it need not be done again. A caller that repeats in a loop sends the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from gateway.core.auth import Principal
from gateway.core.model import Headers

__all__ = ["BODY_LIMIT", "Sent", "Verbatim", "Wish"]

BODY_LIMIT = 16 * 1024
"""Bytes of body: a digest of that takes 20 µs of the event loop, one of 8 MiB 8 ms."""

_LIMIT = 4096
"""Requests in one of two generations: some 5 MiB in all, if each has the longest entity."""


class Sent(NamedTuple):
    """What came: everything that a command, or its refusal, is made of."""

    method: str
    path: bytes
    query: bytes
    headers: Headers
    body: bytes

    def digest(self, salt: bytes) -> bytes:
        """32 bytes. Names, values and targets have no line ends, and no name is empty."""
        head = b"\n".join((self.method.encode(), self.path, self.query, *self._lines(), b"", b""))
        digest = blake2b(head, key=salt, digest_size=32, person=b"fg-verbatim")
        digest.update(self.body)
        return digest.digest()

    def _lines(self) -> Iterator[bytes]:
        for pair in self.headers:
            yield from pair


class Wish(NamedTuple):
    """The command that a request is, as far as a replay needs it; ``name`` as in ``record``."""

    name: bytes
    key_digest: bytes
    policy: str
    tenant: int
    entity: str
    fence: int | None


class Verbatim:
    """Two generations: where the younger is full, it becomes the older."""

    def __init__(self) -> None:
        self._younger: dict[bytes, Wish] = {}
        self._older: dict[bytes, Wish] = {}
        # A new request is told by this at once, without a digest of all of it.
        self._bodies: set[int] = set()
        self._older_bodies: set[int] = set()

    def get(self, sent: Sent, principal: Principal) -> Wish | None:
        """The command that the tenant sent with these bytes before, if that is remembered."""
        body = hash((sent.path, sent.body))
        if body not in self._bodies and body not in self._older_bodies:
            return None
        digest = sent.digest(principal.salt)
        return self._younger.get(digest) or self._older.get(digest)

    def add(self, sent: Sent, principal: Principal, wish: Wish) -> None:
        if len(sent.body) > BODY_LIMIT:
            return
        if len(self._younger) >= _LIMIT:
            self._older, self._younger = self._younger, {}
            self._older_bodies, self._bodies = self._bodies, set()
        self._younger[sent.digest(principal.salt)] = wish
        self._bodies.add(hash((sent.path, sent.body)))
