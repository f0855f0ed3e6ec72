"""``losses`` and ``acknowledge-loss``: rows that the database forgot, and going on after a look."""

from __future__ import annotations

import argparse
import sys

from gateway.cli.database import on_database
from gateway.cli.options import (
    Subparsers,
    add_command,
    add_format,
    add_limit,
    add_operator,
    operator_name,
    reason,
)
from gateway.cli.rows import Cells, Writer, conclude
from gateway.store.database import Database
from gateway.store.losses import LostRow, acknowledge, list_lost

__all__ = ["register"]

_COLUMNS = ("found_at", "tenant", "what", "entity", "key", "fence", "status", "restored")
_FULL = (
    *_COLUMNS,
    *("policy", "attempt", "loss", "server_before", "server_after"),
    *("acknowledged_at", "acknowledged_by", "reason"),
)


def register(subparsers: Subparsers) -> None:
    listing = add_command(
        subparsers,
        "losses",
        _losses,
        summary="list rows that the database had acknowledged and lost in a failover",
        details="As far as a running gateway remembered them: there may be more. `restored` ones\n"
        "were put back: a command as in flight, later unknown, or as settled without its answer;\n"
        "a mark as it was. Where it is false another command has the key now: look for two\n"
        "effects at the upstream. A line that says nothing but when: the rows of that loss were\n"
        "lost in turn.",
        example="fencegate losses",
    )
    listing.add_argument("--all", action="store_true", help="acknowledged ones too")
    add_limit(listing)
    add_format(listing)
    going_on = add_command(
        subparsers,
        "acknowledge-loss",
        _acknowledge,
        summary="after a loss of rows was looked at: let all gateways go on",
        details="Commands that no gateway remembered are unknown to the database now: a retry of\n"
        "one would be sent again. Look at `fencegate losses` and at the upstream first.",
        example="fencegate acknowledge-loss --reason 'compared with the ledger, 3 re-sent by hand'",
    )
    going_on.add_argument("--reason", type=reason, required=True, help="what was looked at")
    add_operator(going_on)


def _losses(options: argparse.Namespace) -> int:
    people = options.format == "table"

    async def work(database: Database) -> int:
        writer = Writer(options.format, _COLUMNS if people else _FULL)
        for row in await list_lost(database, acknowledged=options.all, limit=options.limit):
            cells = _brief(row)
            writer.add(cells if people else (*cells, *_more(row)))
        return writer.close()

    conclude(on_database(work), options.format, options.limit, nothing="nothing is lost")
    return 0


def _acknowledge(options: argparse.Namespace) -> int:
    async def work(database: Database) -> int:
        return await acknowledge(database, reason=options.reason, by=operator_name(options))

    count = on_database(work)
    if count == 0:
        print(
            "fencegate: no loss is open; `fencegate losses --all` lists those that were "
            "acknowledged. If a gateway answers rows-lost still, wait two seconds",
            file=sys.stderr,
        )
        return 1
    what = "1 loss" if count == 1 else f"{count} losses"
    print(f"{what} acknowledged; running gateways go on within a second or two")
    return 0


def _brief(row: LostRow) -> Cells:
    found = row.found_at
    return (
        *(found, row.tenant_name, row.what, row.entity, row.key, row.fence, row.status),
        row.restored,
    )


def _more(row: LostRow) -> Cells:
    return (
        *(row.policy, row.attempt, str(row.loss)),
        *(row.server_before, row.server_after),
        row.acknowledged_at,
        *(row.acknowledged_by, row.reason),
    )
