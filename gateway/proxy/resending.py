"""Take an unknown command over, through lost commit answers.

As with admit, a lost answer is followed by the same statement with the same attempt uuid, which
recognises its own row; and nothing is sent before one has been answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from gateway.core.command import Command
from gateway.errors import AnswerLost, RowsLost, StoreUnavailable
from gateway.store.database import STATEMENT_TIMEOUT_S
from gateway.store.unknowns import TakenOver

__all__ = ["Resender", "TakingOver"]

_PAUSE_S = 0.05
"""Between two tries after a failure, as between two admits."""


class TakingOver(Protocol):
    """The part of the store that is needed here."""

    async def take_over(self, command: Command, judged: UUID) -> TakenOver: ...


class Resender:
    """``clock``: the one that deadlines are kept by."""

    def __init__(self, store: TakingOver, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock

    async def take_over(self, command: Command, judged: UUID, until: float) -> TakenOver:
        """Make ``command.attempt`` the attempt in place of ``judged``, before ``until``.

        Raises ``StoreUnavailable`` where it is given up; with ``lost_until``, a try may have taken
        effect, or may until then.
        """
        lost_until: float | None = None
        while True:
            try:
                return await self._store.take_over(command, judged)
            except AnswerLost as error:
                lost_until = self._clock() + STATEMENT_TIMEOUT_S
                failure = StoreUnavailable(str(error))
            except StoreUnavailable as error:
                if lost_until is None and isinstance(error, RowsLost):
                    raise  # it waits for an operator
                failure = error
            if self._clock() + _PAUSE_S >= until:
                raise type(failure)(str(failure), code=failure.code, lost_until=lost_until)
            await asyncio.sleep(_PAUSE_S)
