"""What callers are told of a database that is away: why, and not where it is or who asks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from asyncpg.pool import PoolConnectionProxy

from gateway.errors import AnswerLost, StoreUnavailable
from gateway.store.database import Database, _reset
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


def test_an_answer_that_comes_together_with_the_end_of_patience_is_an_answer(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped finds both when it goes on: what was read, and a timer that closes
    the connection before the statement's own caller has had its turn."""
    fetch = PoolConnectionProxy.fetch

    async def answered_and_cut(self: Any, *args: Any, **kwargs: Any) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await fetch(self, *args, **kwargs)
        _reset(self)
        return rows

    async def main() -> None:
        database = await Database.open(postgres.dsn, size=1)
        with monkeypatch.context() as patch:
            patch.setattr(PoolConnectionProxy, "fetch", answered_and_cut)
            assert (await database.fetch("select 3"))[0][0] == 3
        assert (await database.fetch("select 4"))[0][0] == 4
        await database.close()

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
