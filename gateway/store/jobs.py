"""Jobs and leases: the port between whoever works and the database.

Every method is one statement with one commit, and may be repeated after ``AnswerLost``: the second
finds what the first did. All raise ``StoreUnavailable`` or ``AnswerLost`` as ``Database.fetch``
does, and ``ValueError`` for what the database could not hold. The loser of a deadlock, or of a race
with retention, did nothing and is repeated here, twice.

A batch of ends that waited too long is repeated one by one, so that one entity which somebody's own
transaction has locked holds up no other.

Batches are of one tenant. Results come back in the order of what was asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg

from gateway import faults
from gateway.core.jobs import (
    REASON_LIMIT,
    Cancelled,
    Complete,
    End,
    Ended,
    Enqueued,
    Expired,
    Fail,
    Finished,
    HandBack,
    Held,
    Job,
    Lease,
    LeaseStats,
    Lost,
    NewJob,
    Reaped,
    Rejected,
    Renewed,
    Terms,
    cleaned,
    digest_of,
    mistakes_in,
    shown,
)
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.store.database import Database
from gateway.store.doubts import Asked
from gateway.store.queries import load
from gateway.store.witness import Witness

__all__ = ["CLAIM_LIMIT", "JobStore", "Shown"]

_SQL = load("jobs")

CLAIM_LIMIT = 100
"""Jobs that one claim takes at most: as many payloads as fit into a statement of 2 s."""

_LOST_OUT = ("40P01", "40001")
"""Deadlock; and an enqueue of a key that retention forgot just then. Nothing was done."""

_TIMED_OUT, _TAKEN = "57014", "23505"

_TRIES = 3
"""Of one statement that loses out; a deadlock takes the second after which the server looks."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One job with its documents. ``result``: of the last stage that was completed."""

    job: Job
    payload: bytes
    result: bytes | None


