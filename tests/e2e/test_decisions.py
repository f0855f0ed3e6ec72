"""The decision table, row by row: from a caller's socket to the effects at the upstream.

Rows 7, 8 and 10 come with later capabilities.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.client import assert_problem
from tests.kit.db import Server
from tests.kit.gateway import Scene, Stack, gateway, policy, stack
from tests.kit.operating import fencegate
from tests.kit.upstream import Gate, gated, hang, respond

CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 20
settle_delay_s = 0
"""

HASTY = """
name = "hasty"
match = "POST /v1/accounts/{account}/hasty"
entity = "account:{path.account}"
timeout_s = 0.3
settle_delay_s = 60
"""

SMALL = """
name = "small"
match = "POST /v1/accounts/{account}/small"
entity = "account:{path.account}"
keep_limit = "16 B"
"""

OPTIONAL = """
name = "note"
match = "POST /v1/accounts/{account}/notes"
entity = "note:{path.account}"
fence = "optional"
"""

OFF = """
name = "log"
match = "POST /v1/accounts/{account}/logs"
entity = "log:{path.account}"
fence = "off"
"""

PARALLEL = """
name = "tag"
match = "POST /v1/accounts/{account}/tags"
entity = "tag:{path.account}"
serial = false
"""

HERE = """
name = "ship"
match = "POST /v1/accounts/{account}/parcels"
entity = "parcel:{path.account}"
issuer = "here"
"""

COMMANDS = (CHARGE, HASTY, SMALL, OPTIONAL, OFF, PARALLEL, HERE)


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    with stack(postgres, lambda url: [policy(url, *COMMANDS)]) as made:
        yield made


@pytest.fixture
def scene(served: Stack) -> Scene:
    return served.scene()


def make_unknown(scene: Scene, key: str = "k", fence: int = 1) -> None:
    """A command whose upstream answered 502, so that nobody knows what happened."""
    scene.upstream.next(respond(502, b"bad gateway", effect=True))
    assert scene.send(key, fence).status == 504


# -- row 13: forward


def test_a_new_key_on_a_free_entity_is_forwarded_once(scene: Scene) -> None:
    reply = scene.send("k", 7)
    assert (reply.status, reply.outcome, reply.replayed) == (201, "applied", False)
    assert reply.json() == {"effect": 1}
    assert scene.upstream.count == 1
    assert (scene.mark(), scene.state()) == (7, "settled")
    assert scene.audit() == []


def test_a_higher_fence_raises_the_mark_and_an_equal_one_passes(scene: Scene) -> None:
    statuses = [scene.send(f"k{n}", fence).status for n, fence in enumerate([3, 3, 9, 9])]
    assert statuses == [201, 201, 201, 201]
    assert scene.mark() == 9


def test_the_effects_of_two_entities_and_of_two_keys_are_independent(scene: Scene) -> None:
    other = scene.account + "x"
    assert scene.send("k1", 5).status == 201
    assert scene.send("k2", 1, account=other).status == 201
    assert (scene.mark(), scene.mark(f"account:{other}")) == (5, 1)
    assert len(scene.upstream.effects) == 2


# -- row 1: stale


def test_a_fence_below_the_mark_is_refused_and_the_evidence_names_both_numbers(
    scene: Scene,
) -> None:
    scene.send("new", 42)
    reply = scene.send("old", 41)
    assert_problem(reply, "fence-stale", fence=41, high_water_mark=42)
    assert scene.upstream.count == 1
    assert scene.row("old") is None
    (row,) = scene.audit()
    assert (row["event"], row["fence"], row["high_water_mark"]) == ("fence_stale", 41, 42)
    assert (row["key"], row["policy"], row["principal"]) == (
        scene.key("old"),
        "pay/charge",
        "anonymous",
    )
    assert row["request_id"] == reply.json()["request_id"]


