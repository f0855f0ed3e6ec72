"""Backends killed at random while callers work: about half of what fails has committed."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.kit.client import Reply
from tests.kit.db import execute
from tests.kit.faults import Rig
from tests.kit.gateway import rows

CALLERS = 16
COMMANDS = 300
ENTITIES = 40
KILLS_EVERY_S = 0.03
TRIES = 20

KILL_SOME = (
    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
    " and application_name = 'fencegate' and random() < 0.5"
)


def test_one_effect_a_key_and_no_settled_response_is_lost(here: Rig) -> None:
    numbers = list(range(COMMANDS))
    random.Random(7).shuffle(numbers)

    with backends_killed(here) as kills, ThreadPoolExecutor(CALLERS) as pool:
        heard = dict(zip(numbers, pool.map(lambda n: insist(here, n), numbers), strict=True))
    assert kills[0] > 5, "the fault hardly happened"

    replays = {n: send(here, n) for n in numbers}
    assert all(reply.status == 201 for reply in heard.values())
    assert all(replays[n].replayed and replays[n].body == heard[n].body for n in numbers)
    keys = [effect.one("X-Key") for effect in here.upstream.effects]
    assert len(keys) == len(set(keys)) == COMMANDS
    assert here.upstream.count == COMMANDS
    left = "select count(*) as n from gateway.commands where settled_at is null"
    assert rows(here.database, left) == [{"n": 0}]
    still_open = "select count(*) as n from gateway.entities where open_key is not null"
    assert rows(here.database, still_open) == [{"n": 0}]
    suspected = "select * from gateway.audit where event = 'duplicate_effect_suspected'"
    assert rows(here.database, suspected) == []


def insist(here: Rig, number: int) -> Reply:
    """Repeat the command with its key for as long as the answer says that this helps."""
    for _ in range(TRIES):
        reply = send(here, number)
        if reply.problem is None:
            return reply
        assert reply.json()["retry"] in ("same-key", "wait"), reply
        assert reply.problem != "outcome-unknown", reply
    raise AssertionError(f"no answer after {TRIES} tries: {reply}")


def send(here: Rig, number: int) -> Reply:
    key = f"n{number}"
    target = f"/pay/v1/loads/{number % ENTITIES}"
    fields = [("Idempotency-Key", key), ("X-Key", key)]
    return here.scene.caller.call("POST", target, fields, b"{}")


@contextmanager
def backends_killed(here: Rig) -> Iterator[list[int]]:
    """Kill some of the gateway's backends again and again; gives the count of rounds that hit."""
    over = threading.Event()
    hits = [0]

    def kill() -> None:
        sent = -1
        while not over.wait(KILLS_EVERY_S):
            # Paced by what gets through: on a slow machine nothing would, were it by time alone.
            if here.upstream.count > sent:
                sent = here.upstream.count
                hits[0] += execute(here.database, KILL_SOME) != "SELECT 0"

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield hits
    finally:
        over.set()
        thread.join()
