"""The gateway process is stopped (SIGSTOP) and goes on later, believing that it is early."""

from __future__ import annotations

import time

from tests.kit.client import assert_problem
from tests.kit.db import Server
from tests.kit.faults import ADMIT, CHARGE, Rig, pass_s, rig, stopped
from tests.kit.upstream import Gate, gated

SEND_WINDOW_S = 3.0
"""In which the first byte of a ``quick`` command may leave."""

HASTY = """
name = "hasty"
match = "POST /v1/accounts/{account}/hasty"
entity = "account:{path.account}"
timeout_s = 0.1
"""
HASTY_SEND_WINDOW_S = 2.1


def test_stopped_between_admit_commit_and_send_past_the_send_deadline(here: Rig) -> None:
    held = here.proxy.hold_answer(ADMIT)
    sent = here.scene.open(what="quick")
    held.wait_hit()

    with stopped(here.gateway) as since:
        held.release()
        pass_s(since, SEND_WINDOW_S + 0.1)

    reply = sent.reply()
    assert (reply.problem, reply.json()["sent"]) in (
        ("not-sent", "no"),
        ("store-unavailable", "no"),
    )
    here.scene.wait_for_state(None)
    assert (here.upstream.requests, here.upstream.partial) == ([], [])
    assert len(here.scene.audit("released")) == 1
    assert here.scene.send(what="quick").json() == {"effect": 1}


def test_stopped_past_the_send_deadline_with_an_open_connection(postgres: Server) -> None:
    """Nothing has to be dialled, so only the look at the clock before the write is left; and the
    database's answer comes before its driver gives up waiting for it."""
    with rig(postgres, CHARGE, HASTY) as here:
        here.scene.send("warm", 1)
        held = here.proxy.hold_answer(ADMIT)
        began = time.monotonic()
        sent = here.scene.open(fence=2, what="hasty")
        held.wait_hit()

        with stopped(here.gateway):
            held.release()
            pass_s(began, HASTY_SEND_WINDOW_S + 0.15)

        assert sent.reply().json()["sent"] == "no"
        here.scene.wait_for_state(None)
        assert here.upstream.count == 1
        assert here.scene.send(fence=2).json() == {"effect": 2}


def test_stopped_between_admit_commit_and_send_for_less(here: Rig) -> None:
    held = here.proxy.hold_answer(ADMIT)
    sent = here.scene.open(what="quick")
    held.wait_hit()

    with stopped(here.gateway):
        held.release()

    assert sent.reply().json() == {"effect": 1}


def test_stopped_after_send_past_the_last_byte(here: Rig) -> None:
    gate = Gate()
    here.upstream.next(gated(gate))
    sent = here.scene.open(what="quick")
    here.upstream.wait_for_effects(1)

    with stopped(here.gateway) as since:
        gate.release()
        pass_s(since, 1.1)

    assert_problem(sent.reply(), "outcome-unknown", outcome="unknown", sent="yes", waits=True)
    here.scene.wait_for_state("settled")
    again = here.scene.send(what="quick")
    assert (again.json(), again.replayed) == ({"effect": 1}, True)
    assert here.upstream.count == 1
    assert len(here.scene.audit("late_evidence")) == 1