def test_a_stale_fence_gets_no_replay_of_a_settled_key(scene: Scene) -> None:
    scene.send("k", 1)
    scene.send("other", 2)
    assert_problem(scene.send("k", 1), "fence-stale", fence=1, high_water_mark=2)
    assert [row["fence"] for row in scene.audit("fence_stale")] == [1]


def test_staleness_comes_before_a_reused_key_and_before_an_open_entity(scene: Scene) -> None:
    make_unknown(scene, "k", 5)
    assert_problem(scene.send("k", 4, body=b"{}"), "fence-stale")
    assert_problem(scene.send("other", 4), "fence-stale")


@pytest.mark.parametrize("later", ["replay", "reused", "unresolved"])
def test_a_good_fence_is_remembered_whatever_the_later_rows_say(scene: Scene, later: str) -> None:
    if later == "unresolved":
        make_unknown(scene, "first")
    else:
        scene.send("first", 1)
    key = "other" if later == "unresolved" else "first"
    scene.send(key, 8, body=b"{}" if later == "reused" else b'{"amount":100}')
    assert scene.mark() == 8
    assert_problem(scene.send("zombie", 7), "fence-stale", fence=7, high_water_mark=8)


# -- row 2: not held


def test_only_the_fence_that_is_held_is_admitted_once_one_was_issued_here(scene: Scene) -> None:
    entity = f"parcel:{scene.account}"
    early = scene.send("k", 5, what="parcels")
    assert_problem(early, "fence-not-held", fence=5, high_water_mark=0, held=None)
    held = scene.issue(entity)
    assert_problem(
        scene.send("k", held + 1, what="parcels"),
        "fence-not-held",
        fence=held + 1,
        high_water_mark=held,
        held=held,
    )
    assert scene.upstream.count == 0
    assert scene.send("k", held, what="parcels").status == 201
    scene.issue(entity)
    assert_problem(scene.send("k", held, what="parcels"), "fence-stale")
    assert scene.upstream.count == 1
    refused = scene.audit("fence_refused", entity=entity)
    assert [row["fence"] for row in refused] == [5, held + 1]


# -- row 3: reused


def test_a_key_with_another_body_is_refused_with_the_state_of_the_first(scene: Scene) -> None:
    scene.send("k", 1)
    reply = scene.send("k", 1, body=b'{"amount":999}')
    assert_problem(reply, "key-reused", first={"state": "settled", "status": 201})
    assert scene.upstream.count == 1
    (row,) = scene.audit()
    assert (row["event"], row["key"]) == ("key_reused", scene.key())
    assert scene.send("k", 1).replayed


@pytest.mark.parametrize(
    "change",
    [{"query": "?x=1"}, {"what": "small"}, {"fields": [("X-Ignored", "1")], "body": b"[]"}],
    ids=["query", "path", "body"],
)
def test_another_query_path_or_body_is_another_command(
    scene: Scene, change: dict[str, object]
) -> None:
    scene.send("k", 1)
    assert_problem(scene.send("k", 1, **change), "key-reused")
    assert scene.upstream.count == 1


def test_a_key_reused_on_another_entity_is_refused_and_leaves_both_as_they_are(
    scene: Scene,
) -> None:
    scene.send("k", 1)
    assert_problem(scene.send("k", 1, account=scene.account + "x"), "key-reused")
    assert scene.upstream.count == 1


def test_a_reused_key_shows_an_unknown_first(scene: Scene) -> None:
    make_unknown(scene)
    reply = scene.send("k", 1, body=b"{}")
    assert_problem(reply, "key-reused", first={"state": "unknown", "status": None})


def test_a_reused_key_shows_a_first_in_flight_and_does_not_wait(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate))
    first = scene.open("k", 1)
    scene.upstream.wait_for_requests(1)
    reply = scene.send("k", 1, body=b"{}")
    assert_problem(reply, "key-reused", first={"state": "in-flight", "status": None})
    gate.release()
    assert first.reply().status == 201


