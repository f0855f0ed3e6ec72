"""``commands``: what was admitted, and deciding what became of it."""

from __future__ import annotations

import argparse
import shlex
import string
import sys
from typing import assert_never
from uuid import UUID

from gateway.cli import detail, erasing
from gateway.cli.at_hand import command_at_hand
from gateway.cli.database import check_tenant, no_tenant, on_database
from gateway.cli.options import (
    Subparsers,
    add_command,
    add_format,
    add_group,
    add_limit,
    add_operator,
    job_id,
    key,
    operator_name,
    reason,
    text,
)
from gateway.cli.rows import Cells, Writer, conclude
from gateway.cli.server import add_policies
from gateway.observe.text import one_line
from gateway.store.database import Database
from gateway.store.operator import (
    AlreadySettled,
    Ambiguous,
    Changed,
    CommandDetail,
    CommandInfo,
    Filter,
    InFlight,
    Missing,
    NoTenant,
    Resolution,
    Resolved,
    TooEarly,
    find,
    holders,
    list_commands,
    resolve,
    trail,
)

__all__ = ["register"]

_COLUMNS = (
    *("state", "tenant", "key", "entity", "policy", "fence", "admitted_at", "status"),
    *("evidence_status", "principal", "attempt"),
)
_FULL = (
    *_COLUMNS,
    *("key_digest", "attempts", "request_id", "age_ms", "deadline", "remaining_ms"),
    *("settled_at", "settled_by"),
)


def register(subparsers: Subparsers) -> None:
    group = add_group(
        subparsers,
        "commands",
        summary="list, show, resolve and erase commands",
        details="A command is a request that the gateway admitted under its idempotency key. One\n"
        "whose outcome is unknown holds its entity until `resolve` says what became of it.\n"
        "`erase` lets the recorded answer of a settled one go; its key goes on protecting.",
        example="fencegate commands list --state unknown",
    )
    _register_list(group)
    show = add_command(
        group,
        "show",
        _show,
        summary="show all that is recorded of one command, and its audit",
        example="fencegate commands show pay-17 --tenant billing",
    )
    _add_which(show)
    show.add_argument(
        "--format", choices=("text", "json"), default="text", help="json has bodies as base64"
    )
    add_policies(show)
    decide = add_command(
        group,
        "resolve",
        _resolve,
        summary="decide an unknown command, after looking at the upstream",
        details="--executed: it happened; its key answers so for good, the entity is free.\n"
        "--not-executed: it did not happen and will not; the key may be sent again. That can\n"
        "be known only when settle_delay_s has passed since the command's deadline: look then,\n"
        "not before, since what you look at may still be acting.",
        example="fencegate commands resolve pay-17 --tenant billing --executed \\\n"
        "      --reason 'the ledger shows payment 4711'",
    )
    _add_which(decide)
    verdict = decide.add_mutually_exclusive_group(required=True)
    verdict.add_argument("--executed", action="store_true", help="the upstream did it")
    verdict.add_argument("--not-executed", action="store_true", help="the upstream did not")
    decide.add_argument("--reason", type=reason, required=True, help="how that is known")
    decide.add_argument(
        "--attempt",
        type=_uuid,
        metavar="UUID",
        help="the attempt you judged, as `show` prints it: refuse if it is another one now",
    )
    add_operator(decide)
    erasing.register(group)


def _register_list(group: Subparsers) -> None:
    listing = add_command(
        group,
        "list",
        _list,
        summary="list commands, the latest admitted first",
        example="fencegate commands list --state unknown --tenant billing",
    )
    listing.add_argument(
        "--state",
        choices=("in-flight", "unknown", "settled"),
        help="in-flight: may be on the wire; unknown: to be decided; settled: answered",
    )
    listing.add_argument("--entity", type=text, help="e.g. invoice:123")
    listing.add_argument("--tenant", type=text, help="a tenant's name (default: all)")
    listing.add_argument("--key", type=key, help="the idempotency key, without quotes")
    listing.add_argument("--policy", type=text, help="e.g. payments/capture")
    listing.add_argument(
        "--job", type=job_id, metavar="ID", help="those under the keys of a job's steps"
    )
    add_limit(listing)
    add_format(listing)


def _add_which(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "key", nargs="?", type=key, metavar="KEY", help="the idempotency key, without quotes"
    )
    which.add_argument(
        "--digest",
        type=_digest,
        metavar="HEX",
        help="instead: the log's key_digest, 8 digits or more",
    )
    parser.add_argument(
        "--tenant", type=text, default="default", help="whose command (default: default)"
    )


def _list(options: argparse.Namespace) -> int:
    wanted = Filter(
        tenant=options.tenant,
        state=options.state,
        entity=options.entity,
        key=options.key,
        policy=options.policy,
        job=options.job,
        limit=options.limit,
    )
    people = options.format == "table"

    async def work(database: Database) -> int:
        await check_tenant(database, options.tenant)
        writer = Writer(options.format, _COLUMNS if people else _FULL)
        async for info in list_commands(database, wanted):
            writer.add(_brief(info) if people else _full(info))
        return writer.close()

    nothing = "no command matches"
    if options.key is not None:
        nothing += f"; whether its key was given back: {_see_also(options.key)}"
    conclude(on_database(work), options.format, options.limit, nothing=nothing)
    return 0


