"""The commit of each statement, with its answer lost (DB-01, DB-02).

After a lost answer nobody knows whether the statement took effect. It is repeated with the same
attempt, which recognises its own row, so whichever was the case: one effect, one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.kit.client import assert_problem
from tests.kit.db import Server
from tests.kit.faults import (
    ADMIT,
    HOLD,
    RELEASE,
    SETTLE,
    Rig,
    entity_locked,
    rig,
    terminate_backends,
    wait_for_lock_waits,
)
from tests.kit.gateway import rows
from tests.kit.pgproxy import Fault, PgProxy
from tests.kit.upstream import Gate, cut, gated, respond

Lose = Callable[[PgProxy, str], Fault]

LOSSES = [
    pytest.param(PgProxy.cut_after, id="committed_and_the_answer_lost"),
    pytest.param(PgProxy.cut_before, id="never_reached_the_database"),
]


@pytest.fixture
def unbatched(postgres: Server) -> Iterator[Rig]:
    """Whatever waits for a lock does so where it is first asked, not only where asked alone."""
    with rig(postgres, env={"FENCEGATE_BATCH_LIMIT": "1"}) as made:
        yield made


@pytest.mark.parametrize("lose", LOSSES)
def test_admit(here: Rig, lose: Lose) -> None:
    lost = lose(here.proxy, ADMIT)

    assert_applied_once(here)

    assert lost.hit
    assert here.scene.audit() == []


@pytest.mark.parametrize("lose", LOSSES)
def test_a_mismatch_is_refused_and_recorded_once(here: Rig, lose: Lose) -> None:
    lost = lose(here.proxy, "gateway.refuse(")

    refused = here.scene.send(fields=[("X-Execution-Entity", "account:other")])

    assert_problem(refused, "entity-mismatch")
    assert lost.hit
    assert [row["event"] for row in here.scene.audit()] == ["entity_mismatch"]
    assert here.upstream.count == 0


def test_admit_committed_and_its_answer_lost_twice(here: Rig) -> None:
    for _ in range(2):
        here.proxy.cut_after(ADMIT)

    assert_applied_once(here)


def test_admit_still_running_on_the_server_while_its_repeat_comes(unbatched: Rig) -> None:
    here = unbatched
    here.scene.send("first")
    with entity_locked(here.database, here.scene.entity) as unlock:
        lost = here.proxy.cut_while_running(ADMIT)
        sent = here.scene.open(fence=2)
        lost.wait_hit()
        wait_for_lock_waits(here.database, 2, ADMIT)
        unlock()

    assert sent.reply().json() == {"effect": 2}
    lost.wait_answered()
    assert here.upstream.count == 2
    assert here.scene.send(fence=2).replayed


def test_admit_whose_backend_is_killed_while_it_waits_for_its_lock(here: Rig) -> None:
    here.scene.send("first")
    with entity_locked(here.database, here.scene.entity) as unlock:
        sent = here.scene.open(fence=2)
        wait_for_lock_waits(here.database, 1, ADMIT)
        # With the one that is idle since it admitted the first, if that is another.
        assert terminate_backends(here.database, ADMIT) in (1, 2)
        wait_for_lock_waits(here.database, 1, ADMIT)
        unlock()

    assert sent.reply().json() == {"effect": 2}
    assert here.upstream.count == 2


@pytest.mark.parametrize("lose", LOSSES)
def test_settle(here: Rig, lose: Lose) -> None:
    lost = lose(here.proxy, SETTLE)

    assert_applied_once(here)

    assert lost.hit
    assert here.scene.row()["settled_by"] == "answer"  # type: ignore[index]
    assert here.scene.audit() == []


def test_settle_still_running_on_the_server_while_its_repeat_comes(unbatched: Rig) -> None:
    here = unbatched
    gate = Gate()
    here.upstream.next(gated(gate))
    sent = here.scene.open()
    here.upstream.wait_for_effects(1)
    with entity_locked(here.database, here.scene.entity) as unlock:
        lost = here.proxy.cut_while_running(SETTLE)
        gate.release()
        lost.wait_hit()
        wait_for_lock_waits(here.database, 2, SETTLE)
        unlock()

    assert sent.reply().json() == {"effect": 1}
    assert here.scene.send().replayed
    assert here.upstream.count == 1
    assert here.scene.audit() == []


@pytest.mark.parametrize("lose", LOSSES)
def test_release_after_the_upstream_refused(here: Rig, lose: Lose) -> None:
    here.upstream.refuse()
    lost = lose(here.proxy, RELEASE)

    assert_problem(here.scene.send(), "not-sent", outcome="not-sent", waits=True)

    assert lost.hit
    assert here.scene.row() is None
    assert len(here.scene.audit("released")) == 1
    here.upstream.accept()
    assert_applied_once(here)


@pytest.mark.parametrize("lose", LOSSES)
def test_release_after_a_status_that_proves_nothing_was_done(here: Rig, lose: Lose) -> None:
    here.upstream.next(respond(429))
    lost = lose(here.proxy, RELEASE)

    limited = here.scene.send()

    assert (limited.status, limited.outcome) == (429, "not-executed")
    assert lost.hit
    assert here.scene.send().json() == {"effect": 1}


@pytest.mark.parametrize("lose", LOSSES)
def test_hold_after_the_upstream_went_away(here: Rig, lose: Lose) -> None:
    here.upstream.next(cut())
    lost = lose(here.proxy, HOLD)

    first = here.scene.send()
    again = here.scene.send()

    assert lost.hit
    assert_problem(first, "outcome-unknown", outcome="unknown", sent="yes", waits=True)
    assert_problem(again, "outcome-unknown", outcome="unknown", sent="unknown", waits=True)
    assert len(here.scene.audit("outcome_unknown")) == 1
    assert here.upstream.count == 1


def assert_applied_once(here: Rig) -> None:
    """Sending the command is answered truly, and again, from one effect."""
    first = here.scene.send()
    again = here.scene.send()
    assert (first.status, first.json(), first.replayed) == (201, {"effect": 1}, False)
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert here.upstream.count == 1
    (row,) = rows(here.database, "select attempts, fence from gateway.commands")
    assert row == {"attempts": 1, "fence": 1}
