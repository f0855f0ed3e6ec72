"""Which replays may come from a cache, and from which.

An entry answers only for the very same command: key, fingerprint (which covers the rule version)
and a fence that is absent or the one it was admitted with, so that a higher fence always reaches
admit and is remembered. It ends with ``cache_s`` of its policy, which is shorter than anything is
kept in the store; an erasure in the tenant ends all of the tenant's at once.

Only what the upstream answered to the first attempt, while it was heard here, and what the store
has recorded as that, gets in. Where fences are issued here, commands that carry one are left out:
who holds an entity now, the store alone knows.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.cache.local import Local
from gateway.cache.record import ENTRY_LIMIT, Entry, name_of, pack, unpack
from gateway.core.auth import Principal
from gateway.core.command import Command
from gateway.core.model import Response
from gateway.observe.metrics import Asked, Found

__all__ = ["Cache"]


class Cache:
    """``clock``: seconds, monotonic, counting suspend. ``asked``: hears of every look."""

    def __init__(
        self, local: Local, clock: Callable[[], float], asked: Callable[[Found, Asked], None]
    ) -> None:
        self.local = local
        self._clock = clock
        self._asked = asked

    def find(self, command: Command, principal: Principal) -> Response | None:
        """What this process knows to replay; ``None``: somebody else must be asked."""
        record = self.local.get(name_of(command, principal))
        entry = None if record is None else unpack(record)
        hit = entry is not None and entry.end_s > self._clock() and self._fits(command, entry.fence)
        self._asked("local", "hit" if hit else "miss")
        return entry.response if entry is not None and hit else None

    def keep(
        self, command: Command, principal: Principal, response: Response, cache_s: int
    ) -> None:
        """``response`` was recorded just now, whole, as the answer to ``command``. ``principal``:
        as it was before the recording, so that an erasure of it counts."""
        name = name_of(command, principal)
        if not name or not cache_s or len(response.body) > ENTRY_LIMIT:
            return
        if _issued_here(command) or not self._fits(command, command.fence):
            return
        now_s = self._clock()
        record = pack(Entry(now_s + cache_s, command.fence, response))
        if len(record) <= ENTRY_LIMIT:
            self.local.put(name, record, now_s, now_s + cache_s)

    def saw(self, command: Command, mark: int | None) -> None:
        """``mark`` is the high-water mark of the command's entity, by the store; ``None``: it did
        not say."""
        if mark is not None:
            self.local.saw(_entity(command), mark, self._clock())

    def _fits(self, command: Command, fence: int | None) -> bool:
        if command.fence is None:
            return True
        if command.fence != fence:
            return False
        latest = self.local.fence(_entity(command))
        return latest is None or latest == fence


def _issued_here(command: Command) -> bool:
    return command.issuer_here and command.fence is not None


def _entity(command: Command) -> str:
    return f"{command.tenant} {command.entity}"
