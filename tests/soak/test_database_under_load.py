"""The database crashes, loses backends and loses answers under load; three gateways use it.

Away for half a minute, and a full disk, are tests of their own.
"""

from __future__ import annotations

import time

from tests.kit.db import Server, execute
from tests.kit.faults import until
from tests.kit.fleet import Fleet, fleet
from tests.kit.gateway import rows

COMMANDS = 1_000
CRASHES = 4
KILLS = 20
KILLS_EVERY_S = 0.05

KILL_SOME = (
    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
    " and application_name = 'fencegate' and random() < 0.5"
)

LOST = ("admit", "settle", "release", "hold", "enqueue", "claim", "renew", "end", "reap", "fence")


def test_crashes_and_killed_backends_make_no_second_effect(postgres: Server) -> None:
    hits = 0

    def trouble() -> None:
        nonlocal hits
        for _ in range(CRASHES):
            for _ in range(KILLS):
                hits += execute(three.database, KILL_SOME) != "SELECT 0"
                time.sleep(KILLS_EVERY_S)  # time itself is the fault
            postgres.restart(immediate=True)
            seen = len(three.load.heard)
            until(lambda: len(three.load.heard) > seen, "commands go through again", 30)  # noqa: B023

    with fleet(postgres) as three:
        three.under_load([trouble], COMMANDS)
        reckon(three)
    assert hits > CRASHES, "the fault hardly happened"


def test_lost_commit_answers_are_recognised_under_load(postgres: Server) -> None:
    failpoints = ";".join(f"{name}.committed=error%2" for name in LOST)
    with fleet(postgres, failpoints=failpoints) as three:
        three.under_load([], COMMANDS)
        heard = dict(three.load.heard)
        reckon(three)
    refused = [
        wish
        for wish in three.load.wishes
        if wish.kind in ("plain", "large") and wish.key not in heard
    ]
    assert len(refused) < COMMANDS / 10, "a lost answer made commands fail"


def reckon(three: Fleet) -> None:
    """Once nothing is in flight any more."""
    idle = (
        "select count(*) as n from gateway.commands where settled_at is null and deadline > now()"
    )
    until(lambda: rows(three.database, idle) == [{"n": 0}], "all attempts have ended", 60)
    counts = three.load.reckon(three.always.url)
    jobs = three.jobs.reckon()
    print(f"{counts}; {jobs}")
    assert counts.settled > COMMANDS / 2
