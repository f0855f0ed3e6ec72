"""An unknown outcome is asked about, and only proof decides it.

The sweep's lag is set to nothing in this database, so that the background looks at once. It goes on
asking about what other tests left behind, so each test looks at its own account's requests only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kit.client import Reply, assert_problem
from tests.kit.db import Server, execute
from tests.kit.gateway import Scene, Stack, gateway, policy, rows, stack
from tests.kit.upstream import Answer, Gate, Recorded, cut, gated, respond

ASKED = """
name = "asked"
match = "POST /v1/accounts/{account}/asked"
entity = "account:{path.account}"
timeout_s = 20
settle_delay_s = 1
unknown = "probe"
send_key = "X-Reference"

[commands.probe]
request = "GET /v1/found?reference={upstream_key}&account={path.account}&key={key}"
headers = { X-Probe = "yes" }
applied = { status = [200], where = "/data", items = "some" }
absent  = { status = [200], where = "/data", items = "none" }
interval_s = 1
"""

SHOWN = ASKED.replace("asked", "shown").replace("interval_s = 1", "interval_s = 1\nreplay = true")

PATIENT = ASKED.replace("asked", "patient").replace("settle_delay_s = 1", "settle_delay_s = 600")

RARE = PATIENT.replace("patient", "rare").replace("interval_s = 1", "interval_s = 3600")

SOON = PATIENT.replace("patient", "soon").replace("interval_s = 1", "interval_s = 20")

COMMANDS = (ASKED, SHOWN, PATIENT, RARE, SOON)

FOUND = b'{"data":[{"id":"ch_1"}]}'
NONE = b'{"data":[]}'


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    with looking(postgres, "0 s") as made:
        yield made


@pytest.fixture(scope="module")
def unattended(postgres: Server) -> Iterator[Stack]:
    """The background looks at nothing here: a caller that comes while it asks hears "unknown"."""
    with looking(postgres, "1 day") as made:
        yield made


@contextmanager
def looking(postgres: Server, lag: str) -> Iterator[Stack]:
    head = '[upstream_headers]\nAuthorization = "Bearer ${TOKEN}"'
    with postgres.database() as dsn:
        execute(dsn, f"update gateway.sweeps set lag = '{lag}'")
        policies = lambda url: [policy(url, *COMMANDS, head=head)]  # noqa: E731
        with stack(postgres, policies, env={"TOKEN": "upstream"}, database=dsn) as made:
            yield made


@pytest.fixture
def scene(served: Stack) -> Scene:
    return served.scene()


@pytest.fixture
def alone(unattended: Stack) -> Scene:
    return unattended.scene()


def probes(scene: Scene) -> list[Recorded]:
    """Of the scene's own account, as all that follows."""
    account = b"&account=%b&" % scene.account.encode()
    return [each for each in scene.upstream.requests if account in each.target]


def posts(scene: Scene) -> list[Recorded]:
    account = b"/%b/" % scene.account.encode()
    return [each for each in scene.upstream.requests if account in each.target]


def wait_for_probes(scene: Scene, n: int) -> None:
    until = time.monotonic() + 20
    while len(probes(scene)) < n:
        assert time.monotonic() < until


def wait_for_background(scene: Scene) -> None:
    """Until the background has asked for the first time, and nobody is asking now."""
    until = time.monotonic() + 20
    sql = (
        "select from gateway.watched join gateway.commands using (tenant, key_digest)"
        " where key = $1 and tries > 0 and busy_until <= gateway.clock()"
        " and due_at > gateway.clock()"
    )
    while not rows(scene.stack.database, sql, scene.key()):
        assert time.monotonic() < until


def answering(
    scene: Scene, post: Answer, get: Callable[[], Answer]
) -> Callable[[Recorded], Answer | None]:
    """What the upstream does: ``post`` once, then the default; ``get`` for each of its probes."""
    left, own = [post], scene.account.encode()

    def script(request: Recorded) -> Answer | None:
        if request.method == b"GET":
            return get() if b"&account=%b&" % own in request.target else respond(503, effect=False)
        return left.pop() if left else None

    return script


def says(body: bytes, status: int = 200) -> Answer:
    return respond(status, body, [("Content-Type", "application/json")], effect=False)


def lost(scene: Scene, get: Callable[[], Answer], **more: Any) -> Reply:
    """Send a command whose answer is lost; probes are then answered by ``get``."""
    scene.upstream.script = answering(scene, cut(), get)
    reply = scene.send(**more)
    assert_problem(reply, "outcome-unknown", outcome="unknown", sent="yes", waits=True)
    return reply


def assert_executed(reply: Reply, by: str) -> None:
    assert_problem(reply, "response-not-retained", outcome="rejected", resolved="executed")
    assert reply.one("Gateway-Evidence") == by


# -- probe


