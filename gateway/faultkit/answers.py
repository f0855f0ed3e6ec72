"""What a recording upstream does with a request, and the gate that holds it until the test says so.

The functions are listed in ``tests.kit.upstream``, which tests import them from.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

__all__ = [
    *("Answer", "End", "Gate", "Then"),
    *("cut", "drip", "early", "gated", "hang", "raw", "respond"),
]

Then = Literal["keep", "close", "reset", "fin"]
End = Literal["close", "reset", "fin"]


class Gate:
    """Holds an answer until the test lets it go. Usable from any thread, before or after."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._permits = 0
        self._open = False
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    def step(self) -> None:
        """Let one waiter, or the next to come, through."""
        with self._lock:
            if self._waiting:
                _wake(*self._waiting.popleft())
            else:
                self._permits += 1

    def release(self) -> None:
        """Let everybody through from now on."""
        with self._lock:
            self._open = True
            while self._waiting:
                _wake(*self._waiting.popleft())

    async def passed(self) -> None:
        """Wait at the gate (for the server's side)."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._open:
                return
            if self._permits:
                self._permits -= 1
                return
            future = loop.create_future()
            self._waiting.append((loop, future))
        await future


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the server has stopped
        loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(None))


@dataclass(frozen=True, slots=True)
class Answer:
    """What to do with one request. Made by the functions below.

    ``pieces`` are written one by one, each behind ``step`` if there is one. ``None`` for
    ``pieces``: the default JSON answer. ``then`` is what becomes of the connection.
    """

    pieces: tuple[bytes, ...] | None
    then: Then = "keep"
    effect: bool = True
    gate: Gate | None = None
    step: Gate | None = None
    before_body: bool = False
    after: int = 0


def respond(
    status: int = 200,
    body: bytes = b"",
    headers: Iterable[tuple[str, str]] = (),
    *,
    close: bool = False,
    effect: bool | None = None,
) -> Answer:
    """A whole response with a Content-Length (none for 204 and 304)."""
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers)]
    if status not in (204, 304):
        lines.append(f"Content-Length: {len(body)}")
    if close:
        lines.append("Connection: close")
    data = "\r\n".join([*lines, "", ""]).encode() + body
    did = status < 400 if effect is None else effect
    return Answer((data,), "close" if close else "keep", did)


def raw(data: bytes, *, then: Then = "keep", effect: bool = True) -> Answer:
    """Exactly these bytes, then the connection is kept, or ends that way."""
    return Answer((data,), then, effect)


def cut(then: Then = "close", *, effect: bool = True) -> Answer:
    """The connection ends without a byte of an answer."""
    return Answer((), then, effect)


def hang(*, effect: bool = True) -> Answer:
    """No answer, and the connection stays open; what else comes on it is read and ignored."""
    return Answer((), "keep", effect, gate=Gate())


def drip(
    pieces: Sequence[bytes], *, gate: Gate | None = None, then: Then = "keep", effect: bool = True
) -> Answer:
    """Raw pieces, each its own segment; with a gate, one for each ``gate.step()``."""
    return Answer(tuple(pieces), then, effect, step=gate)


def gated(gate: Gate, answer: Answer | None = None) -> Answer:
    """``answer`` (default: the default one) after ``gate.release()``; the effect happens before."""
    base = answer or Answer(None)
    return Answer(base.pieces, base.then, base.effect, gate, base.step, base.before_body)


def early(answer: Answer, after: int = 0) -> Answer:
    """Answer as soon as the head is in, and ``after`` bytes of the body; the rest is thrown away,
    and nothing is done."""
    return Answer(answer.pieces, answer.then, False, answer.gate, answer.step, True, after)
