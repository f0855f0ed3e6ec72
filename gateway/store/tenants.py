"""Tenants and their caller keys, and the snapshot of them that every request is judged by.

A key's secret has 256 random bits, so its plain SHA-256 is all that need be kept; it is shown once,
when it is made. Adding, changing and revoking write their audit row in the same commit.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Literal
from uuid import uuid4

import asyncpg

from gateway.core.auth import CallerKey, Principal, Snapshot, Token, format_token
from gateway.core.scopes import ALL, BEFORE, DEFAULT, LIMIT, is_scope, ordered
from gateway.errors import ConfigurationError, FencegateError
from gateway.store.database import Database
from gateway.store.queries import load
from gateway.store.session import read

__all__ = [
    "OPERATOR",
    "KeyInfo",
    "LeftBehind",
    "Tenant",
    "add_key",
    "change_scopes",
    "list_keys",
    "list_tenants",
    "load_snapshot",
    "revoke_key",
]

OPERATOR = "operator:"
"""Begins the principal of what an operator did; no key may be issued under such a name."""

_SQL = load("tenants")

_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_PRINCIPAL_LIMIT = 100

_ID_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"  # without what looks alike: i l o 0 1
_ID_LENGTH = 10  # 31^10 ids: a clash within a tenant is not seen in practice, and is retried
_TRIES = 3


_COUNTED = 10_000
"""Commands that are counted before they are called many."""


class LeftBehind(FencegateError):
    """Callers without a key would leave what is on record under the tenant ``default``."""


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A caller key as operators see it. ``scopes``: as recorded; ``None`` for a key of before there
    were any."""

    tenant: int
    tenant_name: str
    key_id: str
    principal: str
    created_at: datetime
    revoked_at: datetime | None
    scopes: tuple[str, ...] | None

    @property
    def may(self) -> tuple[str, ...]:
        """What it may do."""
        return ordered(_effective(self.scopes))


@dataclass(frozen=True, slots=True)
class Tenant:
    """``salt``: 16 bytes, keys its digests and fingerprints."""

    number: int
    name: str
    salt: bytes


async def add_key(
    database: Database,
    tenant_name: str,
    principal: str,
    *,
    by: str,
    scopes: Collection[str] = DEFAULT,
    apart: bool = False,
) -> str:
    """Make a key for ``principal`` and return its token, which exists nowhere else.

    Makes the tenant if it is missing. ``by``: the operator's name. Raises ``ConfigurationError``
    for a name or a scope that cannot be used, ``LeftBehind`` (unless ``apart``) where a tenant's
    first key would part callers from what they did under ``default``, ``StoreUnavailable``, and
    ``AnswerLost`` where a key may have been made whose token nobody knows (`list_keys` shows it,
    `revoke_key` ends it).
    """
    _check_tenant(tenant_name)
    _check_principal(principal)
    _check_scopes(scopes)
    if not apart:
        await _check_left_behind(database, tenant_name)
    for _ in range(_TRIES):
        await database.fetch(_SQL["ensure_tenant"], tenant_name)
        key_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))
        secret = secrets.token_urlsafe(32).encode("ascii")
        rows = await database.fetch(
            _SQL["add_key"],
            *(tenant_name, key_id, principal, sha256(secret).digest(), uuid4(), OPERATOR + by),
            list(ordered(scopes)),
        )
        if rows:
            return format_token(Token(rows[0]["tenant"], key_id, secret))
    raise ConfigurationError("no free key id was found; try again")


async def revoke_key(
    database: Database, tenant_name: str, key_id: str, *, by: str
) -> Literal["revoked", "already", "missing"]:
    """End a key for good. Running gateways follow within 5 s. ``by`` as for ``add_key``.

    Raises ``StoreUnavailable``; after ``AnswerLost`` repeat it.
    """
    rows = await database.fetch(_SQL["revoke_key"], tenant_name, key_id, uuid4(), OPERATOR + by)
    if not rows:
        return "missing"
    return "revoked" if rows[0]["now"] else "already"


