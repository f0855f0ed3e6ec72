"""The routes of jobs in ``/openapi.json``: their bodies, by hand, beside the table of routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from gateway.api import jobs
from gateway.api.door import Route
from gateway.api.jobs_in import BATCH, BEATS
from gateway.core.jobs import DELAY_LIMIT_MS, PAYLOAD_LIMIT, JobState, LostReason
from gateway.core.problems import ProblemType

__all__ = ["REFUSALS", "SCHEMAS", "paths"]

_INT64 = 2**63 - 1

_ALWAYS: tuple[ProblemType, ...] = (
    "unauthenticated",
    "local-only",
    "forbidden",
    "method-not-allowed",
    "body-too-large",
    "overloaded",
    "store-unavailable",
)
_BODY: tuple[ProblemType, ...] = ("body-unreadable", "request-invalid")

REFUSALS: Mapping[str, tuple[ProblemType, ...]] = {
    "enqueue": (*_BODY, "tool-unknown", *_ALWAYS),
    "show": ("request-invalid", "job-unknown", *_ALWAYS),
    "claim": (*_BODY, "tool-unknown", *_ALWAYS, "rows-lost"),
    "heartbeat": (*_BODY, *_ALWAYS),
    "end": (*_BODY, *_ALWAYS),
    "cancel": (*_BODY, "job-unknown", "job-state", *_ALWAYS),
    "retry": (*_BODY, "job-unknown", "job-state", *_ALWAYS),
    "approve": (*_BODY, "job-unknown", "job-state", *_ALWAYS),
    "cancel-session": (*_BODY, *_ALWAYS),
}
"""What each route may refuse with."""


def paths(problems: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """All paths. ``problems``: the responses of each route's refusals, by its name."""
    found: dict[str, Any] = {}
    for route in jobs.ROUTES:
        item = found.setdefault(route.path, {})
        if "{id}" in route.path:
            item["parameters"] = [_ID]
        item[route.method.lower()] = _operation(route, problems[route.name])
    return found


def _operation(route: Route, problems: Mapping[str, Any]) -> dict[str, Any]:
    words = route.name.split("-")
    about = _ABOUT[route.name]
    operation: dict[str, Any] = {
        "operationId": words[0] + "".join(word.capitalize() for word in words[1:]) + "Jobs",
        "summary": about.summary,
        "description": about.repeated,
        "security": [{}, {"gatewayKey": [route.scope]}],
        "responses": {
            status: {
                "description": text,
                "content": {"application/json": {"schema": about.answer}},
            }
            for status, text in about.good.items()
        }
        | dict(problems),
    }
    if about.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": about.body}},
        }
    return operation


class _About:
    """What is said of one route. ``repeated``: what comes of sending it again, e.g. after a lost
    answer."""

    def __init__(
        self,
        summary: str,
        repeated: str,
        body: dict[str, Any] | None,
        answer: dict[str, Any],
        good: dict[str, str] | None = None,
    ) -> None:
        self.summary = summary
        self.repeated = repeated
        self.body = body
        self.answer = answer
        self.good = good or {"200": "Done"}


def _object(
    required: Mapping[str, Any], optional: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}


def _nullable(members: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name: _or_null(schema) for name, schema in members.items()}


def _text(longest: int, shortest: int = 1, **more: Any) -> dict[str, Any]:
    return {"type": "string", "minLength": shortest, "maxLength": longest, **more}


