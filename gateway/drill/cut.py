"""A TCP proxy that can be cut, as a cable is: nobody is told, and nothing is lost for good.

While it is cut it goes on taking what either side sends, and delivers it when it is restored, as
TCP's own retransmission would. New connections are taken too, and hear nothing. The end of a
connection that was cut is not passed on either: so what a process had sent before it was killed
still arrives, and the answer to it can be seen (`answer_to`).

It runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any

__all__ = ["CuttingProxy"]

_CHUNK = 64 * 1024
_HELD_CHUNKS = 256
"""Of one direction of one connection: 16 MiB at most, then its sender waits."""

_REMEMBERED = 256 * 1024
"""Bytes of each direction that are kept to be looked at: requests here are small."""

_STOP_TIMEOUT_S = 10.0


class _Link:
    """One connection. ``sent``: what its client sent; ``heard``: what the target answered."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.heard = bytearray()
        self.was_cut = False


class CuttingProxy:
    """Listens on a free port of loopback and passes everything on to ``host:port``."""

    def __init__(self, host: str, port: int, *, listen: str = "127.0.0.1") -> None:
        self._target = host, port
        self._listen = listen
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cut", daemon=True)
        self._open = asyncio.Event()
        self._open.set()
        self._links: list[_Link] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    def start(self) -> CuttingProxy:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._accept, self._listen, 0))
        self.port = int(self._server.sockets[0].getsockname()[1])
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

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: the one that asyncio makes complains when it is cancelled.
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link()
        link.was_cut = not self._open.is_set()
        self._links.append(link)
        try:
            await self._carry(link, reader, writer)
        except OSError:
            pass  # the target is not there: the client sees its connection end
        finally:
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
            down: asyncio.Queue[bytes] = asyncio.Queue(_HELD_CHUNKS)
            await asyncio.gather(
                self._deliver(link, up, target, ends=True),
                _collect(server, down, link.heard),
                self._deliver(link, down, answers, ends=False),
            )
        finally:
            reading.cancel()
            if target is not None:
                target.close()

    async def _deliver(
        self, link: _Link, chunks: asyncio.Queue[bytes], out: asyncio.StreamWriter, *, ends: bool
    ) -> None:
        """Pass on until the sender's end; the client's is passed on unless it was cut."""
        while chunk := await chunks.get():
            await self._open.wait()
            with contextlib.suppress(OSError):  # gone; its answers are still read
                out.write(chunk)
                await out.drain()
        await self._open.wait()
        if not ends or not link.was_cut:
            with contextlib.suppress(OSError):
                out.close()

    async def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _call(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(_STOP_TIMEOUT_S)


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
