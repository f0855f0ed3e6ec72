"""A standby is promoted by hand, in step with its primary and behind it (DB-03, FENCE-09)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from tests.kit.client import Caller, Reply, assert_problem
from tests.kit.db import execute
from tests.kit.faults import CHARGE, LOAD, QUICK, stopped, terminate_backends, until
from tests.kit.gateway import Scene, Stack, gateway, policy, rows
from tests.kit.operating import fencegate
from tests.kit.standby import Pair, pair
from tests.kit.upstream import Gate, RecordingUpstream, gated

CALLERS = 8
COMMANDS = 200

SIDE = """
name = "side"
match = "POST /v1/sides/{account}"
entity = "side:{path.account}"
fence = "off"
serial = false
timeout_s = 20
settle_delay_s = 1
"""
"""Its admit locks no entity, so nothing but the command's row is written."""


class Failover:
    """Two gateways over a primary and its standby, and one corner seen through both."""

    def __init__(self, pair: Pair, held: ExitStack) -> None:
        self.pair = pair
        self.upstream = held.enter_context(RecordingUpstream())
        text = policy(self.upstream.url, CHARGE, QUICK, LOAD, SIDE)
        one = held.enter_context(gateway(pair.dsn, text))
        other = held.enter_context(gateway(pair.dsn, text))
        self.one, self.other = (
            Scene(Stack(each, self.upstream, pair.primary.dsn), Caller(each.url), "a1")
            for each in (one, other)
        )

    def fail_over(self) -> None:
        self.pair.lose_primary()
        self.pair.promote()
        for scene in (self.one, self.other):
            scene.stack.database = self.pair.standby.dsn

    def ready(self, scene: Scene) -> Reply:
        return scene.caller.call("GET", "/readyz")

    def wait_ready(self) -> None:
        for scene in (self.one, self.other):
            until(lambda s=scene: self.ready(s).status == 200, "it is ready")  # type: ignore[misc]

    def wait_stopped(self, scene: Scene) -> str:
        """Until guarded routes stop for a loss; the reason."""

        def lost() -> bool:
            reply = self.ready(scene)
            return reply.status == 503 and "lost" in reply.json()["reason"]

        until(lost, "the loss was noticed")
        return str(self.ready(scene).json()["reason"])

    def acknowledge(self) -> None:
        done = fencegate(
            "acknowledge-loss", "--reason", "compared with the ledger", dsn=self.pair.dsn
        )
        assert done.code == 0, done.err

    def lost(self) -> set[tuple[str, str | None, str, bool]]:
        sql = "select what, nullif(key, '') as key, entity, restored from gateway.lost_rows"
        return {tuple(row.values()) for row in rows(self.pair.standby.dsn, sql)}


@contextmanager
def failover(*, synchronous: bool) -> Iterator[Failover]:
    with ExitStack() as held:
        yield Failover(held.enter_context(pair(synchronous=synchronous)), held)


@pytest.fixture
def behind() -> Iterator[Failover]:
    with failover(synchronous=False) as made:
        yield made


@pytest.fixture
def in_step() -> Iterator[Failover]:
    with failover(synchronous=True) as made:
        yield made


# -- in step


