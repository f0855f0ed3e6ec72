"""``kill -9`` in one window after the other, under load, three gateways on one database."""

from __future__ import annotations

from tests.kit.db import Server
from tests.kit.fleet import fleet, shots

WINDOWS = (
    *("admit.committed", "wait.woken", "send.before", "send.written", "settle.before"),
    *("settle.committed", "hold.committed", "probe.before", "drain.begun", "claim.committed"),
    *("end.committed",),
)
"""The rest, and each of them again and again, are in ``tests/soak``."""


def test_no_window_of_a_command_makes_a_second_effect_or_loses_an_answer(postgres: Server) -> None:
    with fleet(postgres, callers=4) as three:
        three.sweep(shots(WINDOWS), at_least=300)
        counts = three.load.reckon(three.always.url)
        jobs = three.jobs.reckon()
    print(f"{sum(three.deaths.values())} killed; {counts}; {jobs}")
    assert set(three.deaths) == set(WINDOWS)
    assert counts.unknown > 0, "nobody was hit between admit and settle"
    assert counts.settled > 100
