"""Cases about the database and about forgetting, which no list of requests can tell: DB-06, DB-13,
IDEM-09. DB-03 and FENCE-09 are in ``tests/faults/test_failover.py``."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest

from gateway.core.budget import LEAST_POOL
from tests.kit.client import Exchange, assert_problem
from tests.kit.db import Server, execute
from tests.kit.faults import (
    CHARGE,
    LOAD,
    Rig,
    entity_locked,
    pass_s,
    rig,
    terminate_backends,
    until,
)
from tests.kit.gateway import rows
from tests.kit.operating import fencegate, move_clock
from tests.kit.upstream import Gate, gated, respond

POOL = LEAST_POOL
CALLS = 500
RETAIN = "\n[commands.retain]\nresponse_days = 1\nkey_days = 1\n"


@pytest.fixture
def small(postgres: Server) -> Iterator[Rig]:
    """A gateway with the smallest pool."""
    with rig(postgres, env={"FENCEGATE_POOL_SIZE": str(POOL)}) as made:
        yield made


@pytest.fixture
def here(postgres: Server) -> Iterator[Rig]:
    with rig(postgres, LOAD, CHARGE + RETAIN) as made:
        yield made


# -- DB-06: cancelled tasks leak database connections

Wish = Callable[[Rig, int], Exchange]


def command(here: Rig, number: int) -> Exchange:
    return _load(here, number, number)


def same_entity(here: Rig, number: int) -> Exchange:
    """All but one wait for the slot."""
    return _load(here, number, 0)


def same_key(here: Rig, _: int) -> Exchange:
    return _load(here, 0, 0)


def half_a_body(here: Rig, number: int) -> Exchange:
    head = (
        f"POST /pay/v1/loads/{number} HTTP/1.1\r\nHost: localhost\r\n"
        f"Idempotency-Key: n{number}\r\nContent-Length: 9\r\n\r\n12"
    )
    return here.scene.caller.raw(head.encode())


def passed_through(here: Rig, number: int) -> Exchange:
    return here.scene.caller.open("GET", f"/pay/v1/loads/{number}")


def a_fence(here: Rig, number: int) -> Exchange:
    body = b'{"entity":"a:%d"}' % (number % 3)
    fields = [("Content-Type", "application/json")]
    return here.scene.caller.open("POST", "/v1/fences", fields, body)


def _load(here: Rig, number: int, entity: int) -> Exchange:
    fields = [("Idempotency-Key", f"n{number}")]
    return here.scene.caller.open("POST", f"/pay/v1/loads/{entity}", fields, b"{}")


@contextmanager
def nothing_else(_: Rig) -> Iterator[None]:
    yield


@contextmanager
def backends_killed(here: Rig) -> Iterator[None]:
    """Connections are being made when callers go."""
    terminate_backends(here.database, "")
    yield
    terminate_backends(here.database, "")


@contextmanager
def every_entity_locked(here: Rig) -> Iterator[None]:
    """All connections of the pool wait at the server when callers go."""
    for number in range(POOL):
        assert _load(here, 9000 + number, number).reply().status == 201
    with ExitStack() as held:
        for number in range(POOL):
            held.enter_context(entity_locked(here.database, f"load:{number}"))
        yield


@pytest.mark.parametrize(
    ("wish", "meanwhile"),
    [
        (command, nothing_else),
        (command, backends_killed),
        (command, every_entity_locked),
        (same_entity, nothing_else),
        (same_key, nothing_else),
        (half_a_body, nothing_else),
        (passed_through, nothing_else),
        (a_fence, nothing_else),
    ],
    ids=lambda each: each.__name__,
)
def test_callers_that_go_at_any_moment_leave_the_pool_as_it_was(
    small: Rig, wish: Wish, meanwhile: Callable[[Rig], AbstractContextManager[None]]
) -> None:
    drawn = random.Random(6)
    delays_s = [drawn.uniform(0, 0.05) for _ in range(CALLS)]

    def call_and_go(number: int) -> None:
        began = time.monotonic()
        sent = wish(small, number)
        pass_s(began, delays_s[number])
        sent.hang_up(reset=bool(number % 2))

    with meanwhile(small), ThreadPoolExecutor(32) as pool:
        list(pool.map(call_and_go, range(CALLS)))

    small.stack.wait_for_gauge("attempts_in_flight", 0, 60)
    small.stack.wait_for_gauge("waiting_callers", 0, 60)
    with ThreadPoolExecutor(POOL) as pool:
        replies = list(pool.map(lambda n: _load(small, 7000 + n, 7000 + n).reply(), range(POOL)))
    assert [reply.status for reply in replies] == [201] * POOL
    assert sessions(small) <= POOL
    assert small.gateway.stop() == 0
    until(lambda: sessions(small) == 0, "every session ended")


def sessions(here: Rig) -> int:
    sql = (
        "select count(*) as n from pg_stat_activity"
        " where datname = current_database() and application_name = 'fencegate'"
    )
    return int(rows(here.database, sql)[0]["n"])


# -- DB-13: an audit row is lost with the transaction or the shutdown


@contextmanager
def audit_broken(here: Rig) -> Iterator[None]:
    """Every insert into the audit fails."""
    execute(here.database, "alter table gateway.audit add constraint no check (false) not valid")
    yield
    execute(here.database, "alter table gateway.audit drop constraint no")


def test_a_refusal_whose_evidence_cannot_be_kept_is_no_refusal(here: Rig) -> None:
    """The two are one commit; nothing is sent either way, and what needs no audit goes on."""
    assert here.scene.send("k-1", 42).status == 201
    with audit_broken(here):
        assert_problem(here.scene.send("k-2", 41), "store-unavailable", waits=True)
        reused = here.scene.send("k-1", 42, body=b'{"other":1}')
        assert_problem(reused, "store-unavailable", waits=True)
        assert here.scene.send("k-3", 42).status == 201  # its own row is its record
    assert_problem(here.scene.send("k-2", 41), "fence-stale")
    assert [row["key"] for row in here.scene.audit("fence_stale")] == [here.scene.key("k-2")]
    assert here.upstream.count == 2


def test_a_key_is_given_back_only_with_its_evidence(here: Rig) -> None:
    here.upstream.next(respond(429))
    with audit_broken(here):
        sent = here.scene.open("k")
        retried = 'store_retries_total{operation="release"}'
        until(lambda: here.stack.gauge(retried) > 2, "the release was tried again and again")
        assert here.scene.state("k") == "in-flight"
    reply = sent.reply()
    assert (reply.status, reply.outcome) == (429, "not-executed")
    here.scene.wait_for_state(None)
    assert len(here.scene.audit("released")) == 1


def test_an_unknown_outcome_is_told_although_its_audit_fails_and_is_recorded_later(
    here: Rig,
) -> None:
    here.upstream.next(respond(502))
    with audit_broken(here):
        sent = here.scene.open("k")
        retried = 'store_retries_total{operation="hold"}'
        until(lambda: here.stack.gauge(retried) > 2, "the hold was tried again and again")
    assert_problem(sent.reply(), "outcome-unknown", outcome="unknown", sent="yes", waits=True)
    until(lambda: len(here.scene.audit("outcome_unknown")) == 1, "the gap is closed")
    assert here.scene.state("k") == "unknown"


def test_a_late_answer_is_recorded_with_its_evidence_or_not_yet(here: Rig) -> None:
    gate = Gate()
    here.upstream.next(gated(gate))
    sent = here.scene.open("k")
    here.upstream.wait_for_effects(1)
    move_clock(here.database, 3600)
    with audit_broken(here):
        gate.release()
        retried = 'store_retries_total{operation="settle"}'
        until(lambda: here.stack.gauge(retried) > 2, "the settle was tried again and again")
        assert here.scene.state("k") == "unknown"
    assert sent.reply().json() == {"effect": 1}
    assert here.scene.state("k") == "settled"
    assert len(here.scene.audit("late_evidence")) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_stopped_during_a_forward_leaves_a_trace(
    postgres: Server, number: signal.Signals
) -> None:
    """By its own row, which is unknown when its time is over; no finally block is needed."""
    with rig(postgres, env={"FENCEGATE_DRAIN_S": "0"}) as here:
        gate = Gate()
        here.upstream.next(gated(gate))
        here.scene.open("k")
        here.upstream.wait_for_effects(1)
        here.gateway.signal(number)
        assert here.gateway.process is not None
        here.gateway.process.wait(30)
        move_clock(here.database, 3600)
        assert here.scene.state("k") == "unknown"
        listed = fencegate("commands", "list", "--state", "unknown", dsn=here.database)
        assert here.scene.key("k") in listed.out
        gate.release()


# -- IDEM-09: expiry or cleanup hits a running or unknown record


def purge(here: Rig, day: float) -> None:
    move_clock(here.database, int(day * 86_400))
    assert fencegate("retention", dsn=here.database).code == 0


@pytest.mark.parametrize("day", [0.9, 1.1, 3, 5000])
def test_a_purge_while_the_upstream_works(here: Rig, day: float) -> None:
    gate = Gate()
    here.upstream.next(gated(gate))
    sent = here.scene.open("k-1", 42)
    here.upstream.wait_for_effects(1)
    purge(here, day)

    again = here.scene.send("k-1", 42, fields=[("Prefer", "wait=0")])
    assert_problem(again, "outcome-unknown", outcome="unknown", sent="unknown", waits=True)
    gate.release()
    assert sent.reply().json() == {"effect": 1}
    replay = here.scene.send("k-1", 42)
    assert (replay.json(), replay.replayed) == ({"effect": 1}, True)
    assert here.upstream.count == 1


def test_a_purge_of_an_unknown_record(here: Rig) -> None:
    here.upstream.next(respond(502))
    first = here.scene.send("k-1", 42)
    assert first.problem == "outcome-unknown"
    purge(here, 5000)
    again = here.scene.send("k-1", 42)
    assert_problem(again, "outcome-unknown", outcome="unknown", sent="yes", waits=True)
    blocked = here.scene.send("k-2", 43)
    assert_problem(blocked, "entity-unresolved", waits=True)
    assert here.upstream.count == 1


def test_what_is_settled_late_lives_its_whole_time(here: Rig) -> None:
    gate = Gate()
    here.upstream.next(gated(gate))
    sent = here.scene.open("k-1", 42)
    here.upstream.wait_for_effects(1)
    purge(here, 10)
    gate.release()
    assert sent.reply().status == 201
    purge(here, 10.9)
    assert here.scene.send("k-1", 42).replayed
    purge(here, 11.1)
    assert here.scene.send("k-1", 42).json() == {"effect": 2}  # a forgotten key is a new one


def test_the_mark_of_an_entity_outlives_its_keys(here: Rig) -> None:
    assert here.scene.send("k-1", 42).status == 201
    purge(here, 1.1)  # the gateway serves a policy with 400 days as well
    assert here.scene.row("k-1") is None
    assert_problem(here.scene.send("zombie", 41), "fence-stale")
