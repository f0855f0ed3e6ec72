"""What operators do with commands: find them, look at one, decide an unknown one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

import asyncpg

from gateway.core.decide import SettledBy, State
from gateway.core.fingerprint import key_digest
from gateway.core.headers import decode_lines
from gateway.core.model import Headers
from gateway.store import audit
from gateway.store.database import Database
from gateway.store.queries import load
from gateway.store.session import read
from gateway.store.tenants import OPERATOR, Tenant, list_tenants

__all__ = [
    "AlreadySettled",
    "Ambiguous",
    "Changed",
    "CommandDetail",
    "CommandInfo",
    "Erasure",
    "Filter",
    "InFlight",
    "Missing",
    "NoTenant",
    "OfEntity",
    "Resolution",
    "Resolved",
    "TooEarly",
    "count_of_entity",
    "erase",
    "erase_entity",
    "find",
    "holders",
    "list_commands",
    "outline_of",
    "resolve",
    "trail",
]

_SQL = load("operator")

_PAGE = 500
_TRAIL = 100
"""Audit rows shown beside one command."""

_HOLDERS = 10
"""Tenants named to somebody who looks under the wrong one."""


@dataclass(frozen=True, slots=True)
class CommandInfo:
    """A command without its recorded response. Times are the database's; ``remaining_ms`` to its
    deadline, negative behind it."""

    tenant: int
    tenant_name: str
    key_digest: bytes
    key: str
    state: State
    policy: str
    entity: str
    fence: int | None
    attempt: UUID
    attempts: int
    principal: str
    request_id: str
    admitted_at: datetime
    age_ms: int
    deadline: datetime
    remaining_ms: int
    settle_delay_s: int
    settled_at: datetime | None
    settled_by: SettledBy | None
    status: int | None
    evidence_status: int | None


@dataclass(frozen=True, slots=True)
class CommandDetail:
    """Everything that is recorded of one command, and of its entity now: ``mark`` is the
    high-water mark, ``is_open`` tells that the command holds the entity's open slot. ``body`` is
    ``None`` where it is not kept. ``probe``: the target of its status query. ``looks`` and what
    follows: how often it was asked about, when last, what came of that, when it is next and in how
    many seconds (negative: due since), and whether somebody asks now; ``None`` while nothing is
    known of it. ``first_sent_at``: from when its window for sending again counts;
    ``attempts_before``: those that gave way."""

    info: CommandInfo
    fingerprint: bytes
    rules: bytes
    serial: bool
    unknown: str
    upstream_key: str | None
    upstream_digest: bytes
    response_days: int
    key_days: int
    evidence_at: datetime | None
    evidence: bytes | None
    headers: Headers
    body: bytes | None
    expires_at: datetime | None
    probe: str | None
    looks: int | None
    last_look_at: datetime | None
    last_look: str | None
    next_look_at: datetime | None
    next_look_s: int | None
    asking: bool
    first_sent_at: datetime
    first_sent_ago_s: int
    attempts_before: int | None
    mark: int | None
    is_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which commands; ``None`` is any. ``tenant`` is a name, ``key`` the key as sent. ``job``: of
    its steps, under keys ``tool-job:{id}:{step}``."""

    tenant: str | None = None
    state: State | None = None
    entity: str | None = None
    key: str | None = None
    policy: str | None = None
    job: UUID | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class OfEntity:
    """How many commands an entity has; ``unsettled`` of them are in flight or unknown, ``evidence``
    of which keep what was heard."""

    commands: int
    unsettled: int
    evidence: int


@dataclass(frozen=True, slots=True)
class NoTenant:
    """No tenant has that name."""

    name: str


