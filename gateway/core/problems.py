"""Every error the gateway itself makes: the closed list of problem types (RFC 9457).

``TYPES`` is the table; ``docs/wire.md`` is checked against it. A problem says in one sentence what
to do, whether anything was sent, and whether a retry may help.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.core.settle import Sent

__all__ = ["PREFIX", "TYPES", "Kind", "Member", "Problem", "ProblemType", "Retry", "body_of"]

PREFIX = "urn:fencegate:problem:"
"""A stable URI reference, and none that promises a page on a host we do not run."""

Retry = Literal["same-key", "wait", "never"]

ProblemType = Literal[
    "key-missing",
    "key-invalid",
    "fence-invalid",
    "entity-missing",
    "body-unreadable",
    "request-invalid",
    "unauthenticated",
    "forbidden",
    "local-only",
    "entity-mismatch",
    "no-policy",
    "tool-unknown",
    "job-unknown",
    "job-state",
    "no-command",
    "evidence-refused",
    "method-not-allowed",
    "body-too-large",
    "fence-required",
    "fence-stale",
    "fence-not-held",
    "key-reused",
    "key-expired",
    "response-not-retained",
    "in-flight",
    "outcome-unknown",
    "entity-unresolved",
    "entity-busy",
    "entity-leased",
    "not-sent",
    "response-incomplete",
    "overloaded",
    "store-unavailable",
    "rows-lost",
    "loop-detected",
]


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table. ``error``: the RFC 9209 proxy error type."""

    status: int
    title: str
    sent: Sent
    retry: Retry
    error: str = "http_request_denied"


TYPES: Mapping[ProblemType, Kind] = {
    "key-missing": Kind(400, "The request carries no idempotency key", "no", "never"),
    "key-invalid": Kind(400, "The idempotency key is malformed", "no", "never"),
    "fence-invalid": Kind(400, "The fence is malformed", "no", "never"),
    "entity-missing": Kind(400, "The request does not name its entity", "no", "never"),
    "body-unreadable": Kind(400, "The body cannot be read as what it says it is", "no", "never"),
    "request-invalid": Kind(400, "The request is malformed", "no", "never"),
    "unauthenticated": Kind(401, "No valid gateway key", "no", "never"),
    "forbidden": Kind(403, "This gateway key may not do that", "no", "never"),
    "local-only": Kind(403, "Without gateway keys only this machine is served", "no", "never"),
    "entity-mismatch": Kind(403, "The named entity is not the request's entity", "no", "never"),
    "no-policy": Kind(404, "No policy covers this request", "no", "never"),
    "tool-unknown": Kind(400, "There is no such tool", "no", "never"),
    "job-unknown": Kind(404, "There is no such job", "no", "never"),
    "job-state": Kind(409, "The job is in a state that does not allow it", "no", "never"),
    "no-command": Kind(404, "No command has this key", "no", "never"),
    "evidence-refused": Kind(409, "The evidence does not decide the command", "no", "never"),
    "method-not-allowed": Kind(405, "The path does not take this method", "no", "never"),
    "body-too-large": Kind(413, "The request body is over the limit", "no", "never"),
    "fence-required": Kind(428, "The policy requires a fence", "no", "never"),
    "fence-stale": Kind(412, "The fence is stale", "no", "never"),
    "fence-not-held": Kind(412, "The fence is not the one now held", "no", "never"),
    "key-reused": Kind(422, "The idempotency key names another command", "no", "never"),
    "key-expired": Kind(410, "The key is older than the memory of keys", "unknown", "never"),
    "response-not-retained": Kind(410, "Executed; its response is not kept", "yes", "never"),
    "in-flight": Kind(409, "The same command is in flight", "unknown", "wait"),
    "outcome-unknown": Kind(
        504, "The outcome is unknown", "unknown", "wait", "http_response_timeout"
    ),
    "entity-unresolved": Kind(409, "An earlier command of the entity is unknown", "no", "wait"),
    "entity-busy": Kind(409, "An earlier command of the entity is in flight", "no", "wait"),
    "entity-leased": Kind(409, "A job holds the entity", "no", "wait"),
    "not-sent": Kind(502, "Nothing was sent", "no", "same-key", "destination_unavailable"),
    "response-incomplete": Kind(
        502, "The response was cut short", "yes", "never", "http_response_incomplete"
    ),
    "overloaded": Kind(
        503, "The gateway is at a limit", "no", "same-key", "connection_limit_reached"
    ),
    "store-unavailable": Kind(
        503, "The gateway's database is unavailable", "no", "same-key", "proxy_internal_error"
    ),
    "rows-lost": Kind(
        503, "The database lost what it had acknowledged", "no", "wait", "proxy_internal_error"
    ),
    "loop-detected": Kind(
        508, "The request came through this gateway before", "no", "never", "proxy_loop_detected"
    ),
}

Member = str | int | bool | None | Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Problem:
    """One error answer. ``sent`` and ``retry`` default to the type's own. ``error`` refines the
    ``Proxy-Status``; ``""`` leaves it out, a complete response being no proxy error.
    ``retry_after_s`` is set only where waiting helps."""

    type: ProblemType
    detail: str
    sent: Sent | None = None
    retry: Retry | None = None
    error: str | None = None
    retry_after_s: int | None = None
    received_status: int | None = None
    members: Mapping[str, Member] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        return TYPES[self.type]


def body_of(problem: Problem, request_id: str) -> bytes:
    """The ``application/problem+json`` document; ``request_id`` leads to its log line."""
    kind = problem.kind
    document: dict[str, Member] = {
        "type": PREFIX + problem.type,
        "title": kind.title,
        "status": kind.status,
        "detail": problem.detail,
        "sent": problem.sent or kind.sent,
        "retry": problem.retry or kind.retry,
        "request_id": request_id,
        **problem.members,
    }
    return json.dumps(document, ensure_ascii=True).encode("ascii")
