"""Request bodies: read whole and within a limit, or drained so that the caller hears why not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gateway.core.headers import values
from gateway.core.model import Headers
from gateway.proxy.respond import Receive

__all__ = ["BODY_S", "Gone", "TooLarge", "TooSlow", "declared_length", "drain", "read_body"]

BODY_S = 60.0
"""Seconds in which a body must be in: the default limit of 8 MiB over a line of 1.2 Mbit/s. Until
then it occupies memory, and nobody knows yet whether its caller may."""

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


def declared_length(headers: Headers) -> int:
    """What ``Content-Length`` announces; 0 where it says nothing that can be read: then the body
    itself is counted."""
    lines = values(headers, b"content-length")
    return int(lines[0]) if lines and lines[0].isdigit() else 0
