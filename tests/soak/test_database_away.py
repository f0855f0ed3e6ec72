"""The database cannot be reached for half a minute, under load (acceptance 2)."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kit.client import Reply
from tests.kit.db import Server
from tests.kit.faults import Rig, pass_s, rig, until
from tests.kit.gateway import rows

CALLERS = 16
AWAY_S = 30.0
ENTITIES = 40


@pytest.mark.parametrize("how", ["refused", "silent"])
def test_half_a_minute_without_the_database(postgres: Server, how: str) -> None:
    """Commands that were on their way are past their deadlines then, and are healed."""
    with rig(postgres) as here:
        over = threading.Event()
        heard: dict[int, Reply] = {}

        def work(caller: int) -> None:
            number = caller
            while not over.is_set():
                heard[number] = insist(here, number)
                number += CALLERS

        with ThreadPoolExecutor(CALLERS) as pool:
            workers = [pool.submit(work, caller) for caller in range(CALLERS)]
            until(lambda: len(heard) > 200, "the load runs")
            began = time.monotonic()
            (here.proxy.refuse if how == "refused" else here.proxy.black_hole)()
            pass_s(began, AWAY_S)
            before = len(heard)
            (here.proxy.accept if how == "refused" else here.proxy.restore)()
            until(lambda: len(heard) > before + 200, "the load goes on", 60)
            over.set()
            for worker in workers:
                worker.result()

        assert {reply.status for reply in heard.values()} == {201}
        for number, reply in heard.items():
            again = send(here, number)
            assert (again.replayed, again.body) == (True, reply.body)
        keys = [effect.one("X-Key") for effect in here.upstream.effects]
        assert len(keys) == len(set(keys)) == len(heard)
        unsettled = "select count(*) as n from gateway.commands where settled_at is null"
        until(lambda: rows(here.database, unsettled) == [{"n": 0}], "every key is settled")
        suspected = "select * from gateway.audit where event = 'duplicate_effect_suspected'"
        assert rows(here.database, suspected) == []
        assert rows(here.database, "select * from gateway.losses") == []


def insist(here: Rig, number: int) -> Reply:
    until_mono = time.monotonic() + 120
    while time.monotonic() < until_mono:
        reply = send(here, number)
        if reply.problem is None:
            return reply
        assert reply.json()["retry"] in ("same-key", "wait"), reply
        assert reply.problem != "rows-lost", reply
    raise AssertionError(reply)


def send(here: Rig, number: int) -> Reply:
    key = f"n{number}"
    target = f"/pay/v1/loads/{number % ENTITIES}"
    fields = [("Idempotency-Key", key), ("X-Key", key)]
    return here.scene.caller.call("POST", target, fields, b"{}")
