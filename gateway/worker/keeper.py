"""The lease keeper: it renews all leases of the process from a thread and a connection of its own.

A lease is beaten for by construction: whoever claims one puts it here before its handler starts,
and takes it out when its end is delivered. The handlers' loop is never touched, so one that blocks
does not stop the heartbeats; one that stays blocked gives no sign of life, and after
``stage_limit_s`` its lease is left to end. So it is where the executor is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import assert_never

from gateway.core.leases import next_beat
from gateway.observe.log import Level, Value, event
from gateway.worker.client import Client
from gateway.worker.clock import now_mono_s
from gateway.worker.errors import LeaseLost, NoAnswer, OwnershipUnknown, Refused
from gateway.worker.metrics import Metrics, Missed
from gateway.worker.trust import Reason, Trust, confirmed, granted, refused, retry_in, standing
from gateway.worker.wire import Beat, Leased, Renewed

__all__ = ["Keeper", "Tended"]

_LOOK_S = 1.0
"""Longest that the keeper rests: timers stand still while a machine is suspended, its clock does
not, so it looks at the clock itself."""

Told = Callable[[Reason], None]


@dataclass(eq=False, slots=True)
class Tended:
    """One lease that is kept. ``trust`` is replaced whole, so any thread may read it. ``alive``:
    whether what executes the job is still there. ``on_lost``: called once, from any thread."""

    leased: Leased
    trust: Trust
    alive: Callable[[], bool]
    on_lost: Told
    life_mono_s: float
    """The handler's last sign of life."""
    ending: bool = False
    """The handler is out: nothing more is done under this lease, and its end is being delivered."""
    kept: bool = True
    """It is to be renewed."""
    missed: bool = False
    """The last heartbeat had no answer, and that was told."""
    doubted: bool = False
    """That the ownership is unknown was told."""
    waiting: list[Future[None]] = field(default_factory=list)

    def sign_of_life(self) -> None:
        self.life_mono_s = now_mono_s()

    @property
    def lost(self) -> Reason | None:
        """Why the lease is over, if it is. Where nobody said so, the time that no renewal reaches
        beyond is over."""
        now = now_mono_s()
        return self.trust.lost or ("expired" if standing(self.trust, now) == "lost" else None)

    def close(self) -> None:
        """The handler is out. Tasks and threads that it left behind may do nothing more for the
        job, though its lease goes on until the end is delivered."""
        self.ending = True

    @property
    def over(self) -> Reason | None:
        """Why nothing may be sent under it any more, if so."""
        return self.lost or ("ended" if self.ending else None)

    def check(self, needed_s: float = 0) -> None:
        """Raise ``LeaseLost``, or ``OwnershipUnknown`` where something that begins now and takes at
        most ``needed_s`` might not end inside the trust window."""
        if (reason := self.over) is not None:
            raise LeaseLost(reason)
        if standing(self.trust, now_mono_s(), needed_s) == "held":
            return
        lease_s, tool = self.leased.terms.lease_s, self.leased.tool
        raise OwnershipUnknown(
            f"the lease is trusted for {self.left_s:.1f} s more, and {needed_s:g} s are needed: "
            f"nothing was sent. Give a shorter timeout_s, or raise lease_s of {tool!r} in "
            f"tools.toml (it is {lease_s:g})"
            if self.left_s > 0
            else f"nobody has confirmed the lease for {self.unconfirmed_s:.1f} s, and it lasts "
            f"{lease_s:g} s: nothing was sent. Look why the gateway does not answer"
        )

    @property
    def unconfirmed_s(self) -> float:
        return now_mono_s() - self.trust.confirmed_mono_s

    @property
    def left_s(self) -> float:
        """For how long the lease is trusted from now on; 0 where it is not."""
        if self.lost is not None:
            return 0.0
        return max(0.0, self.trust.until_mono_s - now_mono_s())

    def tell(self, name: str, level: Level = "info", **more: Value) -> None:
        """Log one event about this lease."""
        now = now_mono_s()
        event(
            name,
            level=level,
            job=self.leased.job,
            fence=self.leased.fence,
            entity=self.leased.entity,
            tool=self.leased.tool,
            stage=self.leased.stage,
            attempt=self.leased.attempt,
            lease_ms_left=round((self.trust.until_mono_s - now) * 1000),
            confirmed_ms_ago=round((now - self.trust.confirmed_mono_s) * 1000),
            **more,
        )


