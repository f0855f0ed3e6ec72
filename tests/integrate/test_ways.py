"""What docs/integrate.md says beside the recipes: who may make a trigger fire, and in which order a
worker asks over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from tests.integrate.page import block
from tests.integrate.queues import PgQueuerKit, ProcrastinateKit
from tests.integrate.test_recipes import Kit, documented
from tests.kit.client import PREFIX
from tests.kit.db import Server, with_connection
from tests.kit.gateway import Stack, rows, stack
from tests.kit.model import FIRST_ISSUED

FenceFor = Callable[[str, str, Callable[[], bool]], int]

HAND_OUT = {
    ProcrastinateKit: "update procrastinate_jobs set status = 'doing' where status = 'todo'"
    " returning args ->> 'fence' as fence",
    PgQueuerKit: "update pgqueuer set status = 'picked' where status = 'queued'"
    " returning headers ->> 'fence' as fence",
}


@pytest.mark.parametrize("kit", [ProcrastinateKit, PgQueuerKit])
def test_a_worker_needs_no_rights_on_the_gateways_schema(
    database: str, tmp_path: Path, kit: Kit
) -> None:
    queue = kit(tmp_path, database, "http://127.0.0.1:9")
    queue.install()
    queue.enqueue("inv-1")

    async def hand_out(conn: asyncpg.Connection) -> object:
        transaction = conn.transaction()
        await transaction.start()  # of which nothing stays, the role included
        await conn.execute(
            "create role queue_worker;"
            " grant all on all tables in schema public to queue_worker;"
            " grant all on all sequences in schema public to queue_worker;"
            " set local role queue_worker"
        )
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with conn.transaction():
                await conn.execute("select gateway.issue_fence('default', 'invoice:inv-1')")
        fence = await conn.fetchval(HAND_OUT[kit])
        await transaction.rollback()
        return fence

    assert with_connection(database, hand_out) == str(FIRST_ISSUED)


@pytest.mark.parametrize("kit", [ProcrastinateKit, PgQueuerKit])
def test_a_hand_out_that_is_undone_raises_nothing(database: str, tmp_path: Path, kit: Kit) -> None:
    queue = kit(tmp_path, database, "http://127.0.0.1:9")
    queue.install()
    queue.enqueue("inv-1")

    async def undone(conn: asyncpg.Connection) -> object:
        transaction = conn.transaction()
        await transaction.start()
        assert await conn.fetchval(HAND_OUT[kit]) == str(FIRST_ISSUED)
        await transaction.rollback()
        return await conn.fetchval("select count(*) from gateway.entities")

    assert with_connection(database, undone) == 0


def test_a_request_to_abort_a_job_is_no_hand_out(database: str, tmp_path: Path) -> None:
    queue = ProcrastinateKit(tmp_path, database, "http://127.0.0.1:9")
    queue.install()
    queue.enqueue("inv-1")

    async def aborted(conn: asyncpg.Connection) -> object:
        assert await conn.fetchval(HAND_OUT[ProcrastinateKit]) == str(FIRST_ISSUED)
        await conn.execute(
            "select procrastinate_cancel_job_v1(id, true, false) from procrastinate_jobs"
        )
        asked = await conn.fetchval("select abort_requested from procrastinate_jobs")
        return asked, await conn.fetchval("select fence from gateway.entities")

    assert with_connection(database, aborted) == (True, FIRST_ISSUED)


# --- over HTTP ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    with stack(postgres, lambda url: [documented(url)]) as running:
        yield running


@pytest.fixture
def code() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(block("Over HTTP", "python"), "integrate.md", "exec"), names)
    return names


def capture(served: Stack, invoice: str, key: str, fence: int) -> str:
    """The problem's type, or ``captured``."""
    answer = httpx.post(
        f"{served.gateway.url}/billing/v1/invoices/{invoice}/capture",
        headers={"Idempotency-Key": key, "X-Execution-Fence": str(fence)},
        json={"amount": 1200},
    )
    if answer.status_code == 201:
        return "captured"
    return str(answer.json()["type"]).removeprefix(PREFIX)


def test_a_worker_that_loses_the_work_after_it_asked_captures_nothing(
    served: Stack, code: dict[str, Any]
) -> None:
    fence_for: FenceFor = code["fence_for"]
    served.upstream.clear()
    first = fence_for("invoice:a", served.gateway.url, lambda: True)
    second = fence_for("invoice:a", served.gateway.url, lambda: True)
    assert second > first
    assert capture(served, "a", "job-a-2", second) == "captured"
    assert capture(served, "a", "job-a-1", first) == "fence-stale"
    assert len(served.upstream.effects) == 1


def test_a_worker_that_asks_after_it_lost_the_work_sends_nothing_and_keeps_nobody_out_for_good(
    served: Stack, code: dict[str, Any]
) -> None:
    fence_for: FenceFor = code["fence_for"]
    served.upstream.clear()
    rightful = fence_for("invoice:b", served.gateway.url, lambda: True)
    with pytest.raises(code["Lost"]):
        fence_for("invoice:b", served.gateway.url, lambda: False)
    assert capture(served, "b", "job-b", rightful) == "fence-stale"
    again = fence_for("invoice:b", served.gateway.url, lambda: True)
    assert capture(served, "b", "job-b", again) == "captured"
    assert len(served.upstream.effects) == 1


def test_it_asks_whether_the_work_is_still_its_own_behind_the_fence(
    served: Stack, code: dict[str, Any]
) -> None:
    marks: list[int] = []

    def still_mine() -> bool:
        sql = "select fence from gateway.entities where entity = 'invoice:c'"
        marks.extend(row["fence"] for row in rows(served.database, sql))
        return True

    fence = code["fence_for"]("invoice:c", served.gateway.url, still_mine)
    assert [fence] == marks == [FIRST_ISSUED]
