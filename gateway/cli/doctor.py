"""``doctor``: what the database's settings mean for the guarantees."""

from __future__ import annotations

import argparse
import asyncio

from gateway.cache import look
from gateway.cli.database import operator_database
from gateway.cli.options import Subparsers, add_command, add_format
from gateway.cli.rows import Writer
from gateway.core.diagnosis import GUARANTEES, Finding, diagnose
from gateway.settings import load_settings
from gateway.store.examine import examine

__all__ = ["register"]


def register(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "doctor",
        _doctor,
        summary="look at the database's settings, and say what each means for which guarantee",
        details="One line for each check: ok, warning or fails, what was found, and what it does\n"
        "to G1 to G7, which the last lines name. The exit code is 1 where one fails. It changes\n"
        "nothing. Run it where the gateway runs, with the gateway's environment.",
        example="fencegate doctor --format jsonl",
    )
    add_format(parser)


def _doctor(options: argparse.Namespace) -> int:
    settings = load_settings()
    people = options.format == "table"
    with operator_database(settings, create=False) as (dsn, place):
        if people:
            print(f"database: {place}\n", flush=True)
        observed = asyncio.run(
            examine(
                dsn,
                pool_size=settings.pool_size,
                statement_cache_size=settings.statement_cache_size,
            )
        )
    writer = Writer(options.format, ("verdict", "check", "found", "means"))
    failed = False
    findings = [*diagnose(observed), *_cache(settings.redis_url)]
    for finding in findings:
        writer.add((finding.verdict, finding.check, finding.found, finding.means))
        failed = failed or finding.verdict == "fails"
    writer.close()
    if people:
        print("\nThe guarantees (docs/guarantees.md):")
        for name, title in GUARANTEES.items():
            print(f"  {name}  {title}")
    return 1 if failed else 0


def _cache(url: str | None) -> list[Finding]:
    """Of the Redis that processes share, where there is one."""
    return [] if url is None else [asyncio.run(look(url))]
