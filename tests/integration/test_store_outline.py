"""The outline beside a command, and the rehearsal of an admit."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.core.command import Command, Release, Settle
from gateway.core.decide import Forward, RejectStale, decide
from gateway.core.outline import OUTLINE_LIMIT
from gateway.errors import StoreUnavailable
from gateway.resources import migrations_dir
from gateway.store.commands import CommandStore
from gateway.store.database import Database
from gateway.store.migrations import migrate
from gateway.store.operator import Filter, list_commands, outline_of
from tests.kit.commands import OK, attempt, command
from tests.kit.db import execute, with_connection
from tests.kit.gateway import rows
from tests.kit.operating import move_clock

ADMIT_BEFORE = (
    "select mark, known_state, open_key from gateway.admit("
    " array[1], array['\\x{0:032x}'::bytea], array['k{0}'], array['p'], array['e'],"
    " array['\\x01'::bytea], array['\\x02'::bytea], array[{1}::bigint],"
    " array[gen_random_uuid()], array['w'], array['r'], array[true], array['hold'],"
    " array[null::text], array['\\x03'::bytea], array[30000], array[300], array[30], array[400])"
)
"""By the signature of the release before: the number of a key, and its fence."""

_numbers = itertools.count()


def new(key: str = "k", **about: Any) -> Command:
    return command(key, by=attempt(next(_numbers)), **about)


def on(dsn: str, work: Callable[[CommandStore, Database], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        database = await Database.open(dsn, size=4)
        try:
            await asyncio.wait_for(work(CommandStore(database), database), 30)
        finally:
            await database.close()

    asyncio.run(main())


def outlines(dsn: str) -> dict[str, bytes | None]:
    return {row["key"]: row["outline"] for row in rows(dsn, "select * from gateway.commands")}


def test_admit_records_the_outline_of_what_it_inserts(database: str) -> None:
    async def work(store: CommandStore, database: Database) -> None:
        largest = replace(new(), outline=b"o" * OUTLINE_LIMIT)
        await store.admit([largest])
        await store.admit([replace(new(), outline=b"another's")])
        (info,) = [each async for each in list_commands(database, Filter())]
        assert await outline_of(database, info) == largest.outline
        assert await outline_of(database, replace(info, attempt=attempt(9_999))) is None

    on(database, work)
    assert outlines(database) == {"k": b"o" * OUTLINE_LIMIT}


def test_an_outline_over_its_limit_is_refused_whole(database: str) -> None:
    async def work(store: CommandStore, _: Database) -> None:
        with pytest.raises(StoreUnavailable, match="commands_outline_check"):
            await store.admit([replace(new(), outline=b"o" * (OUTLINE_LIMIT + 1))])

    on(database, work)
    assert outlines(database) == {}


def test_a_response_without_its_row_is_recorded_without_outline(database: str) -> None:
    async def work(store: CommandStore, _: Database) -> None:
        made = new()
        await store.admit([made])
        assert await store.release([Release(made, "status 429")]) == [True]
        assert await store.settle([Settle(made, OK, True)]) == ["contradicts"]

    on(database, work)
    assert outlines(database) == {"k": None}


def test_the_admit_of_the_release_before_still_works(database: str) -> None:
    """By its own signature, which knows no outline; and it judges by the same rules."""
    (first,) = rows(database, ADMIT_BEFORE.format(1, 5))
    (second,) = rows(database, ADMIT_BEFORE.format(2, 4))
    assert (first["mark"], first["known_state"]) == (5, "in-flight")
    assert (second["mark"], second["known_state"], second["open_key"]) == (5, None, "k1")
    assert outlines(database) == {"k1": None}
    assert [row["event"] for row in rows(database, "select event from gateway.audit")] == [
        "fence_stale"
    ]


def test_rows_of_the_release_before_have_no_outline(empty_database: str, tmp_path: Path) -> None:
    before = tmp_path / "migrations"
    before.mkdir()
    for file in sorted(migrations_dir().glob("*.sql"))[:3]:
        shutil.copy(file, before)
    with_connection(empty_database, lambda conn: migrate(conn, before))
    execute(empty_database, ADMIT_BEFORE.format(1, 5))
    with_connection(empty_database, lambda conn: migrate(conn, migrations_dir()))
    assert outlines(empty_database) == {"k1": None}

    async def work(store: CommandStore, _: Database) -> None:
        (facts,) = await store.admit([new("k2", entity="e2")])
        assert isinstance(decide(facts), Forward)

    on(empty_database, work)
    assert set(outlines(empty_database)) == {"k1", "k2"}


def test_a_rehearsal_answers_as_admit_does_and_keeps_nothing(database: str) -> None:
    async def work(store: CommandStore, _: Database) -> None:
        made = new(fence=7)
        assert isinstance(decide(await store.rehearse(made)), Forward)
        assert isinstance(decide(await store.rehearse(made)), Forward)
        await store.admit([new("first", fence=9)])
        assert isinstance(decide(await store.rehearse(made)), RejectStale)

    on(database, work)
    tables = {
        name: len(rows(database, f"select 1 from gateway.{name}"))
        for name in ("entities", "commands", "audit")
    }
    assert tables == {"entities": 1, "commands": 1, "audit": 0}


def test_a_rehearsal_waits_for_a_lock_no_longer_than_a_statement_may(database: str) -> None:
    async def work(store: CommandStore, database: Database) -> None:
        await store.admit([new("first")])
        async with database.connection() as other, other.transaction():
            await other.execute("select from gateway.entities for update")
            with pytest.raises(StoreUnavailable, match="held a lock for over 2 s; try again"):
                await store.rehearse(new())
        # Its connection is in order, and so is the next rehearsal.
        assert decide(await store.rehearse(new("first"))) is not None

    on(database, work)


def test_an_admit_waits_for_a_rehearsal_and_then_goes_through(database: str) -> None:
    """Many of both on one entity: no rehearsal is ever seen, and the one real command is."""

    async def work(store: CommandStore, _: Database) -> None:
        rehearsals = [store.rehearse(new(f"r{number}", fence=9)) for number in range(20)]
        admits = [store.admit([new("real", fence=1)]) for _ in range(3)]
        found = await asyncio.gather(*rehearsals, *admits)
        decisions = [decide(each) for (each,) in found[20:]]
        assert [type(each) for each in decisions].count(Forward) == 1
        assert not any(isinstance(each, RejectStale) for each in decisions)

    on(database, work)
    assert set(outlines(database)) == {"real"}


def test_a_backend_that_dies_midway_is_unavailable(database: str) -> None:
    dies = (
        "create or replace function gateway.clock() returns timestamptz language plpgsql as"
        " $$ begin perform pg_terminate_backend(pg_backend_pid()); return now(); end $$"
    )

    async def work(store: CommandStore, _: Database) -> None:
        await asyncio.to_thread(execute, database, dies)
        with pytest.raises(StoreUnavailable):
            await store.rehearse(new())
        await asyncio.to_thread(move_clock, database, 0)
        assert isinstance(decide(await store.rehearse(new())), Forward)

    on(database, work)
    assert outlines(database) == {}
