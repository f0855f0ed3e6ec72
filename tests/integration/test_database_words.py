"""What callers are told of a database that is away: why, and not where it is or who asks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from gateway.errors import AnswerLost, StoreUnavailable
from gateway.store.database import Database
from tests.kit.db import Server
from tests.kit.upstream import closed_port


def said(dsn: str) -> str:
    async def main() -> str:
        database = await Database.open(dsn, size=1)
        try:
            with pytest.raises((StoreUnavailable, AnswerLost)) as raised:
                await database.fetch("select 1")
            return str(raised.value)
        finally:
            await database.close()

    return asyncio.run(main())


@pytest.fixture(scope="module")
def silent() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def test_a_pool_whose_connections_are_all_in_use_is_not_taken_for_a_lost_server(
    postgres: Server,
) -> None:
    async def main() -> None:
        database = await Database.open(postgres.dsn, size=1)
        try:
            await database.fetch("select 1")
            generation = database.history.generation
            async with database.connection():
                with pytest.raises(StoreUnavailable, match="FENCEGATE_POOL_SIZE"):
                    await database.fetch("select 1")
            assert database.history.generation == generation
            assert (await database.fetch("select 1"))[0][0] == 1
        finally:
            await database.close()

    asyncio.run(main())


def test_whoever_leaves_the_pool_leaves_its_place(postgres: Server) -> None:
    async def main() -> None:
        away = await Database.open(f"postgresql://u:p@127.0.0.1:{closed_port()}/d", size=1)
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="Connection refused"):
                await away.fetch("select 1")
        assert away.history.generation == 3
        await away.close()
        here = await Database.open(postgres.dsn, size=1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await here.fetch("select pg_sleep(60)")
        async with here.connection():
            waits = asyncio.ensure_future(here.fetch("select 1"))
            await asyncio.sleep(0)
            waits.cancel()
            await asyncio.wait({waits})
        assert (await here.fetch("select 2"))[0][0] == 2
        await here.close()

    asyncio.run(main())


def test_no_address_and_no_user_is_told(postgres: Server, silent: int) -> None:
    here = urlsplit(postgres.dsn)
    good = f"{here.hostname}:{here.port}"
    assert said(f"postgresql://secretuser:hush@127.0.0.1:{closed_port()}/d") == "Connection refused"
    assert said(f"postgresql://secretuser:hush@127.0.0.1:{silent}/d") == "no answer in time"
    assert said("postgresql://secretuser:hush@nowhere.invalid/d") == "its name has no address"
    assert said(f"postgresql://secretuser:hush@{good}/postgres") == (
        "the database does not take the password of FENCEGATE_DATABASE_URL"
    )
    several = f"127.0.0.1:{closed_port()},127.0.0.2:{closed_port()}"
    for word in ("secretuser", "hush", "127.0.0"):
        assert word not in said(f"postgresql://secretuser:hush@{several}/d")
