"""An unknown command is sent again where its policy and its upstream allow it, and not else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from gateway.core.command import Command, Release
from gateway.store.commands import CommandStore
from gateway.store.unknowns import UnknownStore
from tests.kit.client import Caller, assert_problem
from tests.kit.db import Server, execute
from tests.kit.gateway import Scene, Stack, gateway, policy, stack
from tests.kit.operating import on
from tests.kit.upstream import Answer, Gate, RecordingUpstream, cut, gated, hang, respond

AGAIN = """
name = "again"
match = "POST /v1/accounts/{account}/again"
entity = "account:{path.account}"
timeout_s = 2
settle_delay_s = 60
unknown = "resend"
send_key = "X-Reference"
send_fence = "X-Fence"
resend_within_s = 600
"""

HELD = """
name = "held"
match = "POST /v1/accounts/{account}/held"
entity = "account:{path.account}"
timeout_s = 2
settle_delay_s = 1
"""

COMMANDS = (AGAIN, HELD)


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    with stack(postgres, lambda url: [policy(url, *COMMANDS)]) as made:
        yield made


@pytest.fixture
def scene(served: Stack) -> Scene:
    return served.scene()


def test_a_repeat_sends_the_recorded_key_again_and_settles(scene: Scene) -> None:
    scene.upstream.next(cut())
    first = scene.send(what="again")
    assert_problem(first, "outcome-unknown", outcome="unknown", sent="yes", waits=True)
    again = scene.send(what="again", fence=2)
    assert (again.status, again.outcome) == (201, "applied")
    one, two = scene.upstream.requests
    assert one.one("X-Reference") == two.one("X-Reference") is not None
    assert (one.one("X-Fence"), two.one("X-Fence")) == (b"1", b"2")
    row = scene.row()
    assert row is not None
    assert (row["attempts"], row["fence"], len(row["earlier"])) == (2, 2, 1)
    assert scene.send(what="again", fence=2).outcome == "replayed"
    assert scene.send("next", 3, what="again").outcome == "applied"


@pytest.mark.parametrize(
    "answer",
    [respond(409, b"in use"), respond(429), respond(503), respond(401), cut(), cut("reset")],
    ids=str,
)
def test_what_says_nothing_final_leaves_it_unknown(scene: Scene, answer: Answer) -> None:
    scene.upstream.next(cut(), answer)
    scene.send(what="again")
    reply = scene.send(what="again")
    assert_problem(reply, "outcome-unknown", outcome="unknown", sent="yes", waits=True)
    assert scene.state() == "unknown"
    assert scene.send("next", 2, what="held").problem == "entity-unresolved"
    third = scene.send(what="again", fence=2)
    assert (third.status, third.outcome) == (201, "applied")
    assert len({each.one("X-Reference") for each in scene.upstream.requests}) == 1


def test_retry_after_is_short_behind_the_first_attempt_and_longer_behind_a_repeat(
    scene: Scene,
) -> None:
    scene.upstream.next(cut(), respond(409, b"in use"))
    assert scene.send(what="again").one("Retry-After") == "5"
    assert scene.send(what="again").one("Retry-After") == "30"


def test_what_cannot_be_sent_again_now_leaves_it_unknown(scene: Scene) -> None:
    scene.upstream.next(cut())
    scene.send(what="again")
    scene.upstream.refuse()
    scene.upstream.drop_connections()
    try:
        reply = scene.send(what="again")
    finally:
        scene.upstream.accept()
    assert_problem(reply, "outcome-unknown", outcome="unknown", waits=True)
    assert scene.state() == "unknown"
    assert scene.send(what="again").outcome == "applied"


def test_the_answer_to_an_attempt_that_was_taken_over_settles_its_command(scene: Scene) -> None:
    held = Gate()
    scene.upstream.next(gated(held, respond(201, b"first")), hang())
    first = scene.open(what="again")
    scene.upstream.wait_for_requests(1)
    reply = first.reply()  # after timeout_s; its socket is read on
    assert reply.problem == "outcome-unknown"
    second = scene.open(what="again")
    scene.upstream.wait_for_requests(2)
    held.release()
    scene.wait_for_state("settled")
    assert scene.row()["body"] == b"first"  # type: ignore[index]
    assert scene.row()["settled_by"] == "late"  # type: ignore[index]
    assert scene.send("next", 2, what="again").outcome == "applied"
    assert second.reply().problem == "outcome-unknown"
    replay = scene.send(what="again", fence=2)
    assert (replay.outcome, replay.body) == ("replayed", b"first")


LATE = [respond(409, b"in use"), respond(429), respond(401), respond(503), cut(effect=False)]
"""What says nothing final of a command that may be another attempt's by now."""


