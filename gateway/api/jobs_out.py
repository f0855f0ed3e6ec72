"""Answers about jobs: from values to JSON, with the documents inside them as they were sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TypeAlias, assert_never
from uuid import UUID

from gateway.core.jobs import Ended, Enqueued, Job, Lost, Rejected, Renewed
from gateway.core.leases import LeaseClass
from gateway.jobs.values import Claimed, EndOf, Reference, Shown

__all__ = ["Out", "beats", "document", "ended", "enqueued", "leases", "shown"]


@dataclass(frozen=True, slots=True)
class _Raw:
    """JSON that is written as it is."""

    text: bytes


Out: TypeAlias = (
    "bool | int | float | str | UUID | datetime | _Raw | Sequence[Out] | Mapping[str, Out] | None"
)


_HOLE = "\0"
"""Stands for a ``_Raw`` while the rest is written. No text that comes here has U+0000, and one that
has it spelled out is written with another backslash before it."""

_WRITTEN = b'"\\u0000"'


def document(value: Out) -> bytes:
    """The JSON document of a value; times are RFC 3339 in UTC."""
    raw: list[bytes] = []

    def other(found: _Raw | UUID | datetime) -> str:
        if not isinstance(found, _Raw):
            return _text(found)
        raw.append(found.text)
        return _HOLE

    # In one call, by the encoder in C: a hundred leases are some three thousand values.
    written = json.dumps(value, allow_nan=False, separators=(",", ":"), default=other)
    first, *others = written.encode("ascii").split(_WRITTEN)
    pieces = [first]
    for text, following in zip(raw, others, strict=True):
        pieces += (text, following)
    return b"".join(pieces)


def enqueued(answers: Sequence[Enqueued]) -> Out:
    return {"jobs": [_enqueued(each) for each in answers]}


def _enqueued(answer: Enqueued) -> dict[str, Out]:
    found: dict[str, Out] = {
        "job": answer.job,
        "created": answer.created,
        "same": answer.same,
        "state": answer.state,
    }
    if answer.result is not None:
        found["result"] = _Raw(answer.result)
    if answer.error is not None:
        found["error"] = answer.error
    return found


def leases(claimed: Sequence[Claimed]) -> Out:
    return {"leases": [_claimed(each) for each in claimed]}


def _claimed(claimed: Claimed) -> Out:
    lease = claimed.lease
    return {
        "lease": {
            "job": lease.job,
            "entity": lease.entity,
            "fence": lease.fence,
            "tool": lease.tool,
            "attempt": lease.attempt,
            "model": lease.model,
            "provider": lease.provider,
        },
        "remaining_ms": lease.remaining_ms,
        "total_remaining_ms": lease.total_remaining_ms,
        "key": lease.key,
        "session": lease.session,
        "on_behalf": lease.on_behalf,
        "stage": lease.stage,
        "stage_no": lease.stage_no,
        "max_attempts": lease.max_attempts,
        "payload": _Raw(lease.payload),
        "previous": None if lease.previous is None else _Raw(lease.previous),
        "last_error": lease.last_error,
        "give_up_ms": lease.give_up_ms,
        "terms": _terms(claimed.terms),
    }


def _terms(terms: LeaseClass) -> Out:
    return {
        "lease_s": terms.lease_s,
        "heartbeat_s": terms.heartbeat_s,
        "jitter_s": terms.jitter_s,
        "misses": terms.misses,
        "stage_limit_s": terms.stage_limit_s,
    }


def beats(asked: Sequence[Reference], answers: Sequence[Renewed | Lost]) -> Out:
    return {"leases": [_beat(*each) for each in zip(asked, answers, strict=True)]}


def _beat(reference: Reference, answer: Renewed | Lost) -> Out:
    match answer:
        case Renewed(remaining_ms, total_remaining_ms):
            return {
                "job": reference.held.job,
                "remaining_ms": remaining_ms,
                "total_remaining_ms": total_remaining_ms,
            }
        case Lost(reason):
            return {"job": reference.held.job, "lost": reason}
        case _:
            assert_never(answer)


def ended(asked: Sequence[EndOf], answers: Sequence[Ended | Rejected]) -> Out:
    return {"ends": [_ended(*each) for each in zip(asked, answers, strict=True)]}


def _ended(asked: EndOf, answer: Ended | Rejected) -> Out:
    job = asked.reference.held.job
    match answer:
        case Ended(state, again):
            return {"job": job, "state": state, "again": again}
        case Rejected(reason):
            return {"job": job, "rejected": reason}
        case _:
            assert_never(answer)


def shown(found: Shown) -> Out:
    about: dict[str, Out] = {each.name: getattr(found.job, each.name) for each in fields(Job)}
    about["payload"] = _Raw(found.payload)
    about["result"] = None if found.result is None else _Raw(found.result)
    return {"job": about}


def _text(value: UUID | datetime) -> str:
    if isinstance(value, UUID):
        return str(value)
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
