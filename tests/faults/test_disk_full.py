"""The database's disk fills up under load, and is given room again (acceptance 2)."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kit.client import Reply
from tests.kit.faults import LOAD, rig, until
from tests.kit.gateway import rows
from tests.kit.small_disk import SmallDisk, small_disk, why_not
from tests.kit.upstream import Recorded, respond

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

CALLERS = 8
COMMANDS = 160
BODY = 48 * 1024
TRIES = 600


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with small_disk() as made:
        yield made


def test_what_is_answered_is_kept_and_nothing_is_sent_twice(disk: SmallDisk) -> None:
    drawn = random.Random(3)
    bodies = [drawn.randbytes(BODY) for _ in range(4)]

    def script(request: Recorded):  # type: ignore[no-untyped-def]
        return respond(201, bodies[int(request.one("X-Number") or 0) % len(bodies)])

    with rig(disk.server, LOAD) as here:
        here.upstream.script = script
        refused = threading.Semaphore(0)
        given_up = threading.Event()
        answered = threading.Semaphore(0)

        def insist(number: int) -> Reply:
            for _ in range(TRIES):
                assert not given_up.is_set()
                reply = send(number)
                if reply.problem is None:
                    answered.release()
                    return reply
                assert reply.json()["retry"] in ("same-key", "wait"), reply
                assert reply.problem != "rows-lost", reply
                refused.release()
                given_up.wait(0.05)  # a refusal is quick; its callers would only fill the log
            raise AssertionError(reply)

        def send(number: int) -> Reply:
            key = f"n{number}"
            fields = [("Idempotency-Key", key), ("X-Key", key), ("X-Number", str(number))]
            return here.scene.caller.call("POST", f"/pay/v1/loads/{number % 40}", fields, b"{}")

        with ThreadPoolExecutor(CALLERS) as pool:
            heard = pool.map(insist, range(COMMANDS))
            try:
                for _ in range(COMMANDS // 8):
                    assert answered.acquire(timeout=60)
                disk.fill()
                for _ in range(20):
                    assert refused.acquire(timeout=60), "the disk hardly was full"
                disk.free()
                replies = list(heard)
            finally:
                given_up.set()

        assert {reply.status for reply in replies} == {201}
        again = [send(number) for number in range(COMMANDS)]
        assert all(
            now.replayed and now.body == then.body for now, then in zip(again, replies, strict=True)
        )
        keys = [effect.one("X-Key") for effect in here.upstream.effects]
        assert len(keys) == len(set(keys)) == COMMANDS
        unsettled = "select count(*) as n from gateway.commands where settled_at is null"
        until(lambda: rows(here.database, unsettled) == [{"n": 0}], "every key is settled")
        opened = "select count(*) as n from gateway.entities where open_key is not null"
        assert rows(here.database, opened) == [{"n": 0}]
        suspected = "select * from gateway.audit where event = 'duplicate_effect_suspected'"
        assert rows(here.database, suspected) == []
        assert rows(here.database, "select * from gateway.losses") == []
