"""``kill -9`` at every failpoint, again and again, under load, three gateways on one database."""

from __future__ import annotations

from gateway.faults import POINTS
from tests.kit.db import Server
from tests.kit.fleet import fleet, shots

COMMANDS = 2_000
HITS = (1, 3)


def test_no_failpoint_makes_a_second_effect_or_loses_an_answer(postgres: Server) -> None:
    with fleet(postgres) as three:
        three.sweep(shots(list(POINTS), HITS), at_least=COMMANDS)
        counts = three.load.reckon(three.always.url)
        jobs = three.jobs.reckon()
    print(f"{sum(three.deaths.values())} killed; {counts}; {jobs}")
    assert set(three.deaths) == set(POINTS)
    assert counts.unknown > 0, "nobody was hit between admit and settle"