def test_json_that_says_the_same_is_the_same_command(scene: Scene) -> None:
    scene.send("k", 1, body=b'{"a":1.0,"b":"\\u00e9"}')
    reply = scene.send("k", 1, body='{ "b": "é", "a": 1 }'.encode())
    assert (reply.status, reply.replayed) == (201, True)


# -- rows 4 and 5: replay


def test_a_settled_key_is_replayed_with_status_headers_and_bytes(scene: Scene) -> None:
    scene.upstream.next(respond(201, b"\x00\xff<a/>", [("Content-Type", "application/xml")]))
    first = scene.send("k", 1)
    again = scene.send("k", 1)
    assert (again.status, again.outcome, again.replayed) == (201, "replayed", True)
    assert again.body == first.body == b"\x00\xff<a/>"
    assert again.one("Content-Type") == "application/xml"
    assert scene.upstream.count == 1
    assert scene.audit() == []


def test_a_replay_under_a_higher_fence_raises_the_mark(scene: Scene) -> None:
    scene.send("k", 1)
    assert scene.send("k", 6).replayed
    assert scene.mark() == 6


def test_a_response_over_the_keep_limit_is_named_and_not_replayed(scene: Scene) -> None:
    scene.upstream.next(respond(201, b"x" * 17))
    first = scene.send("k", 1, what="small")
    assert (first.status, first.body, first.outcome) == (201, b"x" * 17, "applied")
    reply = scene.send("k", 1, what="small")
    assert_problem(reply, "response-not-retained", upstream={"status": 201})
    assert scene.upstream.count == 1


def test_a_command_resolved_as_executed_says_so_in_place_of_a_status(scene: Scene) -> None:
    make_unknown(scene)
    done = fencegate(
        *("commands", "resolve", scene.key(), "--tenant", "default", "--executed"),
        *("--reason", "seen in the upstream's list", "--by", "tester"),
        dsn=scene.stack.database,
    )
    assert done.code == 0, done.err
    document = assert_problem(scene.send(), "response-not-retained", resolved="executed")
    assert "upstream" not in document
    assert scene.send("next", 1).status == 201
    assert [row["event"] for row in scene.audit()] == ["outcome_unknown", "resolved"]


# -- row 6: the same key in flight


def test_a_caller_that_will_not_wait_hears_at_once_that_its_key_is_in_flight(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate))
    first = scene.open("k", 1)
    scene.upstream.wait_for_requests(1)
    reply = scene.send("k", 1, fields=[("Prefer", "wait=0")])
    assert_problem(reply, "in-flight", waits=True)
    gate.release()
    assert first.reply().status == 201
    assert len(scene.upstream.effects) == 1


def test_a_wait_ends_when_its_time_is_over(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate))
    first = scene.open("k", 1)
    scene.upstream.wait_for_requests(1)
    reply = scene.send("k", 1, fields=[("Prefer", "respond-async, wait=1")])
    assert_problem(reply, "in-flight", waits=True)
    gate.release()
    assert first.reply().status == 201


def test_every_waiter_gets_the_replay_when_the_first_settles(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate))
    first = scene.open("k", 1)
    scene.upstream.wait_for_requests(1)
    waiters = [scene.open("k", 1) for _ in range(5)]
    scene.stack.wait_for_waiters(5)
    gate.release()
    assert first.reply().outcome == "applied"
    replies = [waiter.reply() for waiter in waiters]
    assert {(r.status, r.outcome, r.body) for r in replies} == {(201, "replayed", b'{"effect": 1}')}
    assert scene.upstream.count == 1


def test_a_waiter_hears_unknown_when_the_first_does(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate, respond(500, b"oops", effect=True)))
    first = scene.open("k", 1)
    scene.upstream.wait_for_requests(1)
    waiter = scene.waiter("k")
    gate.release()
    assert_problem(first.reply(), "outcome-unknown", outcome="unknown", sent="yes", waits=True)
    assert_problem(waiter.reply(), "outcome-unknown", outcome="unknown", sent="yes", waits=True)
    assert scene.upstream.count == 1


