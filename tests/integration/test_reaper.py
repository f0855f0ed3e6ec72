"""One look of the reaper, over the real store with a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from gateway.core.jobs import Terms
from gateway.core.leases import LeaseClass
from gateway.jobs.journal import Journal
from gateway.jobs.reaper import BATCH, Reaper
from gateway.observe.jobmetrics import JobMetrics, Labels
from gateway.policy.tools import Tool, Tools
from tests.kit.db import Server
from tests.kit.jobs import LEASE_MS, Yard, yard

TOOLS = Tools({"t": Tool("t", LeaseClass(backoff_s=8), None, None)})


@pytest.fixture(scope="module")
def jobs(postgres: Server) -> Iterator[Yard]:
    with yard(postgres) as made:
        yield made


def reaper(jobs: Yard, chance: float = 0.0) -> Reaper:
    journal = Journal(JobMetrics(CollectorRegistry(), Labels(("t",))))
    return Reaper(jobs.store, TOOLS, journal, lambda: chance)


def test_a_full_look_says_that_there_is_more_and_the_last_that_there_is_not(jobs: Yard) -> None:
    for _ in range(BATCH + 1):
        jobs.add()
    assert len(jobs.claim(100)) + len(jobs.claim(100)) == BATCH + 1
    jobs.advance(LEASE_MS)
    looks = [jobs.run(reaper(jobs).look()) for _ in range(3)]
    assert looks == [True, False, False]
    assert jobs.sql("select 1 from gateway.job_leases") == []
    jobs.advance(8_000)
    jobs.complete(jobs.one())  # the backoff of its class has passed


def test_a_full_look_at_overdue_jobs_says_so_too(jobs: Yard) -> None:
    now = jobs.now()
    for _ in range(BATCH + 1):
        jobs.add(give_up_at=now)
    assert [jobs.run(reaper(jobs).look()) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(("tool", "chance", "delay_ms"), [("t", 0.5, 6_000), ("gone", 0.0, 5_000)])
def test_the_next_attempt_waits_as_the_class_says(
    jobs: Yard, tool: str, chance: float, delay_ms: int
) -> None:
    """A tool that is not listed, or no longer, has the default class."""
    job = jobs.add(tool=tool)
    jobs.sql("update gateway.jobs set priority = 1 where id = $1", job)
    lease = jobs.run(
        jobs.store.claim(jobs.tenant, 1, "w", job, [Terms(tool, 60_000, 60_000, 5, None, None)])
    )
    assert [each.job for each in lease] == [job]
    jobs.advance(60_000)
    jobs.run(reaper(jobs, chance).look())
    (row,) = jobs.sql(
        "select run_at - gateway.clock() as wait from gateway.jobs where id = $1", job
    )
    assert row["wait"].total_seconds() * 1_000 == delay_ms
