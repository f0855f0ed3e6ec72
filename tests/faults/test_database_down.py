"""The database goes away and comes back, at each stage of a command (DB-02, acceptance 6)."""

from __future__ import annotations

import time

import pytest

from gateway.store.database import STATEMENT_TIMEOUT_S
from tests.kit.client import assert_problem
from tests.kit.db import Server
from tests.kit.faults import ADMIT, RELEASE, SETTLE, Rig, pass_s, until
from tests.kit.upstream import Gate, gated

SETTLES_REPEATED = 'store_retries_total{operation="settle"}'


@pytest.mark.parametrize("immediate", [False, True], ids=["stopped", "crashed"])
def test_restarted_between_send_and_settle(here: Rig, postgres: Server, immediate: bool) -> None:
    gate = Gate()
    here.upstream.next(gated(gate))
    sent = here.scene.open()
    here.upstream.wait_for_effects(1)

    postgres.restart(immediate=immediate)
    gate.release()

    assert_heard_and_recorded(here, sent.reply().body)


@pytest.mark.parametrize("immediate", [False, True], ids=["stopped", "crashed"])
def test_down_when_the_upstream_answers(here: Rig, postgres: Server, immediate: bool) -> None:
    gate = Gate()
    here.upstream.next(gated(gate))
    sent = here.scene.open()
    here.upstream.wait_for_effects(1)

    postgres.cluster.stop(immediate=immediate)
    gate.release()
    until(lambda: here.stack.gauge(SETTLES_REPEATED) > 0, "the settle failed")
    postgres.restart()

    assert_heard_and_recorded(here, sent.reply().body)


def test_down_past_the_deadline(here: Rig, postgres: Server) -> None:
    held = here.proxy.hold_statement(SETTLE)
    sent = here.scene.open(what="quick")
    held.wait_hit()
    postgres.cluster.stop(immediate=True)
    held.cut()

    first = sent.reply()
    postgres.restart()

    assert_problem(first, "outcome-unknown", outcome="unknown", sent="yes", waits=True)
    here.scene.wait_for_state("settled")
    again = here.scene.send(what="quick")
    assert (again.status, again.json(), again.replayed) == (201, {"effect": 1}, True)
    assert here.upstream.count == 1
    assert len(here.scene.audit("late_evidence")) == 1


def test_down_at_admit(here: Rig, postgres: Server) -> None:
    here.scene.send("before")
    postgres.cluster.stop(immediate=True)

    for _ in range(2):
        assert_problem(here.scene.send(), "store-unavailable", waits=True)
    assert here.upstream.count == 1
    postgres.restart()

    assert here.scene.send().json() == {"effect": 2}


def test_admit_given_up_after_it_had_committed(here: Rig) -> None:
    held = here.proxy.hold_answer(ADMIT)
    sent = here.scene.open(what="quick")
    held.wait_hit()
    here.proxy.refuse()

    assert_problem(sent.reply(), "store-unavailable", waits=True)
    assert here.scene.state() == "in-flight"
    here.proxy.accept()

    assert_given_back(here)


def test_silent_from_admit_on(here: Rig) -> None:
    here.scene.send("before")
    here.proxy.black_hole()

    sent = here.scene.open(what="quick")
    assert_problem(sent.reply(), "store-unavailable", waits=True)
    here.proxy.restore()

    assert_given_back(here, before=1)


def test_admit_written_into_a_silence_that_outlasts_its_release(here: Rig) -> None:
    """An orderly close would leave it to the kernel to deliver the admit behind the release."""
    here.scene.send("before")
    here.proxy.stall()

    assert_problem(here.scene.send(what="quick"), "store-unavailable", waits=True)
    pass_s(time.monotonic(), STATEMENT_TIMEOUT_S + 0.3)
    until(lambda: here.proxy.count(RELEASE), "the attempt was released for the last time")
    here.proxy.restore()

    assert here.scene.send("other", account="other").status == 201
    assert_given_back(here, before=2)


def assert_heard_and_recorded(here: Rig, heard: bytes) -> None:
    """The caller heard the upstream's own answer, and it is replayed from one effect."""
    again = here.scene.send()
    assert heard == b'{"effect": 1}'
    assert (again.status, again.body, again.replayed) == (201, heard, True)
    assert here.upstream.count == 1
    assert here.stack.gauge("attempts_in_flight") == 0


def assert_given_back(here: Rig, *, before: int = 0) -> None:
    """The attempt's row goes by itself, the key and the entity are free, and nothing was sent."""
    here.scene.wait_for_state(None)
    assert here.upstream.count == before
    assert here.scene.send(what="quick").json() == {"effect": before + 1}
    assert here.scene.send("next").json() == {"effect": before + 2}
