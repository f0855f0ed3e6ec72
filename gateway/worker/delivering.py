"""The end of a lease, sent until somebody answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.jobs import ERROR_LIMIT
from gateway.worker.client import Client
from gateway.worker.clock import now_mono_s
from gateway.worker.endings import Completed, End, Failed, HandedBack, body_of
from gateway.worker.errors import NoAnswer, Refused
from gateway.worker.keeper import Keeper, Tended
from gateway.worker.metrics import Done
from gateway.worker.trust import standing
from gateway.worker.wire import Ended

__all__ = ["Delivery"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0

_LATE_TRIES = 3
"""Of an end whose lease is over: it is evidence, and nobody waits for it."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """See the module. ``drained``: the worker stops, and has waited as long as it was told to."""

    client: Client
    keeper: Keeper
    worker: str
    drained: Callable[[], bool]

    async def __call__(self, tended: Tended, end: End) -> None:
        """Send ``end`` with the same bytes until it is answered, or cannot be any more. The keeper
        goes on beating meanwhile."""
        tended.ending = True
        body, tries = body_of(tended.leased.reference, self.worker, end), 0
        while True:
            tries += 1
            try:
                ended = await self.client.end(tended.leased.job, body)
            except NoAnswer as error:
                if self._is_over(tended, tries):
                    tended.tell("left_to_time", "warning", why=str(error), worker=self.worker)
                    self.keeper.metrics.done("lost")
                    return
                longest = min(_FIRST_PAUSE_S * 2.0 ** min(tries - 1, 10), _LONGEST_PAUSE_S)
                await asyncio.sleep(longest * (1 - random.random() / 2))
            except Refused as error:
                tended.tell("end_refused", "error", why=str(error), worker=self.worker)
                replaced = _instead_of(end, error)
                if replaced is None:
                    self.keeper.metrics.done("lost")
                    return
                await self(tended, replaced)
                return
            else:
                self._heard(tended, end, ended)
                return

    def _is_over(self, tended: Tended, tries: int) -> bool:
        if tended.lost is not None:
            return tries >= _LATE_TRIES
        # A gateway that is away must not keep a worker that is to stop: a lease that nobody has
        # confirmed for its whole length ends by time anyway.
        return self.drained() and standing(tended.trust, now_mono_s()) != "held"

    def _heard(self, tended: Tended, end: End, ended: Ended) -> None:
        how = _how(end)
        if ended.rejected is None:
            self.keeper.metrics.done(how)
            tended.tell(
                "job_finished", how=how, state=ended.state, again=ended.again, worker=self.worker
            )
            return
        self.keeper.lose(tended, ended.rejected)
        self.keeper.metrics.done("rejected")
        tended.tell(
            "result_rejected", "warning", how=how, reason=ended.rejected, worker=self.worker
        )


def _how(end: End) -> Done:
    match end:
        case Completed():
            return "completed"
        case Failed():
            return "failed"
        case HandedBack():
            return "handed-back"


def _instead_of(end: End, error: Refused) -> End | None:
    """What is sent where the gateway does not take an end as it is, e.g. for the entity of its next
    stage. Another attempt would make the same one."""
    if not isinstance(end, Completed) or error.type == "unauthenticated":
        return None
    return Failed(f"the gateway refuses the result: {error}"[-ERROR_LIMIT:], retry=False)
