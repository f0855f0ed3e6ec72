"""Slow senders, as a process of their own: ``python -m tests.kit.slow_senders URL COUNT``.

Half drip their heads, half their bodies; whoever is cut off comes again. Each line that it prints
is how many are connected now. It ends when its input does, or after five minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from urllib.parse import urlsplit

PAUSE_S = 1.0
"""Between two bytes."""

LONGEST_S = 300.0


class Senders:
    def __init__(self, url: str, count: int) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname, parts.port)
        self._count = count
        self._there: set[int] = set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._count):
                group.create_task(self._sender(number))
            group.create_task(self._tell())

    async def _tell(self) -> None:
        while True:
            print(len(self._there), flush=True)
            await asyncio.sleep(PAUSE_S / 4)

    async def _sender(self, number: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                await self._once(number)
            self._there.discard(number)
            await asyncio.sleep(PAUSE_S)

    async def _once(self, number: int) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        self._there.add(number)
        head = (
            f"POST /pay/v1/accounts/slow-{number}/charges HTTP/1.1\r\nHost: g\r\n"
            f"Idempotency-Key: slow-{number}\r\nX-Execution-Fence: 1\r\n"
            "Content-Length: 4000000\r\n"
        ).encode()
        writer.write(head if number % 2 else head + b"\r\n" + b"a" * 60_000)
        try:
            while not reader.at_eof():
                await asyncio.sleep(PAUSE_S)
                writer.write(b"a")
                await writer.drain()
        finally:
            writer.close()


async def main() -> None:
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.read)
    senders = asyncio.ensure_future(Senders(sys.argv[1], int(sys.argv[2])).run())
    await asyncio.wait({ended, senders}, timeout=LONGEST_S, return_when=asyncio.FIRST_COMPLETED)
    senders.cancel()
    await asyncio.wait({senders})


if __name__ == "__main__":
    asyncio.run(main())
