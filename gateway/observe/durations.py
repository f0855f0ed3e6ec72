"""Durations by policy, counted in buckets: a histogram to Prometheus.

The client library's own looks its labels up and takes a lock for the sum and for the bucket at each
observation, 4 µs, and a command has three. Here one loop counts, and nothing is written down before
somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

__all__ = ["Durations"]


class Durations(Collector):
    """One metric of all policies. ``buckets``: their upper bounds in seconds, rising."""

    def __init__(self, name: str, text: str, buckets: tuple[float, ...]) -> None:
        self._name = name
        self._text = text
        self._buckets = buckets
        self._names = [*(str(float(bound)) for bound in buckets), "+Inf"]
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, policy: str, seconds: float) -> None:
        """One more."""
        counts = self._counts.get(policy)
        if counts is None:
            counts = self._counts[policy] = [0] * len(self._names)
            self._sums[policy] = 0.0
        counts[bisect_left(self._buckets, seconds)] += 1
        self._sums[policy] += seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=["policy"])
        for policy, counts in self._counts.items():
            buckets = list(zip(self._names, accumulate(counts), strict=True))
            family.add_metric([policy], buckets, self._sums[policy])
        yield family
