"""The evidence of requests that name one entity and are for another: the only refusals that are
written by themselves, and not by the statement that admits.

Without turns a caller that loops would hold every connection, each waiting for the row that equal
refusals share.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from gateway.core.problems import Problem
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.limits import ADMIT_TURN_S
from gateway.proxy.intake import Refused
from gateway.proxy.lanes import Lane
from gateway.store.audit import Entry

__all__ = ["Append", "Mismatches"]


class Append(Protocol):
    """``gateway.store.audit.append``, on its database."""

    def __call__(self, entry: Entry, *, flush: bool = False) -> Coroutine[Any, Any, None]: ...


class Mismatches:
    """``at_once`` are written together, one for each entity; tenants have turns."""

    def __init__(self, append: Append, at_once: int) -> None:
        self._append = append
        self._lane = Lane(at_once, ADMIT_TURN_S)

    async def __call__(self, refused: Refused) -> Problem | None:
        """Record it; a problem where the evidence cannot be kept."""
        mismatch, principal = refused.mismatch, refused.identity.principal
        assert mismatch is not None
        assert principal is not None
        entry = Entry(
            tenant=principal.tenant,
            event="entity_mismatch",
            reason=mismatch.detail,
            principal=principal.name,
            policy=mismatch.policy,
            entity=mismatch.entity,
            key=mismatch.key,
            fence=mismatch.fence,
            request_id=refused.identity.request_id,
        )
        own = frozenset({mismatch.entity})
        try:
            written = await self._lane.run(lambda: self._write(entry), entry.tenant, own)
        except (StoreUnavailable, AnswerLost) as error:
            return Problem(
                "store-unavailable",
                f"Repeat the same request later: nothing was sent, because {error}.",
                retry_after_s=1,
            )
        return None if written else _FULL

    async def _write(self, entry: Entry) -> bool:
        try:
            await self._append(entry)
        except AnswerLost:  # the same row again: by its id it is counted once
            await self._append(entry, flush=True)
        return True


_FULL = Problem(
    "overloaded",
    "Repeat the same request later: too many refusals wait to be recorded in this gateway process.",
    retry_after_s=1,
)