def test_a_waiter_is_sent_when_the_first_was_not_executed(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate, respond(429, b"slow down")))
    first = scene.open("k", 1)
    scene.upstream.wait_for_requests(1)
    waiter = scene.waiter("k")
    gate.release()
    assert first.reply().status == 429
    assert waiter.reply().outcome == "applied"
    assert (scene.upstream.count, len(scene.upstream.effects)) == (2, 1)


# -- row 9: unknown


def test_an_unknown_command_stays_unknown_with_its_evidence(scene: Scene) -> None:
    make_unknown(scene)
    for _ in range(2):
        reply = scene.send()
        assert_problem(
            reply,
            "outcome-unknown",
            outcome="unknown",
            sent="yes",
            waits=True,
            upstream={"status": 502},
        )
        assert "received-status=502" in (reply.one("Proxy-Status") or "")
    assert scene.upstream.count == 1
    assert [row["event"] for row in scene.audit()] == ["outcome_unknown"]


def test_nothing_heard_is_unknown_without_evidence(scene: Scene) -> None:
    scene.upstream.next(hang())
    first = scene.send("k", 1, what="hasty")
    assert_problem(first, "outcome-unknown", outcome="unknown", sent="yes", waits=True)
    again = scene.send("k", 1, what="hasty")
    document = assert_problem(again, "outcome-unknown", outcome="unknown", waits=True)
    assert document["sent"] == "unknown"
    assert "upstream" not in document
    assert scene.upstream.count == 1


def test_a_key_resolved_as_not_executed_is_new_again(scene: Scene) -> None:
    make_unknown(scene)
    done = fencegate(
        *("commands", "resolve", scene.key(), "--tenant", "default", "--not-executed"),
        *("--reason", "the upstream has no such charge", "--by", "tester"),
        dsn=scene.stack.database,
    )
    assert done.code == 0, done.err
    assert scene.send().outcome == "applied"
    assert scene.upstream.count == 2


# -- row 11: another command of the entity is unknown


def test_nothing_overtakes_an_unknown_command_of_the_entity(scene: Scene) -> None:
    make_unknown(scene, "first")
    reply = scene.send("second", 2)
    assert_problem(
        reply,
        "entity-unresolved",
        waits=True,
        blocked_by={"key": scene.key("first"), "state": "unknown"},
    )
    assert scene.upstream.count == 1
    assert scene.row("second") is None
    assert scene.send("other", 1, account=scene.account + "x").status == 201


# -- row 12: another command of the entity is in flight


def test_a_caller_that_will_not_wait_hears_who_is_in_flight_on_its_entity(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate))
    first = scene.open("first", 1)
    scene.upstream.wait_for_requests(1)
    reply = scene.send("second", 2, fields=[("Prefer", "wait=0")])
    assert_problem(
        reply,
        "entity-busy",
        waits=True,
        blocked_by={"key": scene.key("first"), "state": "in-flight"},
    )
    assert scene.row("second") is None
    gate.release()
    assert first.reply().status == 201
    assert scene.upstream.count == 1


def test_commands_of_one_entity_go_in_the_order_in_which_they_waited(scene: Scene) -> None:
    gates = [Gate() for _ in range(4)]
    scene.upstream.next(*(gated(gate) for gate in gates))
    callers = [scene.open("k0", 1)]
    scene.upstream.wait_for_requests(1)
    callers += [scene.waiter(f"k{n}") for n in range(1, 4)]
    for number, gate in enumerate(gates, start=1):
        assert scene.upstream.count == number
        gate.release()
        if number < len(gates):
            scene.upstream.wait_for_requests(number + 1)
    assert [caller.reply().json()["effect"] for caller in callers] == [1, 2, 3, 4]
    assert [r.one("Idempotency-Key") for r in scene.upstream.requests] == [None] * 4


