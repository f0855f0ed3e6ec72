"""What callers may do with jobs. Each is one statement of the store, with the rules of
``tools.toml`` before it and the journal behind it.

All raise ``StoreUnavailable`` or ``AnswerLost`` as the store does, and may be repeated after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from uuid import UUID

from gateway.core.jobs import (
    DELAY_LIMIT_MS,
    Cancelled,
    End,
    Ended,
    Enqueued,
    Fail,
    Finished,
    Lost,
    NewJob,
    Rejected,
    Renewed,
)
from gateway.core.leases import LeaseClass, backoff_ms
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.jobs.journal import Journal
from gateway.jobs.values import (
    Asker,
    CancelledSession,
    Claimed,
    EndOf,
    NoSuchJob,
    NowIn,
    Reference,
    Shown,
    Store,
    UnknownTool,
    WrongState,
)
from gateway.policy.tools import Tools

__all__ = ["SESSION_LIMIT", "Service"]

SESSION_LIMIT = 500
"""Jobs of a session that one call cancels: each is a commit of 1 to 5 ms, so a second or two."""

_LOCKED_LIMIT = 2
"""Jobs that may keep such a call waiting for 2 s each, because somebody has them locked."""


class Service:
    """See the module. ``chance``: 0 to below 1, anew at each call."""

    def __init__(
        self, store: Store, tools: Tools, journal: Journal, chance: Callable[[], float]
    ) -> None:
        self._store = store
        self._tools = tools
        self._journal = journal
        self._chance = chance

    async def enqueue(self, asker: Asker, jobs: list[NewJob]) -> list[Enqueued] | UnknownTool:
        """All or none."""
        unknown = self._unknown(job.tool for job in jobs)
        if unknown is not None:
            return unknown
        answers = await self._store.enqueue(asker.tenant, jobs)
        for job, answer in zip(jobs, answers, strict=True):
            self._journal.enqueued(asker, job, answer)
        return answers

    async def claim(
        self, asker: Asker, limit: int, claim: UUID, tools: list[str]
    ) -> list[Claimed] | UnknownTool:
        unknown = self._unknown(tools)
        if unknown is not None:
            return unknown
        terms = self._tools.terms(tools)
        owner = asker.worker or asker.principal
        leases = await self._store.claim(asker.tenant, limit, owner, claim, terms)
        for lease in leases:
            self._journal.claimed(asker, lease)
        return [Claimed(lease, self._class(lease.tool)) for lease in leases]

    async def heartbeat(self, asker: Asker, leases: list[Reference]) -> list[Renewed | Lost]:
        answers = await self._store.renew(asker.tenant, [each.held for each in leases])
        self._journal.beaten(asker, leases, answers)
        return answers

    async def end(self, asker: Asker, ends: list[EndOf]) -> list[Ended | Rejected]:
        drawn = [self._delayed(each) for each in ends]
        answers = await self._store.end(asker.tenant, asker.principal, drawn)
        self._journal.ended(asker, ends, answers)
        return answers

    async def cancel(self, asker: Asker, job: UUID, reason: str) -> NowIn | WrongState | NoSuchJob:
        match await self._store.cancel(asker.tenant, job, asker.principal, reason):
            case Cancelled():
                self._journal.cancelled(asker, job)
                return NowIn("cancelled")
            case Finished("cancelled"):
                return NowIn("cancelled")
            case Finished(state):
                return WrongState(state)
            case None:
                return NoSuchJob()

    async def cancel_session(self, asker: Asker, session: str, reason: str) -> CancelledSession:
        """Cancel what of a session is unfinished, each job by a commit of its own, so that one that
        is locked holds up no other. Raises only where nothing could be cancelled."""
        jobs = await self._store.of_session(asker.tenant, session)
        done: list[UUID] = []
        failed: list[StoreUnavailable | AnswerLost] = []
        tried = 0
        for job in jobs[:SESSION_LIMIT]:
            if len(failed) == _LOCKED_LIMIT:
                break
            tried += 1
            try:
                answer = await self._store.cancel(asker.tenant, job, asker.principal, reason)
            except (StoreUnavailable, AnswerLost) as error:
                failed.append(error)
                continue
            if isinstance(answer, Cancelled):
                self._journal.cancelled(asker, job)
                done.append(job)
        if failed and not done:
            raise failed[0]
        return CancelledSession(tuple(done), len(jobs) - tried + len(failed))

    async def retry(self, asker: Asker, job: UUID, reason: str) -> NowIn | WrongState | NoSuchJob:
        if await self._store.retry(asker.tenant, job, asker.principal, reason):
            return NowIn("queued")
        return await self._why_not(asker, job)

    async def approve(self, asker: Asker, job: UUID, reason: str) -> NowIn | WrongState | NoSuchJob:
        if await self._store.approve(asker.tenant, job, asker.principal, reason):
            return NowIn("queued")
        return await self._why_not(asker, job)

    async def show(self, asker: Asker, job: UUID) -> Shown | None:
        return await self._store.find(asker.tenant, job)

    async def _why_not(self, asker: Asker, job: UUID) -> WrongState | NoSuchJob:
        found = await self._store.find(asker.tenant, job)
        return NoSuchJob() if found is None else WrongState(found.job.state)

    def _delayed(self, each: EndOf) -> End:
        """The end with the delay that its tool's class says, or a longer one that was asked for."""
        end = each.end
        if not isinstance(end, Fail):
            return end
        reference = each.reference
        own_ms = backoff_ms(self._class(reference.tool), reference.attempt, self._chance())
        return replace(end, delay_ms=min(max(end.delay_ms, own_ms), DELAY_LIMIT_MS))

    def _class(self, tool: str) -> LeaseClass:
        return self._tools.lease_class(tool)

    def _unknown(self, names: Iterable[str]) -> UnknownTool | None:
        for name in names:
            if name not in self._tools.by_name:
                said = self._tools.unknown(name)
                return UnknownTool(f"{said} Correct it." if said.endswith("?") else f"{said}.")
        return None
