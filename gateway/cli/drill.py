"""``drill``: the unpleasant test against an own or a given deployment."""

from __future__ import annotations

import argparse
import importlib
import os
from typing import Any

from gateway.cli.options import Subparsers, add_command, text

__all__ = ["register"]

_VARIANTS = ("network-cut", "blocked-loop", "stopped", "killed", "database-restart")
_LISTEN = "127.0.0.1:9099"

_DETAILS = """\
A worker claims a job and sends its first effect; it is cut off, blocked, stopped or killed; its
lease expires and a second worker takes over; the first one goes on. A line for each claim, with its
evidence. Without --url all it needs is started and removed again, within 280 s.

Exit codes: 0 every claim holds, 1 one does not, 2 it could not be played.
"""


def register(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "drill",
        _drill,
        summary="show that a worker that lost its lease can do no harm; needs no input",
        details=_DETAILS,
        example="fencegate drill --variant network-cut --variant killed",
    )
    parser.add_argument(
        "--variant",
        action="append",
        choices=_VARIANTS,
        default=[],
        metavar="NAME",
        help=f"play only this one, may be repeated: {', '.join(_VARIANTS)}",
    )
    parser.add_argument(
        "--format",
        choices=("text", "jsonl"),
        default="text",
        help="text for people (default), jsonl for programs",
    )
    parser.add_argument(
        "--url",
        type=text,
        help="play it against this gateway; its database is FENCEGATE_DATABASE_URL",
    )
    parser.add_argument(
        "--key",
        type=text,
        metavar="TOKEN",
        help="a gateway key for --url (default: FENCEGATE_KEY)",
    )
    parser.add_argument(
        "--listen",
        type=_address,
        default=_LISTEN,
        metavar="HOST:PORT",
        help=f"where the drill's upstream listens, so that the gateway can reach it ({_LISTEN})",
    )
    parser.add_argument(
        "--restart-database",
        metavar="COMMAND",
        help="with --url: what crashes and restarts the database, for database-restart",
    )
    parser.add_argument(
        "--print-policy",
        action="store_true",
        help="print the policy and the tool that the drill needs, and end",
    )


def _drill(options: argparse.Namespace) -> int:
    # By name: the drill drives this command line from outside, so neither may import the other.
    drill: Any = importlib.import_module("gateway.drill")
    host, port = options.listen
    if options.print_policy:
        drill.print_policy(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        return 0
    if options.url is None and options.restart_database is not None:
        options.parser.error("--restart-database goes with --url")
    return int(
        drill.main(
            variants=options.variant,
            form=options.format,
            url=options.url,
            key=options.key or os.environ.get("FENCEGATE_KEY"),
            listen=options.listen,
            restart_database=options.restart_database,
        )
    )


def _address(value: str) -> tuple[str, int]:
    host, _, port = value.rpartition(":")
    if host and port.isascii() and port.isdigit() and 0 < int(port) < 65536:
        return host.strip("[]"), int(port)
    raise argparse.ArgumentTypeError(f"{value!r} is no address; write HOST:PORT")
