"""Fences for somebody else's queue or lock, from the counter that leases and the gateway share."""

from __future__ import annotations

from gateway import faults
from gateway.core.issuing import EntityLeased, Issued
from gateway.store.database import Database
from gateway.store.queries import load

__all__ = ["FenceStore"]

_SQL = load("fences")


class FenceStore:
    """The port that issues. Raises ``StoreUnavailable`` or ``AnswerLost`` as ``Database.fetch``
    does; after a lost answer, ask again: a fence that nobody heard of does no harm."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def issue(self, tenant: int, entity: str) -> Issued | EntityLeased:
        """The next fence of ``entity``. From then on it is the only one that is admitted."""
        (row,) = await self._database.fetch(_SQL["issue"], tenant, entity)
        faults.reach("fence.committed")
        if row["fence"] is None:
            return EntityLeased(row["job"], row["remaining_ms"])
        return Issued(row["fence"])