def _list(of: Mapping[str, Any], most: int, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": of, "minItems": 1, "maxItems": most, **more}


def _whole(least: int, most: int = _INT64) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _see(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


# Not format: uuid alone, which a validator may pass over.
_UUID = {
    "type": "string",
    "format": "uuid",
    "pattern": "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$",
}
_TIME = {
    "type": "string",
    "format": "date-time",
    "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
    "([Zz]|[+-][0-9]{2}:[0-9]{2})$",
}
_ID = {"name": "id", "in": "path", "required": True, "schema": _UUID}
_WORKER = _text(255, description="The worker's name for itself, in logs and in the job.")
_REASON = _object({"reason": _text(4_000, description="For the audit.")})
_STATE = {"enum": list(get_args(JobState))}
_KEY_STATE = {"enum": [*get_args(JobState), "forgotten"]}
_LOST = {"enum": list(get_args(LostReason))}
_MS = {"type": "integer", "description": "Milliseconds, from when the database answered."}
_ANY = {"description": f"Any JSON of at most {PAYLOAD_LIMIT} bytes, kept byte for byte."}
_DELAY = {
    "type": ["number", "null"],
    "minimum": 0,
    "maximum": DELAY_LIMIT_MS / 1000,
    "description": "Seconds; makes the delay before the next attempt longer, never shorter.",
}
_LEASE_REFERENCE = _object(
    {
        "job": _UUID,
        "entity": _text(255),
        "fence": {"format": "int64", **_whole(1)},
        "tool": _text(64),
        "attempt": _whole(1, 2**31 - 1),
    },
    _nullable({"model": _text(128, 0), "provider": _text(128, 0)}),
) | {
    "description": "A lease as its claim gave it; to be sent back as it came. job, entity and "
    "fence name it, the rest chooses backoff and metric labels.",
}
_NEW_JOB = _object(
    {"tool": _text(64, description="One of tools.toml.")},
    {
        "payload": _ANY | {"default": {}},
        **_nullable(
            {
                "key": _text(255, description="One job for each key; the id where it is left out."),
                "entity": _see("Entity"),
                "session": _text(255),
                "on_behalf": _text(255),
                "model": _text(128, 0),
                "provider": _text(128, 0),
                "stage": _text(64),
                "priority": _whole(1, 9) | {"default": 5},
                "run_at": _TIME,
                "give_up_at": _TIME,
                "id": _UUID,
            }
        ),
    },
)
_ENDS = {
    "oneOf": [
        _object(
            {"lease": _see("LeaseReference"), "how": {"const": "completed"}},
            {
                "result": _ANY | {"default": None},
                "next": _or_null(
                    _object(
                        {"name": _text(64)},
                        {
                            "entity": _or_null(_see("Entity")),
                            "wait": {"type": ["boolean", "null"], "default": False},
                        },
                    )
                ),
            },
        ),
        _object(
            {
                "lease": _see("LeaseReference"),
                "how": {"const": "failed"},
                "error": {"type": "string", "description": "Its last 4,096 characters are kept."},
            },
            {"retry": {"type": ["boolean", "null"], "default": True}, "delay_s": _DELAY},
        ),
        _object(
            {"lease": _see("LeaseReference"), "how": {"const": "handed-back"}},
            {"delay_s": _DELAY},
        ),
    ]
}
_LEASE = _object(
    {
        "lease": _see("LeaseReference"),
        "remaining_ms": _MS,
        "total_remaining_ms": _MS,
        "key": {"type": "string"},
        **{
            name: {"type": ["string", "null"]}
            for name in ("session", "on_behalf", "stage", "last_error")
        },
        "stage_no": _whole(1),
        "max_attempts": _whole(1),
        "payload": _ANY,
        "previous": {"description": "The result of the stage before, byte for byte; else null."},
        "give_up_ms": {"type": ["integer", "null"]},
        "terms": _object(
            {
                **{
                    name: {"type": "number"}
                    for name in ("lease_s", "heartbeat_s", "jitter_s", "stage_limit_s")
                },
                "misses": _whole(1),
            }
        ),
    }
)
_JOB = _object(
    {
        "id": _UUID,
        **{name: {"type": "string"} for name in ("key", "tool", "entity")},
        "state": _STATE,
        **{
            name: {"type": ["string", "null"]}
            for name in ("stage", "session", "on_behalf", "model", "provider", "owner", "error")
        },
        "stage_no": _whole(1),
        "priority": _whole(1, 9),
        "attempts": _whole(0),
        "created_at": _TIME,
        **_nullable({"run_at": _TIME, "give_up_at": _TIME, "finished_at": _TIME}),
        **{name: {"type": ["integer", "null"]} for name in ("fence", "remaining_ms", "beat_ms")},
        "payload": _ANY,
        "result": {"description": "Of the last stage that was completed; else null."},
    }
)
_NOW_IN = _object({"job": _UUID, "state": _STATE})

SCHEMAS: Mapping[str, Any] = {
    "LeaseReference": _LEASE_REFERENCE,
    "NewJob": _NEW_JOB,
    "End": _ENDS,
    "Lease": _LEASE,
    "Job": _JOB,
}

_ABOUT: Mapping[str, _About] = {
    "enqueue": _About(
        "Enqueue jobs, all or none",
        "Repeat it after a lost answer: a known key answers with the first job and what became of "
        "it. A job without key and id is made again each time. same: false, with status 200, where "
        "the key is known with another tool or payload, or its job is forgotten: nothing was made, "
        "so look at it.",
        _object({"jobs": _list(_see("NewJob"), BATCH)}),
        _object(
            {
                "jobs": _list(
                    _object(
                        {
                            "job": _UUID,
                            "created": {"type": "boolean"},
                            "same": {"type": "boolean"},
                            "state": _KEY_STATE,
                        },
                        {"result": {}, "error": {"type": "string"}},
                    ),
                    BATCH,
                )
            }
        ),
        {"200": "All of them were known", "201": "At least one was made"},
    ),
    "show": _About("Show a job", "It changes nothing.", None, _object({"job": _see("Job")})),
    "claim": _About(
        "Lease jobs, best first",
        "claim: a new uuid for each wish of one worker. Repeat it with the same uuid and worker "
        "after a lost answer: the leases of the first that are not over come back.",
        _object(
            {
                "worker": _WORKER,
                "claim": _UUID,
                "limit": _whole(1, BATCH),
                "tools": _list(_text(64), BATCH),
            }
        ),
        _object({"leases": {"type": "array", "items": _see("Lease"), "maxItems": BATCH}}),
    ),
    "heartbeat": _About(
        "Renew a worker's leases",
        "Repeat it as you like: each time a lease that is not over lasts its full time again.",
        _object({"worker": _WORKER, "leases": _list(_see("LeaseReference"), BEATS)}),
        _object(
            {
                "leases": _list(
                    {
                        "oneOf": [
                            _object({"job": _UUID, "remaining_ms": _MS, "total_remaining_ms": _MS}),
                            _object({"job": _UUID, "lost": _LOST}),
                        ]
                    },
                    BEATS,
                )
            }
        ),
    ),
    "end": _About(
        "End leases: completed, failed, handed back",
        "Repeat it after a lost answer: the very same end of a lease hears what the first did, "
        "with again: true. Of a lease that is over nothing is accepted.",
        _object({"worker": _WORKER, "ends": _list(_see("End"), BATCH)}),
        _object(
            {
                "ends": _list(
                    {
                        "oneOf": [
                            _object({"job": _UUID, "state": _STATE, "again": {"type": "boolean"}}),
                            _object({"job": _UUID, "rejected": _LOST}),
                        ]
                    },
                    BATCH,
                )
            }
        ),
    ),
    "cancel": _About(
        "Cancel an unfinished job; a lease on it ends at once",
        "Repeat it after a lost answer: a cancelled job is cancelled.",
        _REASON,
        _NOW_IN,
    ),
    "retry": _About(
        "Queue a failed or cancelled job again",
        "Repeated after a lost answer it answers 409 job-state, whose state says that it was done.",
        _REASON,
        _NOW_IN,
    ),
    "approve": _About(
        "Let a waiting stage run",
        "Repeated after a lost answer it answers 409 job-state, whose state says that it was done.",
        _REASON,
        _NOW_IN,
    ),
    "cancel-session": _About(
        "Cancel the unfinished jobs of a session",
        "Repeat it while left is above 0: some are locked, or there are more than one call takes.",
        _object({"session": _text(255), "reason": _text(4_000)}),
        _object(
            {
                "cancelled": {"type": "array", "items": _UUID},
                "left": _whole(0),
            }
        ),
    ),
}
