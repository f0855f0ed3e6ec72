"""Remembered keys by the million: does it stay as fast, and does forgetting keep up?"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg

from benchmarks.gateway import Measured
from benchmarks.kit import Broken, sql
from benchmarks.kit.figures import Figures
from gateway.core.fingerprint import key_digest

__all__ = ["expired", "fill", "forgetting"]

_KEPT_OVER = timedelta(days=20)
"""So far back reach the copies; a policy keeps responses for 30 days."""

_ANOTHER_DAY = timedelta(days=1)
_CHUNK = 20_000

_Row = dict[str, Any]


def fill(dsn: str, count: int) -> str:
    """Copies of a settled command of the tenant ``default``, each under a key and for an entity of
    its own, by COPY: what the gateway would have after so many. Their keys are the answer and
    nine digits, from 1 on."""
    return asyncio.run(_fill(dsn, count, timedelta(0)))


def expired(dsn: str, count: int) -> str:
    """The same, of so long ago that all of it is due to be forgotten."""
    days = sql.value(dsn, "select max(key_days) from gateway.commands")
    return asyncio.run(_fill(dsn, count, timedelta(days=days) + _ANOTHER_DAY))


async def _fill(dsn: str, count: int, ago: timedelta) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        salt = await connection.fetchval("select salt from gateway.tenants where name = 'default'")
        command: Any = await connection.fetchrow(
            "select * from gateway.commands where settled_at is not null and status = 200 limit 1"
        )
        entity: Any = await connection.fetchrow(
            "select * from gateway.entities where entity = $1", command["entity"]
        )
        prefix = f"f{int(time.time() * 1000):014d}k"
        kind = command["entity"].partition(":")[0]

        def of_command(key: str) -> _Row:
            return {
                "key": key,
                "key_digest": key_digest(salt, key),
                "entity": f"{kind}:{key}",
                "attempt": uuid4(),
                "request_id": uuid4().hex,
            }

        def of_entity(key: str) -> _Row:
            return {"entity": f"{kind}:{key}"}

        for table, row, own in (("commands", command, of_command), ("entities", entity, of_entity)):
            copies = _copies(dict(row), own, prefix, count, ago)
            while records := list(itertools.islice(copies, _CHUNK)):
                await connection.copy_records_to_table(
                    table, schema_name="gateway", columns=list(row.keys()), records=records
                )
            await connection.execute(f"vacuum analyze gateway.{table}")
        await connection.execute("checkpoint")  # not while we measure
    finally:
        await connection.close()
    return prefix


def _copies(
    row: _Row, own: Callable[[str], _Row], prefix: str, count: int, ago: timedelta
) -> Iterator[tuple[Any, ...]]:
    """Oldest first, spread evenly over the time until ``ago``. ``own``: the columns that differ."""
    times = {name: value for name, value in row.items() if isinstance(value, datetime)}
    for number in range(1, count + 1):
        back = ago + _KEPT_OVER * ((count - number) / count)
        moved = {name: value - back for name, value in times.items()}
        yield tuple((row | moved | own(f"{prefix}{number:09d}")).values())


def forgetting(dsn: str, measured: Measured, due: int, seconds: float) -> Figures:
    """A steady stream of fresh commands beside the first round of retention of a gateway that has
    just started on ``due`` expired commands. ``keeps_up``: forgotten for each one admitted; from 1
    on the table does not grow for ever. Raises ``Broken`` where none was due, or none forgotten."""
    left = "select count(*) from gateway.commands where expires_at <= gateway.clock()"
    before, began = int(sql.value(dsn, left)), time.monotonic()
    figures = measured.run("fresh", 64, seconds)
    gone, took = before - int(sql.value(dsn, left)), time.monotonic() - began
    if not 0 < before <= due or gone <= 0:
        raise Broken(f"due, left before, forgotten: {due}, {before}, {gone}")
    per_second = gone / took
    return {**figures, "forgotten": per_second, "keeps_up": per_second / figures["rate"]}
