"""Record what was heard, however long the database takes.

A settle, release or hold is repeated until it is committed or the process ends; each is guarded by
its attempt and so may be repeated freely. If the process ends first, the command is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from gateway.core.command import Hold, Release, Settle, SettleResult
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.observe.metrics import Operation
from gateway.proxy.batching import Batcher, about_settle, weight_of_settle

__all__ = ["Settler", "Settling"]

_TIMED_OUT = "57014"
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
"""A database that is back is used within a second; a thousand waiting settles try once each."""

_LARGE = 256 * 1024
_TRIES_WITH_BODY = 3
"""A statement has about 2 s. On a slow line a large body never fits, and the outcome matters more
than the body: after so many silent tries it is recorded without it, and replays answer 410."""

T = TypeVar("T")


class Settling(Protocol):
    """The part of the store that is needed here."""

    async def settle(self, settles: Sequence[Settle]) -> list[SettleResult]: ...
    async def settle_free(self, settles: Sequence[Settle]) -> list[SettleResult]: ...
    async def release(self, releases: Sequence[Release]) -> list[bool]: ...
    async def hold(self, holds: Sequence[Hold]) -> list[bool]: ...


class Settler:
    """Puts ends to attempts; ``on_retry`` hears of every failed try. Settles go together with
    others where ``batch_limit`` is above 1; releases and holds are rare. ``beside``: settles that
    are repeated, or too large, at once at most."""

    def __init__(
        self,
        store: Settling,
        on_retry: Callable[[Operation], None],
        *,
        batch_limit: int = 1,
        beside: int = 2**31,
    ) -> None:
        self._store = store
        self._on_retry = on_retry
        self._batches: Batcher[Settle, SettleResult] = Batcher(
            lambda settles: store.settle_free(settles),
            self._alone,
            about_settle,
            limit=batch_limit,
            beside=beside,
            weight=weight_of_settle,
        )

    def begin(self, settle: Settle) -> asyncio.Future[SettleResult]:
        """The first try; it goes on whether anybody waits for it or not. Where it fails, or nobody
        does, ``settle`` goes on with it."""
        return self._batches.begin(settle)

    async def settle(
        self, settle: Settle, begun: asyncio.Future[SettleResult] | None = None
    ) -> SettleResult:
        """``begun``: the first try, where it has been."""
        silent = 0
        ask = self._batches.ask

        async def work() -> SettleResult:
            nonlocal settle, silent, ask, begun
            first, begun = begun, None
            try:
                return await (ask(settle) if first is None else first)
            except (AnswerLost, StoreUnavailable) as error:
                ask = self._batches.alone
                silent += isinstance(error, AnswerLost) or error.code == _TIMED_OUT
                if silent >= _TRIES_WITH_BODY and len(settle.response.body) > _LARGE:
                    settle = replace(settle, keep_body=False)
                raise

        return await self._persist("settle", work)

    async def release(self, release: Release) -> bool:
        return (await self._persist("release", lambda: self._store.release([release])))[0]

    async def hold(self, hold: Hold) -> bool:
        return (await self._persist("hold", lambda: self._store.hold([hold])))[0]

    async def _persist(self, operation: Operation, work: Callable[[], Awaitable[T]]) -> T:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await work()
            except (StoreUnavailable, AnswerLost):
                self._on_retry(operation)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _alone(self, settle: Settle) -> SettleResult:
        (result,) = await self._store.settle([settle])
        return result

    async def stop(self) -> None:
        """Cut what is on its way."""
        await self._batches.stop()
