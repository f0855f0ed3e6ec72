"""A request taken through the gateway without effect: what it is, and what would happen to it now.

No rule is written down here a second time. The gateway's own intake reads the request, and admit's
own statement judges it, in a transaction that is rolled back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from gateway.core.auth import Principal, Snapshot
from gateway.core.decide import (
    Decision,
    Facts,
    RejectReused,
    RejectUnresolved,
    WaitForEntity,
    decide,
)
from gateway.core.fingerprint import SALT_BYTES
from gateway.core.framing import check_head, check_message
from gateway.core.headers import values
from gateway.core.keys import Refusal
from gateway.core.model import Headers
from gateway.core.outline import Differences
from gateway.core.problems import Problem
from gateway.core.scopes import ALL
from gateway.errors import FencegateError
from gateway.observe.text import one_line
from gateway.policy import Derived, Match, NoPolicy, Policies, Unguarded, derive
from gateway.policy.fields import is_own
from gateway.proxy.body import Gone
from gateway.proxy.intake import Admissible, Identity, Intake, Passage, Recalled, Refused
from gateway.store.commands import CommandStore
from gateway.store.database import Database
from gateway.store.operator import CommandInfo, Filter, list_commands, outline_of
from gateway.store.tenants import list_tenants, load_snapshot
from gateway.upstream import Client, Origin

__all__ = ["Own", "Rehearsal", "Sought", "by_policies_alone", "rehearse"]

DEFAULT_TENANT = "default"

_ASSUMED = "explain"
"""A caller's name and key id, where no gateway key was given."""


@dataclass(frozen=True, slots=True)
class Sought:
    """A request as it was typed. ``path`` and ``query`` raw; ``headers`` with lower-case names."""

    method: str
    path: bytes
    query: bytes
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class Own:
    """A path that the gateway answers itself, such as ``/healthz``."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What came out. ``tenant``: ``None`` where nobody was authenticated, or there is no database.

    ``assumed``: no gateway key was given, though callers need one.
    ``taken``, ``found``: what the intake and the policies say. ``derived``: of a request that could
    be admitted. ``facts``, ``decision``: of its rehearsed admit. ``earlier``: the command that
    stands under its key. ``blocker``: another one that holds its entity. ``differences``: from
    ``earlier``, where its key is used for something else and paths are known.
    """

    sought: Sought
    tenant: str | None
    found: Match | Unguarded | NoPolicy | Refusal
    taken: Refused | Passage | Admissible | Own
    assumed: bool = False
    derived: Derived | None = None
    facts: Facts | None = None
    decision: Decision | None = None
    earlier: CommandInfo | None = None
    blocker: CommandInfo | None = None
    differences: Differences | None = None


class _Known:
    """Keys for the intake to judge by, read once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def current(self) -> Snapshot:
        return self._snapshot


async def rehearse(
    database: Database, policies: Policies, sought: Sought, tenant: str | None
) -> Rehearsal:
    """``tenant``: whose request; ``None`` is the one of its gateway key, else ``default``.

    Raises ``FencegateError`` where the gateway key is another tenant's, ``StoreUnavailable`` and
    ``AnswerLost``. The tenant must exist.
    """
    store = CommandStore(database)
    snapshot = await _callers(database, sought, tenant)
    seen = await _take(policies, sought, snapshot, await store.pseudonym())
    if not isinstance(seen.taken, Admissible):
        return seen
    command = seen.taken.call.command
    facts = await store.rehearse(replace(command, attempt=uuid4()))
    seen = replace(seen, facts=facts, decision=decide(facts))
    if isinstance(seen.decision, WaitForEntity | RejectUnresolved):
        return replace(seen, blocker=await _command(database, seen, seen.decision.open.key))
    if facts.known is None or facts.known.attempt == facts.attempt:
        return seen
    earlier = await _command(database, seen, command.key)
    seen = replace(seen, earlier=earlier)
    if earlier is None or not isinstance(seen.decision, RejectReused):
        return seen
    return replace(seen, differences=await _differences(database, seen, earlier))


async def by_policies_alone(policies: Policies, sought: Sought, tenant: str | None) -> Rehearsal:
    """All that takes no database. Digests are left to whoever has the tenant's salt."""
    name = tenant or DEFAULT_TENANT
    nobody = Principal(0, _ASSUMED, name, bytes(SALT_BYTES), _ASSUMED, scopes=ALL)
    seen = await _take(policies, sought, Snapshot({}, nobody), b"fencegate")
    return replace(seen, tenant=None)


