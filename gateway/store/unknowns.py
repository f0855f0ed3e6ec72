"""What is done about unknown commands: find them, ask about them, send one again, hear of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

import asyncpg

from gateway import faults
from gateway.core.command import Command
from gateway.core.evidence import Judged, Probed
from gateway.core.headers import encode_lines, recordable
from gateway.core.model import Response
from gateway.store.database import Database
from gateway.store.doubts import Asked, Doubts
from gateway.store.queries import load
from gateway.store.witness import Witness

__all__ = ["Due", "Pass", "Report", "ReportResult", "TakenOver", "UnknownStore"]

_SQL = load("unknowns")

_PRINCIPAL = "gateway:probe"
"""Who decides by a probe; no gateway key has a colon in its name."""

Pass = Literal["near", "far"]
"""Which reading of the commands: soon after their admission, or once more long after."""

TakenOver = Literal["taken", "changed", "refused"]
"""``changed``: it is not as it was judged, so admit again; ``refused``: it may not be sent."""

ReportResult = Literal[
    "resolved", "missing", "settled", "in-flight", "changed", "too-early", "contradicts", "orphan"
]
"""As ``gateway.store.operator.Resolution``, and: ``contradicts`` what is recorded; ``orphan``: it
was executed, and no command stands there."""


@dataclass(frozen=True, slots=True)
class Due:
    """A command to ask about. ``target``: of the probe, at its upstream; ``asked_at``: database
    time before it is asked."""

    tenant: int
    key_digest: bytes
    attempt: UUID
    policy: str
    entity: str
    target: bytes
    asked_at: datetime


@dataclass(frozen=True, slots=True)
class Report:
    """What somebody outside says of a command. ``attempt`` ``None``: of the one that holds the key
    now. ``response``: what the upstream answered, where that is known; its body is kept only within
    ``keep_limits``, bytes by policy."""

    tenant: int
    key_digest: bytes
    key: str
    attempt: UUID | None
    executed: bool
    reason: str
    principal: str
    request_id: str
    response: Response | None
    keep_limits: Mapping[str, int] = field(default_factory=dict)


class UnknownStore:
    """The port. Every method raises ``StoreUnavailable`` or ``AnswerLost`` as ``Database.fetch``
    does, ``RowsLost`` too, and may be repeated: each is guarded by the attempt and its state."""

    def __init__(self, database: Database, witness: Witness | None = None) -> None:
        """``witness``: as for ``CommandStore``, before everything: where rows were lost, a report
        would hear that there is no such command, and a probe would be judged by an attempt that was
        taken over, or by a deadline before the last send."""
        self._ask: Asked = database if witness is None else witness
        self._witness = witness
        self._doubts = Doubts()

    async def take_over(self, command: Command, judged: UUID) -> TakenOver:
        """Make ``command.attempt`` the attempt of the unknown command, in place of ``judged``.
        Repeated after a lost answer, it recognises its own."""
        c = command
        with self._doubts.about([c.attempt]) as doubt:
            rows = await doubt.fetch(
                self._ask,
                _SQL["take_over"],
                *(c.tenant, c.key_digest, c.policy, c.entity, c.fingerprint, c.rules, c.fence),
                *(c.issuer_here, judged, c.attempt, c.principal, c.request_id, c.upstream_digest),
                *(c.deadline_ms, c.resend_within_ms or 0),
            )
        result: TakenOver = rows[0]["result"]
        if result == "taken" and self._witness is not None:
            self._witness.taken_over(command, tuple(rows[0]["before"]))
        return result

    async def sweep(self, which: Pass, limit: int) -> int:
        """Put unsettled commands on the list, reading at most ``limit``; how many were read."""
        rows = await self._ask.fetch(_SQL["sweep"], which, limit)
        read: int = rows[0][0]
        return read

    async def take_due(
        self, asks: Mapping[str, bytes], limit: int, room: int, busy_ms: int
    ) -> list[Due]:
        """Say of at most ``limit`` new ones that they are unknown. What comes back, at most
        ``room``, is to be asked about, and ours for ``busy_ms``. ``asks``: the commands that can
        be, and the upstream digest of each; all else is left as it is to who may ask about it."""
        rows = await self._ask.fetch(
            _SQL["take_due"], list(asks), list(asks.values()), limit, room, busy_ms
        )
        return [_due(row) for row in rows]

    async def not_ours(self, asks: Mapping[str, bytes], late_s: int) -> list[str]:
        """Which of the commands in ``asks`` have unknown ones, due for ``late_s``, that were sent
        to another upstream, account or key field than it would be asked now."""
        rows = await self._ask.fetch(_SQL["not_ours"], list(asks), list(asks.values()), late_s)
        return [row[0] for row in rows]

    async def ask_now(self, command: Command, judged: UUID, busy_ms: int) -> Due | None:
        """Take one command because its caller asks; ``None`` where somebody is asking already, or
        it is not unknown any more."""
        c = command
        rows = await self._ask.fetch(
            _SQL["ask_now"],
            *(c.tenant, c.key_digest, judged, c.policy, c.upstream_digest, busy_ms),
        )
        return _due(rows[0]) if rows else None

    async def due_s(self, command: Command, asking_s: int) -> int | None:
        """Seconds until a command is asked about next; ``asking_s`` while somebody asks. ``None``:
        it is not on the list."""
        rows = await self._ask.fetch(_SQL["due_s"], command.tenant, command.key_digest, asking_s)
        return rows[0][0] if rows else None

    async def probed(
        self, due: Due, judged: Judged, interval_s: int, answer: Response | None
    ) -> Probed:
        """Record what a probe showed; ``answer``: to be replayed, where it proves *applied*."""
        faults.reach("probe.before")
        rows = await self._ask.fetch(
            _SQL["probed"],
            *(due.tenant, due.key_digest, due.attempt, judged.verdict, due.asked_at, interval_s),
            *(judged.why, _PRINCIPAL, *_columns(answer)),
        )
        faults.reach("probe.committed")
        result: Probed = rows[0][0]
        return result

    async def report(self, report: Report) -> tuple[ReportResult, int]:
        """Decide by what is reported; the seconds are those to wait for, where that helps."""
        r = report
        rows = await self._ask.fetch(
            _SQL["report"],
            *(r.tenant, r.key_digest, r.key, r.attempt, r.executed, r.reason, r.principal),
            *(r.request_id, *_columns(r.response)),
            *([*r.keep_limits], [*r.keep_limits.values()]),
        )
        return rows[0]["result"], rows[0]["remaining_s"]


def _columns(answer: Response | None) -> tuple[int | None, bytes | None, bytes | None]:
    if answer is None:
        return None, None, None
    return answer.status, encode_lines(recordable(answer.headers)), answer.body


def _due(row: asyncpg.Record) -> Due:
    return Due(*row)
