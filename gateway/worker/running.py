"""One worker at work: it claims, lets handlers run, delivers their ends, and stops in order."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import random
import signal
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

import httpx

from gateway.core.leases import REQUEST_TIMEOUT_S
from gateway.errors import ConfigurationError, FencegateError
from gateway.observe.log import Level, Value, event
from gateway.worker.client import Client
from gateway.worker.clock import now_mono_s
from gateway.worker.crossing import Crossing
from gateway.worker.delivering import Delivery
from gateway.worker.endings import (
    End,
    Failed,
    Gone,
    HandedBack,
    Outcome,
    Raised,
    Returned,
    deciding,
    ending,
    how_of,
    why_of,
)
from gateway.worker.errors import NoAnswer, NotSent, OutcomeUnknown, Refused
from gateway.worker.executing import Execution, HandlerLoop, in_thread
from gateway.worker.http import AsyncHttp, Caller, Lane, SyncHttp
from gateway.worker.job import Job
from gateway.worker.keeper import Keeper, Tended
from gateway.worker.sending import Ends
from gateway.worker.slots import BEGIN_S, Pace, Slots
from gateway.worker.trust import Reason, usual_timeout_s
from gateway.worker.wire import Leased

__all__ = ["CLAIM_LIMIT", "CONCURRENCY_LIMIT", "Handler", "Options", "Running"]

Handler = Callable[[Job], Any]

CONCURRENCY_LIMIT = 1_000
"""Leases that one heartbeat can name."""

CLAIM_LIMIT = 100
"""Jobs that one claim may take, as the gateway says."""

_POLL_S = 0.5
"""Between two claims while there is less to do than there are slots."""

_LONGEST_PAUSE_S = 5.0
"""Between two claims that had no answer."""

_BLOCKED_S = 1.0
"""For how long a handler may block the loop of all until nothing more is claimed for it: such a job
would only wait, and use up an attempt."""

_NO_HANDLER_S = 60.0
"""Until a stage that has no handler here is claimed again, perhaps by a worker that has one."""

_LAST_CLAIMS = 3
"""Times that a claim without an answer is asked again once the worker stops, so that leases of
which nobody heard do not have to end by time."""

_LAST_CLAIM_S = 1.0
"""For how long the claim that is on its way is waited for at least: its leases are handed back."""

_SAY_AGAIN_S = 60.0
"""Between two lines that say that the gateway goes on refusing to lease jobs."""

_CONFIRM_PAUSE_S = 0.5
"""Between two heartbeats that are to confirm a lease before its handler begins."""


@dataclass(frozen=True, slots=True)
class Options:
    """``concurrency``: jobs at one time. ``drain_s``: how long handlers may go on once the worker
    is to stop. ``metrics_port``: on loopback, ``None`` for none."""

    concurrency: int = 10
    drain_s: float = 30.0
    metrics_port: int | None = None


class Running:
    """See the module. Made in the thread in which ``work`` runs."""

    def __init__(
        self,
        url: httpx.URL,
        key: str | None,
        handlers: Mapping[tuple[str, str | None], Handler],
        options: Options,
    ) -> None:
        self.name = f"{socket.gethostname()[:200]}-{os.getpid()}-{uuid4().hex[:8]}"
        self._handlers = handlers
        self._options = options
        self._tools = sorted({tool for tool, _ in handlers})
        # Of these no job can begin while a handler blocks the loop that they share.
        self._looped = {tool for (tool, _), h in handlers.items() if is_coroutine_function(h)}
        self._client = Client(str(url), key)
        self._ends = Ends(self._client, self.name)
        self.keeper = Keeper(Client(str(url), key), self.name)
        self._handler_loop = HandlerLoop()
        self._lanes = (Lane(url, key, options.concurrency), Lane(url, key, options.concurrency))
        self._runs: dict[asyncio.Task[None], _Run] = {}
        self._out = 0  # of them: the handler is out, and the end on its way
        self.crossing = Crossing(asyncio.get_running_loop())
        self.slots = Slots(options.concurrency)
        self.pace = Pace()
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._stopped_mono_s: float | None = None
        self._blocked = False
        self._claimed_once = False
        self._told: tuple[str, float] = ("", 0.0)
        self._no_handler: Counter[tuple[str, str | None]] = Counter()
        self._signals = 0

    def stopping(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """Claim no more, and end when the handlers are out. In the worker's own loop."""
        if self._stopped_mono_s is None:
            self._stopped_mono_s = now_mono_s()
        self._stop.set()
        self._changed.set()
        self.slots.shut()

    async def work(self) -> None:
        """Until it was told to stop, and has. Raises ``ConfigurationError`` where the first claim
        is refused, ``FencegateError`` where a part of the worker has ended that it cannot be
        without; then, too, it has stopped in order."""
        self._listen()
        self.keeper.start()
        self._handler_loop.start()
        event("worker_started", worker=self.name, tools=", ".join(self._tools))
        claiming = asyncio.create_task(self._claim_forever(), name="claiming")
        claiming.add_done_callback(lambda _: self.stop())
        try:
            await self._stop.wait()
            await self._drain(claiming)
        finally:
            claiming.cancel()
            self.keeper.stop()
            await self._handler_loop.shut(self._lanes[0].close, 1.0)
            await self._lanes[1].close()
            await self._ends.close()
            await self._client.close()
            event("worker_stopped", worker=self.name)
        if not claiming.cancelled():
            claiming.result()

    # Stopping.

    def _listen(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # whoever runs it elsewhere stops it by ``stop``
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals > 1:
            event("left_to_time", level="warning", worker=self.name, leases=len(self._runs))
            os._exit(128 + number)  # threads of handlers would keep an orderly exit waiting
        event("stopping", worker=self.name, jobs=len(self._runs))
        self.stop()

    async def _drain(self, claiming: asyncio.Task[None]) -> None:
        """The time counts from when the stop was asked for, whatever was on its way then."""
        stopped = self._stopped_mono_s or now_mono_s()
        until = stopped + self._options.drain_s
        while (going := self._going(claiming)) and (left_s := until - now_mono_s()) > 0:
            await asyncio.wait(going, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if not claiming.done():
            left_s = max(0.0, stopped + _LAST_CLAIM_S - now_mono_s())
            await asyncio.wait({claiming}, timeout=left_s)
        if claiming.cancel():
            why = "the last claim had no answer: what it leased ends by time"
            event("left_to_time", level="warning", worker=self.name, why=why)
            await asyncio.wait({claiming})
        for each in self._runs.values():
            each.drain()
        # Whoever still has a lease is beaten for, until it is out or its stage limit is over.
        while self.keeper.alive and any(run.tended.lost is None for run in self._runs.values()):
            await asyncio.wait(list(self._runs), timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        if self._runs:
            event("left_to_time", level="warning", worker=self.name, leases=len(self._runs))
            for task in list(self._runs):
                task.cancel()

    def _going(self, claiming: asyncio.Task[None]) -> list[asyncio.Task[None]]:
        return [*self._runs, *([] if claiming.done() else [claiming])]

    # Claiming.

    async def _claim_forever(self) -> None:
        while not self.stopping():
            self._check_parts()
            limit = self._room_for()
            if limit <= 0:
                await self._room()
                continue
            tools = self._claimable()
            if not tools or await self._claim(limit, tools) < limit:
                await self._rest(_POLL_S * (0.75 + random.random() / 2))

    def _check_parts(self) -> None:
        """Without one of these the worker would look alive, and be of no use."""
        for part, alive in (
            ("lease keeper", self.keeper.alive),
            ("event loop of the async handlers", self._handler_loop.alive()),
        ):
            if not alive:
                event("worker_bug", level="error", worker=self.name, why=f"the {part} has ended")
                raise FencegateError(
                    f"the {part} has ended (a traceback above says why); the worker stops, and "
                    "hands its other jobs back. Start it again"
                )

    def _claimable(self) -> list[str]:
        """The tools whose jobs could begin at once."""
        blocked = self._handler_loop.lag_s() > _BLOCKED_S
        if blocked != self._blocked:
            self._blocked = blocked
            name = "handlers_blocked" if blocked else "handlers_go_on"
            event(name, level="warning", worker=self.name)
        return [each for each in self._tools if not (blocked and each in self._looped)]

    async def _claim(self, limit: int, tools: list[str]) -> int:
        """Claim once, by asking until somebody answers; how many leases came."""
        claim, failures = str(uuid4()), 0
        while True:
            asked = now_mono_s()
            try:
                leases = await self._client.claim(self.name, claim, limit, tools)
            except (NoAnswer, Refused) as error:
                failures += 1
                self._check_parts()
                self._not_claimed(error, failures)
                pause_s = min(0.25 * 2.0 ** min(failures - 1, 10), _LONGEST_PAUSE_S)
                if self.stopping():
                    if failures > _LAST_CLAIMS:
                        return 0
                    await asyncio.sleep(min(pause_s, 0.5))
                else:
                    await self._rest(pause_s)
            else:
                heard = now_mono_s()
                self._claimed_once = True
                for each in leases:
                    self._take(each, asked, heard)
                return len(leases)

    def _not_claimed(self, error: NoAnswer | Refused, failures: int) -> None:
        is_refused = isinstance(error, Refused)
        if is_refused and not self._claimed_once:
            raise ConfigurationError(f"the gateway refuses to lease jobs ({error})")
        kind, now = error.type if isinstance(error, Refused) else "", now_mono_s()
        told, told_mono_s = self._told
        if failures == 1 or kind != told or (is_refused and now - told_mono_s >= _SAY_AGAIN_S):
            self._told = kind, now
            level: Level = "error" if is_refused else "warning"
            event("not_claimed", level=level, worker=self.name, why=str(error))

    def _room_for(self) -> int:
        """How many jobs to claim now. What is claimed ahead is claimed again once half of it is
        used, so that a claim takes many; and nothing while as many ends as that are on their way.
        """
        slots = self._options.concurrency
        # A worker that dies costs an attempt of each job that it had claimed, begun or not. So no
        # more wait for a slot than would have been lost without that.
        most_ahead = min(slots, CLAIM_LIMIT)
        ahead = 0 if self.slots.held_up() else self.pace.ahead(slots, most_ahead)
        most = slots + ahead
        room = min(most - (len(self._runs) - self._out), CONCURRENCY_LIMIT - len(self._runs))
        if self._out >= most or room <= ahead // 2:
            return 0
        return min(room, CLAIM_LIMIT)

    async def _room(self) -> None:
        """Until a slot may be free, or it is time to look at the keeper."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_PAUSE_S):
                await self._changed.wait()

    async def _rest(self, for_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await self._stop.wait()

    # One job.

    def _take(self, leased: Leased, asked: float, heard: float) -> None:
        run = _Run(self, leased, asked, heard)
        task = asyncio.create_task(run.work(), name=f"job {leased.job}")
        self._runs[task] = run
        task.add_done_callback(self._released)

    def out(self) -> None:
        """The handler of a run is out, or will not begin."""
        self._out += 1
        self._look_for_room()

    def _look_for_room(self) -> None:
        if self._room_for() > 0:
            self._changed.set()

    def _released(self, task: asyncio.Task[None]) -> None:
        self._out -= self._runs.pop(task).is_out
        self._look_for_room()
        if not task.cancelled() and (error := task.exception()) is not None:
            event("worker_bug", level="error", worker=self.name, why=repr(error))

    def handler_of(self, leased: Leased) -> Handler | None:
        return self._handlers.get((leased.tool, leased.stage))

    def count_no_handler(self, leased: Leased) -> int:
        """How often a job of this stage has come here."""
        self._no_handler[leased.tool, leased.stage] += 1
        return self._no_handler[leased.tool, leased.stage]

    def begin(self, handler: Handler, tended: Tended) -> Execution:
        """Start a handler on its job. Raises ``RuntimeError`` where nothing can run it."""
        is_async = is_coroutine_function(handler)
        lane = self._lanes[0 if is_async else 1]
        caller = Caller(lane, tended, self.keeper, self.name)
        if is_async:
            work = cast(Callable[[Job], Awaitable[object]], handler)
            job = Job(caller, AsyncHttp(caller), self.stopping)
            return self._handler_loop.begin(work, job, tended.close)
        http = SyncHttp(caller, asyncio.get_running_loop())
        return in_thread(handler, Job(caller, http, self.stopping), tended.close)

    async def deliver(self, tended: Tended, end: End) -> None:
        await Delivery(
            self._ends,
            self.keeper,
            self.name,
            stopped=lambda: self._stopped_mono_s,
            drain_s=self._options.drain_s,
        )(tended, end)


class _Run:
    """One lease, from its claim to its end."""

    def __init__(self, running: Running, leased: Leased, asked: float, heard: float) -> None:
        self._running = running
        self._execution: Execution | None = None
        self._is_drained = False
        self.is_out = False
        control = threading.current_thread()

        def alive() -> bool:
            execution = self._execution
            return control.is_alive() and (execution is None or execution.alive())

        self.tended = running.keeper.tend(leased, asked, heard, alive=alive, on_lost=self._lost)

    async def work(self) -> None:
        keeper = self._running.keeper
        try:
            self._tell("job_claimed")
            end = await self._end()
            self.is_out = True
            self._running.out()
            if end is None:
                keeper.metrics.done("lost")
            else:
                await self._running.deliver(self.tended, end)
        finally:
            keeper.drop(self.tended)

    async def _end(self) -> End | None:
        """What becomes of it, ``None`` where nobody is to hear of that."""
        leased = self.tended.leased
        if (why := leased.unreadable) is not None:
            self._tell("payload_unreadable", "error", why=why)
            return Failed(f"{why}; enqueue a corrected job", retry=False)
        handler = self._running.handler_of(leased)
        if handler is None:
            self._tell("no_handler", "error", times=self._running.count_no_handler(leased))
            return HandedBack(_NO_HANDLER_S)
        running = self._running
        if not await running.slots.take(BEGIN_S):
            return self._not_begun()
        try:
            if not await self._is_certain():
                return self._not_begun()
            began = now_mono_s()
            outcome = await self._execute(handler)
            running.pace.note(now_mono_s() - began)
        finally:
            running.slots.give_back()
        self._tell_error(outcome)
        return ending(outcome, lost=self.tended.lost, drained=self._is_drained)

    def _not_begun(self) -> End | None:
        return HandedBack() if self.tended.lost is None else None

    async def _is_certain(self) -> bool:
        """Whether the handler may begin: the lease is held, and there is room to do something. An
        answer to the claim that took long leaves little of the lease, or nothing."""
        usual_s, claimed = usual_timeout_s(self.tended.leased.terms), self.tended.trust
        pause_s = 0.0
        while self.tended.lost is None and not self._running.stopping():
            left_s, is_confirmed = self.tended.left_s, self.tended.trust != claimed
            if left_s >= usual_s or (is_confirmed and left_s > 0):
                return True
            await asyncio.sleep(pause_s)
            pause_s = _CONFIRM_PAUSE_S
            self.tended.sign_of_life()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await asyncio.wrap_future(self._running.keeper.ask(self.tended))
        return False

    async def _execute(self, handler: Handler) -> Outcome:
        self.tended.sign_of_life()
        try:
            execution = self._running.begin(handler, self.tended)
        except (RuntimeError, MemoryError) as error:  # no thread to be had, or the loop is gone
            return Gone(f"{type(error).__name__}: {error}")
        self._execution = execution
        if self.tended.lost is not None:  # it was lost before there was something to cancel
            execution.cancel()
        return await self._running.crossing.result(execution.done)

    def _tell_error(self, outcome: Outcome) -> None:
        match outcome:
            case Gone(why):
                self._tell("executor_gone", "error", why=why)
            case Raised(error):
                # What a library puts into its message may be a payload: only ours are told.
                decides = deciding(error)
                told = why_of(decides)
                self._tell("handler_raised", "warning", error=type(error).__name__, why=told)
                if self.tended.lost is not None or how_of(decides) != "handed back":
                    return
                if isinstance(decides, OutcomeUnknown | NotSent):
                    self._tell("outcome_unknown", "warning", step=decides.step, why=told)
            case Returned():
                pass

    def _tell(self, name: str, level: Level = "info", **more: Value) -> None:
        self.tended.tell(name, level, worker=self._running.name, **more)

    def drain(self) -> None:
        """The worker has waited long enough."""
        self._is_drained = True
        if self._execution is not None:
            self._execution.cancel()

    def _lost(self, _: Reason) -> None:
        if self._execution is not None:
            self._execution.cancel()


def is_coroutine_function(handler: Handler) -> bool:
    """Whether calling it gives something to await; an object with an async ``__call__`` too."""
    call = getattr(handler, "__call__", None)  # noqa: B004 - of an object, not whether it has one
    return inspect.iscoroutinefunction(inspect.unwrap(handler)) or inspect.iscoroutinefunction(call)
