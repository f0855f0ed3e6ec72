"""Somebody's own transaction keeps rows locked: who waits for them holds nobody else up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar
from uuid import uuid4

import asyncpg
import pytest

from tests.kit.client import assert_problem
from tests.kit.db import Server, with_connection
from tests.kit.desk import Desk
from tests.kit.faults import until, wait_for_lock_waits
from tests.kit.gateway import CAPTURE, Stack, policy, rows, stack

T = TypeVar("T")

TOOLS = '[[tools]]\nname = "t"\n'
ASKED = 30
"""More than all turns and connections together."""


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    with stack(postgres, lambda url: [policy(url, CAPTURE)], tools=TOOLS) as running:
        yield running


def within(dsn: str, sql: str, ask: Callable[[], T]) -> T:
    """What comes of it while somebody's transaction has done this and goes on."""

    async def work(conn: asyncpg.Connection) -> T:
        async with conn.transaction():
            await conn.execute(sql)
            return await asyncio.to_thread(ask)

    return with_connection(dsn, work)


def test_enqueues_of_a_locked_key_keep_nobody_else_waiting(served: Stack) -> None:
    """The key is that of a job which a user's transaction has just made and not committed."""
    desk, scene, key = Desk(served.caller()), served.scene(), uuid4().hex
    mine = desk.one()
    lease = desk.claimed()

    def ask() -> None:
        document = {"jobs": [{"tool": "t", "key": key}]}
        asked = [desk.open("", document) for _ in range(ASKED)]
        wait_for_lock_waits(served.database, 1, "gateway.enqueue_jobs(")
        for _ in range(20):
            assert desk.beat(lease)[0]["remaining_ms"] > 0
        other = desk.one()
        assert desk.claimed()["job"] == other
        assert desk.show(other)["state"] == "running"
        assert desk.operate(other, "cancel").status == 200
        assert scene.send().status == 201
        assert desk.complete(lease)["state"] == "succeeded"
        assert waiting(served, "gateway.enqueue_jobs(") == 1
        kinds = {each.reply().problem for each in asked}
        assert kinds == {"store-unavailable", "overloaded"}

    within(served.database, f"select gateway.enqueue('default', 't', p_key => '{key}')", ask)
    (known,) = desk.enqueue({"tool": "t", "key": key})
    assert known["created"] is False
    assert desk.show(mine)["state"] == "succeeded"
    assert desk.operate(known["job"], "cancel").status == 200


def test_batches_that_share_one_locked_key_take_one_turn(served: Stack) -> None:
    """Each names the locked key and another one, so no two batches are equal."""
    desk, key = Desk(served.caller()), uuid4().hex

    def ask() -> None:
        asked = []
        for number in range(ASKED):
            names = (key, f"{key}-{number}")
            order = names if number % 2 else names[::-1]
            asked.append(desk.open("", {"jobs": [{"tool": "t", "key": name} for name in order]}))
        wait_for_lock_waits(served.database, 1, "gateway.enqueue_jobs(")
        for _ in range(5):
            assert desk.operate(desk.one(), "cancel").status == 200
        assert waiting(served, "gateway.enqueue_jobs(") == 1
        kinds = {each.reply().problem for each in asked}
        assert kinds == {"store-unavailable", "overloaded"}

    within(served.database, f"select gateway.enqueue('default', 't', p_key => '{key}')", ask)
    cancel_all(served)


def test_made_up_ends_on_a_locked_entity_take_one_turn(served: Stack) -> None:
    desk = Desk(served.caller())
    locked = f"account:{uuid4().hex}"
    rows(served.database, "select gateway.issue_fence('default', $1)", locked)
    desk.one()
    lease = desk.claimed()

    def ask() -> None:
        asked = []
        for _ in range(ASKED):
            made_up = {**lease, "entity": locked, "job": str(uuid4())}
            end = {"lease": made_up, "how": "handed-back"}
            asked.append(desk.open("/end", {"worker": "w1", "ends": [end]}))
        wait_for_lock_waits(served.database, 1, "gateway.end_leases(")
        assert desk.complete(lease)["state"] == "succeeded"
        assert waiting(served, "gateway.end_leases(") == 1
        for each in asked:
            each.hang_up()

    within(
        served.database, f"select from gateway.entities where entity = '{locked}' for update", ask
    )


def cancel_all(served: Stack) -> None:
    desk = Desk(served.caller())
    for row in rows(served.database, "select id from gateway.jobs"):
        assert desk.operate(str(row["id"]), "cancel").status == 200


def waiting(served: Stack, text: str) -> int:
    found = rows(
        served.database,
        "select count(*) as n from pg_stat_activity where wait_event_type = 'Lock'"
        " and datname = current_database() and position($1 in query) > 0",
        text,
    )
    return int(found[0]["n"])


