"""Questions about jobs: from JSON to values, or all that is wrong with them at once.

Documents inside them (payload, result) are kept as they were sent, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from gateway.core.asking import Form, object_in
from gateway.core.jobs import (
    DELAY_LIMIT_MS,
    REASON_LIMIT,
    Complete,
    End,
    Fail,
    HandBack,
    Held,
    NewJob,
    NextStage,
    mistakes_in,
)
from gateway.core.keys import Refusal
from gateway.core.model import Headers
from gateway.core.spans import slices
from gateway.core.template import Invalid, check_value
from gateway.jobs.values import EndOf, Reference

__all__ = [
    "BATCH",
    "BEATS",
    "Beat",
    "Claim",
    "Ends",
    "OfSession",
    "read_beat",
    "read_claim",
    "read_ends",
    "read_jobs",
    "read_reason",
    "read_session",
]

BATCH = 100
"""Jobs to enqueue, claim or end at once, and tools of one claim."""

BEATS = 1_000
"""Leases of one heartbeat: far more jobs than one worker process runs."""

_WORKER = 255
_ENTITY = 255
_TOOL = _STAGE = 64
_NAME = 128
_ATTEMPT = 2**31 - 1
_DELAY_LIMIT_S = DELAY_LIMIT_MS / 1000


@dataclass(frozen=True, slots=True)
class Claim:
    """``claim``: a new uuid for each wish."""

    worker: str
    claim: UUID
    limit: int
    tools: list[str]


@dataclass(frozen=True, slots=True)
class Beat:
    worker: str
    leases: list[Reference]


@dataclass(frozen=True, slots=True)
class Ends:
    worker: str
    ends: list[EndOf]


@dataclass(frozen=True, slots=True)
class OfSession:
    session: str
    reason: str


def read_jobs(raw: bytes, headers: Headers, new_id: Callable[[], UUID]) -> list[NewJob] | Refusal:
    """The jobs to enqueue. ``new_id`` makes one for each that has none."""
    members = object_in(raw, headers, '{"jobs": [{"tool": "charge", "payload": {}}]}')
    if isinstance(members, Refusal):
        return members
    form = Form(members)
    cuts = slices(raw, "jobs", {"payload"})
    jobs: list[NewJob] = []
    ids, keys = _Once("id"), _Once("key")
    for number, each in form.forms("jobs", BATCH):
        job = _job(each, cuts[number].get("payload", b"{}"), new_id)
        ids.see(each, job.id)
        keys.see(each, job.key)
        jobs.append(job)
    form.close()
    return form.refusal() or jobs


def _job(form: Form, payload: bytes, new_id: Callable[[], UUID]) -> NewJob:
    form.passed("payload")
    ident = form.optional_uuid("id") or new_id()
    job = NewJob(
        id=ident,
        key=form.optional_text("key", _ENTITY) or str(ident),
        tool=form.text("tool", _TOOL),
        payload=payload,
        entity=_entity(form),
        session=form.optional_text("session", _ENTITY),
        on_behalf=form.optional_text("on_behalf", _ENTITY),
        model=form.optional_text("model", _NAME, shortest=0),
        provider=form.optional_text("provider", _NAME, shortest=0),
        stage=form.optional_text("stage", _STAGE),
        priority=form.number("priority", 1, 9, default=5),
        run_at=form.time("run_at"),
        give_up_at=form.time("give_up_at"),
    )
    form.close()
    if form.sound:
        for mistake in mistakes_in(job):
            form.wrong(*mistake.split(": ", 1))
    return job


def read_claim(raw: bytes, headers: Headers) -> Claim | Refusal:
    members = object_in(
        raw, headers, '{"worker": "w1", "claim": "a new uuid", "limit": 10, "tools": ["charge"]}'
    )
    if isinstance(members, Refusal):
        return members
    form = Form(members)
    found = Claim(
        worker=form.text("worker", _WORKER),
        claim=form.uuid("claim"),
        limit=form.number("limit", 1, BATCH),
        tools=form.texts("tools", BATCH, _TOOL),
    )
    form.close()
    return form.refusal() or found


def read_beat(raw: bytes, headers: Headers) -> Beat | Refusal:
    members = object_in(raw, headers, '{"worker": "w1", "leases": [a lease of a claim]}')
    if isinstance(members, Refusal):
        return members
    form = Form(members)
    worker = form.text("worker", _WORKER)
    leases = []
    entities = _Once("entity")
    for _, each in form.forms("leases", BEATS):
        leases.append(_reference(each))
        entities.see(each, leases[-1].held.entity)
    form.close()
    return form.refusal() or Beat(worker, leases)


def read_ends(raw: bytes, headers: Headers) -> Ends | Refusal:
    members = object_in(
        raw,
        headers,
        '{"worker": "w1", "ends": [{"lease": a lease, "how": "completed", "result": {}}]}',
    )
    if isinstance(members, Refusal):
        return members
    form = Form(members)
    cuts = slices(raw, "ends", {"result"})
    worker = form.text("worker", _WORKER)
    ends = []
    jobs = _Once("lease.job")
    for number, each in form.forms("ends", BATCH):
        ends.append(_end(each, cuts[number].get("result", b"null")))
        jobs.see(each, ends[-1].reference.held.job)
    form.close()
    return form.refusal() or Ends(worker, ends)


def read_reason(raw: bytes, headers: Headers) -> str | Refusal:
    members = object_in(raw, headers, '{"reason": "the order was withdrawn"}')
    if isinstance(members, Refusal):
        return members
    form = Form(members)
    found = form.text("reason", REASON_LIMIT)
    form.close()
    return form.refusal() or found


def read_session(raw: bytes, headers: Headers) -> OfSession | Refusal:
    members = object_in(
        raw, headers, '{"session": "chat-17", "reason": "the user has closed the chat"}'
    )
    if isinstance(members, Refusal):
        return members
    form = Form(members)
    found = OfSession(form.text("session", _ENTITY), form.text("reason", REASON_LIMIT))
    form.close()
    return form.refusal() or found


def _reference(form: Form | None) -> Reference:
    if form is None:  # a mistake that is remembered
        return Reference(Held("", UUID(int=0), 1), "", 1, None, None)
    found = Reference(
        held=Held(
            entity=form.text("entity", _ENTITY),
            job=form.uuid("job"),
            fence=form.number("fence", 1),
        ),
        tool=form.text("tool", _TOOL),
        attempt=form.number("attempt", 1, _ATTEMPT),
        model=form.optional_text("model", _NAME, shortest=0),
        provider=form.optional_text("provider", _NAME, shortest=0),
    )
    form.close()
    return found


def _end(form: Form, result: bytes) -> EndOf:
    reference = _reference(form.form("lease"))
    held = reference.held
    end: End
    match form.choice("how"):
        case "completed":
            form.passed("result")
            end = Complete(held, result, _next(form.form("next", required=False)))
        case "failed":
            error = form.long_text("error")
            retry = form.flag("retry", default=True)
            end = Fail(held, error, retry, _delay_ms(form))
        case "handed-back":
            end = HandBack(held, _delay_ms(form))
        case _:
            form.wrong("how", 'send "completed", "failed" or "handed-back"')
            form.passed("result", "next", "error", "retry", "delay_s")
            end = HandBack(held)
    form.close()
    if form.sound:
        for mistake in mistakes_in(end):
            form.wrong(*mistake.split(": ", 1))
    return EndOf(reference, end)


def _next(form: Form | None) -> NextStage | None:
    if form is None:
        return None
    found = NextStage(
        name=form.text("name", _STAGE),
        entity=_entity(form),
        wait=form.flag("wait", default=False),
    )
    form.close()
    return found


def _delay_ms(form: Form) -> int:
    return round(form.seconds("delay_s", _DELAY_LIMIT_S) * 1000)


def _entity(form: Form) -> str | None:
    """By the rules for entities everywhere: another could never be the one of a command."""
    entity = form.optional_text("entity", _ENTITY)
    if entity is not None:
        checked = check_value(entity, "it")
        if isinstance(checked, Invalid):
            form.wrong("entity", checked.reason)
            return None
    return entity


class _Once:
    """Values that a batch may name once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: set[object] = set()

    def see(self, form: Form, value: object) -> None:
        if value in self._seen and form.sound:
            form.wrong(self._name, "another of this batch has it; name each once")
        self._seen.add(value)
