"""Ends on their way to the gateway: those that come while one request is out go together with the
next, so that a hundred short jobs cost a commit or two, and one alone waits for nobody."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from gateway.worker.client import Client
from gateway.worker.errors import NoAnswer, Refused
from gateway.worker.wire import Ended

__all__ = ["Ends"]

_SLOW_S = 0.25
"""After which a request that is out does not keep the next any more: it waits for somebody's lock,
or nobody answers."""

_AT_ONCE = 8
"""Such requests; half of the connections of the client."""

_BATCH = 100
"""Ends in one request, as the gateway says."""

_BYTES = 2 * 1024 * 1024
"""Of one request: eight of the largest results; the gateway takes 8 MiB."""

_ASK_S = 10.0
"""For one answer."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    job: str
    end: bytes
    answer: asyncio.Future[Ended]


class Ends:
    """See the module. Bound to the event loop in which it is used."""

    def __init__(self, client: Client, worker: str) -> None:
        self._client = client
        self._worker = worker
        self._waiting: deque[_Waiting] = deque()
        self._flights: set[asyncio.Task[None]] = set()
        self._fresh: asyncio.Task[None] | None = None  # the one that the next waits for
        self._due = False

    async def send(self, job: str, end: bytes, *, alone: bool, within_s: float) -> Ended:
        """Send one end, as ``gateway.worker.endings`` makes it. ``alone``: not with others, e.g.
        because it had no answer among them. Raises ``NoAnswer`` or ``Refused``."""
        if alone:
            (ended,) = await self._client.end(self._worker, [(job, end)], within_s=within_s)
            return ended
        loop = asyncio.get_running_loop()
        waiting = _Waiting(job, end, loop.create_future())
        self._waiting.append(waiting)
        if not self._due:
            self._due = True
            loop.call_soon(self._depart)  # what becomes ready in this turn goes together
        try:
            async with asyncio.timeout(within_s):
                return await waiting.answer
        except TimeoutError:
            raise NoAnswer(f"no answer to an end within {within_s:g} s") from None

    async def close(self) -> None:
        """Give up what is on its way."""
        for each in self._flights:
            each.cancel()
        if self._flights:
            await asyncio.wait(list(self._flights))

    def _depart(self) -> None:
        self._due = False
        if self._fresh is not None or len(self._flights) >= _AT_ONCE:
            return
        batch = self._batch()
        if not batch:
            return
        loop = asyncio.get_running_loop()
        flight = self._fresh = loop.create_task(self._fly(batch), name="ends")
        self._flights.add(flight)
        slow = loop.call_later(_SLOW_S, self._pass, flight)

        def landed(_: object) -> None:
            slow.cancel()
            self._flights.discard(flight)
            if not flight.cancelled():
                self._pass(flight)

        flight.add_done_callback(landed)

    def _pass(self, flight: asyncio.Task[None]) -> None:
        """It keeps the next no more."""
        if self._fresh is flight:
            self._fresh = None
        self._depart()

    def _batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and len(batch) < _BATCH:
            following = self._waiting[0]
            size += len(following.end)
            if batch and size > _BYTES:
                break
            self._waiting.popleft()
            if not following.answer.done():  # else nobody waits for it any more
                batch.append(following)
        return batch

    async def _fly(self, batch: list[_Waiting]) -> None:
        ends = [(each.job, each.end) for each in batch]
        try:
            answers = await self._client.end(self._worker, ends, within_s=_ASK_S)
        except Refused as error:
            # It says of all what is wrong with one.
            if len(batch) == 1:
                _fail(batch, error)
            else:
                await asyncio.gather(*(self._fly([each]) for each in batch))
        except NoAnswer as error:
            _fail(batch, error)
        except BaseException:
            _fail(batch, NoAnswer("the request was given up"))
            raise
        else:
            for each, ended in zip(batch, answers, strict=True):
                if not each.answer.done():
                    each.answer.set_result(ended)


def _fail(batch: list[_Waiting], error: Exception) -> None:
    for each in batch:
        if not each.answer.done():
            each.answer.set_exception(error)
