"""What an answer to a command means to the worker: one table for the gateway's problem types, and
the rules for everything else that may come back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from gateway.core.problems import PREFIX, TYPES, ProblemType

__all__ = ["ACTIONS", "Act", "Action", "Settled", "Strange", "read_answer"]

Action = Literal[
    "retry",  # send the same request again, now
    "wait",  # send the same request again, later
    "stop",  # the lease is lost
    "unknown",  # it may have happened
    "refused",  # no repeat helps
    "executed",  # it happened, and its response is not there
]

ACTIONS: Mapping[ProblemType, Action] = {
    "key-missing": "refused",
    "key-invalid": "refused",
    "fence-invalid": "refused",
    "entity-missing": "refused",
    "body-unreadable": "refused",
    "request-invalid": "refused",
    # An operator's matter, mended without a new job: the job is to be there when it is.
    "unauthenticated": "wait",
    "forbidden": "refused",
    "local-only": "refused",
    "entity-mismatch": "refused",
    "no-policy": "refused",
    "tool-unknown": "refused",
    "job-unknown": "refused",
    "job-state": "refused",
    "no-command": "refused",
    "evidence-refused": "refused",
    "method-not-allowed": "refused",
    "body-too-large": "refused",
    "fence-required": "refused",
    "fence-stale": "stop",
    "fence-not-held": "stop",
    "key-reused": "refused",
    # Nobody can find out any more, so to wait for an outcome would be to wait for ever.
    "key-expired": "refused",
    "response-not-retained": "executed",
    "in-flight": "wait",
    # Asking again helps once a person, or late bytes, decided: later than a worker should wait.
    "outcome-unknown": "unknown",
    "entity-unresolved": "wait",
    "entity-busy": "wait",
    "entity-leased": "wait",
    "not-sent": "retry",
    "response-incomplete": "executed",
    "overloaded": "retry",
    "store-unavailable": "retry",
    "rows-lost": "wait",
    "loop-detected": "refused",
}

_OF_RETRY: Mapping[object, Action] = {"same-key": "retry", "wait": "wait"}
"""For a type that a later release of the gateway added: its ``retry`` member says what helps."""

_MADE_HERE = frozenset({"rejected", "not-sent", "unknown"})
"""Outcomes of answers that the gateway itself made."""

_OF_KEY = frozenset({"not-sent", "entity-busy", "entity-unresolved"})
"""Problems that come after the key was looked up: nothing has happened under it."""

_UNGUARDED = frozenset({"not-sent", "outcome-unknown"})
"""Problems of a safe request that got no answer. An upstream may send the same; then asking it
again does no harm either."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The upstream's answer, fresh or from the record."""


@dataclass(frozen=True, slots=True)
class Act:
    """What to do. ``type``: of the problem, or ``not-executed`` where the upstream itself said that
    it did nothing. ``maybe``: this very command may be on its way, or done. ``undone``: nothing has
    happened under its key."""

    action: Action
    type: str
    detail: str
    maybe: bool = False
    undone: bool = False


@dataclass(frozen=True, slots=True)
class Strange:
    """Not an answer of the gateway's, e.g. a balancer's error page: nothing is known."""


def read_answer(outcome: str | None, status: int, document: object) -> Settled | Act | Strange:
    """What an answer says. ``outcome``: its ``Gateway-Outcome``; ``document``: its body where that
    is ``application/problem+json``, else ``None``.

    An upstream behind a gateway of its own may answer with a problem document. Only the outcome,
    which no upstream can set, tells whose word it is.
    """
    type_ = _type_of(document)
    match outcome:
        case "applied" if type_ == "response-incomplete":
            return _act("executed", type_, document)
        case "applied" | "replayed":
            return Settled()
        case "unguarded":
            return _act("retry", type_, document) if type_ in _UNGUARDED else Settled()
        case "not-executed":
            told = f"the upstream answered {status}, and did nothing"
            return Act("retry", "not-executed", told, undone=True)
        case _ if outcome in _MADE_HERE and type_ is not None:
            return _act(_action(type_, _member(document, "retry")), type_, document)
        case _:
            return Strange()


def _act(action: Action, type_: str | None, document: object) -> Act:
    sent = _member(document, "sent")
    maybe = type_ in ("in-flight", "outcome-unknown") or sent == "unknown"
    undone = type_ in _OF_KEY and sent == "no"
    return Act(action, type_ or "", str(_member(document, "detail") or ""), maybe, undone)


def _member(document: object, name: str) -> object:
    return document.get(name) if isinstance(document, dict) else None


def _type_of(document: object) -> str | None:
    name = _member(document, "type")
    if not isinstance(name, str) or not name.startswith(PREFIX):
        return None
    return name.removeprefix(PREFIX)


def _action(type_: str, retry: object) -> Action:
    if retry == "same-key":  # e.g. an answer cut short whose status says that nothing was done
        return "retry"
    if type_ in TYPES:
        return ACTIONS[cast(ProblemType, type_)]
    return _OF_RETRY.get(retry, "refused")
