"""``commands erase``: what is kept of an answer goes, what protects its key stays."""

from __future__ import annotations

import argparse
import sys
from typing import assert_never

from gateway.cli.database import no_tenant, on_database
from gateway.cli.options import (
    Subparsers,
    add_command,
    add_operator,
    key,
    operator_name,
    reason,
    text,
)
from gateway.core.fingerprint import key_digest
from gateway.observe.text import one_line
from gateway.store.database import Database
from gateway.store.operator import Erasure, count_of_entity, erase, erase_entity
from gateway.store.tenants import Tenant, list_tenants

__all__ = ["register"]

_BYTES = (
    "the erased bytes stay in the table's files until `vacuum gateway.commands` has run, in the "
    "write-ahead log until it is recycled, and in backups and archives"
)


def register(group: Subparsers) -> None:
    parser = add_command(
        group,
        "erase",
        _erase,
        summary="erase what is kept of an answer; its key goes on protecting",
        details="Body, header fields and evidence go. Digests, status and audit stay, and the key\n"
        "answers 410 response-not-retained. Only settled commands: an unknown one is resolved\n"
        "first. May be repeated. The bytes stay in the table's files until\n"
        "`vacuum gateway.commands`, in the write-ahead log until it is recycled, and in backups\n"
        "and archives: none of these is reached.",
        example="fencegate commands erase pay-17 --tenant billing --reason 'request 4711'",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "key", nargs="?", type=key, metavar="KEY", help="the idempotency key, without quotes"
    )
    which.add_argument("--entity", type=text, help="instead: all settled commands of an entity")
    parser.add_argument(
        "--tenant", type=text, default="default", help="whose commands (default: default)"
    )
    parser.add_argument("--reason", type=reason, required=True, help="for the audit")
    add_operator(parser)


def _erase(options: argparse.Namespace) -> int:
    async def work(database: Database) -> int:
        tenants = await list_tenants(database)
        tenant = next((each for each in tenants if each.name == options.tenant), None)
        if tenant is None:
            print(f"fencegate: {no_tenant(options.tenant)}", file=sys.stderr)
            return 1
        if options.key is None:
            return await _of_entity(database, tenant, options)
        result = await erase(
            database,
            tenant.number,
            key_digest(tenant.salt, options.key),
            reason=options.reason,
            by=operator_name(options),
        )
        code = _say(options.key, result)
        if result == "erased":
            print(_BYTES)
        return code

    return on_database(work)


async def _of_entity(database: Database, tenant: Tenant, options: argparse.Namespace) -> int:
    code, erased = 0, 0
    by, entity = operator_name(options), one_line(options.entity)
    listed = f"fencegate commands list --tenant {one_line(tenant.name)}"
    async for name, result in erase_entity(
        database, tenant, options.entity, reason=options.reason, by=by
    ):
        erased += result == "erased"
        code |= _say(name, result)
    there = await count_of_entity(database, tenant, options.entity)
    if there.commands == 0 and erased == 0:
        print(
            f"fencegate: tenant {one_line(tenant.name)} has no command of entity {entity}; "
            f"see: {listed}",
            file=sys.stderr,
        )
        return 1
    print(f"{erased} {'answer' if erased == 1 else 'answers'} of {entity} erased")
    if there.unsettled:
        of_it = "command of it is" if there.unsettled == 1 else "commands of it are"
        keeps = "keeps" if there.unsettled == 1 else "keep"
        print(
            f"{there.unsettled} {of_it} in flight or unknown, and {keeps} what is needed to decide "
            f"({there.evidence} with an answer as evidence); once settled, repeat this: "
            f"{listed} --entity {entity}"
        )
    if erased:
        print(_BYTES)
    return code


def _say(name: str, result: Erasure) -> int:
    command = f"command {one_line(name)}"
    match result:
        case "erased":
            print(f"{command}: its answer is erased; its key answers 410 response-not-retained")
            return 0
        case "already":
            print(f"{command}: nothing of its answer was kept")
            return 0
        case "missing":
            said = f"{command} is not there; see: fencegate commands list"
        case "unsettled":
            said = (
                f"{command} is not settled, so nothing was erased; wait for its answer or decide "
                "it first: fencegate commands resolve"
            )
        case _:
            assert_never(result)
    print(f"fencegate: {said}", file=sys.stderr)
    return 1