@pytest.fixture(scope="module")
def unpooled(postgres: Server) -> Iterator[Stack]:
    """Each exchange has a connection of its own, so that its end can be seen."""
    with stack(postgres, lambda url: [policy(url, AGAIN, head="idle_s = 0")]) as made:
        yield made


@pytest.fixture
def seen(unpooled: Stack) -> Iterator[Scene]:
    scene = unpooled.scene()
    scene.upstream.wait_for_disconnects(scene.upstream.connections)
    yield scene
    scene.upstream.drop_connections()


@pytest.mark.parametrize("late", LATE, ids=str)
def test_a_late_refusal_of_the_first_attempt_ends_nothing_of_the_second(
    seen: Scene, late: Answer
) -> None:
    scene = seen
    first, second = Gate(), Gate()
    scene.upstream.next(gated(first, late), gated(second, respond(201, b"second")))
    caller = scene.open(what="again")
    scene.upstream.wait_for_requests(1)
    assert caller.reply().problem == "outcome-unknown"  # after timeout_s; its socket is read on
    again = scene.open(what="again", fence=2)
    scene.upstream.wait_for_requests(2)
    both = scene.row()
    assert both is not None
    made = scene.upstream.connections
    first.release()
    scene.upstream.wait_for_disconnects(made - 1)  # the late answer was read, and judged
    assert scene.row() == both
    assert both["state"] == "in-flight"
    second.release()
    reply = again.reply()
    assert (reply.status, reply.outcome, reply.body) == (201, "applied", b"second")
    row = scene.row()
    assert row is not None
    assert (row["attempt"], row["settled_by"], row["body"]) == (
        both["attempt"],
        "answer",
        b"second",
    )
    events = [each["event"] for each in scene.audit()]
    assert events == ["outcome_unknown", "taken_over", "settled"]


@pytest.mark.parametrize("late", LATE[:2], ids=str)
def test_a_late_refusal_leaves_a_command_unknown_that_may_be_sent_again(
    seen: Scene, late: Answer
) -> None:
    scene = seen
    gate = Gate()
    scene.upstream.next(gated(gate, late))
    caller = scene.open(what="again")
    scene.upstream.wait_for_requests(1)
    assert caller.reply().problem == "outcome-unknown"
    gate.release()
    scene.upstream.wait_for_disconnects(scene.upstream.connections)
    assert scene.state() == "unknown"
    again = scene.send(what="again", fence=2)
    assert (again.status, again.outcome) == (201, "applied")
    assert scene.row()["settled_by"] == "answer"  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "fence", "problem"),
    [
        ("", 0, "fence-stale"),
        ("update gateway.commands set admitted_at = admitted_at - interval '597 s'", 1, None),
        ("update gateway.commands set upstream_digest = '\\x00'", 1, None),
        ("update gateway.commands set upstream_key = null", 1, None),
        ("update gateway.commands set unknown = 'hold'", 1, None),
        ("update gateway.commands set rules = '\\x00'", 1, None),
        (
            "update gateway.commands set earlier = array_fill(gen_random_uuid(), array[16])",
            1,
            None,
        ),
    ],
)
def test_what_does_not_fit_is_not_sent_again(
    scene: Scene, change: str, fence: int, problem: str | None
) -> None:
    scene.upstream.next(cut())
    scene.send(what="again")
    if change:
        execute(scene.stack.database, f"{change} where key = '{scene.key()}'")
    assert scene.send(what="again", fence=fence).problem == (problem or "outcome-unknown")
    assert len(scene.upstream.requests) == 1
    assert scene.state() == "unknown"


