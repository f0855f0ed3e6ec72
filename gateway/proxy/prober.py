"""Looks after commands that nobody settled, and asks their upstreams where the policy knows how.

One task in each process, and any of them does all of the work: there is no leader who could fail
to come back. Two that look at once pass over what the other has locked, and what a process that
died was asking comes due again after ``BUSY_MS``. A caller's own request asks at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from uuid import UUID

from gateway.core.command import Command
from gateway.core.evidence import PROBE_LIMIT, Judged, Probed, judge
from gateway.core.model import Exchange, Headers, ProbeRules, Response
from gateway.core.recheck import ASKING_S
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.observe import crash, log
from gateway.proxy.background import Background
from gateway.proxy.notices import Notices
from gateway.store.unknowns import Due, Pass
from gateway.upstream import Client, Deadlines, Request

__all__ = ["BUSY_MS", "INTERVAL_S", "PROBE_S", "TURN_S", "Ask", "Looking", "Prober"]

T = TypeVar("T")

INTERVAL_S = 1.0
"""Between two looks: how long an unknown outcome may go unnoticed beyond the sweep's own lag."""

_JITTER = 0.2
"""Share by which a pause may be shorter, so that processes which started together spread out."""

PROBE_S = 5.0
"""For one probe, connecting included: a caller may be waiting for it."""

AT_ONCE = 4
"""Probes of one upstream from one process: it is in trouble, or its answers would not be lost."""

MOST = 16
"""Probes of one process. In fours, of one upstream, the last has begun after 15 s."""

BUSY_MS = 30_000
"""For so long nobody else asks about a command that was taken: above 15 s and a probe."""

SWEEP = 5_000
"""Commands of one reading: some 30 ms, far below a statement's 2 s."""

DUE = 100
"""Of the list, looked at together: what a gateway that died left is told within seconds."""

NOT_OURS_S = 60
"""For so long what this process may not ask about is left unmentioned, and so long between two
looks at it: whoever may ask comes within seconds, and is restarted within a minute."""

TURN_S = 5.0
"""Longest wait of what a caller, or what a probe showed, asks the database behind the rest: the
prober has one connection (``gateway.core.budget``). Then it is not asked; it comes due again."""


class Looking(Protocol):
    """The part of the store that is needed here: see ``gateway.store.unknowns``."""

    async def sweep(self, which: Pass, limit: int) -> int: ...
    async def take_due(
        self, asks: Mapping[str, bytes], limit: int, room: int, busy_ms: int
    ) -> list[Due]: ...
    async def not_ours(self, asks: Mapping[str, bytes], late_s: int) -> list[str]: ...
    async def ask_now(self, command: Command, judged: UUID, busy_ms: int) -> Due | None: ...
    async def due_s(self, command: Command, asking_s: int) -> int | None: ...
    async def probed(
        self, due: Due, judged: Judged, interval_s: int, answer: Response | None
    ) -> Probed: ...


@dataclass(frozen=True, slots=True)
class Ask:
    """How one kind of command is asked about. ``headers``: those of the probe, whole. ``digest``:
    of upstream, account and key field. ``keep_limit``: bytes of an answer that may be replayed."""

    client: Client
    headers: Headers
    rules: ProbeRules
    digest: bytes
    keep_limit: int
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))


