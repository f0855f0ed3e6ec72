"""Ten million remembered keys: all of them known, and what is due forgotten beside a full load.

Some 20 GB and ten minutes; ``FENCEGATE_GROWTH_KEYS`` is another number of them. How fast it is, it
prints; what it asserts are effects, as `dev.py bench` does of each of its loads."""

from __future__ import annotations

import os

import pytest

from benchmarks import nginx
from benchmarks.cases import Bench
from benchmarks.kit import Results, number, stage
from benchmarks.plan import Plan

KEYS = int(os.environ.get("FENCEGATE_GROWTH_KEYS", "10000000"))
FEW = 1_000


@pytest.mark.skipif(not nginx.installed(), reason="nginx is not installed")
def test_as_many_keys_as_come_in_a_year_are_known_and_forgotten() -> None:
    plan = Plan(3, 0, 3, (), (FEW, KEYS), max(KEYS // 20, FEW), 3600)
    results = Results()
    with stage(plan.limit_s) as on:
        Bench(on, plan, print, {}).growth(results)
    assert results.broken == {}
    assert results.median(("fencegate", f"{KEYS} keys asked again"), "rate")
    grown = results.ratio(("fencegate", f"{KEYS} keys"), ("fencegate", f"{FEW} keys"))
    kept = results.median(("fencegate", "retention"), "keeps_up")
    print(f"at {KEYS:,} keys {number(grown)} of the rate; forgotten for each {number(kept)}")
