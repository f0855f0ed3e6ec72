"""A TCP proxy that can be cut as a cable is, and that loses, delays or breaks answers by rule.

A cut tells nobody, and loses nothing for good. While it is cut the proxy goes on taking what either
side sends, and delivers it when it is restored, as TCP's own retransmission would. New connections
are taken too, and hear nothing. The end of a connection that was cut is not passed on either: so
what a process had sent before it was killed still arrives, and the answer to it can be seen
(`answer_to`).

Rules say what becomes of the answer to a request (`Rule`). `refuse` is a server that is down.

It runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Coroutine
from typing import Any

from gateway.faultkit.rules import Rule, Struck

__all__ = ["FaultProxy"]

_CHUNK = 64 * 1024
_HELD_CHUNKS = 256
"""Of one direction of one connection: 16 MiB at most, then its sender waits."""

_REMEMBERED = 256 * 1024
"""Bytes of each direction that are kept to be looked at: requests here are small."""

_STOP_TIMEOUT_S = 10.0

_BACKLOG = 1024

_NO_LINGER = struct.pack("ii", 1, 0)


class _Ended(Exception):
    """A rule has ended the connection."""


class _Link:
    """One connection. ``sent``: what its client sent; ``heard``: what the target answered; ``due``:
    the rules that its next answers meet; ``met``: the one that the present answer meets, of which
    some has come where ``answering``."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.heard = bytearray()
        self.was_cut = False
        self.due: deque[Struck] = deque()
        self.met: Struck | None = None
        self.answering = False

    def asks(self) -> None:
        """Its client sends: what comes behind an answer that has begun is another request, and the
        answer to that is none of the rule's."""
        if self.answering:
            self.answering, self.met = False, None