class Keeper:
    """See the module. ``client`` is used, and closed, in the keeper's thread only."""

    def __init__(self, client: Client, worker: str) -> None:
        self._client = client
        self._worker = worker
        self.metrics: Metrics = Metrics(self.ages)
        self._lock = threading.Lock()
        self._tended: dict[str, Tended] = {}
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._ready = threading.Event()
        self._stopped = False
        self._due_mono_s = float("inf")
        self._failures = 0

    # From any thread.

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Stop beating, whatever is still kept; and wait until the thread has ended."""
        self._stopped = True
        self._nudge()
        self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def tend(
        self,
        leased: Leased,
        asked_mono_s: float,
        heard_mono_s: float,
        *,
        alive: Callable[[], bool],
        on_lost: Told,
    ) -> Tended:
        """Keep a lease that was just claimed."""
        trust = granted(asked_mono_s, heard_mono_s, leased.remaining_ms, leased.total_remaining_ms)
        tended = Tended(leased, trust, alive, on_lost, now_mono_s())
        due = next_beat(asked_mono_s, leased.terms, random.random())
        with self._lock:
            before = self._tended.get(leased.job)
            self._tended[leased.job] = tended
            sooner = due < self._due_mono_s
            self._due_mono_s = min(self._due_mono_s, due)
        if before is not None and before.ending:
            before.kept = False  # its end was faster than the answer to it
        elif before is not None:
            # The job came back here, so its lease before is over, though no heartbeat said so yet.
            self.lose(before, "taken")
        if sooner:
            self._nudge()
        return tended

    def drop(self, tended: Tended) -> None:
        """Keep it no longer."""
        with self._lock:
            if self._tended.get(tended.leased.job) is tended:
                del self._tended[tended.leased.job]

    def lose(self, tended: Tended, reason: Reason) -> None:
        """The lease is over; told once, however many find out."""
        with self._lock:
            before = tended.trust
            tended.trust = refused(before, reason)
            tended.kept = False
        if before.lost is None:
            self.metrics.missed(reason)
            tended.tell("heartbeat_lost", "warning", reason=reason, worker=self._worker)
            tended.on_lost(reason)

    def ask(self, tended: Tended) -> Future[None]:
        """Send a heartbeat now; done when it is answered, or was not in time."""
        answered: Future[None] = Future()
        with self._lock:
            tended.waiting.append(answered)
            self._due_mono_s = now_mono_s()
        self._nudge()
        return answered

    def ages(self) -> tuple[int, float, float]:
        """See ``metrics.Ages``."""
        now = now_mono_s()
        kept = [each for each in self._snapshot() if each.kept]
        return (
            len(kept),
            max((now - each.trust.confirmed_mono_s for each in kept), default=0.0),
            min((each.left_s for each in kept), default=0.0),
        )

    def _nudge(self) -> None:
        if self._loop is not None and self._wake is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed: nobody is left to wake
                self._loop.call_soon_threadsafe(self._wake.set)

    def _snapshot(self) -> list[Tended]:
        with self._lock:
            return list(self._tended.values())

    # In the keeper's own thread.

    def _run(self) -> None:
        asyncio.run(self._keep())

    async def _keep(self) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        beat: asyncio.Task[None] | None = None
        try:
            while not self._stopped:
                self._wake.clear()
                self._look(now_mono_s())
                if beat is not None and beat.done():
                    beat.result()  # a bug ends the keeper, and with it the worker
                    beat = None
                if beat is None and now_mono_s() >= self._due():
                    beat = asyncio.create_task(self._beat())
                await self._rest(beat)
        finally:
            if beat is not None:
                beat.cancel()
                await asyncio.wait({beat})
            await self._client.close()

    def _due(self) -> float:
        with self._lock:
            return self._due_mono_s

    async def _rest(self, beat: asyncio.Task[None] | None) -> None:
        """Until the next heartbeat is due, something was said, or the clock is to be looked at."""
        assert self._wake is not None
        busy = {beat} if beat is not None and not beat.done() else set()
        left = _LOOK_S if busy else min(_LOOK_S, max(0.0, self._due() - now_mono_s()))
        woken = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({woken, *busy}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()

    def _look(self, now: float) -> None:
        """What time alone has changed."""
        for each in self._snapshot():
            if each.trust.lost is not None:
                continue
            if not each.alive():
                each.close()  # nobody is left to deliver its end
                self.drop(each)
                each.tell("executor_gone", "error", worker=self._worker)
            elif standing(each.trust, now) == "lost":
                self.lose(each, "expired")
            elif not each.ending and now - each.life_mono_s > each.leased.terms.stage_limit_s:
                self.lose(each, "stage-limit")
            elif standing(each.trust, now) == "unknown" and not each.doubted:
                each.doubted = True
                each.tell("ownership_unknown", "warning", worker=self._worker)

    async def _beat(self) -> None:
        """One heartbeat for all."""
        kept = [each for each in self._snapshot() if each.kept]
        if not kept:
            self._plan()
            return
        asked = now_mono_s()  # before the request leaves: the database counts from later
        try:
            answers = await self._client.heartbeat(self._worker, [each.leased for each in kept])
        except (NoAnswer, Refused) as error:
            self._unanswered(kept, error)
        else:
            heard = now_mono_s()
            self._failures = 0
            for each, answer in zip(kept, answers, strict=True):
                self._hear(each, answer, asked, heard)
            self._plan()
        self._answered(kept)

    def _plan(self) -> None:
        """When the next heartbeat is due: with the first lease that is to be renewed, for all."""
        with self._lock:
            self._due_mono_s = min(
                (
                    next_beat(each.trust.confirmed_mono_s, each.leased.terms, random.random())
                    for each in self._tended.values()
                    if each.kept
                ),
                default=float("inf"),
            )

    def _hear(self, each: Tended, answer: Beat, asked: float, heard: float) -> None:
        match answer:
            case Renewed(remaining_ms, total_remaining_ms):
                with self._lock:
                    each.trust = confirmed(
                        each.trust, granted(asked, heard, remaining_ms, total_remaining_ms)
                    )
                each.missed = each.doubted = False
                each.tell("heartbeat_ok", "debug", worker=self._worker)
            case "ended" if each.ending:
                each.kept = False  # our own end was faster; its answer says the rest
            case "expired" | "taken" | "cancelled" | "ended":
                self.lose(each, answer)
            case _:
                assert_never(answer)

    def _unanswered(self, kept: list[Tended], error: NoAnswer | Refused) -> None:
        self._failures += 1
        soonest = min(each.leased.terms.heartbeat_s for each in kept)
        with self._lock:
            self._due_mono_s = now_mono_s() + retry_in(self._failures, soonest)
        for each in kept:
            self.metrics.missed(_NO_ANSWER)
            if not each.missed:
                each.missed = True
                each.tell(
                    "heartbeat_lost",
                    "warning" if isinstance(error, NoAnswer) else "error",
                    reason=_NO_ANSWER,
                    why=str(error),
                    worker=self._worker,
                )

    def _answered(self, kept: list[Tended]) -> None:
        with self._lock:
            done = [future for each in kept for future in each.waiting]
            for each in kept:
                each.waiting.clear()
        for future in done:
            if future.set_running_or_notify_cancel():
                future.set_result(None)


_NO_ANSWER: Missed = "no-answer"
