"""Decisions and outcomes as problem documents: the sentence, and what a caller may do next."""

from __future__ import annotations

import math
from typing import assert_never

from gateway.core.decide import (
    Known,
    Lapsed,
    RejectExpired,
    RejectNotHeld,
    RejectNotRetained,
    RejectReused,
    RejectStale,
    RejectUnknown,
    RejectUnresolved,
    Repeat,
    SettledBy,
    WaitForEntity,
    WaitForKey,
)
from gateway.core.issuing import EntityLeased
from gateway.core.model import Fault, Response
from gateway.core.problems import Member, Problem
from gateway.core.recheck import RECHECK_S
from gateway.core.settle import NotSent, Unknown

__all__ = [
    "Refusal",
    "entity_leased",
    "incomplete",
    "no_answer",
    "not_sent",
    "outcome_unknown",
    "refusal",
    "rows_lost",
]

Refusal = (
    RejectStale
    | RejectNotHeld
    | RejectReused
    | RejectNotRetained
    | WaitForKey
    | RejectUnknown
    | RejectExpired
    | RejectUnresolved
    | WaitForEntity
    | Lapsed
    | Repeat
)

# RFC 9209 §2.3; what has no type of its own there is a connection that ended.
_PROXY_ERRORS: dict[Fault, str] = {
    "dns": "dns_error",
    "prohibited": "destination_ip_prohibited",
    "refused": "connection_refused",
    "connect-timeout": "connection_timeout",
    "tls": "tls_protocol_error",
    "pool": "connection_limit_reached",
    "paused": "proxy_internal_error",
    "closed": "connection_terminated",
    "reset": "connection_terminated",
    "timeout": "http_response_timeout",
    "protocol": "http_protocol_error",
    "headers-too-large": "http_response_header_section_size",
}

_WHY_NOT_SENT: dict[Fault, str] = {
    "dns": "the upstream's name has no address",
    "prohibited": "the upstream's name has an address that its policy does not allow "
    "(allow_networks)",
    "refused": "the upstream refused the connection",
    "connect-timeout": "the upstream accepted no connection in time",
    "tls": "the TLS handshake with the upstream failed",
    "pool": "no connection to the upstream came free in time",
    "paused": "the gateway was held up past its send deadline",
}


_WORDS: dict[SettledBy, str] = {
    "resolved": "a person resolved",
    "probe": "a status query of the upstream shows",
    "report": "it was reported to the gateway that the upstream counts",
}
"""On whose word a command is executed that got no answer."""


def refusal(decision: Refusal, again_s: int = RECHECK_S) -> Problem:
    """The answer to a decision that forwards and replays nothing; a wait that is over included.
    ``again_s``: until asking again for an unknown outcome helps."""
    match decision:
        case RejectStale() | RejectNotHeld():
            return _fence(decision)
        case RejectReused() | RejectExpired():
            return _key(decision)
        case RejectNotRetained():
            return _not_retained(decision)
        case RejectUnknown():
            return _unknown_again(decision, again_s)
        case WaitForKey(remaining_ms):
            return Problem(
                "in-flight",
                "Repeat the same request later: an earlier attempt of this command is on its way.",
                retry_after_s=_seconds(remaining_ms),
            )
        case RejectUnresolved(other):
            return Problem(
                "entity-unresolved",
                "Wait until the outcome of the entity's earlier command is resolved: it is "
                "unknown, and this one must not overtake it.",
                retry_after_s=RECHECK_S,
                members={"blocked_by": {"key": other.key, "state": other.state}},
            )
        case WaitForEntity(other):
            return Problem(
                "entity-busy",
                "Repeat the same request later: an earlier command of the entity is in flight.",
                retry_after_s=_seconds(other.remaining_ms),
                members={"blocked_by": {"key": other.key, "state": other.state}},
            )
        case Lapsed():
            return not_sent(NotSent("paused"))
        case Repeat():
            return Problem("overloaded", "Repeat the same request: the key kept changing hands.")
        case _:
            assert_never(decision)


def _key(decision: RejectReused | RejectExpired) -> Problem:
    if isinstance(decision, RejectExpired):
        return Problem(
            "key-expired",
            "Do not repeat it: this key was made longer ago than keys are remembered, so whether "
            "its command was executed is forgotten; look at the upstream. A key that was not "
            "made for this command, but is the id of something older, needs a word before it.",
        )
    return Problem(
        "key-reused",
        "Repeat the first request as it was, if this is a retry of it; take a new key only "
        "for another wish. This key already names a command with another method, path, "
        "query, entity, listed header or body.",
        members={"first": _first(decision.first)},
    )


def _fence(decision: RejectStale | RejectNotHeld) -> Problem:
    fence, mark = decision.fence, decision.mark
    if isinstance(decision, RejectStale):
        return Problem(
            "fence-stale",
            f"Stop: fence {fence} is below the entity's high-water mark {mark}, so another worker "
            "owns it now; give the work up.",
            members={"fence": fence, "high_water_mark": mark},
        )
    match decision.held:
        case None:
            why = "this entity takes only fences that are issued here, and none has been issued yet"
        case 0:
            why = "nobody holds the entity now"
        case held:
            why = f"the one now held is {held}"
    return Problem(
        "fence-not-held",
        f"Stop: fence {fence} was not issued to you for this work, since {why}; claim the "
        "work again, or have a fence issued.",
        members={"fence": fence, "high_water_mark": mark, "held": decision.held},
    )