class Prober:
    """``asks``: by the names of commands. ``changed`` hears of every decision: tenant, key digest
    and entity. ``on_probed``: of every probe: the command's name, and what came of it. ``chance``:
    0 to below 1, at each call."""

    def __init__(
        self,
        store: Looking,
        asks: Mapping[str, Ask],
        *,
        clock: Callable[[], float],
        changed: Callable[[int, bytes, str], None],
        on_probed: Callable[[str, Probed], None],
        chance: Callable[[], float],
    ) -> None:
        self._store = store
        self._asks = asks
        self._digests = {name: ask.digest for name, ask in asks.items()}
        self._clock = clock
        self._changed = changed
        self._on_probed = on_probed
        self._chance = chance
        self._looks = Background()
        self._turn = asyncio.Lock()
        self._failing = False
        self._notices = Notices(clock)
        self._others_at = clock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="prober")

    def stop_looking(self) -> None:
        """Begin nothing more; probes that are on their way may end."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """What was being asked comes due again, in whichever process."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._looks.cancel()

    async def ask(self, command: Command, judged: UUID) -> bool:
        """Ask about one unknown command at once, because its caller does. True where that decided
        it, so that it is worth admitting again; else nothing is proven, somebody else is asking, or
        too much is being asked of its upstream already."""
        ask = self._asks.get(command.policy)
        if ask is None or ask.turns.locked():
            return False
        try:
            due = await self._within(lambda: self._store.ask_now(command, judged, BUSY_MS))
        except (StoreUnavailable, AnswerLost):
            return False
        # Detached: a caller that hangs up must not leave the command taken.
        return due is not None and await self._looks.spawn(self._look(due)) == "resolved"

    async def due_s(self, command: Command) -> int | None:
        """Seconds until a command is asked about next, or whoever asks now has been answered;
        ``None`` where that is not known."""
        try:
            return await self._store.due_s(command, ASKING_S)
        except (StoreUnavailable, AnswerLost):
            return None

    async def look(self) -> bool:
        """One look; whether there is more to do at once. Raises as the store does."""
        async with self._turn:
            read = [await self._store.sweep("near", SWEEP), await self._store.sweep("far", SWEEP)]
            room = max(MOST - len(self._looks), 0)
            taken = await self._store.take_due(self._digests, DUE, room, BUSY_MS)
        for due in taken:
            self._looks.spawn(self._look(due))
        await self._tell_not_ours()
        return max(read) >= SWEEP

    async def _tell_not_ours(self) -> None:
        """Warn of commands that wait for a process which may ask about them."""
        if not self._digests or self._clock() < self._others_at:
            return
        async with self._turn:
            names = await self._store.not_ours(self._digests, NOT_OURS_S)
        self._others_at = self._clock() + NOT_OURS_S
        for name in names:
            if self._notices.due(name, "not ours"):
                log.event(
                    "probe_not_ours",
                    level="warning",
                    policy=name,
                    reason="unknown commands went to another upstream, account or send_key than "
                    "this process would ask, and no other process asks about them; serve with the "
                    "policy and credentials of then, or decide them: fencegate commands list "
                    f"--state unknown --policy {name}",
                )

    async def _look(self, due: Due) -> Probed | None:
        """Ask about one command and record what that shows."""
        ask = self._asks[due.policy]
        async with ask.turns:
            exchange = await self._send(ask, due.target)
        judged = judge(exchange, ask.rules)
        if judged.verdict == "nothing" and self._notices.due(due.policy, judged.why):
            log.event(
                "probe_failed",
                level="warning",
                policy=due.policy,
                status=judged.status,
                fault=judged.fault,
                reason=judged.why,
                key_digest=due.key_digest.hex(),
            )
        answer = exchange.response if judged.verdict == "applied" and ask.rules.replays else None
        if answer is not None and len(answer.body) > ask.keep_limit:
            answer = None
        interval_s = ask.rules.interval_s
        try:
            result = await self._within(lambda: self._store.probed(due, judged, interval_s, answer))
        except (StoreUnavailable, AnswerLost):
            return None  # it comes due again, or is decided already
        if result is None:
            return None
        self._on_probed(due.policy, result)
        if result == "resolved":
            self._changed(due.tenant, due.key_digest, due.entity)
        log.event(
            "probed",
            level="info" if result in ("resolved", "settled") else "debug",
            policy=due.policy,
            entity=due.entity,
            key_digest=due.key_digest.hex(),
            attempt=str(due.attempt),
            verdict=judged.verdict,
            result=result,
        )
        return result

    async def _within(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """What comes of ``work``, or ``None`` where no turn at the database came in time."""
        try:
            async with asyncio.timeout(TURN_S):
                await self._turn.acquire()
        except TimeoutError:
            return None
        try:
            return await work()
        finally:
            self._turn.release()

    async def _send(self, ask: Ask, target: bytes) -> Exchange:
        by = self._clock() + PROBE_S
        transfer = await ask.client.send(
            Request(b"GET", target, ask.headers),
            Deadlines(connect=by, first_byte=by, last=by),
            keep_limit=PROBE_LIMIT,
        )
        transfer.close()
        return transfer.exchange

    async def _run(self) -> None:
        while True:
            if not await self._survived():
                await asyncio.sleep(INTERVAL_S * (1 - _JITTER * self._chance()))

    async def _survived(self) -> bool:
        """One look that may fail; whether there is more to do at once."""
        try:
            more = await self.look()
        except (StoreUnavailable, AnswerLost) as error:
            self._note(str(error))
            return False
        except Exception as error:  # noqa: BLE001  the outermost loop: without it nothing is found
            self._note(crash.brief(error))
            return False
        if self._failing:
            self._failing = False
            log.event("prober_works_again")
        return more

    def _note(self, reason: str) -> None:
        """Say it once, not each second."""
        if not self._failing:
            self._failing = True
            log.event("prober_failed", level="warning", reason=reason)
