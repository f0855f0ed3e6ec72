"""The ASGI endpoint of everything under the policies' mounts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol

from gateway import faults
from gateway.core.headers import values
from gateway.core.model import Headers, Rules
from gateway.core.problems import Problem
from gateway.proxy.answer import Answer, of_problem, replay
from gateway.proxy.background import Background, first_of
from gateway.proxy.body import Gone, Inflow, announced, drain
from gateway.proxy.execute import Executor
from gateway.proxy.intake import Admissible, Intake, Passage, Recalled, Refused, request_id_of
from gateway.proxy.passage import pass_through
from gateway.proxy.respond import Message, Receive, Send, respond
from gateway.proxy.shares import Flight, Flights
from gateway.proxy.streams import Place, Places
from gateway.proxy.trace import Trace

__all__ = ["STOPPING", "CutBy", "Endpoint", "Journal", "respond_unread"]

CutBy = Literal["upstream", "caller", "stop"]
"""Who ended a streamed answer before its end: one of the two, or this process as it stops."""


class Journal(Protocol):
    """Who is told of every answer: one log line each, and the metrics."""

    def refused(self, refused: Refused, answer: Answer) -> None: ...
    def recalled(self, recalled: Recalled, answer: Answer) -> None: ...
    def passed(self, passage: Passage, answer: Answer) -> None: ...
    def executed(self, done: Admissible, trace: Trace, answer: Answer, delivered: bool) -> None: ...
    def abandoned(self, done: Admissible, trace: Trace) -> None: ...
    def cut_short(self, request_id: str, policy: str, by: CutBy) -> None: ...


class Endpoint:
    """Intake, execution and response for one process.

    ``audit`` appends the evidence of a refusal that was decided outside the admit statement.
    ``streams``: the places for what is not guarded, by upstream.
    """

    def __init__(
        self,
        intake: Intake,
        executor: Executor,
        journal: Journal,
        audit: Callable[[Refused], Awaitable[Problem | None]],
        flights: Flights,
        streams: Mapping[str, Places],
    ) -> None:
        self._intake = intake
        self._executor = executor
        self._journal = journal
        self._audit = audit
        self._flights = flights
        self._streams = streams
        self._running = Background()

    @property
    def running(self) -> Background:
        """The calls that are being carried out; a shutdown waits for them."""
        return self._running

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        begun = False

        def noted(message: Message) -> Awaitable[None]:
            nonlocal begun
            begun = True
            return send(message)

        try:
            await self._serve(scope, receive, noted)
        except asyncio.CancelledError:
            # By the server at the end of its drain. Whatever was sent upstream has an answer from
            # where it was sent; without one nothing was, and the server's own is a bare 500.
            if not begun:
                request_id = request_id_of(tuple(scope["headers"]))
                await respond(of_problem(STOPPING, "rejected", request_id), send)
            raise

    async def _serve(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        taken = await self._intake.take(scope, receive, self._at_a_limit)
        match taken:
            case Admissible():  # first, as nearly all are
                await self._execute(taken, scope, receive, send)
            case Gone():
                return
            case Refused():
                await self._refuse(taken, scope, receive, send)
            case Passage():
                await self._pass(taken, scope, send)
            case Recalled():  # nothing is waited for, so nothing is detached
                answer = replay(taken.recall.response, "answer", compared=True)
                self._journal.recalled(taken, answer)
                await respond(answer, send)

    async def _refuse(
        self, refused: Refused, scope: Mapping[str, Any], receive: Receive, send: Send
    ) -> None:
        problem = refused.problem
        if refused.mismatch is not None:
            problem = await self._audit(refused) or problem
        answer = of_problem(problem, "rejected", refused.identity.request_id)
        self._journal.refused(refused, answer)
        if refused.unread:
            await respond_unread(answer, scope, receive, send, asked=refused.asked)
        else:
            await respond(answer, send)

    async def _pass(self, passage: Passage, scope: Mapping[str, Any], send: Send) -> None:
        inflow = passage.inflow
        scope["state"]["streams"] = True  # for the server: from here on something may be sent
        principal = passage.identity.principal
        place = Place(self._streams[passage.policy], principal.tenant if principal else 0)
        work = asyncio.ensure_future(pass_through(passage, place, self._executor.clock))
        hang_up = asyncio.ensure_future(inflow.hung_up())
        request_id, delivering = passage.identity.request_id, False
        try:
            await first_of(work, hang_up)
            if inflow.gone or not work.done():
                return
            answer = work.result()
            if answer.stream is None:
                place.close()  # its connection is free, however slowly the caller reads
            self._journal.passed(passage, answer)
            delivering = True
            if inflow.unread:
                answer, send = _closing(answer), _before_it_is_read(inflow, send)
            head_only = scope["method"] == "HEAD"
            cut_by = await _deliver(answer, send, lambda: hang_up, head_only=head_only)
            if cut_by is not None:
                self._journal.cut_short(request_id, passage.policy, cut_by)
        except asyncio.CancelledError:
            if delivering:
                self._journal.cut_short(request_id, passage.policy, "stop")
            else:
                await respond(of_problem(_PASSAGE_CUT_OFF, "unguarded", request_id), send)
            raise
        finally:
            hang_up.cancel()
            if work.done():
                _let_go(work)
                place.close()
            else:
                work.cancel()  # nobody waits for it: its connection is closed
                work.add_done_callback(lambda _: place.close())

    async def _execute(
        self, taken: Admissible, scope: Mapping[str, Any], receive: Receive, send: Send
    ) -> None:
        flight = self._take_off(taken)  # again: reading the body took its time
        if isinstance(flight, Problem):
            taken.call.held.close()
            await self._refuse(Refused(taken.identity, flight), {}, receive, send)
            return
        taken.call.flight = flight
        gone = asyncio.Event()
        work = self._running.spawn(self._run(taken, gone))
        # One future for both, so that nothing stands between the answer and who waits for it.
        ended = _hang_up(scope, receive)
        work.add_done_callback(partial(_wake, ended))
        hang_up = partial(_hang_up, scope, receive)
        request_id, delivering = taken.identity.request_id, False
        try:
            await ended
            if work.done() and (answer := work.result()) is not None:
                delivering = True
                faults.reach("reply.before")
                cut_by = await _deliver(answer, send, hang_up)
                faults.reach("reply.after")
                if cut_by is not None:
                    self._journal.cut_short(request_id, taken.call.command.policy, cut_by)
        except asyncio.CancelledError:
            # By the server at the end of its drain, or by whatever wraps us. Without an answer of
            # ours the caller would hear a bare 500, which reads as "failed".
            if delivering:
                self._journal.cut_short(request_id, taken.call.command.policy, "stop")
            else:
                await _deliver(_known_by_now(work, request_id), send, hang_up)
            raise
        finally:
            ended.cancel()
            if work.done():
                _let_go(work)
                taken.call.held.close()
            else:
                # From here on nobody hears the answer; the work goes on to its end all the same.
                gone.set()
                work.add_done_callback(lambda _: taken.call.held.close())

    async def _run(self, taken: Admissible, gone: asyncio.Event) -> Answer | None:
        trace, began = Trace(), self._executor.clock()
        try:
            answer = await self._executor.run(taken.call, gone, trace)
        finally:
            taken.call.flight.rest()
        trace.total_s = self._executor.clock() - began
        if answer is None:
            self._journal.abandoned(taken, trace)
            return None
        self._journal.executed(taken, trace, answer, not gone.is_set())
        if gone.is_set() and answer.stream is not None:
            answer.stream.close()
        return answer

    def _at_a_limit(self, tenant: int, rules: Rules) -> Problem | None:
        if self._executor.room.closing:
            return STOPPING
        return self._flights.full(tenant, rules.policy, rules.max_in_flight)

    def _take_off(self, taken: Admissible) -> Flight | Problem:
        command, rules = taken.call.command, taken.call.rules
        if self._executor.room.closing:
            return STOPPING
        return self._flights.take(command.tenant, rules.policy, rules.max_in_flight)


async def _deliver(
    answer: Answer,
    send: Send,
    hang_up: Callable[[], asyncio.Future[None]],
    *,
    head_only: bool = False,
) -> CutBy | None:
    """Respond; a large body is read on only while somebody listens. Says who cut it short."""
    if answer.stream is None:
        await respond(answer, send, head_only=head_only)
        return None
    relay, gone = asyncio.ensure_future(respond(answer, send, head_only=head_only)), hang_up()
    try:
        await first_of(relay, gone)
    finally:
        gone.cancel()
        relay.cancel()  # nothing where it has ended; else its stream is closed on the way out
    try:
        return None if await relay else "upstream"
    except asyncio.CancelledError:
        return "caller"


def _known_by_now(work: asyncio.Task[Answer | None], request_id: str) -> Answer:
    """The answer of a call whose caller is cut off: its own where it has ended already."""
    if work.done() and not work.cancelled() and work.exception() is None:
        answer = work.result()
        if answer is not None:
            return answer
    return of_problem(_CUT_OFF, "unknown", request_id)


def _let_go(work: asyncio.Task[Answer] | asyncio.Task[Answer | None]) -> None:
    """Close what the answer still holds, if it was not relayed to its end."""
    if not work.cancelled() and work.exception() is None:
        answer = work.result()
        if answer is not None and answer.stream is not None:
            answer.stream.close()


def _hang_up(scope: Mapping[str, Any], receive: Receive) -> asyncio.Future[None]:
    """Done when the caller is gone. Our own server says so by itself, which costs no task."""
    told: Callable[[], asyncio.Future[None]] | None = scope.get("state", {}).get("hang_up")
    if told is not None:
        return told()
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    heard = asyncio.ensure_future(_disconnected(receive))
    heard.add_done_callback(partial(_wake, gone))
    gone.add_done_callback(lambda _: heard.cancel())
    return gone


def _wake(waiting: asyncio.Future[None], _: object) -> None:
    if not waiting.done():
        waiting.set_result(None)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def respond_unread(
    answer: Answer, scope: Mapping[str, Any], receive: Receive, send: Send, *, asked: bool
) -> None:
    """Answer before the body is read: at once, then read on so that the caller sees it, and close:
    how much of the body is still to come is unknown (RFC 9112 §9.6).

    A caller that waits for ``100 Continue`` sends no body until ``asked``, so there is none to
    read.
    """
    headers: Headers = tuple(scope["headers"])
    if not announced(headers):
        await respond(answer, send)
        return
    answer = _closing(answer)
    if values(headers, b"expect") and not asked:
        await respond(answer, send)
        return

    await respond(answer, _after(send, lambda: drain(receive)))


def _closing(answer: Answer) -> Answer:
    return replace(answer, headers=(*answer.headers, (b"connection", b"close")))


def _after(send: Send, drained: Callable[[], Awaitable[None]]) -> Send:
    """Hold the end of a response back until its caller has written all of its request."""

    async def held(message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            await send({**message, "more_body": True})
            with suppress(OSError):
                await drained()
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    return held


def _before_it_is_read(inflow: Inflow, send: Send) -> Send:
    """For an answer that came before the end of its request: what follows of that is thrown away
    from the head of the answer on. Not before, or the server would still say ``100 Continue``."""
    after = _after(send, inflow.drained)

    async def leaving(message: Message) -> None:
        await after(message)
        inflow.leave()

    return leaving


STOPPING = Problem(
    "overloaded",
    "Repeat the same request: this gateway process is stopping, and another or the next takes it.",
    retry_after_s=1,
)
_CUT_OFF = Problem(
    "outcome-unknown",
    "Ask again with the same key: this gateway process stops before the outcome is known.",
    retry_after_s=1,
)
_PASSAGE_CUT_OFF = Problem(
    "outcome-unknown",
    "Repeat the same request: this gateway process stops before its answer came.",
    retry="same-key",
    error="proxy_internal_error",
    retry_after_s=1,
)
