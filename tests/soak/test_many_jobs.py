"""The suite's thousand jobs, ten times as many."""

from tests.integration.test_job_concurrency import do_once_each


def test_ten_workers_do_ten_thousand_jobs_once_each(database: str) -> None:
    do_once_each(database, 10_000)