async def change_scopes(
    database: Database, key: KeyInfo, scopes: Collection[str], *, by: str
) -> bool:
    """Let ``key`` do this and nothing else; false where it is no longer as it was read. Running
    gateways follow within 5 s. ``by`` as for ``add_key``.

    Raises ``ConfigurationError`` for scopes that cannot be used, ``StoreUnavailable``; after
    ``AnswerLost`` look at it again.
    """
    _check_scopes(scopes)
    before = None if key.scopes is None else list(key.scopes)
    rows = await database.fetch(
        _SQL["change_scopes"],
        *(key.tenant, key.key_id, before, list(ordered(scopes)), uuid4(), OPERATOR + by),
    )
    return bool(rows)


async def list_keys(database: Database, tenant_name: str | None = None) -> list[KeyInfo]:
    """Every key that ever existed, of one tenant or of all. Raises ``StoreUnavailable``."""
    rows = await read(database, _SQL["list_keys"], tenant_name)
    return [KeyInfo(**{**row, "scopes": _recorded(row)}) for row in rows]


async def list_tenants(database: Database) -> list[Tenant]:
    """All tenants. Raises ``StoreUnavailable``."""
    rows = await read(database, _SQL["list_tenants"])
    return [Tenant(row["tenant"], row["name"], row["salt"]) for row in rows]


async def load_snapshot(database: Database) -> Snapshot:
    """The keys in force now. Raises ``StoreUnavailable``, ``AnswerLost``; both mean: not known."""
    return _snapshot(await database.fetch(_SQL["snapshot"]))


def _snapshot(rows: Sequence[asyncpg.Record]) -> Snapshot:
    keys: dict[tuple[int, str], CallerKey] = {}
    anonymous: Principal | None = None
    ever = False
    for row in rows:
        tenant, name, salt = row["tenant"], row["tenant_name"], row["salt"]
        epoch = row["erasure_epoch"].bytes
        if row["key_id"] is None:
            anonymous = Principal(tenant, "anonymous", name, salt, scopes=ALL, epoch=epoch)
            continue
        ever = True
        if not row["revoked"]:
            scopes = _effective(_recorded(row))
            principal = Principal(
                *(tenant, row["principal"], name, salt, row["key_id"]), scopes=scopes, epoch=epoch
            )
            keys[tenant, row["key_id"]] = CallerKey(principal, row["secret_digest"])
    return Snapshot(keys, None if ever else anonymous)


def _recorded(row: asyncpg.Record) -> tuple[str, ...] | None:
    return None if row["scopes"] is None else tuple(row["scopes"])


def _effective(recorded: tuple[str, ...] | None) -> frozenset[str]:
    return BEFORE if recorded is None else frozenset(recorded)


async def _check_left_behind(database: Database, tenant_name: str) -> None:
    rows = await read(database, _SQL["left_behind"], tenant_name, _COUNTED + 1)
    if not rows or not (rows[0]["commands"] or rows[0]["entities"]):
        return
    count = rows[0]["commands"]
    commands = f"more than {_COUNTED}" if count > _COUNTED else f"{count}"
    raise LeftBehind(
        f"{commands} command{'' if count == 1 else 's'} and the entities' fences stand under the "
        f"tenant default, which {tenant_name} does not see: a retry with a key of {tenant_name} is "
        "a new command and would be sent again; use --tenant default, so that callers keep what "
        "they did, or add --apart to go on knowingly"
    )


def _check_tenant(name: str) -> None:
    if not _TENANT.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot name a tenant; use 1 to 63 of a-z, 0-9, _ and -, "
            "beginning with a letter or a digit"
        )


def _check_principal(name: str) -> None:
    if not (0 < len(name) <= _PRINCIPAL_LIMIT and name.isprintable() and name == name.strip()):
        raise ConfigurationError(
            f"{name!r} cannot name a caller; use 1 to {_PRINCIPAL_LIMIT} printable characters"
        )
    if name.startswith(OPERATOR) or name == "anonymous":
        raise ConfigurationError(f"{name!r} is reserved; choose another name for the caller")


def _check_scopes(scopes: Collection[str]) -> None:
    for scope in scopes:
        if not is_scope(scope):
            raise ConfigurationError(
                f"{scope!r} is no scope; use policy:NAME, policy:*, enqueue, work, operate or audit"
            )
    if not 0 < len(set(scopes)) <= LIMIT:
        raise ConfigurationError(
            f"a key has 1 to {LIMIT} scopes, not {len(set(scopes))}; policy:* stands for every "
            "policy, and a key that may do nothing is one to revoke"
        )
