"""Admit → send → settle, for one call.

It runs detached from the caller's connection: from the last byte of the request on, a caller that
hangs up changes nothing but that nobody hears the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, assert_never
from uuid import UUID

from gateway import faults
from gateway.core.answers import incomplete, not_sent, outcome_unknown, refusal, rows_lost
from gateway.core.command import Command, Hold, Release, Settle, SettleResult
from gateway.core.decide import (
    Decision,
    Forward,
    Lapsed,
    Probe,
    RejectExpired,
    RejectNotHeld,
    RejectNotRetained,
    RejectReused,
    RejectStale,
    RejectUnknown,
    RejectUnresolved,
    Repeat,
    Replay,
    TakeOver,
    WaitForEntity,
    WaitForKey,
)
from gateway.core.model import Exchange, Response
from gateway.core.problems import Problem
from gateway.core.recheck import after_attempt, until_asked
from gateway.core.settle import (
    LOOP_DETECTED,
    Answered,
    NotExecuted,
    NotSent,
    Outcome,
    Unknown,
    after_resend,
    classify,
)
from gateway.errors import RowsLost, StoreUnavailable
from gateway.limits import ADMIT_TURN_S
from gateway.proxy.admitting import Admitted, Admitter
from gateway.proxy.answer import Answer, Label, of_problem, relay, replay
from gateway.proxy.background import Background, first_of
from gateway.proxy.call import Call, Plan, plan
from gateway.proxy.line import Late, Line
from gateway.proxy.recalling import Recalling
from gateway.proxy.resending import Resender
from gateway.proxy.settling import Settler
from gateway.proxy.trace import Trace
from gateway.proxy.waiting import Entity, Full, Key, Topic, WaitRoom
from gateway.store.database import STATEMENT_TIMEOUT_S
from gateway.upstream import Transfer

__all__ = ["Executor"]

_LATE_READERS = 64
"""Sockets kept open for late bytes, per process; more are closed, their commands stay unknown."""

_LATE_S = 300.0
"""Longest that a socket is read on after its caller was told "unknown"."""

_LATE_HEAD = 64 * 1024
"""Bytes of a late response on top of what would be kept of its body."""

_ADMIT_MARGIN_S = 0.5
"""An admit is given up this much before the send deadline: a later answer could not be used."""


_FIND_OUT = 3
"""Times that one call asks the upstream about its command, or finds it changed as it takes over."""


class Asking(Protocol):
    """``gateway.proxy.prober.Prober``, as far as a caller's own request needs it."""

    async def ask(self, command: Command, judged: UUID) -> bool: ...
    async def due_s(self, command: Command) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Executor:
    """Everything that one process needs to carry calls out."""

    admitter: Admitter
    settler: Settler
    resender: Resender
    prober: Asking
    room: WaitRoom
    background: Background
    late: Background
    clock: Callable[[], float]
    on_settled: Callable[[Command, SettleResult, float], None]
    """Hears of every settle and how many seconds it took, also of those after the answer;
    "duplicate" is an alarm."""
    recalling: Recalling = field(default_factory=Recalling)
    line: Line = field(default_factory=lambda: Line(2**31, limit=2**31, limit_per_topic=2**31))

    async def run(self, call: Call, gone: asyncio.Event, trace: Trace) -> Answer | None:
        """Carry one call out. ``gone`` is set when its caller hangs up; ``None`` where that ended
        the wait for an earlier command, before anything was admitted."""
        wait_until = self.clock() + call.wait_s
        woken_for: Topic | None = None
        looks = 0
        while True:
            call = call.next_round()
            trace.command = call.command
            asked = await self._ask(call, wait_until, trace)
            if isinstance(asked, Answer):
                self._pass_on(woken_for)
                return asked
            limits, admitted = asked
            decision = admitted.decision
            if isinstance(decision, Forward):
                return await self._perform(call, limits, admitted.lost_until, trace)
            if isinstance(decision, TakeOver | Probe) and looks < _FIND_OUT:
                looks += 1
                answer = await self._find_out(call, limits, decision, trace)
                if answer is None:
                    continue
                self._pass_on(woken_for)
                return answer
            topic = _topic(call.command, decision)
            if topic != woken_for:
                self._pass_on(woken_for)
                woken_for = None
            if topic is None:
                return self._refuse(call, decision)
            front = topic == woken_for
            end = await self._stand(call, decision, topic, wait_until, gone, trace, front=front)
            if end != "woken":
                return None if end == "gone" else end
            faults.reach("wait.woken")
            woken_for = topic

    async def _ask(
        self, call: Call, wait_until: float, trace: Trace
    ) -> tuple[Plan, Admitted] | Answer:
        """Admit in turn; an answer where the database did not. Waiting for the turn takes nothing
        of the attempt's time. It ends with the caller's own patience, but never at once."""
        if self.recalling.store_away:
            recalled = _recalled(await self.recalling.before(call), trace)
            if recalled is not None:
                return recalled
        try:
            turn = self.line.at_once(call.command)
            waited = turn is None
            if turn is None:
                turn = await self._in_line(call, wait_until)
            try:
                if waited and (barred := self._barred(call)) is not None:
                    return barred
                limits = plan(self.clock(), call.rules)
                return limits, await self._admit(call, limits, trace)
            finally:
                self.line.leave(turn)
        except StoreUnavailable as error:
            if (barred := self._barred(call)) is not None:
                return barred
            recalled = _recalled(await self.recalling.instead(call), trace)
            return recalled or _store_unavailable(call, error)
        except (Late, Full) as none:
            return _overloaded(call, str(none))

    async def _in_line(self, call: Call, wait_until: float) -> Topic:
        patience = max(wait_until - self.clock(), ADMIT_TURN_S)
        until = asyncio.get_running_loop().time() + patience
        return await self.line.wait(call.command, call.flight, until)

    async def _admit(self, call: Call, limits: Plan, trace: Trace) -> Admitted:
        lost_until: float | None = None
        try:
            admitted = await self.admitter.admit(call.command, limits.first_byte - _ADMIT_MARGIN_S)
        except StoreUnavailable as error:
            lost_until = error.lost_until
            raise
        except asyncio.CancelledError:
            # Others of its batch are waited for, and it may be admitted with them.
            lost_until = self.clock() + STATEMENT_TIMEOUT_S
            raise
        else:
            trace.decision = admitted.decision
            trace.issued_here = admitted.issued_here
            self.recalling.learn(call, admitted)
            if not isinstance(admitted.decision, Forward):
                lost_until = admitted.lost_until
            return admitted
        finally:
            trace.admit_s += self.clock() - limits.started
            self._abandon(call.command, lost_until)

    async def _find_out(
        self, call: Call, limits: Plan, decision: TakeOver | Probe, trace: Trace
    ) -> Answer | None:
        """What comes of an unknown command; ``None`` where it has changed: admit again."""
        match decision:
            case Probe(judged):
                if await self.prober.ask(call.command, judged):
                    return self._barred(call)
                due_s = await self.prober.due_s(call.command)
                barred = self._barred(call)
                if barred is not None:
                    return barred
                problem = refusal(decision.otherwise, until_asked(due_s))
                return self._problem(call, problem, "unknown")
            case TakeOver(judged, key):
                again = call.resend(key)
                until = limits.first_byte - _ADMIT_MARGIN_S
                try:
                    taken = await self.resender.take_over(again.command, judged, until)
                except StoreUnavailable as error:
                    if error.lost_until is not None:
                        self.background.spawn(self._hold_lost(again.bare(), error.lost_until))
                    return _store_unavailable(call, error)
                if taken == "taken":
                    trace.command = again.command
                    trace.decision = Forward(again.command.attempt)
                    return await self._perform(again, limits, None, trace)
                if taken == "changed":
                    return self._barred(call)
            case _:
                assert_never(decision)
        return self._refuse(call, decision)

    def _barred(self, call: Call) -> Answer | None:
        """Time has passed: a caller whose key was revoked meanwhile, or may no longer send this, is
        told nothing of the command."""
        barred = call.barred()
        return None if barred is None else self._problem(call, barred, "rejected")

    def _refuse(self, call: Call, decision: Decision) -> Answer:
        request_id = call.command.request_id
        match decision:
            case Replay(response, settled_by, compared):
                return replay(response, settled_by, compared=compared)
            case RejectUnknown():
                return of_problem(refusal(decision), "unknown", request_id)
            case TakeOver(otherwise=rejected) | Probe(otherwise=rejected):
                return of_problem(refusal(rejected), "unknown", request_id)
            case RejectNotRetained(settled_by=settled_by):
                return of_problem(refusal(decision), "rejected", request_id, settled_by)
            case Lapsed():
                # Admitted, and provably not sent: the clock stepped, or an answer took too long.
                self.background.spawn(self._release(call.bare(), "lapsed", None, heard=False))
                return of_problem(refusal(decision), "not-sent", request_id)
            case (
                RejectStale()
                | RejectNotHeld()
                | RejectReused()
                | WaitForKey()
                | WaitForEntity()
                | RejectExpired()
                | RejectUnresolved()
                | Repeat()
            ):
                return of_problem(refusal(decision), "rejected", request_id)
            case Forward():
                raise AssertionError("a forwarded command is performed, not refused")
            case _:
                assert_never(decision)

    async def _stand(
        self,
        call: Call,
        decision: Decision,
        topic: Topic,
        until: float,
        gone: asyncio.Event,
        trace: Trace,
        *,
        front: bool,
    ) -> Answer | Literal["woken", "gone"]:
        """Wait for ``topic`` to change; the answer where that was in vain."""
        began = self.clock()
        try:
            end = await self._wait(call, topic, until, gone, front=front)
        except Full as full:
            if front:  # whoever was not woken has no turn to pass on
                self._pass_on(topic)
            return _overloaded(call, str(full))
        trace.wait_s = (trace.wait_s or 0.0) + self.clock() - began
        if end == "gone":
            return "gone"
        barred = self._barred(call)
        if barred is not None:
            if end == "woken":
                self._pass_on(topic)
            return barred
        return "woken" if end == "woken" else self._refuse(call, decision)

    async def _wait(
        self, call: Call, topic: Topic, until: float, gone: asyncio.Event, *, front: bool
    ) -> Literal["woken", "over", "gone"]:
        """Wait for ``topic`` to change; ``over``: the time is up, or the process stops."""
        left = until - self.clock()
        if left <= 0 or self.room.closing:
            return "over"
        with self.room.place(topic, front=front) as ticket:
            call.flight.rest()
            woken = asyncio.ensure_future(ticket.woken.wait())
            left_us = asyncio.ensure_future(gone.wait())
            try:
                await asyncio.wait(
                    {woken, left_us}, timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                woken.cancel()
                left_us.cancel()
                call.flight.go_on()
        if gone.is_set():
            if ticket.woken.is_set():
                self._pass_on(topic)
            return "gone"
        return "woken" if ticket.woken.is_set() and not self.room.closing else "over"

    def _pass_on(self, topic: Topic | None) -> None:
        """Who was woken for an entity and leaves without its slot wakes the next."""
        if isinstance(topic, Entity):
            self.room.wake(topic)

    async def _perform(
        self, call: Call, limits: Plan, lost_until: float | None, trace: Trace
    ) -> Answer:
        faults.reach("send.before")
        began = self.clock()
        transfer = await call.client.send(
            call.request, limits.deadlines(began), keep_limit=call.rules.keep_limit
        )
        faults.reach("answer.whole")
        outcome = _judge(call, transfer.exchange)
        trace.exchange, trace.send_s = transfer.exchange, self.clock() - began
        if not isinstance(outcome, Answered):
            call = call.bare()  # what is left to do may outlast it by far
        match outcome:
            case Answered(response, kept):
                settle = Settle(call.command, response, kept)
                if not await self._record(call, settle, limits, trace):
                    transfer.close()
                    return self._not_recorded(call)
                return self._relay(call, transfer, outcome)
            case NotSent():
                transfer.close()
                released = self._release(call, outcome.fault, lost_until, heard=False)
                await self._until(limits, self.background.spawn(released))
                return self._problem(call, not_sent(outcome), "not-sent")
            case NotExecuted(response):
                why = f"status {response.status}"
                released = self._release(call, why, lost_until, heard=True)
                if not await self._until(limits, self.background.spawn(released)):
                    transfer.close()
                    return self._not_recorded(call)
                return self._relay(call, transfer, outcome)
            case Unknown():
                hold = Hold(call.command, _reason(outcome), outcome.evidence)
                held = self.background.spawn(self._hold(call, hold))
                self._read_on(call, transfer, held)
                await self._until(limits, held)
                again_s = after_attempt(call.rules, resent=call.resent)
                return self._problem(call, outcome_unknown(outcome, again_s), "unknown")
            case _:
                assert_never(outcome)

    def _relay(self, call: Call, transfer: Transfer, outcome: Answered | NotExecuted) -> Answer:
        label: Label = "applied" if isinstance(outcome, Answered) else "not-executed"
        if not outcome.complete:
            transfer.close()
            problem = incomplete(outcome.response, repeatable=isinstance(outcome, NotExecuted))
            return self._problem(call, problem, label)
        if transfer.exchange.oversize:
            return relay(outcome.response, label, transfer)
        transfer.close()
        return relay(outcome.response, label)

    async def _record(self, call: Call, settle: Settle, limits: Plan, trace: Trace) -> bool:
        """Record an answer before its caller hears it, by the command's deadline. Mostly one try
        does; where it fails, or lasts longer than this call, a task of its own goes on with it."""
        began = self.clock()
        first = self.settler.begin(settle)
        try:
            await first_of(first, within_s=max(limits.settled - began, 0))
        except asyncio.CancelledError:
            self.background.spawn(self._settle(settle, trace, call, first))
            raise
        if first.done() and not first.cancelled() and first.exception() is None:
            self._settled(settle, first.result(), self.clock() - began, trace, call)
            return True
        settled = self._settle(settle, trace, call, first)
        return await self._until(limits, self.background.spawn(settled))

    async def _settle(
        self,
        settle: Settle,
        trace: Trace | None = None,
        call: Call | None = None,
        begun: asyncio.Future[SettleResult] | None = None,
    ) -> None:
        """``begun``: the first try, where it has been. Else as ``_settled``."""
        began = self.clock()
        result = await self.settler.settle(settle, begun)
        self._settled(settle, result, self.clock() - began, trace, call)

    def _settled(
        self,
        settle: Settle,
        result: SettleResult,
        settle_s: float,
        trace: Trace | None,
        call: Call | None,
    ) -> None:
        """``call``: whose answer in time this is, if it is one."""
        self.room.changed(settle.command)
        if trace is not None:
            trace.result, trace.settle_s = result, settle_s
        if call is not None and trace is not None and result == "settled":
            self.recalling.keep(call, settle, issued_here=trace.issued_here)
        self.on_settled(settle.command, result, settle_s)

    async def _release(
        self, call: Call, reason: str, lost_until: float | None, *, heard: bool
    ) -> None:
        command = call.command
        await self.settler.release(Release(command, reason, heard))
        self.room.changed(command)
        self._abandon(command, lost_until)

    async def _hold(self, call: Call, hold: Hold) -> None:
        await self.settler.hold(hold)
        self.room.changed(call.command)

    async def _until(self, limits: Plan, recording: asyncio.Task[None]) -> bool:
        """Wait for a recording until the command's deadline; it goes on behind that."""
        left = limits.settled - self.clock()
        await first_of(recording, within_s=max(left, 0))
        if not recording.done() or recording.cancelled():
            return False
        recording.result()  # a bug is raised: nothing is relayed as recorded that was not (G4)
        return True

    def _abandon(self, command: Command, lost_until: float | None) -> None:
        """Release an attempt that is given up, while one of its admits may still commit."""
        if lost_until is not None:
            self.background.spawn(self._release_lost(command, lost_until))

    async def _release_lost(self, command: Command, lost_until: float) -> None:
        faults.reach("admit.abandoned")
        release = Release(command, "admit given up", heard=False)
        await self.settler.release(release)
        left = lost_until - self.clock()
        if left > 0:
            await asyncio.sleep(left)
            await self.settler.release(release)
        self.room.changed(command)

    async def _hold_lost(self, call: Call, lost_until: float) -> None:
        """A take-over that was given up may have taken effect, or may until ``lost_until``: nothing
        was sent by it, and what was unknown before is so again."""
        hold = Hold(call.command, "sending it again was given up", None)
        left = lost_until - self.clock()
        if left > 0 and not await self.settler.hold(hold):
            await asyncio.sleep(left)
        await self._hold(call, hold)

    def _read_on(self, call: Call, transfer: Transfer, held: asyncio.Task[None]) -> None:
        """Read for late bytes after a timeout, up to a cap; then let the socket go."""
        if transfer.exchange.fault != "timeout" or len(self.late) >= _LATE_READERS:
            transfer.close()
            return
        self.late.spawn(self._late(call, transfer, held))

    async def _late(self, call: Call, transfer: Transfer, held: asyncio.Task[None]) -> None:
        until = self.clock() + min(_LATE_S, call.rules.settle_delay_s)
        exchange = await transfer.late(until=until, byte_limit=call.rules.keep_limit + _LATE_HEAD)
        if exchange is None:
            return
        # Another attempt may have taken over meanwhile: a key "in use" then says nothing of this.
        outcome = after_resend(classify(exchange, call.rules, _hop(call, exchange)), call.rules)
        if isinstance(outcome, Answered):
            faults.reach("answer.late")
            await asyncio.wait({held})  # "unknown" is on record before what heals it
            settle = Settle(call.command, outcome.response, outcome.kept)
            self.background.spawn(self._settle(settle))

    def _problem(self, call: Call, problem: Problem, outcome: Label) -> Answer:
        return of_problem(problem, outcome, call.command.request_id)

    def _not_recorded(self, call: Call) -> Answer:
        problem = Problem(
            "outcome-unknown",
            "Ask again later with the same key: the upstream answered, but the gateway's database "
            "cannot record it yet, and goes on trying.",
            sent="yes",
            error="proxy_internal_error",
            retry_after_s=5,
        )
        return self._problem(call, problem, "unknown")


def _topic(command: Command, decision: Decision) -> Topic | None:
    match decision:
        case WaitForKey():
            return Key(command.tenant, command.key_digest)
        case WaitForEntity():
            return Entity(command.tenant, command.entity)
        case _:
            return None


def _recalled(response: Response | None, trace: Trace) -> Answer | None:
    """A replay from the shared cache, if there was one."""
    if response is None:
        return None
    trace.cache, trace.decision = "redis", Replay(response, "answer", compared=True)
    return replay(response, "answer", compared=True)


def _judge(call: Call, exchange: Exchange) -> Outcome:
    outcome = classify(exchange, call.rules, _hop(call, exchange))
    return after_resend(outcome, call.rules) if call.resent else outcome


def _hop(call: Call, exchange: Exchange) -> bytes | None:
    """Asked for only where somebody may have refused it as a loop: nearly never."""
    response = exchange.response
    return call.hop if response is not None and response.status == LOOP_DETECTED else None


def _reason(outcome: Unknown) -> str:
    if outcome.evidence is not None:
        return f"status {outcome.evidence.status}"
    return f"{outcome.fault} (sent: {outcome.sent})"


def _store_unavailable(call: Call, error: StoreUnavailable) -> Answer:
    if isinstance(error, RowsLost):
        return of_problem(rows_lost(str(error)), "rejected", call.command.request_id)
    problem = Problem(
        "store-unavailable",
        f"Repeat the same request later: nothing was sent for this request, because {error}.",
        retry_after_s=1,
    )
    return of_problem(problem, "rejected", call.command.request_id)


def _overloaded(call: Call, why: str) -> Answer:
    problem = Problem("overloaded", f"Repeat the same request later: {why}.", retry_after_s=1)
    return of_problem(problem, "rejected", call.command.request_id)
