"""Everybody who may wait for a lock does so at once, in the smallest pool: commands go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from uuid import uuid4

import asyncpg
import pytest

from gateway.core.budget import LEAST_POOL
from gateway.limits import REPEATS
from tests.kit.client import Exchange
from tests.kit.db import Server, execute, with_connection
from tests.kit.desk import JSON, Desk
from tests.kit.faults import LOAD, Rig, until
from tests.kit.gateway import Stack, policy, rows, stack
from tests.kit.upstream import Answer, Recorded, cut, respond

PROBED = """
name = "probed"
match = "POST /v1/probed/{account}"
entity = "probed:{path.account}"
fence = "off"
timeout_s = 20
settle_delay_s = 1
unknown = "probe"
send_key = "X-Reference"

[commands.probe]
request = "GET /v1/found?reference={upstream_key}"
applied = { status = [200], where = "/data", items = "some" }
interval_s = 1
"""

EACH = 2 * LEAST_POOL
"""Of each kind of question: more than there are connections."""

LOCKS = f"""
select from gateway.entities where entity like 'probed:%' for update;
select gateway.enqueue('default', 't', p_key => 'locked-' || n) from generate_series(1, {EACH}) n;
"""


@pytest.fixture
def smallest(postgres: Server) -> Iterator[Stack]:
    with postgres.database() as dsn:
        execute(dsn, "update gateway.sweeps set lag = '0 s'")
        with stack(
            postgres,
            lambda url: [policy(url, LOAD, PROBED)],
            env={"FENCEGATE_POOL_SIZE": str(LEAST_POOL)},
            database=dsn,
            tools='[[tools]]\nname = "t"\n',
        ) as made:
            yield made


def test_locks_that_everybody_else_waits_for_leave_a_connection_to_commands(
    smallest: Stack,
) -> None:
    proven = False

    def script(request: Recorded) -> Answer | None:
        if request.method == b"GET":
            body = b'{"data":[1]}' if proven else b'{"data":[]}'
            return respond(200, body, [("Content-Type", "application/json")], effect=False)
        return cut() if b"/probed/" in request.target else None

    smallest.upstream.script = script
    for number in range(EACH):
        reply = command(smallest, "probed", number).reply()
        assert reply.problem == "outcome-unknown"
    desk = Desk(smallest.caller())

    def ask() -> None:
        nonlocal proven
        proven = True
        until(lambda: waits(smallest, "gateway.probed("), "what a probe showed waits")
        asked = [each for n in range(EACH) for each in everything(smallest, desk, n)]
        until(lambda: waits(smallest, "gateway.") >= 5, "one of each kind waits, and the prober")
        seen = []
        for number in range(40):
            assert command(smallest, "loads", number).reply().status == 201
            seen.append(waits(smallest, "gateway."))
        assert max(seen) <= 5
        assert smallest.caller().call("GET", "/readyz").status == 200
        for each in asked:
            each.hang_up()

    async def locked(conn: asyncpg.Connection) -> None:
        transaction = conn.transaction()
        await transaction.start()
        await conn.execute(LOCKS)
        await asyncio.to_thread(ask)
        await transaction.rollback()

    with_connection(smallest.database, locked)
    # What was asked in vain comes due again; here at once.
    again = "update gateway.watched set due_at = gateway.clock(), busy_until = '-infinity'"
    execute(smallest.database, again)
    until(lambda: unsettled(smallest) == 0, "every probe was recorded", 30)


def test_mismatches_that_wait_for_one_row_leave_the_connections_to_commands(
    smallest: Stack,
) -> None:
    def mismatch() -> Exchange:
        fields = [("Idempotency-Key", "same"), ("X-Execution-Entity", "account:other")]
        return smallest.caller().open("POST", "/pay/v1/loads/same", fields, b"{}")

    def ask() -> None:
        asked = [mismatch() for _ in range(EACH)]
        until(lambda: waits(smallest, "gateway.refuse("), "one of them waits")
        seen = []
        for number in range(40):
            assert command(smallest, "loads", number).reply().status == 201
            seen.append(waits(smallest, "gateway.refuse("))
        assert max(seen) == 1
        for each in asked:
            each.hang_up()

    for _ in range(REPEATS + 1):  # from here on equal ones share a row
        assert mismatch().reply().problem == "entity-mismatch"

    async def locked(conn: asyncpg.Connection) -> None:
        transaction = conn.transaction()
        await transaction.start()
        await conn.execute("select from gateway.audit_repeats for update")
        await asyncio.to_thread(ask)
        await transaction.rollback()

    with_connection(smallest.database, locked)


def test_all_who_ask_for_readiness_together_cost_one_look(here: Rig) -> None:
    look = "transaction_read_only"
    caller = here.scene.caller
    held = here.proxy.hold_answer(look)
    asked = [caller.open("GET", "/readyz") for _ in range(50)]
    held.wait_hit()
    assert caller.call("GET", "/healthz").status == 200  # came after all of them
    held.release()
    assert {each.reply().body for each in asked} == {b'{"status":"ready"}'}
    assert here.proxy.count(look) == 1


def command(here: Stack, what: str, number: int) -> Exchange:
    fields = [("Idempotency-Key", f"{what}-{number}")]
    return here.caller().open("POST", f"/pay/v1/{what}/{number}", fields, b"{}")


def everything(here: Stack, desk: Desk, number: int) -> Iterator[Exchange]:
    """One of each kind of question that waits for what is locked."""
    entity = f"probed:{number}"
    evidence = {"key": f"probed-{number}", "verdict": "executed", "reason": "webhook"}
    lease = {"entity": entity, "job": str(uuid4()), "fence": 1, "tool": "t", "attempt": 1}
    yield here.caller().open("POST", "/v1/fences", [JSON], json.dumps({"entity": entity}).encode())
    yield here.caller().open("POST", "/v1/evidence", [JSON], json.dumps(evidence).encode())
    yield desk.open("", {"jobs": [{"tool": "t", "key": f"locked-{number + 1}"}]})
    yield desk.open("/end", {"worker": "w1", "ends": [{"lease": lease, "how": "handed-back"}]})


def waits(here: Stack, text: str) -> int:
    found = rows(
        here.database,
        "select count(*) as n from pg_stat_activity where wait_event_type = 'Lock'"
        " and datname = current_database() and position($1 in query) > 0",
        text,
    )
    return int(found[0]["n"])


def unsettled(here: Stack) -> int:
    sql = "select count(*) as n from gateway.commands where settled_at is null"
    return int(rows(here.database, sql)[0]["n"])
