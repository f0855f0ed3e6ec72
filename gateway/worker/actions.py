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
    "entity-mismatch": "refused",
    "no-policy": "refused",
    "tool-unknown": "refused",
    "job-unknown": "refused",
    "job-state": "refused",
    "method-not-allowed": "refused",
    "body-too-large": "refused",
    "fence-required": "refused",
    "fence-stale": "stop",
    "fence-not-held": "stop",
    "key-reused": "refused",
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
    "loop-detected": "refused",
}

_OF_RETRY: Mapping[object, Action] = {"same-key": "retry", "wait": "wait"}
"""For a type that a later release of the gateway added: its ``retry`` member says what helps."""

_FINAL = frozenset({"applied", "replayed"})


@dataclass(frozen=True, slots=True)
class Settled:
    """The upstream's answer, fresh or from the record."""


@dataclass(frozen=True, slots=True)
class Act:
    """What to do. ``type``: of the problem, or ``not-executed`` where the upstream itself said that
    it did nothing. ``maybe``: this very command may be on its way, or done."""

    action: Action
    type: str
    detail: str
    maybe: bool = False


@dataclass(frozen=True, slots=True)
class Strange:
    """Not an answer of the gateway's, e.g. a balancer's error page: nothing is known."""


def read_answer(outcome: str | None, status: int, document: object) -> Settled | Act | Strange:
    """What an answer says. ``outcome``: its ``Gateway-Outcome``; ``document``: its body where that
    is ``application/problem+json``, else ``None``."""
    if outcome is None:
        return Strange()
    type_ = _type_of(document)
    # An upstream behind a gateway of its own may answer with a problem document; as the final
    # answer of a command it is relayed like any other. Cut short, it is this gateway's own word.
    if type_ is None or (outcome in _FINAL and type_ not in _OWN):
        if outcome in _FINAL or outcome == "unguarded":
            return Settled()
        if outcome == "not-executed":
            return Act("retry", outcome, f"the upstream answered {status}, and did nothing")
        return Strange()
    assert isinstance(document, dict)
    return Act(
        _action(type_, document.get("retry")),
        type_,
        str(document.get("detail", "")),
        maybe=type_ in ("in-flight", "outcome-unknown") or document.get("sent") == "unknown",
    )


_OWN = frozenset({"response-incomplete"})
"""Problems that the gateway answers for a command that was carried out."""


def _type_of(document: object) -> str | None:
    name = document.get("type") if isinstance(document, dict) else None
    if not isinstance(name, str) or not name.startswith(PREFIX):
        return None
    return name.removeprefix(PREFIX)


def _action(type_: str, retry: object) -> Action:
    if retry == "same-key":  # e.g. an answer cut short whose status says that nothing was done
        return "retry"
    if type_ in TYPES:
        return ACTIONS[cast(ProblemType, type_)]
    return _OF_RETRY.get(retry, "refused")
