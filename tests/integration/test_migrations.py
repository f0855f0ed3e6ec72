"""The migration runner, on small files of its own."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from gateway.resources import migrations_dir
from gateway.store import migrations
from gateway.store.migrations import (
    Applied,
    Behind,
    Current,
    Diverged,
    MigrationError,
    Newer,
    Status,
    Unmigrated,
    migrate,
    status,
)
from tests.kit.db import Server, execute, with_connection

FIRST = (
    "0001_first.sql",
    "create table gateway.one (id int);\ninsert into gateway.one values (1);",
)
SECOND = ("0002_second.sql", "create table gateway.two (id int);")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "migrations", FIRST, SECOND)


def write(folder: Path, *files: tuple[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, sql in files:
        (folder / name).write_text(sql)
    return folder


def run_migrate(dsn: str, folder: Path) -> list[Applied]:
    return with_connection(dsn, lambda conn: migrate(conn, folder))


def run_status(dsn: str, folder: Path) -> Status:
    return with_connection(dsn, lambda conn: status(conn, folder))


def value(dsn: str, sql: str) -> object:
    return with_connection(dsn, lambda conn: conn.fetchval(sql))


def test_applies_everything_once_and_in_order(empty_database: str, folder: Path) -> None:
    assert run_status(empty_database, folder) == Unmigrated()
    assert run_migrate(empty_database, folder) == [
        Applied(1, "0001_first.sql"),
        Applied(2, "0002_second.sql"),
    ]
    assert run_status(empty_database, folder) == Current(2)
    assert run_migrate(empty_database, folder) == []
    assert value(empty_database, "select count(*) from gateway.one") == 1


def test_goes_on_where_an_older_release_stopped(empty_database: str, folder: Path) -> None:
    run_migrate(empty_database, folder)
    write(folder, ("0003_third.sql", "create table gateway.three (id int);"))
    found = run_status(empty_database, folder)
    assert found == Behind(("0003_third.sql",))
    assert found.message.endswith("run: fencegate migrate")
    assert run_migrate(empty_database, folder) == [Applied(3, "0003_third.sql")]


def test_a_newer_schema_is_refused(empty_database: str, folder: Path) -> None:
    run_migrate(empty_database, folder)
    (folder / "0002_second.sql").unlink()
    found = run_status(empty_database, folder)
    assert found == Newer(2)
    with pytest.raises(MigrationError, match="newer than this release"):
        run_migrate(empty_database, folder)


def test_an_edited_file_is_refused(empty_database: str, folder: Path) -> None:
    run_migrate(empty_database, folder)
    write(folder, ("0001_first.sql", "select 1;"), ("0003_third.sql", "select 1;"))
    assert run_status(empty_database, folder) == Diverged("0001_first.sql")
    with pytest.raises(MigrationError, match=r"0001_first\.sql was applied with another content"):
        run_migrate(empty_database, folder)
    assert value(empty_database, "select max(version) from gateway.migrations") == 2


def test_line_ends_are_not_content(empty_database: str, folder: Path) -> None:
    run_migrate(empty_database, folder)
    (folder / "0001_first.sql").write_bytes(FIRST[1].replace("\n", "\r\n").encode())
    assert run_status(empty_database, folder) == Current(2)


def test_a_failing_file_is_rolled_back_whole_and_named_with_its_line(
    empty_database: str, folder: Path
) -> None:
    write(folder, ("0003_bad.sql", "create table gateway.three (id int);\n\nselect nonsense;"))
    with pytest.raises(MigrationError, match=r"0003_bad\.sql, line 3, failed and was rolled back"):
        run_migrate(empty_database, folder)
    assert value(empty_database, "select to_regclass('gateway.three') is null")
    assert run_status(empty_database, folder) == Behind(("0003_bad.sql",))
    write(folder, ("0003_bad.sql", "create table gateway.three (id int);"))
    assert run_migrate(empty_database, folder) == [Applied(3, "0003_bad.sql")]


def test_a_file_may_not_end_its_transaction(empty_database: str, folder: Path) -> None:
    write(folder, ("0003_commit.sql", "select 1; commit;"))
    with pytest.raises(MigrationError, match=r"0003_commit\.sql ends its transaction"):
        run_migrate(empty_database, folder)


def test_a_connection_lost_midway_is_told_as_such(empty_database: str, folder: Path) -> None:
    write(folder, ("0003_dies.sql", "select pg_terminate_backend(pg_backend_pid());"))
    with pytest.raises(MigrationError, match="connection to the database was lost"):
        run_migrate(empty_database, folder)
    assert run_status(empty_database, folder) == Behind(("0003_dies.sql",))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([("1_first.sql", "")], "must be named NNNN_name.sql"),
        ([FIRST, ("0003_third.sql", "")], "expected number 0002"),
        ([FIRST, ("0001_other.sql", "")], "expected number 0002"),
        ([], "holds no migrations"),
    ],
)
def test_wrong_names_and_numbers_are_refused(
    tmp_path: Path, files: list[tuple[str, str]], said: str
) -> None:
    with pytest.raises(MigrationError, match=said):
        migrations.load(write(tmp_path / "migrations", *files))


def test_other_files_in_the_folder_are_passed_over(folder: Path) -> None:
    write(folder, ("README.md", "how to add one"))
    assert [file.version for file in migrations.load(folder)] == [1, 2]


def test_a_read_only_database_is_named_as_such(empty_database: str, folder: Path) -> None:
    async def run(conn: "asyncpg.Connection[asyncpg.Record]") -> None:
        await conn.execute("set default_transaction_read_only = on")
        assert await status(conn, folder) == Unmigrated()
        with pytest.raises(MigrationError, match="read-only"):
            await migrate(conn, folder)

    with_connection(empty_database, run)


def test_a_role_that_may_not_change_the_schema_is_told_so(
    postgres: Server, empty_database: str, folder: Path
) -> None:
    execute(postgres.dsn, "drop role if exists reader; create role reader")

    async def run(conn: "asyncpg.Connection[asyncpg.Record]") -> None:
        await conn.execute("set role reader")
        with pytest.raises(MigrationError, match="may not change the schema"):
            await migrate(conn, folder)

    with_connection(empty_database, run)


def test_a_role_that_may_not_look_is_told_so(
    postgres: Server, empty_database: str, folder: Path
) -> None:
    execute(postgres.dsn, "drop role if exists reader; create role reader")
    run_migrate(empty_database, folder)

    async def run(conn: "asyncpg.Connection[asyncpg.Record]") -> None:
        await conn.execute("set role reader")
        with pytest.raises(MigrationError, match="may not read"):
            await status(conn, folder)

    with_connection(empty_database, run)


def test_a_role_with_only_select_can_ask_for_the_status(
    postgres: Server, empty_database: str, folder: Path
) -> None:
    run_migrate(empty_database, folder)
    execute(postgres.dsn, "drop role if exists watcher; create role watcher")
    execute(
        empty_database,
        "grant usage on schema gateway to watcher; grant select on gateway.migrations to watcher",
    )

    async def run(conn: "asyncpg.Connection[asyncpg.Record]") -> None:
        await conn.execute("set role watcher")
        assert await status(conn, folder) == Current(2)

    with_connection(empty_database, run)
    execute(empty_database, "drop owned by watcher; drop role watcher")


def test_two_migrators_at_once_apply_each_file_once(empty_database: str, folder: Path) -> None:
    async def one() -> list[Applied]:
        conn = await asyncpg.connect(empty_database)
        try:
            return await migrate(conn, folder)
        finally:
            await conn.close()

    async def both() -> list[list[Applied]]:
        return await asyncio.gather(*(one() for _ in range(4)))

    applied = [each for run in asyncio.run(both()) for each in run]
    assert sorted(each.version for each in applied) == [1, 2]
    assert value(empty_database, "select count(*) from gateway.one") == 1


def test_a_migrator_that_waits_sees_what_the_other_did_meanwhile(
    empty_database: str, folder: Path
) -> None:
    """Even where the role's default isolation would show it the past."""

    async def run() -> list[Applied]:
        holder = await asyncpg.connect(empty_database)
        waiter = await asyncpg.connect(
            empty_database, server_settings={"default_transaction_isolation": "serializable"}
        )
        try:
            async with holder.transaction():
                await holder.execute("select pg_advisory_xact_lock($1)", migrations._LOCK)
                waiting = asyncio.create_task(migrate(waiter, folder))
                await until_it_waits(holder, waiter.get_server_pid())
                await holder.execute("create schema gateway")
                await holder.execute(migrations._BOOKKEEPING)
                for file in migrations.load(folder):
                    await holder.execute(file.sql)
                    await holder.execute(
                        "insert into gateway.migrations values ($1, $2, $3)",
                        file.version,
                        file.name,
                        file.checksum,
                    )
            return await waiting
        finally:
            await holder.close()
            await waiter.close()

    assert asyncio.run(run()) == []
    assert run_status(empty_database, folder) == Current(2)


async def until_it_waits(conn: "asyncpg.Connection[asyncpg.Record]", pid: int) -> None:
    async with asyncio.timeout(10):
        while not await conn.fetchval("select cardinality(pg_blocking_pids($1)) > 0", pid):
            pass


def test_the_products_own_migrations(database: str) -> None:
    assert isinstance(run_status(database, migrations_dir()), Current)
    assert run_migrate(database, migrations_dir()) == []