def age(scene: Scene, by_s: int) -> None:
    """As if all that is on record of the command had happened so much earlier."""
    execute(
        scene.stack.database,
        f"update gateway.commands set admitted_at = admitted_at - interval '{by_s} s'"
        f" where key = '{scene.key()}';"
        f"update gateway.given_back set first_sent_at = first_sent_at - interval '{by_s} s'",
    )


@pytest.mark.parametrize("how", ["refused", "decided"])
def test_the_window_counts_from_the_first_send_that_the_upstream_heard_of(
    scene: Scene, how: str
) -> None:
    """It may have stored the key then, and forgets it as long after: the command that was admitted
    under it again must not be sent again behind that."""
    if how == "refused":
        scene.upstream.next(respond(429))
        assert scene.send(what="again").outcome == "not-executed"
        age(scene, 590)
    else:
        scene.upstream.next(cut(effect=False))
        scene.send(what="again")
        age(scene, 590)
        execute(
            scene.stack.database,
            "update gateway.commands set deadline = deadline - interval '1 h';"
            "select gateway.resolve(tenant, key_digest, attempt, false, 'looked', 'o')"
            f" from gateway.commands where key = '{scene.key()}'",
        )
    assert scene.state() is None
    scene.upstream.next(cut())
    assert scene.send(what="again").problem == "outcome-unknown"
    age(scene, 11)
    assert scene.send(what="again").problem == "outcome-unknown"
    assert len(scene.upstream.requests) == 2
    assert scene.state() == "unknown"


def test_what_the_upstream_never_heard_of_counts_for_no_window(scene: Scene) -> None:
    scene.upstream.refuse()
    scene.upstream.drop_connections()
    try:
        assert scene.send(what="again").outcome == "not-sent"
    finally:
        scene.upstream.accept()
    age(scene, 600)
    scene.upstream.next(cut())
    assert scene.send(what="again").problem == "outcome-unknown"
    age(scene, 11)
    assert scene.send(what="again").outcome == "applied"


def test_another_request_under_the_key_is_not_sent(scene: Scene) -> None:
    scene.upstream.next(cut())
    scene.send(what="again")
    assert scene.send(what="again", body=b'{"amount":101}').problem == "key-reused"
    assert len(scene.upstream.requests) == 1


def test_a_held_command_is_never_sent_again(scene: Scene) -> None:
    scene.upstream.next(cut())
    scene.send(what="held")
    assert scene.send(what="held").problem == "outcome-unknown"
    assert len(scene.upstream.requests) == 1


