"""One tenant asks for more than there is: another one's heartbeats and enqueues go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest

from gateway.jobs.journal import TOLD
from gateway.proxy.lanes import SMALL
from tests.faults.test_jobs_locked import within
from tests.kit.client import Caller, Exchange
from tests.kit.db import Server
from tests.kit.desk import Desk, Value
from tests.kit.faults import wait_for_lock_waits
from tests.kit.gateway import CAPTURE, GatewayProcess, gateway, policy
from tests.kit.operating import fencegate

TOOLS = '[[tools]]\nname = "t"\n'
FLOOD = 60


@dataclass
class Shared:
    process: GatewayProcess
    flooding: Desk
    other: Desk
    lease: Value


@pytest.fixture(scope="module")
def shared(postgres: Server) -> Iterator[Shared]:
    with postgres.database() as dsn:
        tokens = []
        for tenant in ("a", "b"):
            named = ("--tenant", tenant, "--name", "w")
            scopes = (f"--scope={scope}" for scope in ("enqueue", "work", "operate"))
            made = fencegate("keys", "add", *named, *scopes, dsn=dsn)
            tokens.append(next(word for word in made.out.split() if word.startswith("fg_")))
        text = policy("http://127.0.0.1:9", CAPTURE)
        with gateway(dsn, text, tools=TOOLS) as process:
            flooding, other = (Desk(Caller(process.url, token=token)) for token in tokens)
            other.one()
            yield Shared(process, flooding, other, other.claimed())


def made_up(count: int) -> list[Value]:
    return [
        {"job": str(uuid4()), "entity": f"e{n}", "fence": 1, "tool": "t", "attempt": 1}
        for n in range(count)
    ]


def heartbeats() -> tuple[str, bytes]:
    body = json.dumps({"worker": "w", "leases": made_up(1_000)}).encode()
    assert len(body) > SMALL
    return "/heartbeat", body


def small_heartbeats() -> tuple[str, bytes]:
    body = json.dumps({"worker": "w", "leases": made_up(100)}).encode()
    assert len(body) <= SMALL
    return "/heartbeat", body


def long_to_read() -> tuple[str, bytes]:
    """As many values as a document may have, and a mistake behind them."""
    return "", b'{"jobs":[{"tool":"t","payload":[' + b",".join([b"1.5"] * 120_000) + b'],"x":1}]}'


@pytest.mark.parametrize("question", [heartbeats, small_heartbeats, long_to_read])
def test_a_flood_of_one_tenant_keeps_no_heartbeat_of_another_waiting(
    shared: Shared, question: Callable[[], tuple[str, bytes]]
) -> None:
    tail, body = question()
    asked = [shared.flooding.open(tail, body) for _ in range(FLOOD)]
    (answer,) = shared.other.beat(shared.lease)
    left = unanswered(asked)
    assert answer["remaining_ms"] > 0
    assert left > FLOOD // 2
    for each in asked:
        assert each.reply().status in (200, 400, 503)


def unanswered(asked: list[Exchange]) -> int:
    return sum(not each.readable() for each in asked)


def test_what_a_heartbeat_is_refused_is_few_lines(shared: Shared) -> None:
    found = shared.flooding.beat(*made_up(1_000))
    assert {each["lost"] for each in found} == {"expired"}
    line = shared.process.wait_for_log(event="heartbeats_lost", expired=1_000 - TOLD)
    log = shared.process.log
    told = [each for each in log if each.get("request_id") == line["request_id"]]
    assert [each["event"] for each in told] == ["heartbeat_lost"] * TOLD + ["heartbeats_lost"]


def test_what_one_tenant_has_locked_keeps_no_other_waiting(shared: Shared) -> None:
    """More locked keys than turns, so each turn that comes free is wanted by their tenant."""
    keys = [uuid4().hex for _ in range(FLOOD)]

    def ask() -> None:
        asked = [shared.flooding.open("", {"jobs": [{"tool": "t", "key": key}]}) for key in keys]
        wait_for_lock_waits(shared.process.database, 2, "gateway.enqueue_jobs(")
        assert shared.other.operate(shared.other.one(), "cancel").status == 200
        assert unanswered(asked) > 0
        for each in asked:
            each.reply()

    lock = "".join(f"select gateway.enqueue('a', 't', p_key => '{key}');" for key in keys)
    within(shared.process.database, lock, ask)