def test_a_callers_own_request_asks_and_hears_what_that_proves(alone: Scene) -> None:
    lost(alone, lambda: says(FOUND), what="patient")
    assert_executed(alone.send(what="patient"), "probe")
    assert alone.row()["settled_by"] == "probe"  # type: ignore[index]
    assert len(posts(alone)) == 1
    (probe,) = probes(alone)
    (post,) = posts(alone)
    reference = post.one("X-Reference")
    assert reference is not None
    assert probe.target == b"/v1/found?reference=%b&account=%b&key=%b" % (
        reference,
        alone.account.encode(),
        alone.key().encode(),
    )
    assert probe.one("Authorization") == b"Bearer upstream"
    assert probe.one("X-Probe") == b"yes"
    assert b"fencegate-" in (probe.one("Via") or b"")
    assert probe.all("Idempotency-Key") == probe.all("X-Execution-Fence") == []
    told = alone.audit()
    assert [row["event"] for row in told] == ["outcome_unknown", "resolved"]
    assert told[1]["principal"] == "gateway:probe"
    assert told[1]["reason"] == "executed: a probe was answered 200, as applied"
    # The entity is free.
    assert alone.send("next", 2, what="patient").outcome == "applied"


def test_the_probes_answer_is_replayed_where_the_policy_says_so_and_marked(alone: Scene) -> None:
    lost(alone, lambda: says(FOUND), what="shown")
    for reply in (alone.send(what="shown"), alone.send(what="shown")):
        assert (reply.status, reply.outcome, reply.body) == (200, "replayed", FOUND)
        assert reply.one("Gateway-Evidence") == "probe"
    assert len(posts(alone)) == 1


def test_the_background_asks_without_any_caller(scene: Scene) -> None:
    lost(scene, lambda: says(FOUND), what="asked")
    scene.wait_for_state("settled")
    assert scene.row()["settled_by"] == "probe"  # type: ignore[index]
    assert_executed(scene.send(what="asked"), "probe")


def test_two_negatives_far_enough_apart_give_the_key_back(scene: Scene) -> None:
    lost(scene, lambda: says(NONE), what="asked")
    scene.wait_for_state(None, timeout_s=20)
    asked = [each.arrived_mono for each in probes(scene)]
    # The first ones came too early to count: the upstream might still have acted.
    assert asked[-1] - posts(scene)[0].arrived_mono >= 2
    told = scene.audit()
    assert [row["event"] for row in told] == ["outcome_unknown", "resolved"]
    assert told[1]["reason"].startswith(
        "not executed: a probe was answered 200, as absent, asked at 20"
    )
    again = scene.send(what="asked")
    assert (again.status, again.outcome) == (201, "applied")
    assert len(posts(scene)) == 2


def test_one_negative_proves_nothing_and_is_answered_as_unknown(alone: Scene) -> None:
    lost(alone, lambda: says(NONE), what="patient")
    reply = alone.send(what="patient")
    assert_problem(reply, "outcome-unknown", outcome="unknown", waits=True)
    assert len(probes(alone)) >= 1
    assert len(posts(alone)) == 1
    assert alone.state() == "unknown"


def test_retry_after_says_when_the_upstream_is_asked_next(scene: Scene) -> None:
    first = lost(scene, lambda: says(NONE), what="soon")
    assert first.one("Retry-After") == "5"  # the background soon asks by itself
    wait_for_background(scene)
    reply = scene.send(what="soon")
    assert_problem(reply, "outcome-unknown", outcome="unknown", waits=True)
    (row,) = rows(
        scene.stack.database,
        "select ceil(extract(epoch from due_at - gateway.clock()))::int as left, tries"
        " from gateway.watched join gateway.commands using (tenant, key_digest) where key = $1",
        scene.key(),
    )
    said = int(reply.one("Retry-After") or 0)
    assert min(row["left"], 30) <= said <= min(20 * 2 ** (row["tries"] - 1), 30)


def test_retry_after_is_bounded_where_the_next_query_is_far_off(scene: Scene) -> None:
    lost(scene, lambda: says(NONE), what="rare")
    wait_for_background(scene)
    assert scene.send(what="rare").one("Retry-After") == "30"


@pytest.mark.parametrize(
    "answer",
    [
        respond(404, b"{}", effect=False),
        respond(500, NONE, effect=False),
        respond(401, NONE, effect=False),
        respond(200, b"no json", effect=False),
        respond(200, b'{"data":{}}', effect=False),
        respond(200, b'{"data":[]', effect=False),
        respond(200, NONE, [("Content-Encoding", "gzip")], effect=False),
        respond(200, b"", effect=False),
        cut(effect=False),
        cut("reset", effect=False),
    ],
    ids=str,
)
def test_whatever_else_comes_is_no_evidence(alone: Scene, answer: Answer) -> None:
    lost(alone, lambda: answer, what="patient")
    reply = alone.send(what="patient")
    assert_problem(reply, "outcome-unknown", outcome="unknown", waits=True)
    assert (len(posts(alone)), alone.state()) == (1, "unknown")


