"""Losses as they stand in the database: reported by processes, acknowledged by an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from gateway.core.acknowledged import KeptCommand, KeptMark
from gateway.store.database import Database
from gateway.store.queries import load
from gateway.store.session import read
from gateway.store.tenants import OPERATOR

__all__ = [
    "BATCH",
    "Loss",
    "LostRow",
    "acknowledge",
    "list_lost",
    "missing_commands",
    "missing_marks",
    "open_losses",
    "report",
]

_SQL = load("losses")

BATCH = 500
"""Look-ups of one statement: some milliseconds."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What one process found missing. ``settlements``: commands that stand there, unsettled."""

    id: UUID
    found_at: datetime
    acknowledged: bool
    commands: int
    settlements: int
    marks: int

    @property
    def rows(self) -> int:
        return self.commands + self.settlements + self.marks


@dataclass(frozen=True, slots=True)
class LostRow:
    """One row that was missing, for operators. ``restored``: it was put back from memory. Of a loss
    whose rows were lost in turn, ``None`` from ``tenant_name`` on."""

    loss: UUID
    found_at: datetime
    server_before: str | None
    server_after: str | None
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    reason: str | None
    tenant_name: str | None
    what: str | None
    entity: str | None
    key: str | None
    policy: str | None
    fence: int | None
    attempt: UUID | None
    status: int | None
    restored: bool | None


async def missing_commands(database: Database, kept: Sequence[KeptCommand]) -> list[KeptCommand]:
    """Those whose row, or whose settlement, is not there. Raises as ``Database.fetch`` does."""
    rows = await database.fetch(
        _SQL["missing_commands"],
        [k.command.tenant for k in kept],
        [k.command.key_digest for k in kept],
        [k.command.attempt for k in kept],
        [k.command.entity for k in kept],
        [k.status is not None for k in kept],
        [k.command.key for k in kept],
        [k.command.unknown == "resend" for k in kept],
    )
    return [kept[row["ord"] - 1] for row in rows]


async def missing_marks(database: Database, kept: Sequence[KeptMark]) -> list[KeptMark]:
    """Those whose entity is gone or stands at a lower mark."""
    rows = await database.fetch(
        _SQL["missing_marks"],
        [k.tenant for k in kept],
        [k.entity for k in kept],
        [k.fence for k in kept],
    )
    return [kept[row["ord"] - 1] for row in rows]


async def report(
    database: Database,
    loss: UUID,
    before: str | None,
    after: str,
    lost: Sequence[KeptCommand | KeptMark],
) -> tuple[UUID, list[bool]]:
    """Record what is missing as that ``loss``, and put it back: whether each of ``lost`` stands
    again. Where the loss was acknowledged by then it is another, whose id comes back. After
    ``AnswerLost`` repeat it."""
    commands = [each.command if isinstance(each, KeptCommand) else None for each in lost]
    rows = await database.fetch(
        _SQL["report"],
        *(loss, before, after),
        [_what(each) for each in lost],
        [_place(each)[0] for each in lost],
        [c and c.key_digest for c in commands],
        [c and c.key for c in commands],
        [c and c.policy for c in commands],
        [_place(each)[1] for each in lost],
        [c and c.fingerprint for c in commands],
        [c and c.rules for c in commands],
        [each.command.fence if isinstance(each, KeptCommand) else each.fence for each in lost],
        [c and c.attempt for c in commands],
        [c and c.principal for c in commands],
        [c and c.request_id for c in commands],
        [c and c.serial for c in commands],
        [c and c.unknown for c in commands],
        [c and c.upstream_key for c in commands],
        [c and c.upstream_digest for c in commands],
        [c and c.deadline_ms for c in commands],
        [c and c.settle_delay_s for c in commands],
        [c and c.response_days for c in commands],
        [c and c.key_days for c in commands],
        [c and c.outline for c in commands],
        [each.status if isinstance(each, KeptCommand) else None for each in lost],
        [isinstance(each, KeptMark) and each.issued for each in lost],
        [c and c.probe_target for c in commands],
        [_uuids(each.earlier) if isinstance(each, KeptCommand) else None for each in lost],
    )
    return rows[0]["loss"], [row["restored"] for row in rows]


async def open_losses(database: Database, own: UUID | None) -> list[Loss]:
    """Losses that nobody acknowledged, and ``own`` whatever became of it."""
    rows = await database.fetch(_SQL["open"], own)
    return [Loss(*row) for row in rows]


async def list_lost(database: Database, *, acknowledged: bool, limit: int | None) -> list[LostRow]:
    """What was lost, the latest first. Raises ``StoreUnavailable``."""
    return [LostRow(*row) for row in await read(database, _SQL["list"], acknowledged, limit)]


async def acknowledge(database: Database, *, reason: str, by: str) -> int:
    """Let all processes go on; how many losses were open. ``by``: the operator's name. After
    ``AnswerLost`` repeat it."""
    rows = await database.fetch(_SQL["acknowledge"], reason, OPERATOR + by)
    return int(rows[0]["losses"])


def _uuids(attempts: Sequence[UUID]) -> str | None:
    """An array literal: PostgreSQL has no arrays of arrays of several lengths."""
    return "{" + ",".join(map(str, attempts)) + "}" if attempts else None


def _what(each: KeptCommand | KeptMark) -> str:
    if isinstance(each, KeptMark):
        return "mark"
    return "command" if each.status is None else "settlement"


def _place(each: KeptCommand | KeptMark) -> tuple[int, str]:
    if isinstance(each, KeptMark):
        return each.tenant, each.entity
    return each.command.tenant, each.command.entity
