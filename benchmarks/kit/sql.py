"""Statements of a benchmark at its database, one connection each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg

__all__ = ["execute", "named", "rows", "value", "with_connection"]

T = TypeVar("T")


def with_connection(dsn: str, work: Callable[[Any], Awaitable[T]]) -> T:
    async def run() -> T:
        connection = await asyncpg.connect(dsn)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


def execute(dsn: str, sql: str, *args: object) -> None:
    with_connection(dsn, lambda conn: conn.execute(sql, *args))


def rows(dsn: str, sql: str, *args: object) -> list[dict[str, Any]]:
    return [dict(row) for row in with_connection(dsn, lambda conn: conn.fetch(sql, *args))]


def value(dsn: str, sql: str, *args: object) -> Any:
    return with_connection(dsn, lambda conn: conn.fetchval(sql, *args))


def named(dsn: str, database: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{database}"))
