"""Attempts whose last answer was lost.

Behind a lost answer a repeat may find what is committed on this server and on no standby yet, so
then it is answered only when that is as durable as was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import asyncpg

from gateway.errors import AnswerLost
from gateway.store.database import Database
from gateway.store.witness import Witness

__all__ = ["Asked", "Doubts"]

Asked = Database | Witness
"""Where a statement is asked: behind the witness, what admits."""


class Doubts:
    """Those of one store. Each doubt is an object of its own."""

    def __init__(self) -> None:
        self._attempts: dict[UUID, object] = {}

    @contextmanager
    def about(self, attempts: Sequence[UUID]) -> Iterator[_Ask]:
        """Ask about these attempts, within the block."""
        # An answer ends the doubts that it was asked behind, not one that came up meanwhile.
        known = {each: self._attempts[each] for each in attempts if each in self._attempts}
        try:
            yield _Ask(flush=bool(known))
        except AnswerLost:
            self._attempts.update(dict.fromkeys(attempts, object()))
            raise
        for each, doubt in known.items():
            if self._attempts.get(each) is doubt:
                del self._attempts[each]


class _Ask:
    def __init__(self, *, flush: bool) -> None:
        self._flush = flush

    async def fetch(self, asked: Asked, sql: str, *args: Any) -> Sequence[asyncpg.Record]:
        """Run a statement, as ``Database.fetch`` does."""
        if self._flush:
            return await asked.fetch(sql, *args, flush=True)
        return await asked.fetch(sql, *args)
