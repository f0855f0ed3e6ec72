"""Metrics: closed labels, and counts that add up."""

from __future__ import annotations

from typing import get_args
from uuid import uuid4

from prometheus_client.parser import text_string_to_metric_families

from gateway.core.command import SettleResult
from gateway.core.decide import Forward
from gateway.core.problems import TYPES
from gateway.observe.metrics import Metrics, RequestOutcome

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(metrics: Metrics) -> Samples:
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"fencegate_{name}", frozenset(labels.items())]


def test_alarmed_series_are_there_before_they_count() -> None:
    samples = read(Metrics(["payments/capture"]))
    for outcome in get_args(RequestOutcome):
        assert value(samples, "requests_total", policy="payments/capture", outcome=outcome) == 0
    for kind in TYPES:
        assert value(samples, "problems_total", type=kind) == 0
    for result in get_args(SettleResult):
        assert value(samples, "settles_total", result=result) == 0
    assert value(samples, "duplicate_effects_suspected_total") == 0
    assert value(samples, "late_evidence_total") == 0


def test_only_loaded_policies_are_labels() -> None:
    metrics = Metrics(["payments/capture"])
    before = len(read(metrics))
    for number in range(100):
        metrics.request(f"made-up/{number}", "rejected")
    metrics.request(None, "rejected")
    metrics.request("payments/capture", "applied")
    samples = read(metrics)
    assert value(samples, "requests_total", policy="none", outcome="rejected") == 101
    assert value(samples, "requests_total", policy="payments/capture", outcome="applied") == 1
    assert len(samples) <= before + 2


def test_settles_count_late_evidence_and_duplicates() -> None:
    metrics = Metrics(["p/c"])
    results: list[SettleResult] = ["settled", "late", "already", "resolved", "duplicate"]
    for result in results:
        metrics.settled("p/c", result, 0.002)
    samples = read(metrics)
    assert value(samples, "settles_total", result="late") == 1
    assert value(samples, "late_evidence_total") == 2
    assert value(samples, "duplicate_effects_suspected_total") == 1
    assert value(samples, "settle_seconds_count", policy="p/c") == 5


def test_decisions_retries_and_durations() -> None:
    metrics = Metrics(["p/c"])
    metrics.decided("p/c", Forward(uuid4()), 0.003)
    metrics.sent("p/c", 0.2)
    metrics.store_retry("settle")
    metrics.problem("fence-stale")
    samples = read(metrics)
    assert value(samples, "decisions_total", policy="p/c", decision="Forward") == 1
    assert value(samples, "admit_seconds_sum", policy="p/c") == 0.003
    assert value(samples, "send_seconds_count", policy="p/c") == 1
    assert value(samples, "store_retries_total", operation="settle") == 1
    assert value(samples, "problems_total", type="fence-stale") == 1


def test_gauges_are_read_when_they_are_rendered() -> None:
    metrics = Metrics()
    now = {"attempts": 1.0}
    metrics.watch(
        attempts=lambda: now["attempts"],
        waiting=lambda: 2,
        key_age_s=lambda: 3.5,
        rows_lost=lambda: 4,
        cache_bytes=lambda: 5,
        cache_entries=lambda: 6,
    )
    assert value(read(metrics), "attempts_in_flight") == 1
    now["attempts"] = 9
    samples = read(metrics)
    assert value(samples, "attempts_in_flight") == 9
    assert value(samples, "waiting_callers") == 2
    assert value(samples, "key_snapshot_age_seconds") == 3.5
    assert value(samples, "rows_lost") == 4
    assert value(samples, "cache_bytes") == 5
    assert value(samples, "cache_entries") == 6


def test_two_instances_share_nothing() -> None:
    one, two = Metrics(["a/b"]), Metrics(["a/b"])
    one.request("a/b", "applied")
    assert value(read(two), "requests_total", policy="a/b", outcome="applied") == 0
