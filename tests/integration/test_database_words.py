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
