"""Jobs and leases as values: what goes into the store of jobs and what comes out of it.

Only references and words travel here; a payload is the bytes of the JSON document that was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Literal, assert_never
from uuid import UUID

__all__ = [
    "PAYLOAD_LIMIT",
    "Cancelled",
    "Complete",
    "End",
    "Ended",
    "Enqueued",
    "Expired",
    "Fail",
    "Finished",
    "HandBack",
    "Held",
    "Job",
    "JobState",
    "Lease",
    "Lost",
    "LostReason",
    "NewJob",
    "NextStage",
    "Reaped",
    "Rejected",
    "Renewed",
    "Terms",
    "digest_of",
    "shown",
]

PAYLOAD_LIMIT = 256 * 1024
"""Bytes of a payload, and of a result: a job carries words and references, not files."""

JobState = Literal["queued", "running", "waiting", "succeeded", "failed", "cancelled"]

LostReason = Literal[
    "expired",  # its time is over
    "taken",  # its entity has a newer lease
    "cancelled",  # an operator ended it
    "ended",  # it was completed, failed or handed back before
]


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to enqueue. ``entity`` ``None``: one of its own, ``job:{id}``. ``priority``: 1 is the
    soonest, 9 the last. ``run_at``, ``give_up_at``: aware, on the database's clock."""

    id: UUID
    key: str
    tool: str
    payload: bytes
    entity: str | None = None
    session: str | None = None
    on_behalf: str | None = None
    model: str | None = None
    provider: str | None = None
    stage: str | None = None
    priority: int = 5
    run_at: datetime | None = None
    give_up_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The job under a key. ``created``: this call, or an earlier try of it, made it; else it is the
    first one, with what became of it. ``same``: tool and payload are equal to that one's."""

    job: UUID
    created: bool
    same: bool
    state: JobState
    result: bytes | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms one tool's jobs may be claimed; from its lease class. ``max_running``,
    ``max_per_user``: of one tenant, ``None`` for no limit."""

    tool: str
    lease_ms: int
    total_ms: int
    attempts: int
    max_running: int | None
    max_per_user: int | None


@dataclass(frozen=True, slots=True)
class Held:
    """What names one lease. The entity is part of it: the stages of a job may have the same fence
    on different entities."""

    entity: str
    job: UUID
    fence: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A job that was claimed. ``remaining_ms`` counts from when the database answered;
    ``total_remaining_ms``: no renewal reaches beyond it. ``attempt``: from 1, of ``max_attempts``.
    ``previous``: the result of the stage before. ``give_up_ms``: until the job's ``give_up_at``."""

    job: UUID
    entity: str
    fence: int
    remaining_ms: int
    total_remaining_ms: int
    attempt: int
    max_attempts: int
    key: str
    tool: str
    session: str | None
    on_behalf: str | None
    model: str | None
    provider: str | None
    stage: str | None
    stage_no: int
    payload: bytes
    previous: bytes | None
    last_error: str | None
    give_up_ms: int | None

    @property
    def held(self) -> Held:
        return Held(self.entity, self.job, self.fence)


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease goes on. Both count from when the database answered."""

    remaining_ms: int
    total_remaining_ms: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease is over."""

    reason: LostReason


@dataclass(frozen=True, slots=True)
class NextStage:
    """What follows a completed stage. ``entity`` ``None``: the job's own, ``job:{id}``. ``wait``:
    only once somebody has approved it."""

    name: str
    entity: str | None = None
    wait: bool = False


@dataclass(frozen=True, slots=True)
class Complete:
    """The work of a lease is done. ``result``: JSON; the job succeeded, or ``next`` begins."""

    lease: Held
    result: bytes
    next: NextStage | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """The work failed. ``retry`` false: no attempt can help. ``delay_ms``: before the next one."""

    lease: Held
    error: str
    retry: bool = True
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class HandBack:
    """The worker goes, and the attempt does not count."""

    lease: Held
    delay_ms: int = 0


End = Complete | Fail | HandBack


@dataclass(frozen=True, slots=True)
class Ended:
    """The end is recorded. ``state``: what the job became by it; ``again``: an earlier try of the
    same end had recorded it."""

    state: JobState
    again: bool


@dataclass(frozen=True, slots=True)
class Rejected:
    """The lease was over before: nothing was done, and a result went to the audit by its digest."""

    reason: LostReason


@dataclass(frozen=True, slots=True)
class Expired:
    """A lease that is over and not recorded as such. ``attempts`` includes it."""

    tenant: int
    lease: Held
    tool: str
    attempts: int
    over_ms: int


@dataclass(frozen=True, slots=True)
class Reaped:
    """The end of an expired lease is recorded. ``state``: what the job became by it."""

    job: UUID
    fence: int
    state: JobState


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job is cancelled, by this call."""


@dataclass(frozen=True, slots=True)
class Finished:
    """There was nothing left to cancel."""

    state: JobState


@dataclass(frozen=True, slots=True)
class Job:
    """A job as an operator sees it, finished or not. ``owner``, ``fence``, ``remaining_ms`` and
    ``beat_ms`` (since the last heartbeat) are those of its lease, if it has one."""

    id: UUID
    key: str
    tool: str
    state: JobState
    entity: str
    stage: str | None
    stage_no: int
    session: str | None
    on_behalf: str | None
    model: str | None
    provider: str | None
    priority: int
    attempts: int
    created_at: datetime
    run_at: datetime | None
    give_up_at: datetime | None
    finished_at: datetime | None
    owner: str | None
    fence: int | None
    remaining_ms: int | None
    beat_ms: int | None
    error: str | None


def shown(stored: str) -> JobState:
    """What a stored state is called outside: where in the queue a job stands is nobody's matter."""
    match stored:
        case "running" | "waiting" | "succeeded" | "failed" | "cancelled":
            return stored
        case _:
            return "queued"


def digest_of(end: End) -> bytes:
    """32 bytes that tell a repeated end from another one. The delay before the next attempt is left
    out: who repeats an end may draw another."""
    match end:
        case Complete(result=result, next=following):
            return _digest(b"completed", result, *_following(following))
        case Fail(error=error, retry=retry):
            return _digest(b"failed", error.encode(), b"retry" if retry else b"")
        case HandBack():
            return _digest(b"handed-back")
        case _:
            assert_never(end)


def _following(stage: NextStage | None) -> tuple[bytes, ...]:
    if stage is None:
        return ()
    entity = b"" if stage.entity is None else b"=" + stage.entity.encode()
    return stage.name.encode(), entity, b"wait" if stage.wait else b""


def _digest(*parts: bytes) -> bytes:
    digest = sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()
