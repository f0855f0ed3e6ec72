"""Failover honesty: before anything is admitted on a server that may be another one, what was
acknowledged is looked up there.

Where a row is missing, the database forgot what it had promised to keep. Then this process reports
it, puts back what it remembers, and admits nothing until an operator has acknowledged; so do all
others, who read the report. Where nothing is missing it goes on by itself.

Not found: what no living process remembers (all were restarted with the database), and what this
one had forgotten already (``core.acknowledged`` says how much it keeps).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from gateway.core.acknowledged import Acknowledged, KeptCommand, KeptMark
from gateway.core.command import Command
from gateway.errors import AnswerLost, RowsLost, StoreUnavailable
from gateway.observe import crash, log
from gateway.store import losses
from gateway.store.database import READ_ONLY, Database, Moved
from gateway.store.history import WHO, Server, server_of

__all__ = ["Witness"]

_LOOK_S = 1.0
"""Between two looks at the server and at what others reported: so long may one whose connections
did not notice a failover (a pooler hides it) go on."""

_PATIENCE_S = 1.0
"""Longest that an admit waits for the look; then it is answered, and may be repeated."""

_OTHERS_S = 2.0
"""After a promotion or a restore, so long is left to other processes to find their rows missing:
what one of them admitted is known to no other."""

_FEW = 16
"""Looked up where the server is the same process with the same history: nothing can be lost then,
but for a server that does not say who it is."""

_TRIES = 5
"""Looks that are begun again, because something failed or moved meanwhile."""

_NAMED = 20
"""Lost rows named in the log; `fencegate losses` names all."""


class Witness:
    """What this process was told is committed, and whether it still is.

    ``clock``: seconds, monotonic, counting suspend.
    """

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._memory = Acknowledged()
        self._cleared = -1
        self._server: Server | None = None
        self._open: tuple[losses.Loss, ...] = ()
        self._own: UUID | None = None
        self._own_rows: list[KeptCommand | KeptMark] = []
        self._own_stands = False
        # Held over each look: of two that read what is reported, the later must be believed. So the
        # witness takes one connection.
        self._turn = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    # -- what is remembered

    def admitted(self, command: Command) -> None:
        """The admit of ``command`` was answered with its own row."""
        self._memory.admitted(command, self._clock())

    def taken_over(self, command: Command, earlier: tuple[UUID, ...]) -> None:
        """``command`` is the attempt now, in place of the last of ``earlier``."""
        self._memory.taken_over(command, earlier, self._clock())

    def settled(self, command: Command, status: int) -> None:
        """Its response was recorded."""
        self._memory.settled(command, status, self._clock())

    def gone(self, command: Command) -> None:
        """It was given back, or a newer attempt has its row."""
        self._memory.gone(command.attempt)

    def mark(self, tenant: int, entity: str, fence: int, *, issued: bool) -> None:
        """The entity's high-water mark was answered; ``issued``: it was issued here."""
        self._memory.mark(tenant, entity, fence, self._clock(), issued=issued)

    # -- the gate

    @property
    def lost(self) -> str | None:
        """What was lost and not acknowledged, in words; names nobody's keys."""
        if not self._open:
            return None
        commands = sum(loss.commands + loss.settlements for loss in self._open)
        marks = sum(loss.marks for loss in self._open)
        found = min(loss.found_at for loss in self._open).isoformat(timespec="seconds")
        return (
            f"the database lost what it had acknowledged (at least {commands} commands and {marks} "
            f"high-water marks, found at {found}); an operator looks at `fencegate losses` and "
            "the upstream, then types `fencegate acknowledge-loss`"
        )

    @property
    def lost_rows(self) -> int:
        """Rows in losses that nobody acknowledged."""
        return sum(loss.rows for loss in self._open)

    async def fetch(self, sql: str, *args: Any, flush: bool = False) -> Sequence[asyncpg.Record]:
        """``Database.fetch``, on a server that was found to have what it acknowledged.

        Raises ``RowsLost`` as well, where it was not.
        """
        for _ in range(_TRIES):
            generation = await self.clear()
            try:
                return await self._database.fetch(sql, *args, flush=flush, generation=generation)
            except Moved:
                continue
        raise StoreUnavailable("the connections to the database keep failing")

    async def clear(self) -> int:
        """The generation in which it is known that nothing is lost; another one may have begun by
        now, so ask with it.

        Raises ``RowsLost``, ``StoreUnavailable``."""
        if not self._lost_or_cleared():
            await self._looked_at()
        return self._cleared

    async def _looked_at(self) -> None:
        """The look at this generation, begun or joined; whatever others have reported."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="witness")
            self._looking.add_done_callback(self._looked)
        done, _ = await asyncio.wait({self._looking}, timeout=_PATIENCE_S)
        if not done:
            raise StoreUnavailable(
                "the database was away, and whether it still has all that it acknowledged is "
                "being looked up"
            )
        done.pop().result()

    async def not_writable(self) -> str | None:
        """Why that server takes no writes, or ``None``. Raises as ``fetch`` does."""
        rows = await self.fetch(
            "select pg_is_in_recovery() or current_setting('transaction_read_only')::bool"
        )
        return READ_ONLY if rows[0][0] else None

    def start(self) -> None:
        """Go on looking in the background, every ``_LOOK_S``."""
        self._task = asyncio.create_task(self._run(), name="witness watch")

    async def stop(self) -> None:
        for task in (self._task, self._looking):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError, StoreUnavailable):
                    await task

    def _lost_or_cleared(self) -> bool:
        if self._open:
            raise RowsLost(self.lost or "")
        return self._cleared == self._database.history.generation

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._looking = None
        if not task.cancelled():
            task.exception()  # whoever waits for it hears of it; nobody need

    # -- the look

    async def _look(self) -> None:
        try:
            for _ in range(_TRIES):
                if await self._look_once():
                    self._lost_or_cleared()
                    return
        except AnswerLost as error:
            raise StoreUnavailable(str(error)) from error
        raise StoreUnavailable("the connections to the database keep failing")

    async def _look_once(self) -> bool:
        """One look; false where the server changed under it."""
        async with self._turn:
            return await self._compared()

    async def _compared(self) -> bool:
        server = await self._who()
        before = self._server
        await self._read_open()
        missing = await self._missing(few=server == before)
        if missing and server == before:
            missing = await self._missing(few=False)
        await self._report(missing, before, server)
        if before is not None and before.history != server.history:
            await asyncio.sleep(_OTHERS_S)
            await self._read_open()
        # Whatever failed until here, the same server process is reached behind it, and it forgets
        # nothing; what fails from here on is another generation.
        generation = self._database.history.generation
        if await self._who() != server:
            return False
        self._server, self._cleared = server, generation
        return True

    async def _who(self) -> Server:
        server = server_of((await self._database.fetch(WHO))[0])
        if server.standby:
            raise StoreUnavailable(READ_ONLY)
        return server

    async def _missing(self, *, few: bool) -> list[KeptCommand | KeptMark]:
        now = self._clock()
        commands, marks = self._memory.commands(now), self._memory.marks(now)
        if few:
            commands, marks = commands[:_FEW], marks[:_FEW]
        found: list[KeptCommand | KeptMark] = []
        for start in range(0, len(commands), losses.BATCH):
            batch = commands[start : start + losses.BATCH]
            found += await losses.missing_commands(self._database, batch)
        for start in range(0, len(marks), losses.BATCH):
            some = marks[start : start + losses.BATCH]
            found += await losses.missing_marks(self._database, some)
        return found

    async def _report(
        self, missing: list[KeptCommand | KeptMark], before: Server | None, now: Server
    ) -> None:
        """Report what is missing; and what was reported before, where that is gone as well."""
        known = self._own_rows if self._own is not None else []
        both = list(dict.fromkeys([*known, *missing]))
        if self._own is not None and not self._own_stands:
            missing = both
        if not missing:
            return
        if self._own is None:
            self._own = uuid4()
        self._own_rows = both
        for start in range(0, len(missing), losses.BATCH):
            batch = missing[start : start + losses.BATCH]
            server = before.history if before is not None else None
            own, restored = await losses.report(
                self._database, self._own, server, now.history, batch
            )
            if own != self._own:  # acknowledged meanwhile, with what was known by then
                self._own, self._own_rows = own, missing
            for each, stands in zip(batch, restored, strict=True):
                # What stands again may be lost again; the key of what does not is another's.
                if isinstance(each, KeptCommand) and not stands:
                    self._memory.gone(each.command.attempt)
        _tell(self._own, before, now, missing)
        await self._read_open()

    async def _read_open(self) -> None:
        found = await losses.open_losses(self._database, self._own)
        self._own_stands = any(loss.id == self._own for loss in found)
        if any(loss.id == self._own and loss.acknowledged for loss in found):
            self._own, self._own_rows = None, []
        was_open = bool(self._open)
        self._open = tuple(loss for loss in found if not loss.acknowledged)
        if self._open and not was_open:
            log.event("rows_lost_open", level="error", reason=self.lost)
        elif was_open and not self._open:
            log.event("rows_lost_acknowledged")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._watch()
            except (StoreUnavailable, AnswerLost):
                continue  # whoever asks hears of it
            except Exception as error:  # noqa: BLE001 - the outermost loop: it must go on
                log.event("witness_failed", level="error", error=crash.brief(error))

    async def _watch(self) -> None:
        async with self._turn:
            self._database.history.seen(server_of((await self._database.fetch(WHO))[0]))
            await self._read_open()
        if self._cleared != self._database.history.generation:
            # Not ``clear``, which stops at what another has reported: what this process admitted no
            # other knows, and it has to stand in the list that the operator looks at.
            await self._looked_at()


def _tell(
    loss: UUID, before: Server | None, now: Server, lost: Sequence[KeptCommand | KeptMark]
) -> None:
    commands = [each.command for each in lost if isinstance(each, KeptCommand)]
    marks = [each for each in lost if isinstance(each, KeptMark)]
    log.event(
        "rows_lost",
        level="error",
        loss=str(loss),
        server_before=before.history if before is not None else None,
        server_after=now.history,
        commands=len(commands),
        marks=len(marks),
        key_digests=" ".join(command.key_digest.hex() for command in commands[:_NAMED]),
        entities=", ".join(f"{mark.entity} at {mark.fence}" for mark in marks[:_NAMED]),
    )