def test_two_who_repeat_at_once_send_one_at_a_time(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(cut(), gated(gate))
    scene.send(what="again")
    first = scene.open(what="again")
    scene.upstream.wait_for_requests(2)
    second = scene.waiter("k", what="again")
    gate.release()
    assert sorted([first.reply().outcome, second.reply().outcome]) == ["applied", "replayed"]
    assert len(scene.upstream.requests) == 2


@pytest.mark.parametrize("named", [True, False])
def test_a_rotated_credential_is_the_same_account_only_where_the_policy_names_it(
    postgres: Server, named: bool
) -> None:
    head = '[upstream_headers]\nAuthorization = "Bearer ${TOKEN}"'
    if named:
        head = f'account = "main"\n{head}'
    with postgres.database() as dsn, RecordingUpstream() as upstream:
        text = policy(upstream.url, AGAIN, head=head)
        with gateway(dsn, text, env={"TOKEN": "old"}) as before:
            scene = Stack(before, upstream, dsn).scene()
            upstream.next(cut())
            assert scene.send(what="again").problem == "outcome-unknown"
        with gateway(dsn, text, env={"TOKEN": "new"}) as after:
            again = Scene(Stack(after, upstream, dsn), Caller(after.url), scene.account)
            reply = again.send(what="again")
        if named:
            assert (reply.status, reply.outcome) == (201, "applied")
            sent = [each.one("Authorization") for each in upstream.requests]
            assert sent == [b"Bearer old", b"Bearer new"]
        else:
            assert (reply.problem, upstream.count) == ("outcome-unknown", 1)


# -- the statement by itself, as it is judged when the facts have changed since they were read


def take_over(scene: Scene, by: Command, judged: UUID) -> str:
    return on(scene.stack.database, lambda database: UnknownStore(database).take_over(by, judged))


def as_command(scene: Scene, **about: Any) -> tuple[Command, UUID]:
    """What a repeat would take over with, and the attempt that it judged."""
    row = scene.row()
    assert row is not None
    same = {
        name: row[name]
        for name in (
            *("tenant", "key_digest", "key", "policy", "entity", "fingerprint", "rules", "fence"),
            *("principal", "request_id", "serial", "unknown", "upstream_key", "upstream_digest"),
            *("settle_delay_s", "response_days", "key_days"),
        )
    }
    made = Command(
        **same,
        attempt=uuid4(),
        deadline_ms=7_000,
        outline=b"",
        issuer_here=False,
        resend_within_ms=600_000,
    )
    return replace(made, **about), row["attempt"]


def test_two_who_judged_the_same_attempt_take_it_over_once(scene: Scene) -> None:
    scene.upstream.next(cut())
    scene.send(what="again")
    (one, judged), (other, _) = as_command(scene), as_command(scene)
    assert take_over(scene, one, judged) == "taken"
    assert take_over(scene, one, judged) == "taken"  # a lost answer, repeated
    execute(
        scene.stack.database,
        f"update gateway.commands set deadline = gateway.clock() where key = '{scene.key()}'",
    )
    assert take_over(scene, other, judged) == "changed"
    row = scene.row()
    assert row is not None
    assert (row["attempt"], row["attempts"]) == (one.attempt, 2)


@pytest.mark.parametrize(
    ("change", "about", "expected"),
    [
        ("deadline = gateway.clock() + interval '1 h'", {}, "changed"),
        ("deadline = gateway.clock()", {"fence": 0}, "changed"),
        ("unknown = 'hold'", {}, "refused"),
        ("admitted_at = admitted_at - interval '601 s'", {}, "refused"),
        ("upstream_key = null", {}, "refused"),
        ("deadline = deadline", {"fingerprint": bytes(32)}, "refused"),
        ("deadline = deadline", {"rules": bytes(8)}, "refused"),
        ("deadline = deadline", {"upstream_digest": bytes(16)}, "refused"),
        ("deadline = deadline", {"policy": "pay/held"}, "refused"),
        ("deadline = deadline", {}, "taken"),
    ],
    ids=str,
)
def test_a_take_over_is_judged_under_the_locks(
    scene: Scene, change: str, about: dict[str, Any], expected: str
) -> None:
    scene.upstream.next(cut())
    scene.send(what="again", fence=1)
    made, judged = as_command(scene, **about)
    execute(
        scene.stack.database,
        f"update gateway.commands set {change} where key = '{scene.key()}'",
    )
    assert take_over(scene, made, judged) == expected
    row = scene.row()
    assert row is not None
    assert row["attempt"] == (made.attempt if expected == "taken" else judged)


def test_a_take_over_counts_from_when_the_key_was_first_given_back(scene: Scene) -> None:
    scene.upstream.next(cut())
    scene.send(what="again")
    made, judged = as_command(scene)
    sql = (
        "insert into gateway.given_back select tenant, key_digest, admitted_at - interval '{} s',"
        f" gateway.clock() from gateway.commands where key = '{scene.key()}'"
        " on conflict (tenant, key_digest) do update set first_sent_at = excluded.first_sent_at"
    )
    execute(scene.stack.database, sql.format(600))
    assert take_over(scene, made, judged) == "refused"
    execute(scene.stack.database, sql.format(500))
    assert take_over(scene, made, judged) == "taken"


def test_what_took_over_is_never_given_back(scene: Scene) -> None:
    scene.upstream.next(cut())
    scene.send(what="again")
    made, judged = as_command(scene)
    assert take_over(scene, made, judged) == "taken"
    given_back = on(
        scene.stack.database,
        lambda database: CommandStore(database).release([Release(made, "not sent")]),
    )
    assert given_back == [False]
    assert scene.state() == "in-flight"


def test_a_lease_that_was_lost_takes_nothing_over(scene: Scene) -> None:
    """Fences are issued here meanwhile: only the one that is held counts."""
    scene.upstream.next(cut())
    scene.send(what="again")
    made, judged = as_command(scene)
    held = scene.issue()
    assert take_over(scene, replace(made, fence=held + 1), judged) == "changed"
    assert take_over(scene, replace(made, fence=held), judged) == "taken"
