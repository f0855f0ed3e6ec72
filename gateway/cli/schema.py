"""``migrate``."""

from __future__ import annotations

import argparse
import asyncio

from gateway.cli.database import has_embedded, operator_dsn
from gateway.cli.options import Subparsers, add_command
from gateway.settings import load_settings
from gateway.store.session import migrate_database

__all__ = ["register"]


def register(subparsers: Subparsers) -> None:
    add_command(
        subparsers,
        "migrate",
        _migrate,
        summary="bring the database schema up to this release",
        details="Only forward, safe to repeat and to run by many at once. `serve` does it by\n"
        "itself for the embedded database, never for FENCEGATE_DATABASE_URL. Without that\n"
        "variable it makes the embedded database, if FENCEGATE_DATA_DIR holds none.",
        example="FENCEGATE_DATABASE_URL=postgresql://owner@host/name fencegate migrate",
    )


def _migrate(_: argparse.Namespace) -> int:
    settings = load_settings()
    embedded = settings.database_url is None
    makes = embedded and not has_embedded(settings)
    folder = settings.data_dir.absolute()
    with operator_dsn(settings, create=True) as dsn:
        if makes:
            print(f"made an embedded database in {folder}")
        applied = asyncio.run(migrate_database(dsn))
    for each in applied:
        print(f"applied {each.name}")
    print("the database schema is current" + (f" (embedded, in {folder})" if embedded else ""))
    return 0