def test_a_standby_in_step_is_promoted_under_load_and_nothing_is_lost(in_step: Failover) -> None:
    here = in_step
    started = threading.Semaphore(0)

    def insist(number: int) -> Reply:
        scene = (here.one, here.other)[number % 2]
        for _ in range(400):
            reply = _load(scene, number)
            started.release()
            if reply.problem is None:
                return reply
            assert reply.problem != "rows-lost", reply
            assert reply.json()["retry"] in ("same-key", "wait"), reply
            assert reply.problem != "outcome-unknown", reply
        raise AssertionError(reply)

    with ThreadPoolExecutor(CALLERS) as pool:
        heard = pool.map(insist, range(COMMANDS))
        for _ in range(COMMANDS // 4):
            started.acquire()
        here.fail_over()
        replies = list(heard)

    assert {reply.status for reply in replies} == {201}
    again = [_load(here.one, number) for number in range(COMMANDS)]
    assert all(
        now.replayed and now.body == then.body for now, then in zip(again, replies, strict=True)
    )
    keys = [effect.one("X-Key") for effect in here.upstream.effects]
    assert sorted(keys) == sorted(b"n%d" % number for number in range(COMMANDS))
    assert here.lost() == set()


def test_a_wait_for_the_standby_that_is_cancelled_sends_nothing(in_step: Failover) -> None:
    """DB-03: the commit is visible here then, and no standby has it."""
    here = in_step
    here.pair.cut_off()
    sent = here.one.open("k")
    _wait_for_sync_waits(here.pair, 1)

    assert _cancel_sync_waits(here.pair) >= 1
    assert_problem(sent.reply(), "store-unavailable", waits=True)
    assert here.upstream.count == 0

    here.pair.connect_again()
    here.one.wait_for_state(None)
    assert here.one.send("k").json() == {"effect": 1}


def test_a_repeat_does_not_find_what_no_standby_has(in_step: Failover) -> None:
    """The row of an admit that locks no entity: reading it back would wait for nothing."""
    here = in_step
    here.pair.cut_off()
    sent = _side(here.one, "k")
    _wait_for_sync_waits(here.pair, 1)
    _cancel_sync_waits(here.pair)
    _wait_for_sync_waits(here.pair, 1)  # the repeat, which found the row
    assert here.upstream.count == 0

    here.pair.connect_again()
    assert sent.reply().json() == {"effect": 1}


def test_a_settle_that_no_standby_has_is_not_told(in_step: Failover) -> None:
    here = in_step
    gate = Gate()
    here.upstream.next(gated(gate))
    sent = here.one.open("k")
    here.upstream.wait_for_effects(1)
    here.pair.cut_off()
    gate.release()
    _wait_for_sync_waits(here.pair, 1)
    _cancel_sync_waits(here.pair)
    _wait_for_sync_waits(here.pair, 1)  # "already", and that waits too

    here.pair.connect_again()
    assert sent.reply().json() == {"effect": 1}
    assert here.one.send("k").replayed


# -- behind


def test_a_standby_that_lags_is_promoted_the_loss_is_named_and_everybody_stops(
    behind: Failover,
) -> None:
    here = behind
    assert here.one.send("early", 41).status == 201
    here.pair.wait_caught_up()
    here.pair.cut_off()
    heard = here.one.send("lost", 42)
    assert heard.status == 201
    here.fail_over()

    reason = here.wait_stopped(here.one)
    assert "1 commands and 1 high-water marks" in reason
    assert "lost-a1" not in reason, "one tenant's keys are nobody else's matter"
    here.wait_stopped(here.other)  # which had admitted nothing itself
    for scene in (here.one, here.other):
        assert_problem(scene.send("next", 43), "rows-lost", waits=True)
        assert_problem(scene.send("lost", 42), "rows-lost", waits=True)
        assert scene.stack.gauge("rows_lost") > 0
    refused = here.one.caller.call(
        "POST", "/v1/fences", [("Content-Type", "application/json")], b'{"entity":"a:1"}'
    )
    assert_problem(refused, "rows-lost", waits=True)
    assert here.upstream.count == 2
    told = here.one.stack.gateway.wait_for_log(event="rows_lost")
    assert told["commands"] == told["marks"] == 1
    assert told["entities"] == "account:a1 at 42"
    assert here.lost() == {
        ("settlement", "lost-a1", "account:a1", True),
        ("mark", None, "account:a1", True),
    }
    listed = fencegate("losses", dsn=here.pair.dsn)
    assert listed.out.count("lost-a1") == 1

    here.acknowledge()
    here.wait_ready()
    # The mark is not below what was accepted, and the key does not have a second effect.
    assert here.one.mark() == 42
    assert_problem(here.other.send("zombie", 41), "fence-stale")
    again = here.other.send("lost", 42)
    assert_problem(again, "response-not-retained", sent="yes")
    assert again.json()["upstream"] == {"status": 201}
    assert here.one.send("next", 43).json() == {"effect": 3}
    assert here.one.send("early", 43).replayed
    audit = rows(here.pair.standby.dsn, "select reason from gateway.audit where event = 'operator'")
    assert audit == [{"reason": "loss of 2 rows acknowledged: compared with the ledger"}]


def test_who_hears_of_a_loss_from_another_first_reports_its_own_as_well(behind: Failover) -> None:
    """Else an operator acknowledges a list without it, and the others take it for new."""
    here = behind
    here.one.send("early", 1)
    here.pair.wait_caught_up()
    here.pair.cut_off()
    assert here.one.send("known", 2, account="x1").status == 201
    assert here.other.send("paused", 2, account="x2").status == 201
    with stopped(here.other.stack.gateway):
        here.fail_over()
        here.wait_stopped(here.one)
        assert [key for _, key, _, _ in here.lost() if key] == ["known-a1"]
    # Nobody asks it anything: it finds the other's report by itself.
    until(lambda: ("mark", None, "account:x2", True) in here.lost(), "it reported its own", 30)
    assert ("settlement", "paused-a1", "account:x2", True) in here.lost()
    here.acknowledge()
    here.wait_ready()
    again = here.one.send("paused", 2, account="x2")
    assert_problem(again, "response-not-retained", sent="yes")


def test_what_was_on_its_way_in_the_failover_comes_back_unsettled_and_is_settled(
    behind: Failover,
) -> None:
    here = behind
    here.one.send("early", 1)
    here.pair.wait_caught_up()
    here.pair.cut_off()
    gate = Gate()
    here.upstream.next(gated(gate))
    sent = here.one.open("k", 2)
    here.upstream.wait_for_effects(2)
    here.fail_over()
    here.wait_stopped(here.one)
    assert here.one.state("k") == "in-flight"
    gate.release()
    assert sent.reply().json() == {"effect": 2}  # recording goes on all the while
    here.acknowledge()
    here.wait_ready()
    assert here.other.send("k", 2).replayed
    assert here.upstream.count == 2


def test_a_lost_command_of_a_serial_entity_holds_it_again(behind: Failover) -> None:
    """G3 holds for what is put back: nothing overtakes a command that may be on its way."""
    here = behind
    here.one.send("early", 1)
    here.pair.wait_caught_up()
    here.pair.cut_off()
    gate = Gate()
    here.upstream.next(gated(gate))
    sent = here.one.open("k", 2)
    here.upstream.wait_for_effects(2)
    here.fail_over()
    here.wait_stopped(here.one)
    here.acknowledge()
    here.wait_ready()
    busy = here.other.send("next", 3, fields=[("Prefer", "wait=0")])
    assert_problem(busy, "entity-busy", waits=True)
    gate.release()
    assert sent.reply().json() == {"effect": 2}
    assert here.other.send("next", 3).json() == {"effect": 3}


def test_a_fence_that_was_issued_and_forgotten_is_not_issued_twice(behind: Failover) -> None:
    """FENCE-09: two owners with one number must not both pass."""
    here = behind

    def issue(scene: Scene) -> int:
        reply = scene.caller.call(
            *("POST", "/v1/fences", [("Content-Type", "application/json")]),
            b'{"entity":"account:a1"}',
        )
        assert reply.status == 201, reply
        return int(reply.json()["fence"])

    first = issue(here.one)
    here.pair.wait_caught_up()
    here.pair.cut_off()
    lost = issue(here.one)
    assert lost == first + 1
    here.fail_over()
    here.wait_stopped(here.one)
    here.acknowledge()
    here.wait_ready()
    for fence in (first, lost):
        reply = here.other.send(f"zombie-{fence}", fence)
        assert reply.status == 412
    assert issue(here.other) == lost + 1
    assert here.other.send("owner", lost + 1).status == 201


def test_nothing_was_lost_where_the_standby_had_caught_up_though_nobody_had_to_wait(
    behind: Failover,
) -> None:
    here = behind
    heard = here.one.send("k", 5)
    here.pair.wait_caught_up()
    here.fail_over()
    here.wait_ready()
    until(lambda: here.one.send("k", 5).status == 201, "it admits again")
    again = here.other.send("k", 5)
    assert (again.body, again.replayed) == (heard.body, True)
    assert here.lost() == set()


def test_backends_that_are_killed_lose_nothing_and_stop_nobody(behind: Failover) -> None:
    here = behind
    for number in range(5):
        here.one.send(f"k{number}", number + 1)
        terminate_backends(here.pair.primary.dsn, "")
    assert here.one.send("k9", 9).status == 201
    assert rows(here.pair.primary.dsn, "select count(*) as n from gateway.losses") == [{"n": 0}]


# -- words


def _load(scene: Scene, number: int) -> Reply:
    key = f"n{number}"
    target = f"/pay/v1/loads/{number % 40}"
    return scene.caller.call("POST", target, [("Idempotency-Key", key), ("X-Key", key)], b"{}")


def _side(scene: Scene, key: str):  # type: ignore[no-untyped-def]
    fields = [("Idempotency-Key", key)]
    return scene.caller.open("POST", "/pay/v1/sides/s1", fields, b"{}")


SYNC_WAITS = "from pg_stat_activity where wait_event = 'SyncRep' and application_name = 'fencegate'"


def _wait_for_sync_waits(pair: Pair, count: int) -> None:
    sql = f"select count(*) >= {count} as so {SYNC_WAITS}"
    until(lambda: rows(pair.primary.dsn, sql)[0]["so"], "a commit waits for the standby")


def _cancel_sync_waits(pair: Pair) -> int:
    return int(execute(pair.primary.dsn, f"select pg_cancel_backend(pid) {SYNC_WAITS}")[7:])
