"""Safe requests that no command lists: streamed through, unrecorded and unpromised."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.answers import incomplete, no_answer, not_sent
from gateway.core.model import Stage
from gateway.core.settle import NotSent, Unknown, sent_of
from gateway.proxy.answer import Answer, of_problem, relay
from gateway.proxy.intake import Passage
from gateway.upstream import Deadlines

__all__ = ["pass_through"]

_CONNECT_S = 5.0
_FIRST_BYTE_S = 7.0
_LAST_S = 3600.0
"""A large download over a slow line; a caller that is bored hangs up earlier."""


async def pass_through(passage: Passage, clock: Callable[[], float]) -> Answer:
    """Send once and relay; a safe request may be repeated by its caller, never by us."""
    now = clock()
    deadlines = Deadlines(now + _CONNECT_S, now + _FIRST_BYTE_S, now + _LAST_S)
    transfer = await passage.client.send(passage.request, deadlines, keep_limit=0)
    exchange = transfer.exchange
    request_id = passage.identity.request_id
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
    unknown = Unknown(fault, sent_of(exchange.stage))
    return of_problem(no_answer(unknown), "unguarded", request_id)
