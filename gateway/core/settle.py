"""What an exchange proves: the table of outcomes.

Classification is by the furthest stage reached, never by the kind of error: only proof that
nothing left, or a status by which the upstream itself says so, gives a key back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

from gateway.core.headers import LOOP, values
from gateway.core.model import Exchange, Fault, Response, Rules, Stage
from gateway.core.value import value

__all__ = [
    "EVIDENCE_LIMIT",
    "LOOP_DETECTED",
    "Answered",
    "NotExecuted",
    "NotSent",
    "Outcome",
    "Sent",
    "Unknown",
    "after_resend",
    "classify",
    "sent_of",
]

EVIDENCE_LIMIT = 2048
"""Bytes of an ambiguous response's body kept as evidence: an error page's first screen."""

LOOP_DETECTED = 508
"""The status by which a gateway refuses a loop (RFC 5842 §7.2)."""

Sent = Literal["no", "yes", "unknown"]


@dataclass(frozen=True, slots=True)
class NotSent:
    """No byte of the request left; the key is given back."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class NotExecuted:
    """The upstream answered with a status that says it did nothing; relay and give back.

    ``complete`` is false where the body was cut short: the status still proves it.
    """

    response: Response
    complete: bool


@value(frozen=True, slots=True)
class Answered:
    """The final response. ``kept``: its body is complete and within the keep limit.

    ``complete`` is false where the body was cut short: the command was executed, its answer is
    not whole, so the caller gets no truncated copy of it.
    """

    response: Response
    kept: bool
    complete: bool


@dataclass(frozen=True, slots=True)
class Unknown:
    """The effect may or may not have happened. ``fault``: why no final response came, or
    ``evidence``: an ambiguous response, its body cut to ``EVIDENCE_LIMIT``."""

    fault: Fault | None
    sent: Sent
    evidence: Response | None = None


Outcome = NotSent | NotExecuted | Answered | Unknown


def classify(exchange: Exchange, rules: Rules, hop: bytes | None = None) -> Outcome:
    """Judge one exchange by its stage and, where a status was seen, by the policy's lists.
    ``hop``: how a gateway that refuses it as a loop names it (``headers.handed_on``)."""
    if exchange.stage < Stage.SENDING_HEADERS:
        return NotSent(exchange.fault or "closed")
    if exchange.response is None:
        return Unknown(exchange.fault or "closed", sent_of(exchange.stage))
    return _by_status(exchange, exchange.response, rules, hop)


def _by_status(exchange: Exchange, response: Response, rules: Rules, hop: bytes | None) -> Outcome:
    whole = exchange.stage is Stage.BODY_COMPLETE
    if response.status in rules.not_executed:
        return NotExecuted(response, complete=whole or exchange.oversize)
    if response.status in rules.ambiguous:
        start = Response(response.status, response.headers, response.body[:EVIDENCE_LIMIT])
        return Unknown(exchange.fault, "yes", start)
    refused = _looped(response)
    if refused and refused == [hop]:
        return NotExecuted(response, complete=whole or exchange.oversize)
    if refused:
        return _said(response)
    return Answered(response, kept=whole, complete=whole or exchange.oversize)


def _looped(response: Response) -> list[bytes]:
    """Whom a gateway refused with this answer, because the request had come through it before.

    It refuses before it remembers or sends anything. If what it refused is our own request, nobody
    in between did anything either: whoever acts on a request on the way would have put its own name
    behind ours, and whoever copies our fields into a request of its own asks for something else.
    (A proxy that leaves ``Via`` and the target as they are, and acts by itself, looks like none.)
    If it is another's, that one handed our request on, and what else it did it alone knows. As an
    answer it would be replayed for ever, long after the route is mended.
    """
    return values(response.headers, LOOP) if response.status == LOOP_DETECTED else []


def after_resend(outcome: Outcome, rules: Rules) -> Answered | Unknown:
    """What is proven about a command by an attempt that took over from another.

    That this attempt was not sent, or not executed, says nothing about the first; and a status by
    which the upstream reports the key as in use says nothing final about either.
    """
    match outcome:
        case Answered(response) if response.status in rules.resend_conflict:
            return _said(response)
        case Answered() | Unknown():
            return outcome
        case NotExecuted(response):
            return _said(response)
        case NotSent(fault):
            return Unknown(fault, "unknown")
        case _:
            assert_never(outcome)


def _said(response: Response) -> Unknown:
    start = Response(response.status, response.headers, response.body[:EVIDENCE_LIMIT])
    return Unknown(None, "yes", start)


def sent_of(stage: Stage) -> Sent:
    """What may be said of the request's bytes at this stage.

    ``unknown`` covers the write itself: the socket was handed bytes, how many left is not known.
    """
    match stage:
        case Stage.CONNECTING | Stage.CONNECTED:
            return "no"
        case Stage.SENDING_HEADERS | Stage.SENDING_BODY:
            return "unknown"
        case Stage.SENT | Stage.STATUS_SEEN | Stage.BODY_COMPLETE:
            return "yes"
        case _:
            assert_never(stage)