@dataclass(frozen=True, slots=True)
class Missing:
    """No command has that key: never admitted, given back, or forgotten by retention."""


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """Several digests begin like that; ``keys`` are some of them."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resolved:
    """Decided now, and audited."""


@dataclass(frozen=True, slots=True)
class AlreadySettled:
    """It has its response, or somebody resolved it: nothing to decide."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """Its attempt may still be sending, for ``remaining_s`` seconds."""

    remaining_s: int


@dataclass(frozen=True, slots=True)
class Changed:
    """Another attempt holds the key than the one that was judged."""


@dataclass(frozen=True, slots=True)
class TooEarly:
    """*Not executed* cannot be known yet: the upstream may act for ``remaining_s`` seconds more."""

    remaining_s: int


Erasure = Literal["erased", "already", "missing", "unsettled"]
"""``already``: nothing of the answer was kept any more. ``unsettled``: it may still be answered, or
its evidence be needed to decide it."""

Resolution = Resolved | Missing | AlreadySettled | InFlight | Changed | TooEarly


async def list_commands(database: Database, wanted: Filter) -> AsyncIterator[CommandInfo]:
    """Matching commands, the latest admitted first, read page by page like ``audit.search``.

    Raises ``StoreUnavailable``.
    """
    numbers, digests = await _places(database, wanted)
    prefix, since = None, None
    if wanted.job is not None:
        made = await read(database, _SQL["job_made"], numbers, wanted.job)
        prefix, since = f"tool-job:{wanted.job}:", made[0][0]
        if since is None:
            return
    left = wanted.limit
    last: CommandInfo | None = None
    while left is None or left > 0:
        size = _PAGE if left is None else min(_PAGE, left)
        rows = await read(
            database,
            _SQL["list"],
            *(numbers, wanted.state, wanted.entity, digests, wanted.policy),
            *((last.admitted_at, last.tenant, last.key_digest) if last else (None, None, None)),
            *(size, prefix, since),
            in_order=wanted.job is not None,
        )
        for row in rows:
            last = CommandInfo(**row)
            yield last
        if len(rows) < size:
            return
        left = None if left is None else left - len(rows)


async def find(
    database: Database, tenant_name: str, *, key: str | None = None, digest: str | None = None
) -> CommandDetail | NoTenant | Missing | Ambiguous:
    """One command, by its key (visible ASCII) or by the first hex digits of its digest.

    Raises ``StoreUnavailable``.
    """
    tenants = await list_tenants(database)
    tenant = next((each for each in tenants if each.name == tenant_name), None)
    if tenant is None:
        return NoTenant(tenant_name)
    low, high = _bounds(tenant, key, digest)
    rows = await read(database, _SQL["show"], tenant.number, low, high, 5)
    if not rows:
        return Missing()
    if len(rows) > 1:
        return Ambiguous(tuple(row["key"] for row in rows))
    return _detail(tenant, rows[0])


async def outline_of(database: Database, command: CommandInfo) -> bytes | None:
    """What admit recorded for ``explain`` to compare with; ``None`` where it recorded nothing, or
    the key has changed hands since. Raises ``StoreUnavailable``."""
    rows = await read(
        database, _SQL["outline"], command.tenant, command.key_digest, command.attempt
    )
    return rows[0]["outline"] if rows else None


async def holders(database: Database, key: str) -> list[str]:
    """Some of the tenants that have a command of that key. Raises ``StoreUnavailable``."""
    tenants = await list_tenants(database)
    rows = await read(
        database,
        _SQL["holders"],
        [each.number for each in tenants],
        [key_digest(each.salt, key) for each in tenants],
        _HOLDERS,
    )
    return [row["name"] for row in rows]


async def trail(database: Database, tenant_name: str, key: str) -> Sequence[audit.Row]:
    """The latest audit rows of one key, oldest first; a command that was given back has some too.

    Raises ``StoreUnavailable``.
    """
    wanted = audit.Filter(tenant=tenant_name, key=key, limit=_TRAIL)
    return [row async for row in audit.search(database, wanted)][::-1]


async def resolve(
    database: Database,
    command: CommandInfo,
    *,
    attempt: UUID,
    verdict: Literal["executed", "not-executed"],
    reason: str,
    by: str,
) -> Resolution:
    """Decide an unknown command, if ``attempt`` (the one that was judged) still holds its key.

    ``by``: the operator's name. Raises ``StoreUnavailable``; after ``AnswerLost`` look again, it
    may have been done.
    """
    rows = await database.fetch(
        _SQL["resolve"],
        *(command.tenant, command.key_digest, attempt, verdict == "executed", reason),
        OPERATOR + by,
    )
    return _resolution(rows[0]["result"], rows[0]["remaining_s"])


async def erase(
    database: Database, tenant: int, key_digest: bytes, *, reason: str, by: str
) -> Erasure:
    """Have what is kept of one answer erased; digests, status and audit stay. ``by`` as for
    ``resolve``. Raises ``StoreUnavailable``; after ``AnswerLost`` repeat it."""
    rows = await database.fetch(_SQL["erase"], tenant, key_digest, reason, OPERATOR + by)
    result: Erasure = rows[0]["result"]
    return result


async def erase_entity(
    database: Database, tenant: Tenant, entity: str, *, reason: str, by: str
) -> AsyncIterator[tuple[str, Erasure]]:
    """The same for every settled command of an entity that keeps something: key and result.
    It looks through the tenant's commands. Raises as ``erase``."""
    last = b""
    while True:
        rows = await read(database, _SQL["settled_of"], tenant.number, entity, last, _PAGE)
        for row in rows:
            last = row["key_digest"]
            yield row["key"], await erase(database, tenant.number, last, reason=reason, by=by)
        if len(rows) < _PAGE:
            return