class JobStore:
    """See the module."""

    def __init__(self, database: Database, witness: Witness | None = None) -> None:
        """``witness``: as for ``CommandStore``, before each claim, whose fences it remembers."""
        self._database = database
        self._witness = witness

    async def enqueue(self, tenant: int, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Enqueue; a known key answers with the first job and what became of it. ``ValueError``
        where an id is that of a job with another key."""
        _refuse_mistakes(jobs)
        faults.reach("enqueue.before")
        try:
            rows = await self._enqueue(tenant, jobs)
        except StoreUnavailable as error:
            if error.code == _TAKEN:
                raise ValueError(
                    "id: it is the id of a job with another key; take a new uuid, or that key"
                ) from error
            raise
        faults.reach("enqueue.committed")
        return [
            Enqueued(
                job=row["job"],
                created=row["job"] == job.id and row["state"] != "forgotten",
                same=row["same"],
                state="forgotten" if row["state"] == "forgotten" else shown(row["state"]),
                result=row["result"],
                error=row["error"],
            )
            for job, row in zip(jobs, rows, strict=True)
        ]

    async def _enqueue(self, tenant: int, jobs: Sequence[NewJob]) -> Sequence[asyncpg.Record]:
        return await self._fetch(
            _SQL["enqueue"],
            tenant,
            [j.id for j in jobs],
            [j.key for j in jobs],
            [j.tool for j in jobs],
            [j.session for j in jobs],
            [j.on_behalf for j in jobs],
            [j.model for j in jobs],
            [j.provider for j in jobs],
            [j.stage for j in jobs],
            [j.entity for j in jobs],
            [j.payload for j in jobs],
            [j.priority for j in jobs],
            [j.run_at for j in jobs],
            [j.give_up_at for j in jobs],
        )

    async def claim(
        self, tenant: int, limit: int, owner: str, claim: UUID, terms: Sequence[Terms]
    ) -> list[Lease]:
        """Lease up to ``limit`` jobs of these tools, best first. ``claim``: a new uuid for each
        wish; repeated by the same owner, the leases of the first that are not over come back."""
        if not 1 <= limit <= CLAIM_LIMIT:
            raise ValueError(f"a claim takes 1 to {CLAIM_LIMIT} jobs, not {limit}")
        if len({t.tool for t in terms}) != len(terms):
            raise ValueError("a claim names each tool once")
        faults.reach("claim.before")
        rows = await self._fetch_from(
            self._database if self._witness is None else self._witness,
            _SQL["claim"],
            *(tenant, limit, owner, claim),
            [t.tool for t in terms],
            [t.lease_ms for t in terms],
            [t.total_ms for t in terms],
            [t.attempts for t in terms],
            [t.max_running for t in terms],
            [t.max_per_user for t in terms],
        )
        faults.reach("claim.committed")
        leases = [Lease(*row) for row in rows]
        if self._witness is not None:
            for lease in leases:
                self._witness.mark(tenant, lease.entity, lease.fence, issued=True)
        return leases

    async def renew(self, tenant: int, held: Sequence[Held]) -> list[Renewed | Lost]:
        """A worker's heartbeat for all its leases."""
        if len({h.entity for h in held}) != len(held):
            raise ValueError("an entity has one lease, so a heartbeat names it once")
        faults.reach("renew.before")
        rows = await self._fetch(
            _SQL["renew"],
            tenant,
            [h.entity for h in held],
            [h.job for h in held],
            [h.fence for h in held],
        )
        faults.reach("renew.committed")
        return [
            Lost(row["lost"])
            if row["lost"] is not None
            else Renewed(row["remaining_ms"], row["total_remaining_ms"])
            for row in rows
        ]

    async def end(self, tenant: int, principal: str, ends: Sequence[End]) -> list[Ended | Rejected]:
        """End leases: complete, fail, hand back. ``principal``: who sent them, for the audit of
        results that came too late."""
        if len({e.lease.job for e in ends}) != len(ends):
            raise ValueError("a job has one lease, so a batch ends it once")
        _refuse_mistakes(ends)
        try:
            return await self._end(tenant, principal, ends)
        except StoreUnavailable as error:
            if error.code != _TIMED_OUT or len(ends) == 1:
                raise
        answers: list[Ended | Rejected] = []
        failures: list[StoreUnavailable | AnswerLost] = []
        for each in ends:
            try:
                answers += await self._end(tenant, principal, [each])
            except (StoreUnavailable, AnswerLost) as error:
                failures.append(error)
        if failures:
            raise failures[0]  # once all were tried; those that are done will say so, ``again``
        return answers

    async def _end(
        self, tenant: int, principal: str, ends: Sequence[End]
    ) -> list[Ended | Rejected]:
        faults.reach("end.before")
        rows = await self._fetch(
            _SQL["end"],
            tenant,
            principal,
            [e.lease.entity for e in ends],
            [e.lease.job for e in ends],
            [e.lease.fence for e in ends],
            *_columns(map(_end_row, ends), 9),
        )
        faults.reach("end.committed")
        return [
            Ended(shown(row["state"]), again=row["answer"] == "again")
            if row["answer"] in ("done", "again")
            else Rejected(row["answer"])
            for row in rows
        ]

    async def expired(self, limit: int) -> list[Expired]:
        """Leases of all tenants that are over and not recorded as such; it changes nothing."""
        rows = await self._fetch(_SQL["expired"], limit)
        return [
            Expired(
                row["tenant"],
                _held(row),
                row["tool"],
                row["attempts"],
                row["over_ms"],
                row["model"],
                row["provider"],
            )
            for row in rows
        ]

    async def reap(self, expired: Sequence[tuple[Expired, int]]) -> list[Reaped]:
        """Record the ends of expired leases, each with the milliseconds before its next attempt;
        one statement for each tenant. What others have locked, or reaped, is left out. So is a
        tenant whose statement failed, for the next time; raises where all of them did."""
        reaped: list[Reaped] = []
        tenants = sorted({each.tenant for each, _ in expired})
        failures: list[StoreUnavailable | AnswerLost] = []
        for tenant in tenants:
            batch = [(each, delay_ms) for each, delay_ms in expired if each.tenant == tenant]
            try:
                reaped += await self._reap(tenant, batch)
            except (StoreUnavailable, AnswerLost) as error:
                failures.append(error)
        if failures and len(failures) == len(tenants):
            raise failures[0]
        return reaped

    async def _reap(self, tenant: int, batch: Sequence[tuple[Expired, int]]) -> list[Reaped]:
        faults.reach("reap.before")
        rows = await self._fetch(
            _SQL["reap"],
            tenant,
            [each.lease.entity for each, _ in batch],
            [each.lease.job for each, _ in batch],
            [each.lease.fence for each, _ in batch],
            [delay_ms for _, delay_ms in batch],
        )
        faults.reach("reap.committed")
        return [Reaped(row["job"], row["fence"], shown(row["state"])) for row in rows]

    async def give_up(self, limit: int) -> list[tuple[int, UUID]]:
        """Fail what is past its ``give_up_at`` and has no lease; tenant and job of each."""
        rows = await self._fetch(_SQL["give_up"], limit)
        faults.reach("give-up.committed")
        return [(row["tenant"], row["job"]) for row in rows]

    async def leases(self, limit: int) -> list[LeaseStats]:
        """What leases there are, of all tenants; of ``limit`` leases at most."""
        rows = await self._fetch(_SQL["leases"], limit)
        return [LeaseStats(*row) for row in rows]

    async def cancel(
        self, tenant: int, job: UUID, principal: str, reason: str
    ) -> Cancelled | Finished | None:
        """Cancel an unfinished job; a lease on it ends at once. ``None``: there is no such job."""
        _refuse_reason(reason)
        (row,) = await self._fetch(_SQL["cancel"], tenant, job, principal, reason)
        match row["answer"]:
            case "cancelled":
                return Cancelled()
            case "finished":
                return Finished(shown(row["state"]))
            case _:
                return None

    async def of_session(self, tenant: int, session: str) -> list[UUID]:
        """The unfinished jobs of a session, to be cancelled one by one: each is a commit of its
        own, so that one that is locked holds up no other."""
        rows = await self._fetch(_SQL["of_session"], tenant, session)
        return [row["id"] for row in rows]

    async def approve(self, tenant: int, job: UUID, principal: str, reason: str) -> bool:
        """Let a waiting stage run; false where it does not wait."""
        _refuse_reason(reason)
        rows = await self._fetch(_SQL["approve"], tenant, job, principal, reason)
        return bool(rows[0][0])

    async def retry(self, tenant: int, job: UUID, principal: str, reason: str) -> bool:
        """Queue a failed or cancelled job again, under its id and key, from the stage it had come
        to; false where it is neither."""
        _refuse_reason(reason)
        rows = await self._fetch(_SQL["retry"], tenant, job, principal, reason)
        return bool(rows[0][0])

    async def find(self, tenant: int, job: UUID) -> Shown | None:
        """One job, finished or not."""
        rows = await self._fetch(_SQL["find"], tenant, job)
        return _shown(rows[0]) if rows else None

    async def _fetch(self, sql: str, *args: Any) -> Sequence[asyncpg.Record]:
        return await self._fetch_from(self._database, sql, *args)

    async def _fetch_from(self, asked: Asked, sql: str, *args: Any) -> Sequence[asyncpg.Record]:
        for _ in range(_TRIES - 1):
            try:
                return await asked.fetch(sql, *args)
            except StoreUnavailable as error:
                if error.code not in _LOST_OUT:
                    raise
        return await asked.fetch(sql, *args)


def _refuse_mistakes(batch: Sequence[NewJob] | Sequence[End]) -> None:
    found = [f"[{no}].{text}" for no, each in enumerate(batch) for text in mistakes_in(each)]
    if found:
        raise ValueError("; ".join(found))


def _refuse_reason(reason: str) -> None:
    if len(reason) > REASON_LIMIT or reason != cleaned(reason):
        raise ValueError(
            f"reason: at most {REASON_LIMIT} characters, without U+0000 and lone surrogates"
        )


_EndRow = tuple[str, bytes, bytes | None, str | None, int, bool, str | None, str | None, bool]


def _end_row(end: End) -> _EndRow:
    """How, digest, result, error, delay, retry; name, entity and wait of the next stage."""
    digest = digest_of(end)
    match end:
        case Complete(result=result, next=following):
            name, entity = (following.name, following.entity) if following else (None, None)
            wait = following is not None and following.wait
            return ("completed", digest, result, None, 0, False, name, entity, wait)
        case Fail(error=error, retry=retry, delay_ms=delay_ms):
            return ("failed", digest, None, cleaned(error), delay_ms, retry, None, None, False)
        case HandBack(delay_ms=delay_ms):
            return ("handed-back", digest, None, None, delay_ms, False, None, None, False)


def _held(row: asyncpg.Record) -> Held:
    return Held(row["entity"], row["job"], row["fence"])


def _columns(rows: Iterable[_EndRow], width: int) -> list[list[object]]:
    listed = list(rows)
    return [[row[column] for row in listed] for column in range(width)]


def _shown(row: asyncpg.Record) -> Shown:
    about = {name: row[name] for name in Job.__slots__ if name != "state"}
    return Shown(Job(state=shown(row["state"]), **about), row["payload"], row["result"])
