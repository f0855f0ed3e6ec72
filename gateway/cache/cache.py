"""Which replays may come from a cache, and from which.

An entry answers only for the very same command: key, fingerprint (which covers the rule version)
and a fence that is absent or the one that the store took with it, so that a higher fence always
reaches admit and is remembered. It ends with ``cache_s`` of its policy, which is shorter than
anything is kept in the store; an erasure in the tenant ends all of the tenant's at once.

Only an answer in time gets in, as it was recorded or as the store replayed it; which commands are
left out, ``gateway.proxy.recalling`` knows.

This process is asked before the store. Redis is asked after it, where it could not answer: a new
command would pay for each question, and to a repeated one the store answers as fast.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from gateway.cache.local import Local
from gateway.cache.record import ENTRY_LIMIT, Entry, name_of, pack, seal, unpack, unseal
from gateway.cache.shared import Shared
from gateway.cache.verbatim import BODY_LIMIT, Sent, Verbatim, Wish
from gateway.core.auth import Principal
from gateway.core.command import Command, Settle
from gateway.core.decide import Replay
from gateway.core.headers import encode_lines
from gateway.core.model import Response
from gateway.observe.metrics import Asked, Found

__all__ = ["Cache", "Recall"]

_KEPT_S = 86_400
"""No policy forgets a response earlier, so one that is younger ends with ``cache_s``."""

_SWEEP_S = 15.0
"""What has ended leaves the memory a quarter of its time later at the latest, and then so much."""


class Recall(NamedTuple):
    """A replay from this process's cache, and the command that it is of."""

    wish: Wish
    response: Response


class Cache:
    """``clock``: seconds, monotonic, counting suspend; ``wall``: seconds since 1970, which other
    processes understand. ``asked``: hears of every look. ``barred``: whether nothing may be
    replayed now, since the store lost rows and nobody has looked at that."""

    def __init__(
        self,
        local: Local,
        shared: Shared | None,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        asked: Callable[[Found, Asked], None],
        barred: Callable[[], bool] = lambda: False,
    ) -> None:
        self.local = local
        self.shared = shared
        self._clock = clock
        self._wall = wall
        self._asked = asked
        self._barred = barred
        self._verbatim = Verbatim()
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and go on letting go of what has ended."""
        if self.shared is not None:
            self.shared.start()
        self._sweeper = asyncio.create_task(self._sweep(), name="cache sweep")

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self.shared is not None:
            await self.shared.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.local.sweep(self._clock())

    def again(self, sent: Sent, principal: Principal) -> Recall | None:
        """What this process knows to replay to the very bytes that it did before."""
        if len(sent.body) > BODY_LIMIT:
            return None
        wish = self._verbatim.get(sent, principal)
        if wish is None or wish.name[: len(principal.epoch)] != principal.epoch:
            return None
        response = self._look(wish)
        if response is None:
            return None
        self._asked("local", "hit")
        return Recall(wish, response)

    def find(self, command: Command, principal: Principal, sent: Sent) -> Recall | None:
        """What this process knows to replay to ``command``, which came as ``sent``; ``None``:
        somebody else must be asked."""
        name = name_of(command, principal)
        if self.local.get(name) is None:  # as of nearly all commands
            self._asked("local", "miss")
            return None
        wish = Wish(
            name,
            command.key_digest,
            command.policy,
            command.tenant,
            command.entity,
            command.fence,
        )
        response = self._look(wish)
        self._asked("local", "miss" if response is None else "hit")
        if response is None:
            return None
        self._verbatim.add(sent, principal, wish)
        return Recall(wish, response)

    def _look(self, wish: Wish) -> Response | None:
        record = self.local.get(wish.name)
        if record is None or self._barred():
            return None
        entry = unpack(record)
        fits = entry.end_s > self._clock() and self._fits(wish, entry.fence)
        return entry.response if fits else None

    async def ask(self, command: Command, principal: Principal, cache_s: int) -> Response | None:
        """What other processes know to replay. It takes at most ``shared.READ_S``."""
        name = name_of(command, principal)
        if self.shared is None or not name or not cache_s or self._barred():
            return None
        sealed = await self.shared.get(command.key_digest)
        if sealed is None or sealed == "failed":
            self._asked("redis", sealed or "miss")
            return None
        record = unseal(principal.salt, name, sealed)
        entry = None if record is None else unpack(record)
        # By a clock that is not ours: it ends no later than if it had begun now.
        left_s = 0.0 if entry is None else min(entry.end_s - self._wall(), cache_s)
        if entry is None or left_s <= 0 or not self._fits(command, entry.fence):
            self._asked("redis", "miss")
            return None
        self._asked("redis", "hit")
        self._put(name, entry, left_s)
        return entry.response

    def keep(self, settle: Settle, principal: Principal, cache_s: int) -> None:
        """``settle`` was recorded just now, whole. ``principal``: as it was before the recording,
        so that an erasure of it counts."""
        command, response = settle.command, settle.response
        name = name_of(command, principal)
        if not name or not cache_s or len(response.body) > ENTRY_LIMIT:
            return
        if not self._fits(command, command.fence):
            return
        end_s = self._wall() + cache_s
        entry = Entry(end_s, command.fence, response.status, settle.head, response.body)
        self._put(name, entry, cache_s)
        if self.shared is not None:
            sealed = seal(principal.salt, name, pack(entry))
            if len(sealed) <= ENTRY_LIMIT:
                self.shared.put(command.key_digest, sealed, cache_s * 1000)

    def replayed(
        self, command: Command, principal: Principal, decision: Replay, cache_s: int
    ) -> None:
        """The store gave ``decision``, so a fence that ``command`` has is its entity's mark."""
        name = name_of(command, principal)
        left_s = min(cache_s, _KEPT_S - decision.age_ms / 1000)
        own = decision.settled_by == "answer" and decision.compared
        if name and own and left_s > 0:
            response = decision.response
            head = encode_lines(response.headers)
            entry = Entry(0.0, command.fence, response.status, head, response.body)
            self._put(name, entry, left_s)

    def _put(self, name: bytes, entry: Entry, left_s: float) -> None:
        now_s = self._clock()
        record = pack(entry._replace(end_s=now_s + left_s))
        if len(record) <= ENTRY_LIMIT:
            self.local.put(name, record, now_s, now_s + left_s)

    def saw(self, command: Command, mark: int | None) -> None:
        """``mark`` is the high-water mark of the command's entity, by the store; ``None``: it did
        not say."""
        if mark is not None:
            self.local.saw(_entity(command), mark, self._clock())

    def _fits(self, command: Command | Wish, fence: int | None) -> bool:
        if command.fence is None:
            return True
        if command.fence != fence:
            return False
        latest = self.local.fence(_entity(command))
        return latest is None or latest == fence


def _entity(command: Command | Wish) -> str:
    return f"{command.tenant} {command.entity}"
