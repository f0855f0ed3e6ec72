"""Answers as ASGI messages."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from functools import lru_cache
from typing import Any

from gateway.core.headers import by_names, without
from gateway.proxy.answer import Answer
from gateway.upstream import BodyCutShort, Transfer

__all__ = ["BODY_FOLLOWS", "Message", "Receive", "Send", "fields", "respond"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_FOLLOWS = "fencegate.body_follows"
"""In a message that begins an answer: the next message comes at once, so that a server can write
the two in one."""

_BODILESS = frozenset({204, 304})
_EMPTY = _BODILESS | {205}
"""A 205 has no content either, but a length, of 0 (RFC 9110 §15.3.6). Whatever was recorded with
one of these, a server that holds to it would break the connection instead of sending it."""

_LENGTH = frozenset({b"content-length"})


async def respond(answer: Answer, send: Send, *, head_only: bool = False) -> bool:
    """Send one answer; false where the upstream's body broke off behind its head, so that the
    response must not be completed."""
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": fields(answer, head_only=head_only),
            BODY_FOLLOWS: answer.stream is None or answer.status in _EMPTY,
        }
    )
    if answer.status in _EMPTY:
        if answer.stream is not None:
            answer.stream.close()
        await send({"type": "http.response.body", "body": b""})
        return True
    if answer.stream is None:
        await send({"type": "http.response.body", "body": answer.body})
        return True
    return await _relay(answer.stream, answer.body, send)


async def _relay(stream: Transfer, start: bytes, send: Send) -> bool:
    try:
        if start:
            await send({"type": "http.response.body", "body": start, "more_body": True})
        async for piece in stream.rest():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except BodyCutShort:
        return False
    finally:
        stream.close()
    await send({"type": "http.response.body", "body": b""})
    return True


def fields(answer: Answer, *, head_only: bool = False) -> list[tuple[bytes, bytes]]:
    """The field lines of an answer."""
    kept = answer.headers
    reset = answer.status == 205 and not head_only
    if answer.status in _BODILESS or reset:
        # A 304 may say the length of what it leaves out (RFC 9110 §8.6); the server would hold it
        # against the empty body and cut the connection.
        kept = without(kept, _LENGTH)
    headers = [
        *kept,
        (b"idempotent-replayed", b"true" if answer.outcome == "replayed" else b"false"),
        (b"gateway-outcome", answer.outcome.encode("ascii")),
    ]
    if answer.evidence is not None:
        headers.append((b"gateway-evidence", answer.evidence.encode("ascii")))
    if not answer.compared:
        headers.append((b"gateway-fingerprint", b"not-compared"))
    # RFC 9110 §6.6.1: whoever passes on a response without a Date adds when it came.
    dated, measured = _has(kept, None)
    if not dated:
        headers.append((b"date", _date(int(time.time()))))
    if reset:
        headers.append((b"content-length", b"0"))
    elif not measured and _needs_length(answer, head_only=head_only):
        headers.append((b"content-length", b"%d" % len(answer.body)))
    return headers


@lru_cache(1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode("ascii")


def _needs_length(answer: Answer, *, head_only: bool) -> bool:
    return answer.stream is None and answer.status not in _BODILESS and not head_only


@by_names
def _has(sent: tuple[bytes, ...], _: None) -> tuple[bool, bool]:
    """Whether there is a ``Date``, and a ``Content-Length``."""
    names = [name.lower() for name in sent]
    return b"date" in names, b"content-length" in names
