"""What is reported of an unknown command (`POST /v1/evidence`), and what nobody was left to say."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from gateway.store.tenants import add_key
from tests.kit.client import Reply, assert_problem
from tests.kit.db import Server, execute
from tests.kit.gateway import Scene, Stack, policy, rows, stack
from tests.kit.operating import on
from tests.kit.upstream import Gate, cut, gated

HELD = """
name = "held"
match = "POST /v1/accounts/{account}/held"
entity = "account:{path.account}"
timeout_s = 5
settle_delay_s = 1
"""

BRIEF = HELD.replace("held", "brief") + "keep_limit = 8\n"

AGAIN = (
    HELD.replace("held", "again")
    + 'unknown = "resend"\nsend_key = "X-Ref"\nresend_within_s = 600\n'
)

COMMANDS = (HELD, BRIEF, AGAIN)


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    with postgres.database() as dsn:
        execute(dsn, "update gateway.sweeps set lag = '0 s'")  # the sweep looks at once
        with stack(postgres, lambda url: [policy(url, *COMMANDS)], database=dsn) as made:
            yield made


@pytest.fixture
def scene(served: Stack) -> Scene:
    return served.scene()


def assert_executed(reply: Reply, by: str) -> None:
    assert_problem(reply, "response-not-retained", outcome="rejected", resolved="executed")
    assert reply.one("Gateway-Evidence") == by


def report(scene: Scene, **members: Any) -> Reply:
    body = {"key": scene.key(), "reason": "webhook evt_1", **members}
    return scene.caller.call(
        "POST",
        "/v1/evidence",
        [("Content-Type", "application/json")],
        json.dumps({name: value for name, value in body.items() if value is not None}).encode(),
    )


def unknown(scene: Scene, what: str = "held") -> None:
    scene.upstream.next(cut())
    scene.send(what=what)


def wait_until_it_may_be_said(scene: Scene) -> Reply:
    until = time.monotonic() + 10
    while (reply := report(scene, verdict="not-executed")).status != 200:
        assert_problem(reply, "evidence-refused", outcome="rejected", retry="wait", waits=True)
        assert reply.json()["because"] == "too-early"
        assert time.monotonic() < until
    return reply


def test_a_report_settles_an_unknown_command_and_is_marked(scene: Scene) -> None:
    unknown(scene)
    reply = report(scene, verdict="executed")
    assert reply.status == 200
    assert reply.json()["result"] == "resolved"
    assert_executed(scene.send(what="held"), "report")
    row = scene.audit()[-1]
    assert (row["event"], row["principal"]) == ("resolved", "anonymous")
    assert row["reason"] == "executed: webhook evt_1"
    # Again, as webhooks do, changes nothing and leaves nothing.
    assert report(scene, verdict="executed").json()["result"] == "settled"
    assert len(scene.audit()) == 2
    assert scene.send("next", 2, what="held").outcome == "applied"


def test_a_reported_answer_is_replayed(scene: Scene) -> None:
    unknown(scene)
    answer = {"status": 201, "body": '{"id":"ch_1"}', "content_type": "application/json"}
    assert report(scene, verdict="executed", **answer).status == 200
    replay = scene.send(what="held")
    assert (replay.status, replay.outcome, replay.body) == (201, "replayed", b'{"id":"ch_1"}')
    assert replay.one("Gateway-Evidence") == "report"
    assert replay.one("Content-Type") == "application/json"


@pytest.mark.parametrize(("body", "kept"), [("12345678", True), ("1234567\u00e4", False)])
def test_a_reported_answer_is_kept_within_the_limit_of_its_policy(
    scene: Scene, body: str, kept: bool
) -> None:
    unknown(scene, "brief")
    assert report(scene, verdict="executed", status=201, body=body).status == 200
    replay = scene.send(what="brief")
    if kept:
        assert (replay.status, replay.outcome, replay.body) == (201, "replayed", body.encode())
    else:
        assert_problem(replay, "response-not-retained", outcome="rejected")
        assert replay.one("Gateway-Evidence") == "report"
        row = scene.row()
        assert row is not None
        assert (row["status"], row["body"]) == (201, None)


def test_a_report_that_an_attempt_was_executed_which_was_taken_over_decides(scene: Scene) -> None:
    unknown(scene, "again")
    row = scene.row()
    assert row is not None
    first = str(row["attempt"])
    unknown(scene, "again")
    taken = scene.row()
    assert taken is not None
    assert str(taken["attempt"]) != first
    reply = report(scene, verdict="not-executed", attempt=first)
    assert_problem(reply, "evidence-refused", outcome="rejected", because="changed")
    assert scene.state() == "unknown"
    told = report(scene, verdict="executed", attempt=first, status=201, body="{}")
    assert told.status == 200
    assert told.json()["result"] == "resolved"
    assert report(scene, verdict="executed", attempt=first).json()["result"] == "settled"
    assert scene.send(what="again").outcome == "replayed"
    assert scene.send("next", 2, what="held").outcome == "applied"


def test_a_reported_answer_of_no_type_is_replayed_without_one(scene: Scene) -> None:
    unknown(scene)
    assert report(scene, verdict="executed", status=201, body='{"id":"ch_1"}').status == 200
    replay = scene.send(what="held")
    assert (replay.outcome, replay.body) == ("replayed", b'{"id":"ch_1"}')
    assert replay.all("Content-Type") == []


def test_a_report_gives_the_key_back_when_the_upstream_can_act_no_more(scene: Scene) -> None:
    unknown(scene)
    wait_until_it_may_be_said(scene)
    assert scene.state() is None
    assert scene.send(what="held").outcome == "applied"
    assert len(scene.upstream.requests) == 2


def test_a_report_that_contradicts_the_record_changes_nothing_and_is_evidence(scene: Scene) -> None:
    assert scene.send(what="held").outcome == "applied"
    for _ in range(2):
        reply = report(scene, verdict="not-executed")
        assert_problem(reply, "evidence-refused", outcome="rejected", because="contradicts")
    (row,) = scene.audit()
    assert row["event"] == "late_evidence"
    assert scene.send(what="held").outcome == "replayed"
    scene.stack.gateway.wait_for_log(event="late_evidence", result="contradicts")


def test_a_report_about_another_attempt_decides_nothing(scene: Scene) -> None:
    unknown(scene)
    reply = report(scene, verdict="executed", attempt=str(uuid4()))
    assert_problem(reply, "evidence-refused", outcome="rejected", because="changed")
    assert scene.state() == "unknown"
    assert [row["event"] for row in scene.audit()] == ["outcome_unknown", "late_evidence"]


def test_a_report_about_the_own_attempt_decides(scene: Scene) -> None:
    unknown(scene)
    row = scene.row()
    assert row is not None
    assert report(scene, verdict="executed", attempt=str(row["attempt"])).status == 200


def test_a_report_about_what_is_in_flight_waits(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate))
    sent = scene.open(what="held")
    scene.upstream.wait_for_requests(1)
    reply = report(scene, verdict="executed")
    assert_problem(
        reply, "evidence-refused", outcome="rejected", retry="wait", waits=True, because="in-flight"
    )
    gate.release()
    assert sent.reply().outcome == "applied"


def test_the_route_is_described(served: Stack) -> None:
    described = served.caller().call("GET", "/openapi.json").json()
    operation = described["paths"]["/v1/evidence"]["post"]
    expected = {"200", "400", "401", "403", "404", "405", "409", "413", "503"}
    assert expected == set(operation["responses"])
    assert set(described["components"]["schemas"]["Evidence"]["required"]) == {
        *("key", "verdict", "reason")
    }


def test_a_key_decides_about_its_own_tenants_commands_only(postgres: Server) -> None:
    with postgres.database() as dsn:
        one, other = (_key(dsn, tenant) for tenant in ("one", "other"))
        with stack(postgres, lambda url: [policy(url, *COMMANDS)], database=dsn) as made:
            scene = made.scene()
            scene.caller = made.caller(one)
            unknown(scene)
            scene.caller = made.caller(other)
            assert_problem(report(scene, verdict="executed"), "no-command", outcome="rejected")
            assert scene.state() == "unknown"
            scene.caller = made.caller()
            assert_problem(report(scene, verdict="executed"), "unauthenticated")
            scene.caller = made.caller(one)
            assert report(scene, verdict="executed").status == 200


def _key(dsn: str, tenant: str) -> str:
    scopes = ("policy:pay", "operate")
    return on(dsn, lambda db: add_key(db, tenant, "worker", by="tests", scopes=scopes))


@pytest.mark.parametrize("verdict", ["executed", "not-executed"])
def test_a_report_about_no_command_is_told_so(scene: Scene, verdict: str) -> None:
    reply = report(scene, verdict=verdict)
    assert_problem(reply, "no-command", outcome="rejected")
    told = rows(scene.stack.database, "select event from gateway.audit where key = $1", scene.key())
    assert [row["event"] for row in told] == (["late_evidence"] if verdict == "executed" else [])


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"verdict": "perhaps"}, "verdict"),
        ({"verdict": "executed", "reason": ""}, "reason"),
        ({"verdict": "executed", "key": "a b"}, "key"),
        ({"verdict": "executed", "attempt": "x"}, "attempt"),
        ({"verdict": "executed", "body": "x"}, "body"),
        ({"verdict": "executed", "status": 99}, "status"),
        ({"verdict": "executed", "status": 102}, "status"),
        ({"verdict": "executed", "status": 204, "body": "x"}, "body"),
        ({"verdict": "executed", "status": 205, "body": "x"}, "body"),
        ({"verdict": "executed", "status": 304, "body": "x"}, "body"),
        ({"verdict": "not-executed", "status": 200}, "status"),
        ({"verdict": "executed", "status": 200, "content_type": "a\r\nX: 1"}, "content_type"),
        ({"verdict": "executed", "more": 1}, "more"),
        ({}, "verdict"),
    ],
)
def test_a_report_that_cannot_be_read_is_refused(
    scene: Scene, members: dict[str, Any], said: str
) -> None:
    reply = report(scene, **members)
    assert_problem(reply, "request-invalid", outcome="rejected")
    assert said in reply.json()["detail"]


def test_what_a_dead_gateway_left_is_in_the_audit_without_anybody_asking(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate))
    sent = scene.open(what="held")
    scene.upstream.wait_for_requests(1)
    # As if its process had died: the row stands there, and nobody will settle it in time.
    execute(
        scene.stack.database,
        "update gateway.commands set deadline = gateway.clock() - interval '1 s'"
        f" where key = '{scene.key()}'",
    )
    until = time.monotonic() + 20
    while not scene.audit():
        assert time.monotonic() < until
    (row,) = scene.audit()
    assert row["event"] == "outcome_unknown"
    assert row["reason"].startswith("the gateway ended before it was recorded")
    gate.release()
    assert sent.reply().outcome == "applied"
