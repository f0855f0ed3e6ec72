"""Request bodies: read whole and within a limit, passed on piece by piece, or drained so that the
caller hears why not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from gateway.core.headers import values
from gateway.core.model import Headers
from gateway.core.problems import Problem
from gateway.limits import BODY_S, PACE
from gateway.proxy.respond import Receive
from gateway.proxy.shares import Held

__all__ = [
    "BODY_S",
    "Gone",
    "Inflow",
    "TooLarge",
    "TooSlow",
    "announced",
    "declared_length",
    "drain",
    "fitting",
    "read_body",
]

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


def fitting(body: bytes, limit: int, held: Held) -> bytes | TooLarge | Problem:
    """As ``read_body``, of a body that the server has already."""
    if len(body) > limit:
        return TooLarge()
    return body if held.grow(len(body)) else held.full


async def read_body(
    receive: Receive, limit: int, held: Held | None = None
) -> bytes | TooLarge | TooSlow | Gone | Problem:
    """The whole body, at most ``limit`` bytes. ``held`` is told of each piece; a problem where
    there is no memory for it. It holds nothing behind anything but a body."""
    held, kept = held or Held(), False
    try:
        async with asyncio.timeout(BODY_S):
            body = await _read(receive, limit, held)
            kept = isinstance(body, bytes)
            return body
    except TimeoutError:
        return TooSlow()
    finally:
        if not kept:
            held.close()


async def _read(receive: Receive, limit: int, held: Held) -> bytes | TooLarge | Gone | Problem:
    # One buffer, not a list of pieces: a sender that drips would make each byte cost fifty.
    buffer = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return Gone()
        piece: bytes = message.get("body", b"")
        whole = not message.get("more_body", False)
        if len(buffer) + len(piece) > limit:
            return TooLarge()
        if not held.grow(len(buffer) + len(piece)):
            return held.full
        if whole:
            return bytes(buffer) + piece if buffer else piece
        buffer += piece


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
        self._patience = BODY_S
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
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout_at(began + self._patience):
                while not (self._whole or self.gone):
                    if piece := await self._next():
                        left = self._patience - (loop.time() - began) + len(piece) / PACE
                        self._patience = min(BODY_S, left)
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
