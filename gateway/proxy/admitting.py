"""Admit, through lost commit answers.

A lost answer is followed by the same admit with the same attempt uuid, which recognises its own
row. Reading back would not do: the first try may still commit after the read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.core.command import Command
from gateway.core.decide import Decision, Facts, Repeat, decide
from gateway.core.value import value
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.proxy.batching import Batcher, about_admit
from gateway.store.database import STATEMENT_TIMEOUT_S

__all__ = ["Admitted", "Admitter", "Admitting"]

_REPEATS = 10
"""Admits that may find the key released in between; each needs another caller's full round."""

_PAUSE_S = 0.05
"""Between two tries after a failure; a restarting server answers in about a second."""

_RETRYABLE = frozenset({"40P01", "40001"})  # deadlock, serialization: the loser did nothing


class Admitting(Protocol):
    """The part of the store that is needed here."""

    async def admit(self, commands: Sequence[Command]) -> list[Facts]: ...
    async def admit_free(self, commands: Sequence[Command]) -> list[Facts | None]: ...


@value(frozen=True, slots=True)
class Admitted:
    """``lost_until``: an earlier try of this attempt may still commit until then, on the clock.
    ``issued_here``: fences of the entity are."""

    decision: Decision
    lost_until: float | None
    issued_here: bool = False


class Admitter:
    """Admits commands, together with others where ``batch_limit`` is above 1. ``beside``: repeats
    at once at most."""

    def __init__(
        self,
        store: Admitting,
        clock: Callable[[], float],
        *,
        batch_limit: int = 1,
        beside: int = 2**31,
    ) -> None:
        self._store = store
        self._batches: Batcher[Command, Facts] = Batcher(
            lambda commands: store.admit_free(commands),
            self._alone,
            about_admit,
            limit=batch_limit,
            beside=beside,
        )
        self._clock = clock

    async def admit(self, command: Command, until: float) -> Admitted:
        """Admit one command before ``until``.

        Raises ``StoreUnavailable`` where it is not admitted; its ``lost_until`` says for how long
        a try without an answer may still take effect.
        """
        lost_until: float | None = None
        repeats = 0
        ask = self._batches.ask
        while True:
            try:
                facts = await ask(command)
            except AnswerLost as error:
                lost_until = self._clock() + STATEMENT_TIMEOUT_S
                failure = StoreUnavailable(str(error))
            except StoreUnavailable as error:
                if lost_until is None and error.code not in _RETRYABLE:
                    raise
                failure = error
            else:
                decision = decide(facts)
                repeats += 1
                if not isinstance(decision, Repeat) or repeats >= _REPEATS:
                    return Admitted(decision, lost_until, facts.held is not None)
                ask = self._batches.alone
                continue
            ask = self._batches.alone
            if self._clock() + _PAUSE_S >= until:
                raise type(failure)(str(failure), code=failure.code, lost_until=lost_until)
            await asyncio.sleep(_PAUSE_S)

    async def _alone(self, command: Command) -> Facts:
        (facts,) = await self._store.admit([command])
        return facts

    async def stop(self) -> None:
        """Cut what is on its way."""
        await self._batches.stop()
