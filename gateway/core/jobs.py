"""Jobs and leases as values: what goes into the store of jobs and what comes out of it.

Only references and words travel here; a payload is the bytes of the JSON document that was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Literal, assert_never
from uuid import UUID

__all__ = [
    "DELAY_LIMIT_MS",
    "ERROR_LIMIT",
    "PAYLOAD_LIMIT",
    "REASON_LIMIT",
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
    "KeyState",
    "Lease",
    "LeaseStats",
    "Lost",
    "LostReason",
    "NewJob",
    "NextStage",
    "Reaped",
    "Rejected",
    "Renewed",
    "Terms",
    "cleaned",
    "digest_of",
    "mistakes_in",
    "shown",
]

PAYLOAD_LIMIT = 256 * 1024
"""Bytes of a payload, and of a result: a job carries words and references, not files."""

ERROR_LIMIT = 4_096
"""Characters of an error that are kept: its end, where a traceback says what happened."""

DELAY_LIMIT_MS = 604_800_000
"""Longest delay before an attempt: a week, as in ``tools.toml``."""

REASON_LIMIT = 4_000
"""Characters of an operator's reason: with what is put before it, as long as an error."""

_YEARS = range(1970, 9999)
"""In which ``run_at`` and ``give_up_at`` lie: every language can hold these, in every time zone."""

JobState = Literal["queued", "running", "waiting", "succeeded", "failed", "cancelled"]

KeyState = JobState | Literal["forgotten"]
"""What became of the job of a key: also that it is remembered no more, while its key still is."""

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
    first one, with what became of it. ``same``: tool and payload are equal to that one's; false of
    a forgotten one, of which nobody can tell."""

    job: UUID
    created: bool
    same: bool
    state: KeyState
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
    model: str | None = None
    provider: str | None = None


@dataclass(frozen=True, slots=True)
class LeaseStats:
    """Leases of one tool, model and provider. ``live``: not over. ``beat_s``: the longest since a
    heartbeat; ``remaining_s``: the shortest that is left, below 0 where an end is not recorded."""

    tool: str
    model: str | None
    provider: str | None
    live: int
    beat_s: float
    remaining_s: float


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
            return _digest(
                b"failed", error.encode(errors="surrogatepass"), b"retry" if retry else b""
            )
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


def cleaned(error: str) -> str:
    """An error as the database can hold it. A worker that fails must be able to say so, whatever a
    library put into its message."""
    kept = error[-ERROR_LIMIT:].replace("\0", "\ufffd")
    return kept.encode(errors="replace").decode()


def mistakes_in(what: NewJob | End) -> list[str]:
    """Why the database could not hold it; each names the mend."""
    match what:
        case NewJob():
            return _in_new(what)
        case Complete(result=result, next=following):
            found = _size("result", result)
            if following is not None:
                found += _text("next.name", following.name, 64)
                found += _text("next.entity", following.entity, 255)
            return found
        case Fail(delay_ms=delay_ms) | HandBack(delay_ms=delay_ms):
            if 0 <= delay_ms <= DELAY_LIMIT_MS:
                return []
            return [f"delay_ms: {delay_ms} is not within 0 to {DELAY_LIMIT_MS}"]
        case _:
            assert_never(what)


def _in_new(job: NewJob) -> list[str]:
    found = _size("payload", job.payload)
    for name, value, longest in (
        ("key", job.key, 255),
        ("tool", job.tool, 64),
        ("entity", job.entity, 255),
        ("session", job.session, 255),
        ("on_behalf", job.on_behalf, 255),
        ("stage", job.stage, 64),
    ):
        found += _text(name, value, longest)
    for name, value in (("model", job.model), ("provider", job.provider)):
        found += _text(name, value, 128, shortest=0)
    if not 1 <= job.priority <= 9:
        found.append(f"priority: {job.priority} is not within 1 to 9")
    for name, at in (("run_at", job.run_at), ("give_up_at", job.give_up_at)):
        if at is not None and not _is_job_time(at):
            found.append(f"{name}: give a time with its zone, in the years 1970 to 9998")
    return found


def _is_job_time(at: datetime) -> bool:
    """As ``gateway.is_job_time`` in SQL."""
    try:
        return at.tzinfo is not None and at.astimezone(UTC).year in _YEARS
    except OverflowError:  # in UTC it lies before the year 1, or behind 9999
        return False


def _size(name: str, value: bytes) -> list[str]:
    if len(value) <= PAYLOAD_LIMIT:
        return []
    return [f"{name}: {len(value)} bytes are more than {PAYLOAD_LIMIT}; send a reference"]


def _text(name: str, value: str | None, longest: int, *, shortest: int = 1) -> list[str]:
    if value is None:
        return []
    if not shortest <= len(value) <= longest:
        return [f"{name}: {len(value)} characters are not within {shortest} to {longest}"]
    if value != cleaned(value):
        return [f"{name}: take out U+0000 and lone surrogates"]
    return []
