"""Settled responses in Redis (or Valkey), for many processes.

Redis is never the authority, and nothing waits for it for long. Reads of callers that come together
go as one question, one at a time; what is to be written stands in a bounded queue and is dropped
where that is full. Whatever goes wrong is a miss, and then nobody asks until a look in the
background has been answered: a Redis that is away costs a caller ``READ_S`` once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, MutableSequence, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import Literal

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import InvalidResponse

from gateway.observe.log import event
from gateway.observe.metrics import Wrote

__all__ = ["READ_S", "Shared", "client", "reason_of"]

READ_S = 0.05
"""Seconds that a question may take. Asking the store takes some 3 ms: a Redis that is slower than
this by far saves nothing, and callers that wait for it are not to notice."""

_PATIENCE_S = 2.0
"""For what nobody waits for: connecting, and writing."""

_KEYS = 64
"""Answers of one question: 16 MiB of the largest, and as many callers as usually come together."""

_ASKING = 1024
"""Callers whose keys wait to be asked for; as many attempts may be in flight by default. More ask
the store at once."""

_WRITES = 256
"""Entries in one go: half a millisecond of Redis, which others wait for."""

_QUEUE = 8 * 2**20
"""Bytes that wait to be written: a second of 10,000 small answers, or 32 of the largest."""

_PAUSES_S = (1.0, 2.0, 5.0, 15.0)
"""Between two looks whether it is back; the last for as long as it takes."""

_LINGER_S = 0.02
"""Between two goes of writing: what comes meanwhile goes together, for a fifth of the work."""

_SET = """
for i, key in ipairs(KEYS) do
    redis.call('SET', key, ARGV[2 * i - 1], 'PX', ARGV[2 * i])