def test_one_asks_at_a_time_about_a_command(scene: Scene) -> None:
    gate = Gate()
    lost(scene, lambda: gated(gate, says(FOUND)), what="patient")
    first = scene.open(what="patient")
    wait_for_probes(scene, 1)  # by this request, or by the background that was quicker
    for _ in range(3):
        reply = scene.send(what="patient")
        assert_problem(reply, "outcome-unknown", outcome="unknown", waits=True)
        assert reply.one("Retry-After") == "5"  # by when whoever asks has been answered
    assert len(probes(scene)) == 1
    gate.release()
    scene.wait_for_state("settled")
    assert first.reply().status in (410, 504)
    assert len(probes(scene)) == 1
    assert_executed(scene.send(what="patient"), "probe")


def test_a_late_answer_beats_a_probe_that_found_nothing(scene: Scene) -> None:
    """CRASH-04: 'not found', and at the same moment the answer arrives."""
    gate = Gate()
    held = Gate()
    scene.upstream.script = answering(
        scene, gated(held, respond(201, b'{"id":"ch_1"}')), lambda: gated(gate, says(NONE))
    )
    waiting = scene.open(what="asked")
    scene.upstream.wait_for_requests(1)
    # As if its deadline had passed: the attempt is still waiting for its answer.
    execute(
        scene.stack.database,
        "update gateway.commands set deadline = gateway.clock() - interval '1 h' where key ="
        f" '{scene.key()}'; update gateway.entities set open_until = gateway.clock() -"
        f" interval '1 h' where entity = '{scene.entity}'; update gateway.watched w set due_at ="
        " gateway.clock() from gateway.commands c where (w.tenant, w.key_digest) ="
        f" (c.tenant, c.key_digest) and c.key = '{scene.key()}'",  # where it was listed already
    )
    wait_for_probes(scene, 1)
    held.release()
    assert waiting.reply().outcome == "applied"
    gate.release()
    replay = scene.send(what="asked")
    assert (replay.status, replay.outcome, replay.body) == (201, "replayed", b'{"id":"ch_1"}')
    assert replay.one("Gateway-Evidence") is None
    assert len(posts(scene)) == 1


def test_a_request_that_cannot_be_asked_about_is_refused_before_it_is_sent(scene: Scene) -> None:
    reply = scene.send(what="asked", account="a%2Fb")
    assert reply.status == 400
    assert scene.upstream.count == 0


def test_a_stop_waits_for_no_probe_and_leaves_it_to_the_next(postgres: Server) -> None:
    with postgres.database() as dsn:
        execute(dsn, "update gateway.sweeps set lag = '0 s'")
        gate = Gate()
        with stack(postgres, lambda url: [policy(url, *COMMANDS)], database=dsn) as made:
            here = made.scene()
            lost(here, lambda: gated(gate, says(NONE)), what="patient")
            wait_for_probes(here, 1)
            assert made.gateway.stop() == 0
            assert here.state() == "unknown"
            execute(dsn, "update gateway.watched set due_at = gateway.clock()")
            here.upstream.script = answering(here, cut(), lambda: says(FOUND))
            with gateway(dsn, policy(made.upstream.url, *COMMANDS)):
                here.wait_for_state("settled", timeout_s=20)
        gate.release()


def test_a_query_that_proves_nothing_is_warned_of_once(scene: Scene) -> None:
    lost(scene, lambda: respond(418, b"{}", effect=False), what="asked")
    wait_for_probes(scene, 3)
    said = scene.stack.gateway.wait_for_log(event="probe_failed", status=418)
    assert (said["level"], said["policy"]) == ("warning", "pay/asked")
    assert said["reason"] == "a probe was answered 418, which proves nothing"
    row = scene.row()
    assert row is not None
    assert said["key_digest"] == row["key_digest"].hex()
    log = scene.stack.gateway.log
    assert len([line for line in log if line.get("status") == 418]) == 1


def test_a_process_with_another_account_says_so_and_the_right_one_asks_at_once(
    postgres: Server,
) -> None:
    head = '[upstream_headers]\nAuthorization = "Bearer ${TOKEN}"'
    with postgres.database() as dsn:
        execute(dsn, "update gateway.sweeps set lag = '0 s'")
        policies = lambda url: [policy(url, *COMMANDS, head=head)]  # noqa: E731
        with stack(postgres, policies, env={"TOKEN": "one"}, database=dsn) as made:
            here = made.scene()
            text = policies(made.upstream.url)[0]
            lost(here, lambda: respond(404, b"{}", effect=False), what="patient")
            wait_for_background(here)
            assert made.gateway.stop() == 0
            before = len(probes(here))
            sql = "update gateway.watched set due_at = gateway.clock() - interval '61 s'"
            execute(dsn, sql)
            with gateway(dsn, text, env={"TOKEN": "two"}) as other:
                said = other.wait_for_log(event="probe_not_ours", policy="pay/patient")
                assert "fencegate commands list" in said["reason"]
                (due,) = rows(dsn, "select due_at < gateway.clock() as it from gateway.watched")
                assert (due["it"], len(probes(here))) == (True, before)
            here.upstream.script = answering(here, cut(), lambda: says(FOUND))
            with gateway(dsn, text, env={"TOKEN": "one"}):
                here.wait_for_state("settled")
