"""Commands that share transactions: what holds one up, or breaks it, is not the others'."""

from __future__ import annotations

import contextlib

from tests.kit.faults import Rig, entities_locked, entity_locked
from tests.kit.gateway import rows
from tests.kit.upstream import Gate, gated

LOCKED, OTHERS = 6, 60
MANY = 150
"""More than two batches hold."""


def test_locks_of_somebody_elses_transaction_stop_nobody_else(here: Rig) -> None:
    """Of some commands the answer cannot be recorded, and others cannot be admitted, because
    somebody has locked their entities; all who come beside them are served meanwhile."""
    scene, gate = here.scene, Gate()
    names = [f"{scene.account}-{number}" for number in range(2 * LOCKED)]
    for name in names[LOCKED:]:
        assert scene.send(f"first-{name}", account=name).status == 201
    here.upstream.next(*(gated(gate) for _ in range(LOCKED)))
    answered = [scene.open(f"held-{name}", account=name) for name in names[:LOCKED]]
    here.upstream.wait_for_effects(2 * LOCKED)

    with contextlib.ExitStack() as held:
        for name in names:
            held.enter_context(entity_locked(here.database, f"account:{name}"))
        gate.release()
        asked = [scene.open(f"next-{name}", account=name) for name in names[LOCKED:]]
        others = [scene.open(f"other-{n}", account=f"other-{n}") for n in range(OTHERS)]
        assert [each.reply().status for each in others] == [201] * OTHERS
        stuck = "select count(*) as n from gateway.commands where settled_at is null"
        assert rows(here.database, stuck) == [{"n": LOCKED}]

    assert [each.reply().status for each in answered] == [201] * LOCKED
    assert {each.reply().status for each in asked} <= {201, 503}
    assert rows(here.database, stuck) == [{"n": 0}]


def test_nor_do_they_where_they_are_more_than_a_few_batches(here: Rig) -> None:
    """Each such batch is asked about one by one, and the callers beside them wait for that."""
    scene, gate = here.scene, Gate()
    names = [f"{scene.account}-{number}" for number in range(MANY)]
    here.upstream.next(*(gated(gate) for _ in names))
    answered = [scene.open(f"held-{name}", account=name) for name in names]
    here.upstream.wait_for_effects(MANY)

    with entities_locked(here.database, *(f"account:{name}" for name in names)):
        gate.release()
        others = [scene.open(f"other-{n}", account=f"other-{n}") for n in range(OTHERS)]
        assert [each.reply().status for each in others] == [201] * OTHERS

    assert [each.reply().status for each in answered] == [201] * MANY