class FaultProxy:
    """Passes everything on to ``host:port``; ``port`` of its own is a free one where none is
    given."""

    def __init__(
        self, host: str, port: int, *, listen: str = "127.0.0.1", listen_port: int = 0
    ) -> None:
        self._target = host, port
        self._listen = listen
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cut", daemon=True)
        self._open = asyncio.Event()
        self._open.set()
        self._links: list[_Link] = []
        self._rules: list[Struck] = []
        self._lock = threading.Lock()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = listen_port

    def start(self) -> FaultProxy:
        """Raises ``OSError`` where it cannot listen."""
        self._thread.start()
        try:
            self.accept()
        except OSError:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Close every connection; may be repeated."""
        if self._loop.is_closed():
            return
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_TIMEOUT_S)
        self._loop.close()

    def cut(self) -> None:
        """From the return on nothing passes."""
        self._call(self._set(False))

    def restore(self) -> None:
        """Deliver what was held, and let everything pass again."""
        self._call(self._set(True))

    def refuse(self) -> None:
        """Every connection ends, and new ones are refused."""
        self._call(self._refuse())

    def accept(self) -> None:
        """Listen, on the same port as before ``refuse``."""
        self._call(self._open_up())

    def add(self, rule: Rule) -> Struck:
        """Put a rule in force, behind those that are there: the first that matches is met."""
        struck = Struck(rule)
        with self._lock:
            self._rules.append(struck)
        return struck

    def remove(self, struck: Struck | None = None) -> None:
        """Take a rule, or all, out of force."""
        with self._lock:
            self._rules = [each for each in self._rules if struck is not None and each != struck]

    @property
    def rules(self) -> list[Struck]:
        with self._lock:
            return list(self._rules)

    def holds(self, text: bytes) -> bool:
        """Whether some client has sent ``text``."""
        return any(text in bytes(link.sent) for link in list(self._links))

    def answer_to(self, text: bytes) -> bytes:
        """What was answered so far on the connection on which ``text`` was sent."""
        return next(
            (bytes(link.heard) for link in list(self._links) if text in bytes(link.sent)), b""
        )

    # -- in the loop

    async def _set(self, flowing: bool) -> None:
        if flowing:
            self._open.set()
            return
        self._open.clear()
        for link in self._links:
            link.was_cut = True

    async def _open_up(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(
                self._accept, self._listen, self.port, backlog=_BACKLOG
            )
            self.port = int(self._server.sockets[0].getsockname()[1])

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: the one that asyncio makes complains when it is cancelled.
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link()
        link.was_cut = not self._open.is_set()
        self._links.append(link)
        self._writers.add(writer)
        try:
            await self._carry(link, reader, writer)
        except* (OSError, _Ended):
            pass  # the target is not there, or a rule said so: the client sees its connection end
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _carry(
        self, link: _Link, client: asyncio.StreamReader, answers: asyncio.StreamWriter
    ) -> None:
        up: asyncio.Queue[bytes] = asyncio.Queue(_HELD_CHUNKS)
        reading = asyncio.ensure_future(_collect(client, up, link.sent))
        target = None
        try:
            await self._open.wait()
            server, target = await asyncio.open_connection(*self._target)
            self._writers.add(target)
            down: asyncio.Queue[bytes] = asyncio.Queue(_HELD_CHUNKS)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._ask(link, up, target))
                group.create_task(_collect(server, down, link.heard))
                group.create_task(self._answer(link, down, answers))
        finally:
            reading.cancel()
            if target is not None:
                self._writers.discard(target)
                target.close()

    async def _ask(
        self, link: _Link, chunks: asyncio.Queue[bytes], out: asyncio.StreamWriter
    ) -> None:
        """Pass requests on until the client's end, which is passed on unless it was cut."""
        while chunk := await chunks.get():
            await self._open.wait()
            link.asks()
            link.due += self._met(chunk)
            await _write(out, chunk)  # gone; its answers are still read
        await self._open.wait()
        if not link.was_cut:
            with contextlib.suppress(OSError):
                out.close()

    async def _answer(
        self, link: _Link, chunks: asyncio.Queue[bytes], out: asyncio.StreamWriter
    ) -> None:
        """Pass answers on, each as the rule says that its request has met."""
        passed = 0
        shut = False
        while chunk := await chunks.get():
            await self._open.wait()
            if link.due:
                link.met, passed = link.due.popleft(), 0
            link.answering = True
            if link.met is None:
                await _write(out, b"" if shut else chunk)
            elif not shut:
                shut = await _strike(link.met, chunk, passed, out)
            passed += len(chunk)
        await self._open.wait()
        with contextlib.suppress(OSError):
            out.close()

    def _met(self, chunk: bytes) -> list[Struck]:
        """The rule that a request meets."""
        with self._lock:
            for struck in self._rules:
                if not struck.spent and chunk.startswith(struck.rule.match):
                    struck.taken += 1
                    return [struck]
        return []

    async def _shut(self) -> None:
        await self._refuse()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _call(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(_STOP_TIMEOUT_S)


async def _strike(struck: Struck, chunk: bytes, passed: int, out: asyncio.StreamWriter) -> bool:
    """Do to a piece of an answer, of which ``passed`` bytes came before, what the rule says.
    Whether nothing more can be sent; raises ``_Ended`` where the connection is to end."""
    rule = struck.rule
    if rule.action == "delay":
        if not passed:
            struck.strike()
            await asyncio.sleep(rule.delay_ms / 1000)
        await _write(out, chunk)
        return False
    await _write(out, chunk[: max(rule.after - passed, 0)])
    if not passed <= rule.after < passed + len(chunk):
        return False
    _break(rule, out)
    struck.strike()
    if rule.action in ("cut", "reset"):
        raise _Ended
    return rule.action == "half-close"


async def _write(out: asyncio.StreamWriter, chunk: bytes) -> None:
    if not chunk:  # which would raise behind an end, too
        return
    with contextlib.suppress(OSError):
        out.write(chunk)
        await out.drain()


def _break(rule: Rule, out: asyncio.StreamWriter) -> None:
    match rule.action:
        case "reset":
            sock = out.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            out.transport.abort()
        case "half-close":
            with contextlib.suppress(OSError):
                out.write_eof()
        case "cut" | "swallow" | "delay":
            pass


async def _collect(
    reader: asyncio.StreamReader, chunks: asyncio.Queue[bytes], kept: bytearray
) -> None:
    """Read until the end, whatever passes on meanwhile: what only the kernel held would be thrown
    away if its sender's end came as a reset."""
    chunk = b"-"
    while chunk:
        try:
            chunk = await reader.read(_CHUNK)
        except OSError:
            chunk = b""
        if len(kept) < _REMEMBERED:
            kept += chunk
        await chunks.put(chunk)
