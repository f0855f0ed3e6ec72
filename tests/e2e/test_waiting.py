"""Many callers at once: waiting, hanging up, limits, and what a crowd does to one key or entity."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator

import pytest

from tests.kit.client import assert_problem
from tests.kit.db import Server
from tests.kit.gateway import Scene, Stack, gateway, policy, stack
from tests.kit.upstream import Gate, gated

CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 60
send_fence = "X-Fence"
"""


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    with stack(postgres, lambda url: [policy(url, CHARGE)]) as made:
        yield made


@pytest.fixture
def scene(served: Stack) -> Scene:
    return served.scene()


def sent_fences(scene: Scene) -> list[int]:
    return [int(request.one("X-Fence") or -1) for request in scene.upstream.requests]


# -- crowds


def test_two_hundred_identical_requests_have_one_effect_and_199_replays(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate))
    callers = [scene.open("k", 1, fields=[("Prefer", "wait=30")]) for _ in range(200)]
    scene.stack.wait_for_waiters(199)
    gate.release()
    replies = [caller.reply() for caller in callers]
    assert {(reply.status, reply.body) for reply in replies} == {(201, b'{"effect": 1}')}
    outcomes = sorted(reply.outcome or "" for reply in replies)
    assert outcomes == ["applied"] + ["replayed"] * 199
    assert (scene.upstream.count, len(scene.upstream.effects)) == (1, 1)


def test_two_hundred_identical_impatient_requests_have_one_effect(scene: Scene) -> None:
    callers = [scene.open("k", 1, fields=[("Prefer", "wait=0")]) for _ in range(200)]
    replies = [caller.reply() for caller in callers]
    applied = [reply for reply in replies if reply.outcome == "applied"]
    assert len(applied) == 1
    for reply in replies:
        if reply.outcome == "rejected":
            assert_problem(reply, "in-flight", waits=True)
        else:
            assert (reply.status, reply.body) == (201, b'{"effect": 1}')
    assert len(scene.upstream.effects) == 1
    assert scene.send("k", 1).replayed


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fifty_commands_with_interleaved_fences_never_go_back(scene: Scene, seed: int) -> None:
    fences = list(range(1, 51))
    random.Random(seed).shuffle(fences)
    callers = {fence: scene.open(f"k{fence}", fence) for fence in fences}
    replies = {fence: caller.reply(60) for fence, caller in callers.items()}
    order = sent_fences(scene)
    assert order == sorted(order)
    accepted = [fence for fence, reply in replies.items() if reply.status == 201]
    assert sorted(accepted) == order
    assert max(fences) in accepted
    for fence, reply in replies.items():
        if fence not in accepted:
            document = assert_problem(reply, "fence-stale", fence=fence)
            assert document["high_water_mark"] > fence
    stale = scene.audit("fence_stale")
    assert sorted(row["fence"] for row in stale) == sorted(set(fences) - set(accepted))
    assert all(row["high_water_mark"] > row["fence"] for row in stale)


def test_a_crowd_with_pairs_of_keys_and_fences_has_one_effect_for_each_key(scene: Scene) -> None:
    callers = [scene.open(f"k{n % 10}", 1, fields=[("Prefer", "wait=60")]) for n in range(60)]
    replies = [caller.reply(60) for caller in callers]
    assert {reply.status for reply in replies} == {201}
    assert len(scene.upstream.effects) == 10
    assert sum(not reply.replayed for reply in replies) == 10


def test_commands_of_many_entities_are_on_their_way_side_by_side(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.script = lambda _: gated(gate)
    callers = [scene.open("k" + str(n), 1, account=f"{scene.account}-{n}") for n in range(20)]
    scene.upstream.wait_for_requests(20)
    gate.release()
    assert {caller.reply().status for caller in callers} == {201}


# -- hanging up


def test_a_waiter_that_hangs_up_ends_and_is_never_admitted(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate))
    first = scene.open("first", 1)
    scene.upstream.wait_for_requests(1)
    scene.waiter("gone").hang_up()
    scene.stack.wait_for_waiters(0)
    scene.stack.gateway.wait_for_log(status=499, entity=scene.entity)
    gate.release()
    assert first.reply().status == 201
    assert scene.send("last", 1).status == 201
    assert (scene.row("gone"), scene.upstream.count) == (None, 2)


def test_a_woken_waiter_that_hung_up_passes_its_turn_on(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate))
    first = scene.open("first", 1)
    scene.upstream.wait_for_requests(1)
    gone = [scene.waiter(f"gone{n}") for n in range(3)]
    last = scene.waiter("last")
    for exchange in gone:
        exchange.hang_up(reset=True)
    gate.release()
    assert first.reply().status == 201
    assert last.reply().json() == {"effect": 2}
    assert scene.upstream.count == 2


@pytest.mark.parametrize("reset", [False, True])
def test_a_caller_that_hangs_up_after_its_last_byte_changes_nothing(
    scene: Scene, reset: bool
) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate))
    caller = scene.open("k", 1, fields=[("X-Request-Id", scene.key("hung-up"))])
    scene.upstream.wait_for_requests(1)
    caller.hang_up(reset=reset)
    waiter = scene.waiter("k")
    gate.release()
    assert (waiter.reply().outcome, scene.upstream.count) == ("replayed", 1)
    assert scene.state() == "settled"
    scene.stack.gateway.wait_for_log(event="answer_not_delivered", request_id=scene.key("hung-up"))


