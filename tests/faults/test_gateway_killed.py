"""``kill -9`` of the gateway in each window of a command (CRASH-01, acceptance 5).

Nobody can prove afterwards that nothing was sent, so the command is in flight until its deadline,
then unknown, and never free; nothing is sent twice, and its entity waits for the resolution.
"""

from __future__ import annotations

from tests.kit.client import assert_problem
from tests.kit.faults import ADMIT, SETTLE, Rig, every_deadline_passes
from tests.kit.upstream import Gate, gated

AT_ONCE = [("Prefer", "wait=0")]


def test_killed_between_admit_commit_and_send(here: Rig) -> None:
    held = here.proxy.hold_answer(ADMIT)
    here.scene.open()
    held.wait_hit()
    assert here.scene.state() == "in-flight"

    here.restart_killed()

    assert_in_flight_then_unknown(here)
    assert here.upstream.connections == 0


def test_killed_after_the_upstream_received(here: Rig) -> None:
    here.upstream.next(gated(Gate()))
    here.scene.open()
    here.upstream.wait_for_effects(1)

    here.restart_killed()

    assert_in_flight_then_unknown(here)
    assert here.upstream.count == 1


def test_killed_after_the_upstream_answered_before_settle_reached_the_database(here: Rig) -> None:
    held = here.proxy.hold_statement(SETTLE)
    here.scene.open()
    held.wait_hit()

    here.restart_killed()

    assert_in_flight_then_unknown(here)
    assert here.upstream.count == 1


def test_killed_after_settle_committed_before_the_caller_heard(here: Rig) -> None:
    held = here.proxy.hold_answer(SETTLE)
    here.scene.open()
    held.wait_hit()

    here.restart_killed()

    again = here.scene.send()
    assert (again.status, again.json(), again.replayed) == (201, {"effect": 1}, True)
    assert here.scene.send("next", 2).status == 201
    assert here.upstream.count == 2


def assert_in_flight_then_unknown(here: Rig) -> None:
    """The key and its entity before and after the deadline; nothing of it reaches the upstream."""
    sent_before = here.upstream.count
    assert_problem(here.scene.send(fields=AT_ONCE), "in-flight", waits=True)
    assert_problem(here.scene.send("other", 2, fields=AT_ONCE), "entity-busy", waits=True)

    every_deadline_passes(here.database)

    unknown = here.scene.send(fence=2)
    assert_problem(unknown, "outcome-unknown", outcome="unknown", sent="unknown", waits=True)
    blocked = {"key": here.scene.key(), "state": "unknown"}
    other = here.scene.send("other", 3)
    assert_problem(other, "entity-unresolved", waits=True, blocked_by=blocked)
    assert here.scene.state() == "unknown"
    assert here.scene.state("other") is None
    assert here.upstream.count == sent_before
