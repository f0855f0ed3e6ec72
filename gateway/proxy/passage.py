"""Safe requests that no command lists: streamed through, unrecorded and unpromised.

Both bodies flow at the pace of whoever takes them: one piece of each is held, the rest waits with
whoever sends it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gateway.core.answers import incomplete, no_answer, not_sent
from gateway.core.model import Stage
from gateway.core.problems import Problem
from gateway.core.settle import NotSent, Unknown, sent_of
from gateway.limits import BODY_S, PACE
from gateway.proxy.answer import Answer, of_problem, relay
from gateway.proxy.intake import Passage
from gateway.proxy.streams import Place
from gateway.upstream import Deadlines

__all__ = ["pass_through"]

_CONNECT_S = 5.0
_FIRST_BYTE_S = 7.0
_QUIET_S = 300.0
"""Longest pause of an upstream until its answer begins: a report that takes five times what
balancers wait for (60 s) still passes, one that never comes gives its connection back."""
_LAST_S = 3600.0
"""A large download over a slow line, or a stream of events, whose readers come again by themselves;
a caller that is bored hangs up earlier."""


async def pass_through(passage: Passage, place: Place, clock: Callable[[], float]) -> Answer:
    """Send once and answer when the head of the response is in; a safe request may be repeated by
    its caller, never by us. Whoever calls closes ``place`` when the answer is over."""
    now = clock()
    request_id = passage.identity.request_id
    if not await place.take(_CONNECT_S):
        return of_problem(not_sent(NotSent("pool")), "unguarded", request_id)
    deadlines = Deadlines(now + _CONNECT_S, now + _FIRST_BYTE_S, now + _LAST_S, _QUIET_S)
    transfer = await passage.client.send(passage.request, deadlines, keep_limit=None)
    exchange = transfer.exchange
    if exchange.response is not None:
        if exchange.oversize:
            return relay(exchange.response, "unguarded", transfer)
        transfer.close()
        if exchange.stage is Stage.BODY_COMPLETE:
            return relay(exchange.response, "unguarded")
        problem = incomplete(exchange.response, repeatable=True)
        return of_problem(problem, "unguarded", request_id)
    transfer.close()
    fault = exchange.fault or "closed"
    if exchange.stage < Stage.SENDING_HEADERS:
        return of_problem(not_sent(NotSent(fault)), "unguarded", request_id)
    sent = sent_of(exchange.stage)
    if passage.inflow.slow:
        return of_problem(replace(_TOO_SLOW, sent=sent), "unguarded", request_id)
    unknown = Unknown(fault, sent)
    return of_problem(no_answer(unknown), "unguarded", request_id)


_TOO_SLOW = Problem(
    "request-invalid", f"Send the body without a pause of {BODY_S:.0f} s, {PACE} bytes a second."
)