@pytest.mark.parametrize("cut", ["in the head", "before the body", "in the body"])
@pytest.mark.parametrize("reset", [False, True])
def test_a_caller_that_hangs_up_mid_request_is_never_admitted(
    scene: Scene, cut: str, reset: bool
) -> None:
    head = (
        f"POST /pay/v1/accounts/{scene.account}/charges HTTP/1.1\r\nHost: localhost\r\n"
        f"Idempotency-Key: {scene.key()}\r\nX-Execution-Fence: 5\r\nContent-Length: 14\r\n\r\n"
    ).encode()
    data = {"in the head": head[:-20], "before the body": head, "in the body": head + b"{"}[cut]
    caller = scene.caller.raw(data)
    caller.hang_up(reset=reset)
    # A later request on the same gateway is answered after the hang-up was dealt with.
    assert scene.send("other", 1).status == 201
    assert (scene.row(), scene.mark(), scene.upstream.count) == (None, 1, 1)


# -- limits of one process


def test_attempts_over_the_limit_are_refused_before_anything_is_admitted(
    postgres: Server,
) -> None:
    env = {"FENCEGATE_MAX_ATTEMPTS": "1"}
    with stack(postgres, lambda url: [policy(url, CHARGE)], env=env) as made:
        scene = made.scene()
        gate = Gate()
        scene.upstream.next(gated(gate))
        first = scene.open("first", 1)
        scene.upstream.wait_for_requests(1)
        reply = scene.send("second", 9, account="elsewhere")
        assert_problem(reply, "overloaded", waits=True)
        assert (scene.mark("account:elsewhere"), scene.row("second")) == (None, None)
        # What could never be admitted hears its own error; of its body nothing was read.
        assert_problem(scene.send(None, 9, account="elsewhere"), "key-missing")
        assert_problem(scene.send("third", "x", account="elsewhere"), "fence-invalid")
        large = scene.open("third", 9, account="elsewhere", body=bytes(9 << 20))
        assert_problem(large.reply(), "body-too-large", limit=8 << 20)
        # Nor is it read of what would only have to wait.
        target = "/pay/v1/accounts/elsewhere/charges"
        fields = [
            ("Idempotency-Key", "fourth"),
            ("X-Execution-Fence", "9"),
            ("Expect", "100-continue"),
        ]
        waiting = scene.caller.open("POST", target, [*fields, ("Content-Length", "2")], None)
        assert_problem(waiting.reply(), "overloaded", waits=True)
        gate.release()
        assert first.reply().status == 201
        made.wait_for_gauge("attempts_in_flight", 0)
        assert scene.send("second", 9, account="elsewhere").status == 201


def test_waiters_over_the_limit_are_refused_and_the_others_go_on(postgres: Server) -> None:
    env = {"FENCEGATE_MAX_WAITING": "1"}
    with stack(postgres, lambda url: [policy(url, CHARGE)], env=env) as made:
        scene = made.scene()
        gate = Gate()
        scene.upstream.next(gated(gate))
        first = scene.open("first", 1)
        scene.upstream.wait_for_requests(1)
        waiter = scene.waiter("second", 1)
        for key in ("first", "second", "third"):
            assert_problem(scene.send(key, 1), "overloaded", waits=True)
        gate.release()
        assert (first.reply().status, waiter.reply().status) == (201, 201)
        assert scene.row("third") is None


# -- two processes, and a stop


def test_a_waiter_at_another_process_gets_the_replay_too(served: Stack, scene: Scene) -> None:
    with gateway(served.database, policy(served.upstream.url, CHARGE)) as second:
        other = Scene(Stack(second, served.upstream, served.database), scene.caller, scene.account)
        other.caller = other.stack.caller()
        gate = Gate()
        scene.upstream.next(gated(gate))
        first = scene.open("k", 1)
        scene.upstream.wait_for_requests(1)
        same, next_one = other.waiter("k"), other.waiter("next", 1)
        gate.release()
        assert first.reply().outcome == "applied"
        assert same.reply().outcome == "replayed"
        assert next_one.reply().json() == {"effect": 2}
        assert scene.upstream.count == 2


def test_a_stop_answers_waiters_at_once_and_lets_attempts_end(postgres: Server) -> None:
    with stack(postgres, lambda url: [policy(url, CHARGE)]) as made:
        scene = made.scene()
        gate = Gate()
        scene.upstream.next(gated(gate))
        first = scene.open("first", 1)
        scene.upstream.wait_for_requests(1)
        waiter = scene.waiter("second", 1)
        made.gateway.signal(signal.SIGTERM)
        assert_problem(waiter.reply(), "entity-busy", waits=True)
        gate.release()
        assert first.reply().status == 201
        assert made.gateway.stop() == 0
        assert (scene.state("first"), scene.row("second")) == ("settled", None)
