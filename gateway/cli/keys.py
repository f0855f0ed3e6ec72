"""``keys``: who may call the gateway."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from difflib import get_close_matches

from gateway.cli.database import check_tenant, on_database
from gateway.cli.options import (
    Subparsers,
    add_command,
    add_format,
    add_group,
    add_operator,
    operator_name,
    text,
)
from gateway.cli.rows import Cells, Writer
from gateway.cli.server import add_policies
from gateway.core.auth import parse_token
from gateway.core.scopes import DEFAULT, is_scope, ordered, policies_named
from gateway.errors import FencegateError
from gateway.observe.text import one_line
from gateway.policy import PolicyErrors
from gateway.policy.loader import names
from gateway.settings import load_settings
from gateway.store.database import Database
from gateway.store.tenants import KeyInfo, add_key, change_scopes, list_keys, revoke_key

__all__ = ["register"]

_COLUMNS = ("key_id", "tenant", "name", "created_at", "revoked_at", "scopes")

_TRIES = 3
"""Somebody else may change the same key at the same time."""

_SCOPES = (
    "Scopes: policy:NAME (send to that policy) or policy:* (to every one), enqueue (make and read\n"
    "jobs), work (claim, renew and end them, and have fences issued), operate (cancel, retry and\n"
    "approve jobs, report outcomes), audit (read audit and commands)."
)


def register(subparsers: Subparsers) -> None:
    group = add_group(
        subparsers,
        "keys",
        summary="make, list and revoke the keys that callers authenticate with",
        details="Until the first key exists nobody is asked for one, only loopback is served, and\n"
        "callers belong to the tenant default. Tenants share nothing. What a key may do, its\n"
        "scopes say.",
        example="fencegate keys add --tenant default --name invoice-worker",
    )
    add = add_command(
        group,
        "add",
        _add,
        summary="make a key and print its token, this once",
        details="The token goes to standard output, alone. Only a digest of it is kept. Once a\n"
        "key exists, callers without one are refused (within 5 s). What was sent before the\n"
        "first key is on record under the tenant default: callers that retry it need a key of\n"
        f"that tenant, since under any other it would be sent again.\n\n{_SCOPES}",
        example="fencegate keys add --tenant default --name invoice-worker --scope policy:payments",
    )
    add.add_argument("--tenant", type=text, required=True, help="made if it does not exist yet")
    add.add_argument(
        "--apart",
        action="store_true",
        help="go on although the tenant default has commands that this tenant will not see",
    )
    add.add_argument("--name", type=text, required=True, help="the caller, as logs and audit say")
    _add_scopes(add, f"what it may do, may be repeated (default: {' '.join(ordered(DEFAULT))})")
    add_policies(add)
    add_operator(add)
    listing = add_command(
        group,
        "list",
        _list,
        summary="list every key that ever existed, revoked ones included",
        example="fencegate keys list --tenant billing",
    )
    listing.add_argument("--tenant", type=text, help="only of this tenant")
    add_format(listing)
    _register_changes(group)
    revoke = add_command(
        group,
        "revoke",
        _revoke,
        summary="end a key for good; running gateways follow within 5 s",
        details="Revoking the last key opens nothing: nobody is authenticated then.",
        example="fencegate keys revoke 7hq2m4xkpw",
    )
    _add_key_id(revoke)


def _register_changes(group: Subparsers) -> None:
    grant = add_command(
        group,
        "grant",
        _grant,
        summary="let a key do more; running gateways follow within 5 s",
        details=_SCOPES,
        example="fencegate keys grant 7hq2m4xkpw --scope operate",
    )
    withdraw = add_command(
        group,
        "withdraw",
        _withdraw,
        summary="let a key do less; running gateways follow within 5 s",
        details="What it may not do it is not told about either: a recorded response is not\n"
        f"replayed to it. A key that is to do nothing is revoked.\n\n{_SCOPES}",
        example="fencegate keys withdraw 7hq2m4xkpw --scope operate",
    )
    for parser in (grant, withdraw):
        _add_scopes(parser, "may be repeated", required=True)
        add_policies(parser)
        _add_key_id(parser)


def _add_scopes(parser: argparse.ArgumentParser, what: str, *, required: bool = False) -> None:
    parser.add_argument(
        "--scope", type=_scope, action="append", required=required, metavar="SCOPE", help=what
    )


def _add_key_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key_id", type=text, metavar="KEY_ID", help="as `keys list` shows it")
    parser.add_argument("--tenant", type=text, help="whose key, where two tenants have that id")
    add_operator(parser)


def _scope(value: str) -> str:
    if is_scope(value):
        return value
    raise argparse.ArgumentTypeError(
        f"{value!r} is no scope; write policy:NAME, policy:*, enqueue, work, operate or audit"
    )


def _add(options: argparse.Namespace) -> int:
    scopes = options.scope or DEFAULT

    async def work(database: Database) -> str:
        return await add_key(
            database,
            options.tenant,
            options.name,
            by=operator_name(options),
            scopes=scopes,
            apart=options.apart,
        )

    token = on_database(work)
    print(token, flush=True)
    print(
        f"This is the only time the token is shown. {one_line(options.name)} sends it as\n"
        "Authorization: Bearer fg_…\n"
        f"It may: {' '.join(ordered(scopes))}",
        file=sys.stderr,
    )
    _warn(options, scopes)
    return 0


def _list(options: argparse.Namespace) -> int:
    async def work(database: Database) -> None:
        await check_tenant(database, options.tenant)
        writer = Writer(options.format, _COLUMNS)
        for key in await list_keys(database, options.tenant):
            writer.add(_cells(key))
        if writer.close() == 0 and options.format == "table":
            print(
                f"tenant {options.tenant} never had a key"
                if options.tenant
                else "no key exists; the gateway serves loopback only, without authentication"
            )

    on_database(work)
    return 0


def _grant(options: argparse.Namespace) -> int:
    return _change(options, more=options.scope)


def _withdraw(options: argparse.Namespace) -> int:
    return _change(options, less=options.scope)


def _change(
    options: argparse.Namespace, *, more: Collection[str] = (), less: Collection[str] = ()
) -> int:
    async def work(database: Database) -> int:
        await check_tenant(database, options.tenant)
        for _ in range(_TRIES):
            key = _pick(await list_keys(database, options.tenant), options.key_id)
            wrong = _unchangeable(key, less) if isinstance(key, KeyInfo) else key
            if isinstance(key, str) or wrong is not None:
                print(f"fencegate: {wrong}", file=sys.stderr)
                return 1
            scopes = ordered({*key.may, *more} - {*less})
            by = operator_name(options)
            if scopes == key.scopes or await change_scopes(database, key, scopes, by=by):
                whose = f"{key.tenant_name}/{one_line(key.principal)}"
                print(f"key {key.key_id} of {whose} may: {' '.join(scopes)}")
                _warn(options, more)
                return 0
        raise FencegateError("the key was changed by somebody else meanwhile; try again")

    return on_database(work)


def _unchangeable(key: KeyInfo, less: Collection[str]) -> str | None:
    """Why the key's scopes cannot be changed so."""
    if key.revoked_at is not None:
        return f"key {key.key_id} is revoked, for good; make another: fencegate keys add"
    absent = ordered(set(less) - set(key.may))
    if absent:
        return f"key {key.key_id} has no scope {absent[0]}; it may: {' '.join(key.may)}"
    if less and set(key.may) <= set(less):
        return (
            f"key {key.key_id} could do nothing then; end it: fencegate keys revoke {key.key_id} "
            f"--tenant {key.tenant_name}"
        )
    return None