def test_a_waiter_whose_fence_went_stale_meanwhile_is_refused(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate))
    first = scene.open("first", 1)
    scene.upstream.wait_for_requests(1)
    old, new = scene.waiter("old", 2), scene.waiter("new", 3)
    gate.release()
    assert first.reply().status == 201
    assert_problem(old.reply(), "fence-stale", fence=2, high_water_mark=3)
    assert new.reply().status == 201
    assert scene.upstream.count == 2


def test_waiting_ends_in_unresolved_when_the_first_becomes_unknown(scene: Scene) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate, respond(504, effect=True)))
    first = scene.open("first", 1)
    scene.upstream.wait_for_requests(1)
    waiter = scene.waiter("second", 2)
    gate.release()
    assert first.reply().status == 504
    assert_problem(waiter.reply(), "entity-unresolved", waits=True)
    assert scene.upstream.count == 1


# -- policies without a fence, without order


def test_an_optional_fence_may_be_left_out_and_is_judged_where_it_is_sent(scene: Scene) -> None:
    note = f"note:{scene.account}"
    assert scene.send("k1", None, what="notes").status == 201
    assert scene.mark(note) == 0
    assert scene.send("k2", 5, what="notes").status == 201
    assert scene.send("k3", None, what="notes").status == 201
    assert_problem(scene.send("k4", 4, what="notes"), "fence-stale")
    assert scene.upstream.count == 3


def test_a_policy_without_fences_passes_them_over(scene: Scene) -> None:
    assert scene.send("k1", 9, what="logs").status == 201
    assert scene.send("k2", 1, what="logs").status == 201
    assert scene.send("k3", "nonsense", what="logs").status == 201
    assert scene.mark(f"log:{scene.account}") == 0


def test_a_policy_without_order_sends_beside_an_unknown_command(scene: Scene) -> None:
    scene.upstream.next(respond(500, effect=True))
    assert scene.send("k1", 1, what="tags").status == 504
    assert scene.send("k2", 1, what="tags").status == 201
    assert_problem(scene.send("k3", 0, what="tags"), "fence-stale")


# -- another rule version


def test_a_key_of_another_command_of_the_policy_is_reused_and_never_replayed(scene: Scene) -> None:
    """Two commands never have the same rule version, so that alone must not mean "not compared"."""
    assert scene.send("k", 1).status == 201
    for what in ("notes", "tags"):
        reused = scene.send("k", 1, what=what)
        assert_problem(reused, "key-reused", first={"state": "settled", "status": 201})
        assert reused.one("Gateway-Fingerprint") is None
    assert scene.upstream.count == 1


def test_a_changed_fingerprint_rule_is_said_and_not_guessed_over(postgres: Server) -> None:
    changed = CHARGE + '[commands.fingerprint]\nheaders = ["X-Version"]\n'
    with stack(postgres, lambda url: [policy(url, CHARGE)]) as made:
        scene = made.scene()
        scene.send("settled", 1)
        make_unknown(scene, "unknown")
        made.gateway.stop()
        with gateway(made.database, policy(made.upstream.url, changed)) as restarted:
            made.gateway = restarted
            scene.caller = made.caller()
            replay = scene.send("settled", 1, body=b'{"amount":999}')
            assert (replay.status, replay.outcome, replay.replayed) == (201, "replayed", True)
            assert replay.one("Gateway-Fingerprint") == "not-compared"
            unknown = scene.send("unknown", 1)
            assert_problem(
                unknown,
                "outcome-unknown",
                outcome="unknown",
                sent="yes",
                waits=True,
                fingerprint="not-compared",
            )
            assert unknown.one("Gateway-Fingerprint") == "not-compared"
            assert scene.upstream.count == 2
