"""Metrics of a worker process, in a registry of their own. No label takes a value from a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

__all__ = ["Ages", "Done", "Metrics", "Missed"]

Done = Literal["completed", "failed", "handed-back", "rejected", "lost"]

Missed = Literal["expired", "taken", "cancelled", "ended", "stage-limit", "no-answer"]

Ages = Callable[[], tuple[int, float, float]]
"""How many leases there are; the greatest age of a last confirmation, and the least trusted time
that is left, in seconds (0 where there is none)."""


class Metrics:
    """See the module. ``ages``: asked at each scrape."""

    def __init__(self, ages: Ages) -> None:
        self.registry = CollectorRegistry()
        self._missed = Counter(
            "fencegate_worker_renewals_failed",
            "Heartbeats that confirmed nothing, by reason; one for each lease.",
            ["reason"],
            registry=self.registry,
        )
        self._done = Counter(
            "fencegate_worker_jobs_done",
            "Handlers that are out, by how their lease ended.",
            ["how"],
            registry=self.registry,
        )
        self.registry.register(_Gauges(ages))

    def missed(self, reason: Missed) -> None:
        self._missed.labels(reason).inc()

    def done(self, how: Done) -> None:
        self._done.labels(how).inc()

    def serve(self, port: int) -> None:
        """Serve them on loopback; raises ``OSError`` where the port is taken."""
        start_http_server(port, "127.0.0.1", self.registry)


class _Gauges(Collector):
    def __init__(self, ages: Ages) -> None:
        self._ages = ages

    def collect(self) -> Iterator[GaugeMetricFamily]:
        leases, age_s, left_s = self._ages()
        for name, text, value in (
            ("jobs_running", "Jobs that have a lease here.", leases),
            ("heartbeat_age_seconds", "Greatest age of a lease's last confirmation.", age_s),
            ("lease_remaining_seconds", "Least time for which a lease is still trusted.", left_s),
        ):
            yield GaugeMetricFamily(f"fencegate_worker_{name}", text, value=value)
