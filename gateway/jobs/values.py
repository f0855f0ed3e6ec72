"""What is asked here of jobs, and what comes of it, beside the words of ``gateway.core.jobs``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from gateway.core.jobs import (
    Cancelled,
    End,
    Ended,
    Enqueued,
    Expired,
    Finished,
    Held,
    Job,
    JobState,
    Lease,
    LeaseStats,
    Lost,
    NewJob,
    Reaped,
    Rejected,
    Renewed,
    Terms,
)
from gateway.core.leases import LeaseClass

__all__ = [
    "Asker",
    "CancelledSession",
    "Claimed",
    "EndOf",
    "NoSuchJob",
    "NowIn",
    "Reference",
    "Shown",
    "Store",
    "UnknownTool",
    "WrongState",
]


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, and under which id its log lines stand. ``worker``: the name it gave itself."""

    tenant: int
    tenant_name: str
    principal: str
    request_id: str
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A lease as its worker names it. Only ``held`` names it; the rest chooses backoff and labels,
    so that neither costs a look-up."""

    held: Held
    tool: str
    attempt: int
    model: str | None
    provider: str | None


@dataclass(frozen=True, slots=True)
class EndOf:
    """The end of a lease. Its delay is what the worker asked for, e.g. a provider's Retry-After."""

    reference: Reference
    end: End


@dataclass(frozen=True, slots=True)
class Claimed:
    """A lease, and the class by which its worker keeps it."""

    lease: Lease
    terms: LeaseClass


@dataclass(frozen=True, slots=True)
class UnknownTool:
    """A tool that ``tools.toml`` does not have. ``detail``: which, and the mend."""

    detail: str


@dataclass(frozen=True, slots=True)
class NoSuchJob:
    """The tenant has no job of that id."""


@dataclass(frozen=True, slots=True)
class WrongState:
    """The job is in ``state``, which does not allow what was asked."""

    state: JobState


@dataclass(frozen=True, slots=True)
class NowIn:
    """It was done, now or before, and the job is in ``state``."""

    state: JobState


@dataclass(frozen=True, slots=True)
class CancelledSession:
    """``left``: unfinished jobs of the session that this call did not come to, or that somebody
    has locked: ask again."""

    cancelled: tuple[UUID, ...]
    left: int


class Shown(Protocol):
    """``gateway.store.jobs.Shown``."""

    @property
    def job(self) -> Job: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def result(self) -> bytes | None: ...


class Store(Protocol):
    """What is asked of ``gateway.store.jobs.JobStore``; its docstrings are the contract."""

    async def enqueue(self, tenant: int, jobs: list[NewJob], /) -> list[Enqueued]: ...
    async def claim(
        self, tenant: int, limit: int, owner: str, claim: UUID, terms: list[Terms], /
    ) -> list[Lease]: ...
    async def renew(self, tenant: int, held: list[Held], /) -> list[Renewed | Lost]: ...
    async def end(
        self, tenant: int, principal: str, ends: list[End], /
    ) -> list[Ended | Rejected]: ...
    async def expired(self, limit: int, /) -> list[Expired]: ...
    async def reap(self, expired: list[tuple[Expired, int]], /) -> list[Reaped]: ...
    async def give_up(self, limit: int, /) -> list[tuple[int, UUID]]: ...
    async def leases(self, limit: int, /) -> list[LeaseStats]: ...
    async def cancel(
        self, tenant: int, job: UUID, principal: str, reason: str, /
    ) -> Cancelled | Finished | None: ...
    async def of_session(self, tenant: int, session: str, /) -> list[UUID]: ...
    async def approve(self, tenant: int, job: UUID, principal: str, reason: str, /) -> bool: ...
    async def retry(self, tenant: int, job: UUID, principal: str, reason: str, /) -> bool: ...
    async def find(self, tenant: int, job: UUID, /) -> Shown | None: ...
