"""Request bodies: read whole and within a limit, passed on piece by piece, or drained so that the
caller hears why not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from gateway.core.headers import values
from gateway.core.model import Headers
from gateway.proxy.respond import Receive

__all__ = [
    "BODY_S",
    "Gone",
    "Inflow",
    "TooLarge",
    "TooSlow",
    "announced",
    "declared_length",
    "drain",
    "read_body",
]

BODY_S = 60.0
"""Seconds in which a body must be in: the default limit of 8 MiB over a line of 1.2 Mbit/s. Until
then it occupies memory, and nobody knows yet whether its caller may. Of a body that streams through
this is the longest pause, since it occupies a connection to the upstream."""

_DRAIN_BYTES = 64 * 1024 * 1024
_DRAIN_S = 5.0
"""A caller that writes its whole body before it reads must be let finish, or it sees a reset in
place of the answer (RFC 9112 §9.6). Past either bound the connection is cut all the same."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The caller hung up before the last byte of its body."""


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The body grew past the limit."""


@dataclass(frozen=True, slots=True)
class TooSlow:
    """The body was not in after ``BODY_S``."""


async def read_body(receive: Receive, limit: int) -> bytes | TooLarge | TooSlow | Gone:
    """The whole body, at most ``limit`` bytes."""
    try:
        async with asyncio.timeout(BODY_S):
            return await _read(receive, limit)
    except TimeoutError:
        return TooSlow()


async def _read(receive: Receive, limit: int) -> bytes | TooLarge | Gone:
    message = await receive()
    if message["type"] == "http.disconnect":
        return Gone()
    first: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return first if len(first) <= limit else TooLarge()
    pieces = [first]
    size = len(first)
    while size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return Gone()
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if not message.get("more_body", False):
            return b"".join(pieces) if size <= limit else TooLarge()
    return TooLarge()


async def drain(receive: Receive) -> None:
    """Read and forget what is left of a body, within bounds."""
    left = _DRAIN_BYTES
    try:
        async with asyncio.timeout(_DRAIN_S):
            while left > 0:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                left -= len(message.get("body", b""))
    except TimeoutError:
        return


class Inflow:
    """The caller's side of a request that streams through: its body, pulled piece by piece, and
    behind it the end of the connection. Only this reads what the caller sends.

    Nothing is asked for before the first :meth:`pull`. So a caller that waits for ``100 Continue``
    hears it when the upstream is ready for the body, and one that just writes is held back by the
    server. The price: its hang-up shows only with the next piece.
    """

    def __init__(self, receive: Receive, headers: Headers) -> None:
        self._receive = receive
        self._whole = not announced(headers)
        self._waits = bool(values(headers, b"expect"))
        self._idle = asyncio.Event()
        self._over = asyncio.Event()
        self.length = None if values(headers, b"transfer-encoding") else declared_length(headers)
        """Bytes, ``None`` where they are not known beforehand."""
        self._left = self.length
        self.gone = self.slow = False
        if self._whole:
            self.leave()

    @property
    def unread(self) -> bool:
        """Whether some of the body may still be on its way."""
        return not self._whole

    async def pull(self) -> bytes | None:
        """The next piece; empty at the end, ``None`` where the body broke off: ``gone`` or ``slow``
        says why."""
        self._waits = False
        try:
            async with asyncio.timeout(BODY_S):
                while not (self._whole or self.gone):
                    if piece := await self._next():
                        return piece
        except TimeoutError:
            self.slow = True
        return b"" if self._whole else None

    def leave(self) -> None:
        """Nothing more of the body is wanted. From here on what comes of it is thrown away."""
        self._idle.set()

    async def hung_up(self) -> None:
        """Wait until the caller is gone. Only what follows :meth:`leave` can tell."""
        await self._idle.wait()
        left = _DRAIN_BYTES
        while not self.gone:
            if left <= 0:  # the rest stays in the socket, and so does the end
                self._over.set()
                await asyncio.get_running_loop().create_future()
            left -= len(await self._next())

    async def drained(self) -> None:
        """Wait, within bounds, until the caller has written all of its body (RFC 9112 §9.6). One
        that was never told to begin writes nothing."""
        if not self._waits:
            with suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_S):
                    await self._over.wait()

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.gone = True
            self._end()
            return b""
        piece: bytes = message.get("body", b"")
        if self._left is not None:
            self._left -= len(piece)
        if self._left == 0 or not message.get("more_body", False):
            self._whole = True
            self._end()
        return piece

    def _end(self) -> None:
        self._over.set()
        self.leave()


def announced(headers: Headers) -> bool:
    """Whether a body follows the head."""
    return bool(declared_length(headers) or values(headers, b"transfer-encoding"))


def declared_length(headers: Headers) -> int:
    """What ``Content-Length`` announces; 0 where it says nothing that can be read: then the body
    itself is counted."""
    lines = values(headers, b"content-length")
    return int(lines[0]) if lines and lines[0].isdigit() else 0
