"""The end of a lease, sent until somebody answers, or nobody should wait any more."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.jobs import ERROR_LIMIT
from gateway.worker.clock import now_mono_s
from gateway.worker.endings import Completed, End, Failed, HandedBack, body_of
from gateway.worker.errors import NoAnswer, Refused
from gateway.worker.keeper import Keeper, Tended
from gateway.worker.metrics import Done
from gateway.worker.sending import Ends
from gateway.worker.wire import Ended

__all__ = ["Delivery", "tried_until"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0

_LEAST_TRIES = 3
"""Of any end, also where its lease is over: then it is evidence, and nobody waits for it."""

_ASK_S, _SHORTEST_ASK_S = 10.0, 1.0
"""Wait for one answer, and what is left of that where the time is over."""


def tried_until(
    out_mono_s: float, lease_s: float, stopped_mono_s: float | None, drain_s: float
) -> float:
    """Until when an end is tried. Heartbeats may get through where ends do not, and a lease must
    not be renewed for ever with nobody at work; nor may it keep a worker that is to stop."""
    until = out_mono_s + lease_s
    if stopped_mono_s is None:
        return until
    return min(until, max(out_mono_s, stopped_mono_s) + drain_s)


@dataclass(frozen=True, slots=True)
class Delivery:
    """See the module. ``stopped``: since when the worker is to stop; it may drain ``drain_s``."""

    ends: Ends
    keeper: Keeper
    worker: str
    stopped: Callable[[], float | None]
    drain_s: float

    async def __call__(self, tended: Tended, end: End) -> None:
        """Send ``end`` with the same bytes until it is answered, or its time is over. The keeper
        goes on beating meanwhile."""
        tended.close()
        body, tries = body_of(tended.leased.reference, end), 0
        out = now_mono_s()
        while True:
            tries += 1
            left_s = self._until(tended, out) - now_mono_s()
            try:
                within_s = max(min(_ASK_S, left_s), _SHORTEST_ASK_S)
                ended = await self.ends.send(
                    tended.leased.job, body, alone=tries > 1, within_s=within_s
                )
            except (NoAnswer, Refused) as error:
                # A key that is not known is an operator's matter, and may be mended meanwhile.
                if isinstance(error, Refused) and error.type != "unauthenticated":
                    await self._refused(tended, end, error)
                    return
                if tries >= _LEAST_TRIES and self._is_over(tended, out):
                    self._leave(tended, end, error)
                    return
                longest = min(_FIRST_PAUSE_S * 2.0 ** min(tries - 1, 10), _LONGEST_PAUSE_S)
                await asyncio.sleep(longest * (1 - random.random() / 2))
            else:
                self._heard(tended, end, ended)
                return

    def _until(self, tended: Tended, out: float) -> float:
        lease_s = tended.leased.terms.lease_s
        return tried_until(out, lease_s, self.stopped(), self.drain_s)

    def _is_over(self, tended: Tended, out: float) -> bool:
        return tended.lost is not None or now_mono_s() >= self._until(tended, out)

    def _leave(self, tended: Tended, end: End, error: NoAnswer | Refused) -> None:
        """Its end is not delivered: the lease ends by time."""
        tended.tell("left_to_time", "error", how=_how(end), why=str(error), worker=self.worker)
        self.keeper.metrics.done("lost")

    async def _refused(self, tended: Tended, end: End, error: Refused) -> None:
        """What the gateway does not take as it is, e.g. for the entity of its next stage. Another
        attempt would make the same one."""
        tended.tell("end_refused", "error", why=str(error), worker=self.worker)
        if not isinstance(end, Completed):
            self.keeper.metrics.done("lost")
            return
        told = f"the gateway refuses the result: {error}"[-ERROR_LIMIT:]
        await self(tended, Failed(told, retry=False))

    def _heard(self, tended: Tended, end: End, ended: Ended) -> None:
        how = _how(end)
        if ended.rejected is None:
            self.keeper.metrics.done(how)
            tended.tell(
                "job_finished",
                "warning" if ended.state == "failed" else "info",
                how=how,
                state=ended.state,
                again=ended.again,
                worker=self.worker,
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
