"""What a call teaches the cache of settled responses, and what it may hear from there."""

from __future__ import annotations

from gateway.cache import Cache
from gateway.core.command import Command, Settle
from gateway.core.decide import Decision, RejectNotHeld, RejectStale, Replay
from gateway.core.model import Response
from gateway.proxy.admitting import Admitted
from gateway.proxy.call import Call

__all__ = ["Recalling"]


class Recalling:
    """Without a ``cache`` it does nothing."""

    def __init__(self, cache: Cache | None = None) -> None:
        self._cache = cache
        self.store_away = False
        """Whether the store failed whoever asked it last."""

    def learn(self, call: Call, admitted: Admitted) -> None:
        """What the store said of the entity's fences, and of an answer."""
        command, decision = call.command, admitted.decision
        self.store_away = False
        if self._cache is None:
            return
        self._cache.saw(command, _mark(command, decision))
        if not isinstance(decision, Replay) or call.principal is None:
            return
        if _may_keep(call, issued_here=admitted.issued_here):
            self._cache.replayed(command, call.principal, decision, call.rules.cache_s)

    def keep(self, call: Call, settle: Settle, *, issued_here: bool) -> None:
        """``settle`` was recorded in time, and whole. ``issued_here``: fences of its entity were,
        when it was admitted. What took over from another attempt is left to the store."""
        if self._cache is None or call.principal is None or call.resent or not settle.keep_body:
            return
        if _may_keep(call, issued_here=issued_here):
            self._cache.keep(settle, call.principal, call.rules.cache_s)

    async def before(self, call: Call) -> Response | None:
        """What another process has put into the shared cache; to be asked while ``store_away``,
        for a silent store is waited for until the send deadline."""
        return await self._ask(call)

    async def instead(self, call: Call) -> Response | None:
        """The same, where the store has just failed. While it answers, it is asked alone: it must
        be for a new command, and for a repeated one it costs no more."""
        self.store_away = True
        return await self._ask(call)

    async def _ask(self, call: Call) -> Response | None:
        if self._cache is None or call.principal is None:
            return None
        return await self._cache.ask(call.command, call.principal, call.rules.cache_s)


def _may_keep(call: Call, *, issued_here: bool) -> bool:
    """Where fences are issued here, a lease may end anywhere: who holds one the store alone knows,
    but for a command that carries none."""
    return call.command.fence is None or not (issued_here or call.command.issuer_here)


def _mark(command: Command, decision: Decision) -> int | None:
    """The high-water mark of the entity, as far as a decision tells. A good fence is it."""
    if isinstance(decision, RejectStale | RejectNotHeld):
        return decision.mark
    return command.fence
