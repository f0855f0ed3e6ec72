"""Fences for somebody else's queue or lock, from the counter that leases and the gateway share."""

from __future__ import annotations

from gateway import faults
from gateway.core.issuing import EntityLeased, Issued
from gateway.store.database import Database
from gateway.store.queries import load
from gateway.store.witness import Witness

__all__ = ["FenceStore"]

_SQL = load("fences")


class FenceStore:
    """The port that issues. Raises ``StoreUnavailable`` or ``AnswerLost`` as ``Database.fetch``
    does; after a lost answer, ask again: a fence that nobody heard of does no harm."""

    def __init__(self, database: Database, witness: Witness | None = None) -> None:
        self._ask = database if witness is None else witness
        self._witness = witness

    async def issue(self, tenant: int, entity: str) -> Issued | EntityLeased:
        """The next fence of ``entity``. From then on it is the only one that is admitted."""
        (row,) = await self._ask.fetch(_SQL["issue"], tenant, entity)
        faults.reach("fence.committed")
        if row["fence"] is None:
            return EntityLeased(row["job"], row["remaining_ms"])
        if self._witness is not None:
            self._witness.mark(tenant, entity, row["fence"], issued=True)
        return Issued(row["fence"])