end
"""
"""One command and one answer for a batch: a pipeline has an answer to read for each entry."""


_Asked = tuple[bytes, "asyncio.Future[bytes | None]"]


class Shared:
    """``prefix`` begins every key: no two deployments have the same one. ``wrote``: hears what
    became of each entry. ``url``: ``redis://``, ``rediss://`` or ``unix://``. ``read_s``: seconds
    that a question may take."""

    def __init__(
        self,
        url: str,
        prefix: bytes,
        wrote: Callable[[Wrote, int], None],
        read_s: float = READ_S,
    ) -> None:
        self._prefix = prefix
        self._read_s = read_s
        self._wrote = wrote
        self._reading, self._writing = client(url, _PATIENCE_S), client(url, _PATIENCE_S)
        self._asking: deque[_Asked] = deque()
        self._queue: deque[tuple[bytes, bytes, int]] = deque()
        self._queued = 0
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._looker: asyncio.Task[None] | None = None
        self._lost = False
        self._write_again_at = 0.0
        self._unwritable = False

    @property
    def away(self) -> bool:
        """It did not answer, and has not been seen since; or not yet."""
        return self._looker is not None

    def start(self) -> None:
        """Connect, so that the first who asks need not."""
        self._looker = asyncio.create_task(self._look(0.0), name="cache looks")

    async def get(self, key: bytes) -> bytes | Literal["failed"] | None:
        """What is kept under ``key``; ``failed`` where nobody could tell in time."""
        if self.away or len(self._asking) >= _ASKING:
            return "failed"
        found: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._asking.append((key, found))
        if self._reader is None:
            self._reader = asyncio.create_task(self._read(), name="cache reads")
        try:
            return await found
        except TimeoutError:
            return "failed"

    def put(self, key: bytes, value: bytes, ttl_ms: int) -> None:
        """Have ``value`` kept for a time, at some later moment, if there is room."""
        size = len(key) + len(value)
        now = asyncio.get_running_loop().time()
        if self._lost or now < self._write_again_at or self._queued + size > _QUEUE:
            self._wrote("dropped", 1)
            return
        self._queue.append((self._prefix + key, value, ttl_ms))
        self._queued += size
        if self._writer is None:
            self._writer = asyncio.create_task(self._write(), name="cache writes")

    async def close(self) -> None:
        """End it; what is not written is lost, which costs nothing but time."""
        for task in (self._reader, self._writer, self._looker):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        for client in (self._reading, self._writing):
            with suppress(Exception):
                await client.aclose()

    async def _read(self) -> None:
        """Answer all who ask; the next question forms while one is under way."""
        try:
            while self._asking:
                batch = [self._asking.popleft() for _ in range(min(_KEYS, len(self._asking)))]
                try:
                    values = await self._ask([self._prefix + key for key, _ in batch])
                except Exception as error:  # noqa: BLE001 - whatever a server may say
                    self._lose(error)
                    _fail(batch)
                    _fail(self._asking)
                else:
                    for (_, found), value in zip(batch, values, strict=True):
                        if not found.done():
                            found.set_result(value)
        finally:
            self._reader = None
            _fail(self._asking)

    async def _ask(self, keys: Sequence[bytes]) -> list[bytes | None]:
        async with asyncio.timeout(self._read_s):
            values: object = await self._reading.mget(keys)
        if not isinstance(values, list) or len(values) != len(keys):
            raise InvalidResponse("as many values as keys were asked for")
        return [value if isinstance(value, bytes) else None for value in values]

    def _lose(self, error: BaseException) -> None:
        if not self._lost:
            event("cache_away", level="warning", reason=reason_of(error))
        self._lost = True
        if self._looker is None:
            self._looker = asyncio.create_task(self._look(_PAUSES_S[0]), name="cache looks")

    async def _look(self, pause_s: float) -> None:
        """Until it answers a question in time, on a connection that is there already."""
        for later_s in chain(_PAUSES_S[1:], repeat(_PAUSES_S[-1])):
            await asyncio.sleep(pause_s)
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await self._reading.mget([self._prefix])
                await self._ask([self._prefix])
            except Exception as error:  # noqa: BLE001 - whatever a server may say
                self._lose(error)
                pause_s = later_s
            else:
                break
        self._looker = None
        if self._lost:
            event("cache_back")
        self._lost = False

    async def _write(self) -> None:
        try:
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(_WRITES, len(self._queue)))]
                self._queued -= sum(len(key) + len(value) for key, value, _ in batch)
                try:
                    await self._set(batch)
                except Exception as error:  # noqa: BLE001 - whatever a server may say
                    self._unwritten(error, len(batch))
                else:
                    self._wrote("written", len(batch))
                    self._note_writing(None)
                await asyncio.sleep(_LINGER_S)
        finally:
            self._writer = None

    async def _set(self, batch: Sequence[tuple[bytes, bytes, int]]) -> None:
        keys = [key for key, _, _ in batch]
        about = [part for _, value, ttl_ms in batch for part in (value, ttl_ms)]
        async with asyncio.timeout(_PATIENCE_S):
            await self._writing.eval(_SET, len(keys), *keys, *about)

    def _unwritten(self, error: BaseException, count: int) -> None:
        self._wrote("failed", count)
        self._wrote("dropped", len(self._queue))
        self._queue.clear()
        self._queued = 0
        self._write_again_at = asyncio.get_running_loop().time() + _PAUSES_S[-1]
        self._note_writing(error)

    def _note_writing(self, error: BaseException | None) -> None:
        """Log when writing begins to fail and when it works again, not every time between."""
        if error is not None and not self._unwritable:
            event("cache_not_written", level="warning", reason=reason_of(error))
        elif error is None and self._unwritable:
            event("cache_written_again")
        self._unwritable = error is not None


def reason_of(error: BaseException) -> str:
    """Of what kind an error is: its name, and the code word with which a server's begins."""
    word = str(error).partition(" ")[0]
    named = word.isascii() and word.isalpha() and word.isupper()
    return f"{type(error).__name__} ({word})" if named else type(error).__name__


def _fail(asked: MutableSequence[_Asked]) -> None:
    """All of them hear that nobody could tell."""
    for _, found in asked:
        if not found.done():
            found.set_exception(TimeoutError())
    asked.clear()


def client(url: str, timeout_s: float) -> Redis:
    """One connection that is never waited for longer, and tries nothing twice."""
    return Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        max_connections=1,
        protocol=2,
        client_name="fencegate",
    )
