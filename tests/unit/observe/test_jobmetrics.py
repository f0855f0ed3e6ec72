"""Metrics of jobs: closed labels, and gauges that never say what was."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.core.jobs import LeaseStats
from gateway.observe.jobmetrics import JobMetrics, Labels, Work


def made() -> tuple[JobMetrics, CollectorRegistry]:
    registry = CollectorRegistry()
    return JobMetrics(registry, Labels(("t",), ("m",), ("p",))), registry


def value(registry: CollectorRegistry, name: str, *labels: str, **more: str) -> float | None:
    tool, model, provider = labels
    named = {"tool": tool, "model": model, "provider": provider, **more}
    return registry.get_sample_value(f"fencegate_{name}", named)


def test_nothing_that_a_caller_sends_makes_a_label() -> None:
    metrics, registry = made()
    for number in range(100):
        work = Work(f"t{number}", f"m{number}", f"p{number}")
        metrics.claimed(work, again=True)
        metrics.lease_expired(work)
        metrics.result_rejected(work)
        metrics.renewal_failed(work, "taken")
        metrics.leases([LeaseStats(f"t{number}", f"m{number}", f"p{number}", 1, 1, 1)])
    other = ("other", "other", "other")
    assert value(registry, "jobs_claimed_total", *other) == 100
    assert value(registry, "jobs_reclaimed_total", *other) == 100
    assert value(registry, "leases_expired_total", *other) == 100
    assert value(registry, "results_rejected_total", *other) == 100
    assert value(registry, "renewals_failed_total", *other, reason="taken") == 100
    labels = {
        each
        for family in registry.collect()
        for sample in family.samples
        for each in (sample.labels["tool"], sample.labels["model"], sample.labels["provider"])
    }
    assert labels == {"t", "none", "other"}


def test_a_first_lease_is_no_second_one_and_what_is_missing_is_none() -> None:
    metrics, registry = made()
    metrics.claimed(Work("t", "m", None), again=False)
    assert value(registry, "jobs_claimed_total", "t", "m", "none") == 1
    assert value(registry, "jobs_reclaimed_total", "t", "m", "none") is None
    assert value(registry, "jobs_reclaimed_total", "t", "none", "none") == 0


def test_gauges_sum_what_shares_a_label_and_forget_what_is_gone() -> None:
    metrics, registry = made()
    metrics.leases(
        [
            LeaseStats("t", "x", "p", 2, 7.0, 30.0),
            LeaseStats("t", "y", "p", 3, 9.0, -1.5),
            LeaseStats("t", "m", "p", 1, 1.0, 59.0),
        ]
    )
    assert value(registry, "leases_live", "t", "other", "p") == 5
    assert value(registry, "heartbeat_age_seconds", "t", "other", "p") == 9
    assert value(registry, "lease_remaining_seconds", "t", "other", "p") == -1.5
    assert value(registry, "leases_live", "t", "m", "p") == 1
    metrics.leases([])
    assert value(registry, "leases_live", "t", "m", "p") is None
    assert value(registry, "heartbeat_age_seconds", "t", "m", "p") is None
    assert value(registry, "leases_live", "t", "none", "none") == 0
