"""SIGTERM under load: nothing new is admitted, what runs is settled, the rest is left to time."""

from __future__ import annotations

import http.client
import signal
import time

from tests.kit.client import Exchange, assert_problem
from tests.kit.db import Server
from tests.kit.faults import SETTLE, Rig, every_deadline_passes, rig, second_gateway, until
from tests.kit.gateway import Scene
from tests.kit.upstream import Answer, Gate, Recorded, gated

RUNNING = 8
AT_ONCE = [("Prefer", "wait=0")]
SLACK_S = 3.0
"""What closing takes on a busy machine, besides draining."""


def test_under_load(here: Rig) -> None:
    gate = Gate()
    running = run(here, gate)
    waiters = [here.scene.waiter("run0", account="run0") for _ in range(3)]
    half = half_a_request(here)

    here.gateway.signal(signal.SIGTERM)

    for waiter in waiters:
        assert_problem(waiter.reply(5), "in-flight", waits=True)
    half.send(b"{}")
    assert_problem(half.reply(5), "overloaded", waits=True)
    until(lambda: refuses(here), "new connections are refused")
    with second_gateway(here) as there:
        assert there.send("new").status == 201
        assert_problem(there.send("run0", account="run0", fields=AT_ONCE), "in-flight", waits=True)
        gate.release()
        replies = [each.reply() for each in running]
        assert exit_code(here, SLACK_S) == 0

        assert {reply.status for reply in replies} == {201}
        for number, reply in enumerate(replies):
            again = there.send(f"run{number}", account=f"run{number}")
            assert (again.replayed, again.body) == (True, reply.body)
    assert here.upstream.count == RUNNING + 1
    assert here.scene.row("half") is None


def test_with_attempts_that_outlast_the_drain(postgres: Server) -> None:
    with rig(postgres, env={"FENCEGATE_DRAIN_S": "1"}) as here:
        running = run(here, Gate())

        here.gateway.signal(signal.SIGTERM)
        began = time.monotonic()

        assert exit_code(here, 1 + SLACK_S) == 0
        assert time.monotonic() - began > 1
        for each in running:
            assert_told(each)
        with second_gateway(here) as there:
            assert_left_to_time(here, there)


def test_with_a_settle_that_outlasts_the_drain(postgres: Server) -> None:
    with rig(postgres, env={"FENCEGATE_DRAIN_S": "0.5"}) as here:
        held = here.proxy.hold_statement(SETTLE)
        sent = here.scene.open("run0", account="run0")
        held.wait_hit()
        here.proxy.refuse()

        here.gateway.signal(signal.SIGTERM)

        assert exit_code(here, 0.5 + SLACK_S) == 0
        assert_told(sent)
        with second_gateway(here) as there:
            assert_left_to_time(here, there)


def run(here: Rig, gate: Gate) -> list[Exchange]:
    """Commands of as many entities, each at the upstream, which answers behind the gate."""

    def script(request: Recorded) -> Answer | None:
        return gated(gate) if b"/run" in request.target else None

    here.upstream.script = script
    sent = [here.scene.open(f"run{n}", account=f"run{n}") for n in range(RUNNING)]
    here.upstream.wait_for_effects(RUNNING)
    return sent


def half_a_request(here: Rig) -> Exchange:
    """A request whose head the gateway has read, and whose body is still to come."""
    half = here.scene.caller.open(
        "POST",
        f"/pay/v1/accounts/{here.scene.account}/charges",
        [
            ("Idempotency-Key", here.scene.key("half")),
            ("X-Execution-Fence", "1"),
            ("Content-Type", "application/json"),
            ("Content-Length", "2"),
            ("Expect", "100-continue"),
        ],
        None,
    )
    assert half.read(5).startswith(b"HTTP/1.1 100 ")
    return half


def refuses(here: Rig) -> bool:
    try:
        reply = here.scene.send("late", account="late")
    except ConnectionRefusedError:
        return True
    except (OSError, http.client.HTTPException):
        return False
    assert_problem(reply, "overloaded", waits=True)
    return False


def exit_code(here: Rig, timeout_s: float) -> int:
    assert here.gateway.process is not None
    return here.gateway.process.wait(timeout_s)


def assert_told(sent: Exchange) -> None:
    """Who is cut off hears so, and not a 500 that reads as "failed"."""
    reply = sent.reply(5)
    assert_problem(reply, "outcome-unknown", outcome="unknown", sent="unknown", waits=True)


def assert_left_to_time(here: Rig, there: Scene) -> None:
    """The key is in flight until its deadline, then unknown, and nothing is sent again."""
    before = here.upstream.count
    again = there.send("run0", account="run0", fields=AT_ONCE)
    assert_problem(again, "in-flight", waits=True)
    every_deadline_passes(here.database)
    again = there.send("run0", account="run0")
    assert_problem(again, "outcome-unknown", outcome="unknown", sent="unknown", waits=True)
    assert here.upstream.count == before
