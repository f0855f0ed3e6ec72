"""``keys``: who may call the gateway."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

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
from gateway.core.auth import parse_token
from gateway.observe.text import one_line
from gateway.store.database import Database
from gateway.store.tenants import KeyInfo, add_key, list_keys, revoke_key

__all__ = ["register"]

_COLUMNS = ("key_id", "tenant", "name", "created_at", "revoked_at")


def register(subparsers: Subparsers) -> None:
    group = add_group(
        subparsers,
        "keys",
        summary="make, list and revoke the keys that callers authenticate with",
        details="Until the first key exists nobody is asked for one, only loopback is served, and\n"
        "callers belong to the tenant default. Tenants share nothing.",
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
        "that tenant, since under any other it would be sent again.",
        example="fencegate keys add --tenant default --name invoice-worker",
    )
    add.add_argument("--tenant", type=text, required=True, help="made if it does not exist yet")
    add.add_argument(
        "--apart",
        action="store_true",
        help="go on although the tenant default has commands that this tenant will not see",
    )
    add.add_argument("--name", type=text, required=True, help="the caller, as logs and audit say")
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
    revoke = add_command(
        group,
        "revoke",
        _revoke,
        summary="end a key for good; running gateways follow within 5 s",
        details="Revoking the last key opens nothing: nobody is authenticated then.",
        example="fencegate keys revoke 7hq2m4xkpw",
    )
    revoke.add_argument("key_id", type=text, metavar="KEY_ID", help="as `keys list` shows it")
    revoke.add_argument("--tenant", type=text, help="whose key, where two tenants have that id")
    add_operator(revoke)


def _add(options: argparse.Namespace) -> int:
    async def work(database: Database) -> str:
        return await add_key(
            database,
            options.tenant,
            options.name,
            by=operator_name(options),
            apart=options.apart,
        )

    token = on_database(work)
    print(token, flush=True)
    print(
        f"This is the only time the token is shown. {one_line(options.name)} sends it as\n"
        "Authorization: Bearer fg_…",
        file=sys.stderr,
    )
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
    return (key.key_id, key.tenant_name, key.principal, key.created_at, key.revoked_at)