def _show(options: argparse.Namespace) -> int:
    async def work(database: Database) -> int:
        found = await find(database, options.tenant, key=options.key, digest=options.digest)
        if isinstance(found, Missing) and options.key is not None:
            rows = await trail(database, options.tenant, options.key)
            _complain(await _absent(database, found, options))
            if rows and options.format == "text":
                print("its audit:")
                detail.print_trail(rows)
            return 1
        if not isinstance(found, CommandDetail):
            return _complain(await _absent(database, found, options))
        rows = await trail(database, options.tenant, found.info.key)
        if options.format == "json":
            detail.print_json(found, rows)
        else:
            policy = command_at_hand(options.policies, found.info.policy)
            detail.print_text(found, rows, policy)
        return 0

    return on_database(work)


def _resolve(options: argparse.Namespace) -> int:
    async def work(database: Database) -> int:
        found = await find(database, options.tenant, key=options.key, digest=options.digest)
        if not isinstance(found, CommandDetail):
            return _complain(await _absent(database, found, options))
        result = await resolve(
            database,
            found.info,
            attempt=options.attempt or found.info.attempt,
            verdict="executed" if options.executed else "not-executed",
            reason=options.reason,
            by=operator_name(options),
        )
        said = _outcome(result, found, options.executed)
        settled = isinstance(result, AlreadySettled) and options.executed
        if isinstance(result, Resolved) or settled:  # said twice, it is true all the same
            print(said)
            return 0
        return _complain(said)

    return on_database(work)


def _complain(said: str) -> int:
    print(f"fencegate: {said}", file=sys.stderr)
    return 1


async def _absent(
    database: Database, found: NoTenant | Missing | Ambiguous, options: argparse.Namespace
) -> str:
    match found:
        case NoTenant(name):
            return no_tenant(name)
        case Missing():
            elsewhere = [] if options.key is None else await holders(database, options.key)
            if elsewhere:
                return (
                    f"tenant {one_line(options.tenant)} has no such command, but a command of that "
                    f"key stands under {', '.join(elsewhere)}; if you mean it, add --tenant "
                    + (elsewhere[0] if len(elsewhere) == 1 else "and one of them")
                )
            return (
                f"tenant {one_line(options.tenant)} has no such command: it was never admitted, "
                f"its key was given back, or it is forgotten; see: {_see_also(options.key)}"
            )
        case Ambiguous(keys):
            shown = ", ".join(map(one_line, keys))
            return f"several digests begin like that ({shown}, …); give more digits or the key"
        case _:
            assert_never(found)


def _see_also(key: str | None) -> str:
    """Where to look on: the audit remembers keys that were given back."""
    if key is None:
        return "fencegate commands list"
    return f"fencegate audit --key {shlex.quote(key)}"


def _outcome(result: Resolution, found: CommandDetail, executed: bool) -> str:
    info = found.info
    entity = one_line(info.entity)
    name = f"command {one_line(info.key)} of tenant {info.tenant_name}"
    match result:
        case Resolved() if executed:
            return (
                f"{name} is resolved as executed: its key answers 410 response-not-retained with "
                f"resolved: executed, and {entity} is free for the next command"
            )
        case Resolved():
            return (
                f"{name} is resolved as not executed: its key was given back and may be sent "
                f"again, and {entity} is free for the next command"
            )
        case Missing():
            return f"{name} is gone: its key was given back meanwhile; nothing is to be decided"
        case AlreadySettled() if executed:
            return f"{name} is settled already, so nothing was changed; see: {_show_line(info)}"
        case AlreadySettled():
            return (
                f"{name} is settled as executed, so it cannot be decided as not executed; see: "
                f"{_show_line(info)}"
            )
        case InFlight(remaining_s):
            return f"{name} is in flight and may still be answered; try again in {remaining_s} s"
        case Changed():
            return (
                f"{name} is held by another attempt now; look at it again before you decide: "
                f"{_show_line(info)}"
            )
        case TooEarly(remaining_s):
            return (
                f"the upstream may still act on {name}, so not executed cannot be known yet; "
                f"try again in {remaining_s} s (settle_delay_s of its policy)"
            )
        case _:
            assert_never(result)


def _show_line(info: CommandInfo) -> str:
    return f"fencegate commands show {shlex.quote(info.key)} --tenant {info.tenant_name}"


def _brief(info: CommandInfo) -> Cells:
    return (
        *(info.state, info.tenant_name, info.key, info.entity, info.policy, info.fence),
        *(info.admitted_at, info.status, info.evidence_status, info.principal, info.attempt),
    )


def _full(info: CommandInfo) -> Cells:
    return (
        *_brief(info),
        *(info.key_digest, info.attempts, info.request_id, info.age_ms, info.deadline),
        *(info.remaining_ms, info.settled_at, info.settled_by),
    )


def _digest(value: str) -> str:
    if not 8 <= len(value) <= 32 or not set(value) <= set(string.hexdigits):
        raise argparse.ArgumentTypeError(f"{value!r} is not 8 to 32 hex digits")
    return value.lower()


def _uuid(value: str) -> UUID:
    try:
        return UUID(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is no attempt; `show` prints it") from None
