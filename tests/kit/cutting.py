"""A TCP proxy in front of an HTTP server that loses what it is told to. It runs in a thread.

``drop_answer("POST /v1/jobs/end")``: the next request with that start goes through, and its answer
does not: the connection ends instead. ``mute(start)``: so it is with every such request, until
``unmute``. ``refuse`` and ``accept``: the server is down, and up again.
``silence`` and ``speak``: bytes of both directions are held, and nobody is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

__all__ = ["CuttingProxy", "Dropped"]

_CHUNK = 1 << 16


class Dropped:
    """One answer that is to be lost."""

    def __init__(self, start: bytes) -> None:
        self.start = start
        self._hit = threading.Event()

    def wait(self, timeout_s: float = 15.0) -> None:
        """Block until the server has answered and the answer is gone."""
        assert self._hit.wait(timeout_s), f"no answer to {self.start!r} within {timeout_s} s"

    def strike(self) -> None:
        self._hit.set()


class CuttingProxy:
    """See the module. A context manager; ``url`` is ``url`` through the proxy."""

    def __init__(self, url: str) -> None:
        found = urlsplit(url)
        self._server = (found.hostname, found.port)
        self._drops: list[Dropped] = []
        self._muted: bytes | None = None
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cutting", daemon=True)
        self._flowing: asyncio.Event
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._port = 0

    def __enter__(self) -> CuttingProxy:
        self._thread.start()
        self._call(self._open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def drop_answer(self, start: str) -> Dropped:
        dropped = Dropped(start.encode())
        with self._lock:
            self._drops.append(dropped)
        return dropped

    def mute(self, start: str) -> None:
        self._muted = start.encode()

    def unmute(self) -> None:
        self._muted = None

    def refuse(self) -> None:
        self._call(self._refuse())

    def accept(self) -> None:
        self._call(self._listen())

    def silence(self) -> None:
        self._call(self._flow(False))

    def speak(self) -> None:
        self._call(self._flow(True))

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _open(self) -> None:
        self._flowing = asyncio.Event()
        self._flowing.set()
        await self._listen()

    async def _flow(self, on: bool) -> None:
        if on:
            self._flowing.set()
        else:
            self._flowing.clear()

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(
            self._serve, "127.0.0.1", self._port, backlog=1024
        )
        self._port = self._listener.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def _shut(self) -> None:
        await self._refuse()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._relay(reader, writer)
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_in, server_out = await asyncio.open_connection(*self._server)
        self._writers.add(server_out)
        due: list[Dropped] = []
        pumps = [
            asyncio.ensure_future(self._forwards(reader, server_out, due)),
            asyncio.ensure_future(self._backwards(server_in, writer, due)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._writers.discard(server_out)
            server_out.transport.abort()

    async def _forwards(
        self, reader: asyncio.StreamReader, out: asyncio.StreamWriter, due: list[Dropped]
    ) -> None:
        while piece := await reader.read(_CHUNK):
            await self._flowing.wait()
            due += self._struck(piece)
            out.write(piece)
            await out.drain()

    async def _backwards(
        self, server_in: asyncio.StreamReader, out: asyncio.StreamWriter, due: list[Dropped]
    ) -> None:
        while piece := await server_in.read(_CHUNK):
            await self._flowing.wait()
            if due:
                due.pop().strike()
                return
            out.write(piece)
            await out.drain()

    def _struck(self, piece: bytes) -> list[Dropped]:
        """A request's head comes in one piece: clients write it at once."""
        muted = self._muted
        if muted is not None and piece.startswith(muted):
            return [Dropped(muted)]
        with self._lock:
            found = [each for each in self._drops if piece.startswith(each.start)][:1]
            for each in found:
                self._drops.remove(each)
        return found
