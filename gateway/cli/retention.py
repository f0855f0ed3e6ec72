"""``retention``: forget now what is due, or say how much that is."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from gateway.cli.database import on_database
from gateway.cli.options import Subparsers, add_command
from gateway.settings import load_settings
from gateway.store.database import Database
from gateway.store.retention import Days, Forgotten, Retention

__all__ = ["register"]

_PROGRESS = 200
"""Chunks between two lines of progress: a second or so."""

_NAMES = {
    "bodies": "responses of settled commands (their digests and status stay)",
    "keys": "commands whose keys have expired",
    "audit": "audit rows",
    "jobs": "finished jobs with their runs",
    "job_keys": "keys of finished jobs",
    "given_back": "notes that a key was given back though its upstream had heard of it",
    "entities": "entities that nobody has touched for as long as a key is remembered",
}


def register(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "retention",
        _retention,
        summary="forget what is due now; every gateway does so by itself each hour",
        details="Responses and keys by their policy's retain, audit rows and finished jobs by\n"
        "FENCEGATE_AUDIT_DAYS, FENCEGATE_JOB_DAYS and FENCEGATE_JOB_KEY_DAYS of this environment.\n"
        "What is in flight or unknown is never due. Chunk by chunk, so it may be stopped.",
        example="fencegate retention --dry-run",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only count what is due; reads whole tables"
    )


def _retention(options: argparse.Namespace) -> int:
    settings = load_settings()
    days = Days(settings.audit_days, settings.job_days, settings.job_key_days)

    async def work(database: Database) -> None:
        retention = Retention(database, days)
        if await retention.longest_key_days() == 0:
            print(
                "fencegate: no gateway has served on this database yet, so no entity is forgotten",
                file=sys.stderr,
            )
        if options.dry_run:
            _print(await retention.due(), "due")
            return
        total, chunks = Forgotten(), 0
        async for gone in retention.round():
            total, chunks = total + gone, chunks + 1
            if chunks % _PROGRESS == 0:
                print(f"fencegate: {sum(asdict(total).values())} rows so far", file=sys.stderr)
        _print(total, "forgotten")

    on_database(work)
    return 0


def _print(counted: Forgotten, how: str) -> None:
    for name, count in asdict(counted).items():
        print(f"{count:>10}  {how}: {_NAMES[name]}")