def _warn(options: argparse.Namespace, scopes: Collection[str]) -> None:
    """Say so where a scope names a policy that is not there; often a slip. Where the policies lie
    elsewhere, `serve` says it."""
    directory = options.policies or load_settings().policies_dir
    try:
        known = names(directory)
    except PolicyErrors:
        return
    for name in sorted(policies_named(scopes) - known):
        close = get_close_matches(name, known, n=1)
        mend = f"is {close[0]} meant?" if close else "it counts as soon as there is one"
        print(
            f"fencegate: warning: no policy in {one_line(str(directory))} is called {name}; {mend}",
            file=sys.stderr,
        )


def _revoke(options: argparse.Namespace) -> int:
    async def work(database: Database) -> int:
        await check_tenant(database, options.tenant)
        key = _pick(await list_keys(database, options.tenant), options.key_id)
        if isinstance(key, str):
            print(f"fencegate: {key}", file=sys.stderr)
            return 1
        result = await revoke_key(database, key.tenant_name, key.key_id, by=operator_name(options))
        said = "was revoked before" if result == "already" else "is revoked"
        print(f"key {key.key_id} of {key.tenant_name}/{one_line(key.principal)} {said}")
        return 0

    return on_database(work)


def _pick(keys: Sequence[KeyInfo], wanted: str) -> KeyInfo | str:
    """The one key that is meant, or why there is none."""
    # Somebody who revokes a key in a hurry pastes the whole token.
    token = parse_token(wanted.encode("utf-8"))
    if token is not None:
        found = [key for key in keys if (key.tenant, key.key_id) == (token.tenant, token.key_id)]
        wanted = token.key_id
    else:
        found = [key for key in keys if key.key_id == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(key.tenant_name for key in found)
        return f"several tenants have a key of that id; add --tenant ({names})"
    return f"no key has the id {one_line(wanted)}; see: fencegate keys list"


def _cells(key: KeyInfo) -> Cells:
    scopes = " ".join(key.may)
    return (key.key_id, key.tenant_name, key.principal, key.created_at, key.revoked_at, scopes)