async def _take(
    policies: Policies, sought: Sought, snapshot: Snapshot, pseudonym: bytes
) -> Rehearsal:
    """What the gateway's own intake makes of the request."""
    found = policies.match(sought.method, sought.path)
    headers = _as_sent(sought)
    target = sought.path + (b"?" + sought.query if sought.query else b"")
    wrong = check_message(sought.method, target, headers, len(sought.body)) or check_head(
        "1.1", headers, target
    )
    if wrong is not None:
        refused = Refused(Identity(""), Problem("request-invalid", wrong))
        return Rehearsal(sought, None, found, refused)
    if is_own(sought.path.decode("latin-1")):
        return Rehearsal(sought, None, found, Own())
    scope: Mapping[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": sought.method,
        "path": sought.path.decode("latin-1"),
        "raw_path": sought.path,
        "query_string": sought.query,
        "headers": list(headers),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": sought.body, "more_body": False}

    nowhere = Client(Origin.parse("http://127.0.0.1:1"))  # asked for, and never sent on
    clients = {mount.upstream.name: nowhere for mount in policies.mounts}
    intake = Intake(policies, clients, clients, _Known(snapshot), pseudonym)
    taken = await intake.take(scope, receive, lambda *_: None)
    assert not isinstance(taken, Gone | Recalled), "nobody hangs up here, and there is no cache"
    principal = taken.identity.principal
    tenant = principal.tenant_name if principal else None
    assumed = principal is not None and principal.key_id == _ASSUMED
    seen = Rehearsal(sought, tenant, found, taken, assumed)
    return replace(seen, derived=_derived(seen)) if isinstance(taken, Admissible) else seen


def _as_sent(sought: Sought) -> Headers:
    """With the fields that every client adds, where they were not typed."""
    headers = sought.headers
    if not values(headers, b"host"):
        headers = ((b"host", b"localhost"), *headers)
    framed = values(headers, b"content-length") or values(headers, b"transfer-encoding")
    if sought.body and not framed:
        headers += ((b"content-length", b"%d" % len(sought.body)),)
    return headers


def _derived(seen: Rehearsal) -> Derived:
    """Once more what the intake derived, which keeps only the command."""
    sought = seen.sought
    assert isinstance(seen.found, Match)
    derived = derive(
        seen.found, sought.method, sought.path, sought.query, sought.headers, sought.body
    )
    assert isinstance(derived, Derived)
    return derived


async def _callers(database: Database, sought: Sought, tenant: str | None) -> Snapshot:
    """The keys by which the request's own ``Authorization`` is judged; where it has none, a caller
    of the tenant is assumed, as if it had shown its key."""
    snapshot = await load_snapshot(database)
    lines = values(sought.headers, b"authorization")
    if lines and snapshot.anonymous is None:
        holder = snapshot.authenticate(lines)
        if holder is not None and tenant not in (None, holder.tenant_name):
            raise FencegateError(
                f"the gateway key in Authorization is of tenant {holder.tenant_name}, not "
                f"{one_line(tenant or '')}; leave --tenant out"
            )
        return snapshot
    wanted = tenant or DEFAULT_TENANT
    if snapshot.anonymous is not None and snapshot.anonymous.tenant_name == wanted:
        return snapshot
    (found,) = [each for each in await list_tenants(database) if each.name == wanted]
    return Snapshot(
        {}, Principal(found.number, _ASSUMED, found.name, found.salt, _ASSUMED, scopes=ALL)
    )


async def _command(database: Database, seen: Rehearsal, key: str) -> CommandInfo | None:
    """The command of that key; ``None`` where it was given back since."""
    wanted = Filter(tenant=seen.tenant, key=key, limit=1)
    async for info in list_commands(database, wanted):
        return info
    return None


async def _differences(
    database: Database, seen: Rehearsal, earlier: CommandInfo
) -> Differences | None:
    outline = await outline_of(database, earlier)
    if outline is None or seen.derived is None or not isinstance(seen.taken, Admissible):
        return None
    principal = seen.taken.identity.principal
    assert principal is not None
    try:
        return seen.derived.differences(principal.salt, outline)
    except ValueError:  # recorded by other rules meanwhile
        return None