async def count_of_entity(database: Database, tenant: Tenant, entity: str) -> OfEntity:
    """What stands there of an entity. It looks through the tenant's commands. Raises
    ``StoreUnavailable``."""
    return OfEntity(*(await read(database, _SQL["count_of"], tenant.number, entity))[0])


async def _places(
    database: Database, wanted: Filter
) -> tuple[list[int] | None, list[bytes] | None]:
    """The tenant numbers and key digests to look under; ``None`` is any."""
    if wanted.tenant is None and wanted.key is None:
        return None, None
    tenants = [each for each in await list_tenants(database) if wanted.tenant in (None, each.name)]
    numbers = [each.number for each in tenants]
    if wanted.key is None:
        return numbers, None
    return numbers, [key_digest(each.salt, wanted.key) for each in tenants]


def _resolution(result: str, remaining_s: int) -> Resolution:
    match result:
        case "resolved":
            return Resolved()
        case "missing":
            return Missing()
        case "settled":
            return AlreadySettled()
        case "in-flight":
            return InFlight(remaining_s)
        case "changed":
            return Changed()
        case "too-early":
            return TooEarly(remaining_s)
        case _:
            raise AssertionError(f"gateway.resolve returned {result!r}")


def _bounds(tenant: Tenant, key: str | None, digest: str | None) -> tuple[bytes, bytes]:
    """The range of key digests to look in."""
    if key is not None:
        exact = key_digest(tenant.salt, key)
        return exact, exact
    prefix = digest or ""
    return bytes.fromhex(prefix.ljust(32, "0")), bytes.fromhex(prefix.ljust(32, "f"))


def _detail(tenant: Tenant, row: asyncpg.Record) -> CommandDetail:
    values = dict(row, tenant_name=tenant.name)
    info = CommandInfo(**{name: values[name] for name in CommandInfo.__slots__})
    return CommandDetail(
        info=info,
        fingerprint=row["fingerprint"],
        rules=row["rules"],
        serial=row["serial"],
        unknown=row["unknown"],
        upstream_key=row["upstream_key"],
        upstream_digest=row["upstream_digest"],
        response_days=row["response_days"],
        key_days=row["key_days"],
        evidence_at=row["evidence_at"],
        evidence=row["evidence"],
        headers=() if row["headers"] is None else decode_lines(row["headers"]),
        body=row["body"],
        expires_at=row["expires_at"],
        probe=None if row["probe_target"] is None else row["probe_target"].decode("ascii"),
        looks=row["looks"],
        last_look_at=row["last_look_at"],
        last_look=row["last_look"],
        next_look_at=row["next_look_at"],
        next_look_s=row["next_look_s"],
        asking=row["asking"],
        first_sent_at=row["first_sent_at"],
        first_sent_ago_s=row["first_sent_ago_s"],
        attempts_before=row["attempts_before"],
        mark=row["mark"],
        is_open=bool(row["is_open"]),
    )
