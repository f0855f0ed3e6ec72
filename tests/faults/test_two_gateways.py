"""Two gateways over one database: the database decides, each gateway only asks it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.kit.client import assert_problem
from tests.kit.faults import Rig, every_deadline_passes, second_gateway
from tests.kit.gateway import Scene, rows
from tests.kit.upstream import Gate, gated

AT_EACH = 20
KEYS = 40

SOON_S = 2.0
"""Twenty polls: what a busy machine may take of one."""


@pytest.fixture
def there(here: Rig) -> Iterator[Scene]:
    """The other gateway's view of the same corner."""
    with second_gateway(here) as scene:
        yield scene


def test_the_same_key_through_both_at_once(here: Rig, there: Scene) -> None:
    patient = [("Prefer", "wait=20")]
    sent = [scene.open(fields=patient) for _ in range(AT_EACH) for scene in (here.scene, there)]

    replies = [each.reply() for each in sent]

    assert {(reply.status, reply.body) for reply in replies} == {(201, b'{"effect": 1}')}
    assert sorted(reply.replayed for reply in replies) == [False] + [True] * (2 * AT_EACH - 1)
    assert here.upstream.count == 1


def test_a_waiter_for_a_key_that_the_other_settles(here: Rig, there: Scene) -> None:
    gate = Gate()
    here.upstream.next(gated(gate))
    first = here.scene.open()
    here.upstream.wait_for_effects(1)
    waiter = there.waiter("k")

    gate.release()

    assert first.reply().json() == {"effect": 1}
    began = time.monotonic()
    reply = waiter.reply()
    assert time.monotonic() - began < SOON_S
    assert (reply.json(), reply.replayed) == ({"effect": 1}, True)


def test_a_waiter_for_an_entity_that_the_other_holds(here: Rig, there: Scene) -> None:
    gate = Gate()
    here.upstream.next(gated(gate))
    first = here.scene.open()
    here.upstream.wait_for_effects(1)
    waiter = there.waiter("next", 2)
    assert here.upstream.count == 1

    gate.release()

    assert first.reply().json() == {"effect": 1}
    began = time.monotonic()
    assert waiter.reply().json() == {"effect": 2}
    assert time.monotonic() - began < SOON_S


def test_a_waiter_for_a_key_whose_gateway_is_killed(here: Rig, there: Scene) -> None:
    here.upstream.next(gated(Gate()))
    here.scene.open()
    here.upstream.wait_for_effects(1)
    waiter = there.waiter("k")

    here.gateway.kill()
    every_deadline_passes(here.database)

    reply = waiter.reply(SOON_S)
    assert_problem(reply, "outcome-unknown", outcome="unknown", sent="unknown", waits=True)
    assert here.upstream.count == 1


def test_batches_of_both_that_share_keys_and_entities(here: Rig, there: Scene) -> None:
    """Each key comes through both at once, and each entity is wanted by four keys: what one batch
    has locked is passed over in the other's, and still each command has one effect."""
    patient = [("Prefer", "wait=30")]
    keys = [f"k{number}" for number in range(KEYS)]
    sent = {
        key: [
            scene.open(key, account=f"{here.scene.account}-{at % (KEYS // 4)}", fields=patient)
            for scene in ((here.scene, there) if at % 2 else (there, here.scene))
            for _ in range(2)
        ]
        for at, key in enumerate(keys)
    }  # fmt: skip

    replies = {key: [each.reply(60) for each in exchanges] for key, exchanges in sent.items()}

    for each in replies.values():
        assert [reply.status for reply in each] == [201] * 4
        assert len({reply.body for reply in each}) == 1
        assert sorted(reply.replayed for reply in each) == [False, True, True, True]
    assert here.upstream.count == KEYS
    count = "select settled_by, count(*) as n from gateway.commands group by 1"
    stored = rows(here.database, count)
    assert stored == [{"settled_by": "answer", "n": KEYS}]
    assert rows(here.database, "select from gateway.entities where open_key is not null") == []
