"""Two gateway processes in place of one, behind a splitter: each new connection goes to the other.

``FENCEGATE_TEST_PROCESSES=2`` makes every stack of a test run such a pair, so that a suite written
for one process says whether two are as correct. A signal goes to both.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from tests.kit.gateway import GatewayProcess

__all__ = ["Splitter", "Twins"]

_CHUNK = 64 * 1024


class Splitter:
    """Hands TCP connections to ``targets`` in turn, with half-closes and resets as they come."""

    def __init__(self, targets: Sequence[int]) -> None:
        self._targets = itertools.cycle(targets)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        listening = asyncio.start_server(self._split, "127.0.0.1", 0, backlog=4096)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _split(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", next(self._targets))
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))
        for each in (writer, there[1]):
            each.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
        with suppress(OSError):
            sink.write_eof()
    except OSError:
        sink.transport.abort()


class Twins(GatewayProcess):
    """``GatewayProcess`` twice on one database; ``log`` and ``written`` are those of both."""

    def __init__(
        self,
        database: str,
        policies: Mapping[str, str],
        *,
        port: int = 0,
        env: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        super().__init__(database, policies, port=port, env=env, arguments=arguments)
        self._second = GatewayProcess(database, policies, env=env, arguments=arguments)
        self._second._lines, self._second._grown = self._lines, self._grown
        self._splitter: Splitter | None = None

    def start(self) -> GatewayProcess:
        super().start()
        self._second.start()
        self.urls = (self.url, self._second.url)
        if self._splitter is None:
            self._splitter = Splitter([urlsplit(url).port or 0 for url in self.urls])
        self.url = f"http://127.0.0.1:{self._splitter.port}"
        return self

    def signal(self, number: signal.Signals) -> None:
        super().signal(number)
        self._second.signal(number)

    def kill(self) -> None:
        super().kill()
        self._second.kill()

    def stop(self, timeout_s: float = 60.0) -> int:
        return super().stop(timeout_s) or self._second.stop(timeout_s)

    def close(self) -> None:
        if self._splitter is not None:
            self._splitter.close()
        super().close()
        self._second.close()