def entity_leased(found: EntityLeased) -> Problem:
    """No fence is issued: it would take the right away from the job that holds the entity."""
    return Problem(
        "entity-leased",
        f"Ask again later: job {found.job} holds the entity, and a fence now would take it away.",
        # A lease may be renewed, so its end is a guess; half a minute is the usual heartbeat twice.
        retry_after_s=max(1, min(math.ceil(found.remaining_ms / 1000), RECHECK_S)),
        members={"job": str(found.job), "remaining_ms": found.remaining_ms},
    )


def rows_lost(reason: str) -> Problem:
    """The database forgot what it had acknowledged; ``reason`` says what, and the mend."""
    return Problem(
        "rows-lost",
        f"Repeat the same request later: nothing was sent for this request, because {reason}.",
        retry_after_s=RECHECK_S,
    )


def not_sent(outcome: NotSent) -> Problem:
    """Nothing left the gateway, and the key is given back."""
    why = _WHY_NOT_SENT.get(outcome.fault, "the connection ended before the first byte")
    return Problem(
        "not-sent",
        f"Repeat the same request: nothing was sent, because {why}.",
        error=_PROXY_ERRORS[outcome.fault],
        retry_after_s=1,
    )


def no_answer(outcome: Unknown) -> Problem:
    """No answer to a safe request: repeating it does no harm."""
    return Problem(
        "outcome-unknown",
        "Repeat the same request: it was sent, and no answer came.",
        sent=outcome.sent,
        retry="same-key",
        error=_PROXY_ERRORS[outcome.fault] if outcome.fault else None,
        retry_after_s=1,
    )


def outcome_unknown(outcome: Unknown, again_s: int = RECHECK_S) -> Problem:
    """The first answer to a command whose outcome became unknown just now. ``again_s``: until
    asking again helps."""
    evidence = outcome.evidence
    if evidence is None:
        return Problem(
            "outcome-unknown",
            "Do not send this command under another key: it may have been executed, and no "
            "answer came. Ask again with the same key, or have it resolved.",
            sent=outcome.sent,
            error=_PROXY_ERRORS[outcome.fault] if outcome.fault else "http_response_timeout",
            retry_after_s=again_s,
        )
    return Problem(
        "outcome-unknown",
        f"Do not send this command under another key: the upstream answered {evidence.status}, "
        "which does not say whether it was executed. Ask again with the same key, or have it "
        "resolved.",
        sent="yes",
        error="",
        retry_after_s=again_s,
        received_status=evidence.status,
        members={"upstream": _evidence(evidence)},
    )


def incomplete(response: Response, *, repeatable: bool = False) -> Problem:
    """The answer was cut short, so no part of it is relayed. ``repeatable``: its status says that
    nothing was executed, or the request was a safe one; else it is recorded, and counts as
    executed. Whether it was, nobody knows: the answer may have come before the request's end, which
    was then not sent."""
    upstream: dict[str, Member] = {"upstream": {"status": response.status}}
    if repeatable:
        return Problem(
            "response-incomplete",
            f"Repeat the same request: its response (status {response.status}) was cut short.",
            retry="same-key",
            retry_after_s=1,
            received_status=response.status,
            members=upstream,
        )
    return Problem(
        "response-incomplete",
        f"Do not repeat it: the upstream answered {response.status}, so the command counts as "
        "executed, but its response was cut short; read the result from the upstream.",
        received_status=response.status,
        members=upstream,
    )


def _not_retained(decision: RejectNotRetained) -> Problem:
    word = _WORDS.get(decision.settled_by)
    if word is not None and decision.status is None:
        return Problem(
            "response-not-retained",
            f"Do not repeat it: {word} this command as executed; there is no response.",
            members={"resolved": "executed", **_compared(decision.compared)},
        )
    return Problem(
        "response-not-retained",
        f"Do not repeat it: the command was executed (status {decision.status}), but its response "
        "is not kept; read the result from the upstream.",
        members={"upstream": {"status": decision.status}, **_compared(decision.compared)},
    )


def _unknown_again(decision: RejectUnknown, again_s: int) -> Problem:
    status = decision.evidence_status
    members: dict[str, Member] = dict(_compared(decision.compared))
    if status is not None:
        members["upstream"] = {"status": status}
    return Problem(
        "outcome-unknown",
        "Do not send this command under another key: an earlier attempt may have been executed. "
        "Ask again later with the same key, or have it resolved.",
        sent="yes" if status is not None else "unknown",
        retry_after_s=again_s,
        received_status=status,
        members=members,
    )


def _compared(compared: bool) -> dict[str, Member]:
    return {} if compared else {"fingerprint": "not-compared"}


def _first(first: Known) -> dict[str, str | int | None]:
    return {"state": first.state, "status": first.status}


def _evidence(evidence: Response) -> dict[str, str | int | None]:
    # Evidence, not a relay: whatever the bytes are, a reader sees text.
    return {"status": evidence.status, "body_start": evidence.body.decode("utf-8", "replace")}


def _seconds(remaining_ms: int) -> int:
    """A first look after a second is cheap; a command in flight is rarely at its deadline."""
    return max(1, min(math.ceil(remaining_ms / 1000), 5))