def test_ends_on_a_locked_entity_keep_no_heartbeat_claim_or_command_waiting(
    served: Stack,
) -> None:
    desk, scene = Desk(served.caller()), served.scene()
    locked = f"account:{uuid4().hex}"
    desk.one(entity=locked)
    lease = desk.claimed()
    free = [desk.one() for _ in range(2)]
    leases = [each["lease"] for each in desk.claim(2)]
    lock = f"select from gateway.entities where entity = '{locked}' for update"

    def ask() -> None:
        ended = {"worker": "w1", "ends": [{"lease": lease, "how": "completed"}]}
        asked = [desk.open("/end", ended) for _ in range(ASKED)]
        wait_for_lock_waits(served.database, 1, "gateway.end_leases(")
        for _ in range(20):
            found = desk.beat(lease, *leases)
            assert all("remaining_ms" in each for each in found)
        assert desk.complete(leases[0])["state"] == "succeeded"
        more = desk.one()
        assert desk.claimed()["job"] == more
        assert desk.operate(more, "cancel").status == 200
        assert scene.send().status == 201
        kinds = {each.reply().problem for each in asked}
        assert kinds == {"store-unavailable", "overloaded"}

    within(served.database, lock, ask)
    assert desk.complete(lease)["state"] == "succeeded"
    assert desk.complete(leases[1])["state"] == "succeeded"
    assert {desk.show(job)["state"] for job in free} == {"succeeded"}


def test_no_lane_waits_for_another_that_is_full(served: Stack) -> None:
    """Enqueues of many locked keys and ends on many locked entities take all turns of theirs."""
    desk, scene = Desk(served.caller()), served.scene()
    keys = [uuid4().hex for _ in range(ASKED)]
    entities = [f"account:{key}" for key in keys]
    locked_jobs = [desk.one(entity=entity) for entity in entities]
    leases = [each["lease"] for each in desk.claim(ASKED)]
    desk.one()
    free = desk.claimed()
    lock = "".join(f"select gateway.enqueue('default', 't', p_key => '{key}');" for key in keys)
    names = ", ".join(f"'{entity}'" for entity in entities)
    lock += f"select from gateway.entities where entity in ({names}) for update"

    def ask() -> None:
        asked = [desk.open("", {"jobs": [{"tool": "t", "key": key}]}) for key in keys]
        asked += [
            desk.open("/end", {"worker": "w1", "ends": [{"lease": each, "how": "completed"}]})
            for each in leases
        ]
        wait_for_lock_waits(served.database, 2, "gateway.enqueue_jobs(")
        wait_for_lock_waits(served.database, 2, "gateway.end_leases(")
        assert "remaining_ms" in desk.beat(free)[0]
        assert desk.claim() == []
        assert scene.send().status == 201
        # Whether all of this came while the lanes were full: no turn was given back yet.
        assert waiting(served, "gateway.enqueue_jobs(") + waiting(served, "gateway.end_leases(") > 0
        for each in asked:
            assert each.reply().problem in ("store-unavailable", "overloaded")

    within(served.database, lock, ask)
    answers = desk.end(*({"lease": each, "how": "completed"} for each in [*leases, free]))
    assert [each["state"] for each in answers] == ["succeeded"] * (ASKED + 1)
    assert {desk.show(job)["state"] for job in locked_jobs} == {"succeeded"}
    for made in desk.enqueue(*({"tool": "t", "key": key} for key in keys)):
        assert desk.operate(made["job"], "cancel").status == 200


def test_a_locked_end_in_a_batch_does_not_lose_the_others(served: Stack) -> None:
    desk = Desk(served.caller())
    locked = f"account:{uuid4().hex}"
    jobs = [desk.one(entity=locked), desk.one()]
    leases = {each["lease"]["job"]: each["lease"] for each in desk.claim(2)}
    ends = {
        "worker": "w1",
        "ends": [{"lease": leases[job], "how": "completed", "result": 1} for job in jobs],
    }
    lock = f"select from gateway.entities where entity = '{locked}' for update"
    reply = within(served.database, lock, lambda: desk.post("/end", ends))
    assert_problem(reply, "store-unavailable", waits=True, retry="wait")
    assert desk.show(jobs[1])["state"] == "succeeded"
    found = desk.post("/end", ends).json()["ends"]
    assert [each["again"] for each in found] == [False, True]


def test_a_session_is_cancelled_but_for_what_somebody_has_locked(served: Stack) -> None:
    desk, session = Desk(served.caller()), uuid4().hex
    jobs = [desk.one(session=session) for _ in range(3)]
    lock = f"select from gateway.jobs where id = '{jobs[1]}' for update"
    wish = {"session": session, "reason": "closed"}
    reply = within(served.database, lock, lambda: desk.post("/cancel", wish))
    assert sorted(reply.json()["cancelled"]) == sorted([jobs[0], jobs[2]])
    assert reply.json()["left"] == 1
    assert desk.post("/cancel", wish).json() == {"cancelled": [jobs[1]], "left": 0}


def test_the_reaper_passes_over_what_is_locked(served: Stack) -> None:
    desk = Desk(served.caller())
    locked = f"account:{uuid4().hex}"
    jobs = [desk.one(entity=locked), desk.one()]
    desk.claim(2)
    over = "update gateway.job_leases set lease_until = gateway.clock()"

    def ask() -> None:
        rows(served.database, over)
        until(lambda: desk.show(jobs[1])["state"] == "queued", "the free one is reaped")
        assert desk.show(jobs[0])["state"] == "running"

    within(
        served.database, f"select from gateway.entities where entity = '{locked}' for update", ask
    )
    until(lambda: desk.show(jobs[0])["state"] == "queued", "so is the other, afterwards")
    for job in jobs:
        assert desk.operate(job, "cancel").status == 200
