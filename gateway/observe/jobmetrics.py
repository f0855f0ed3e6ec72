"""Metrics of jobs. Their labels are closed sets as well: names that ``tools.toml`` does not list
become ``other``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.core.jobs import LeaseStats, LostReason

__all__ = ["NO_LABELS", "JobMetrics", "Labels", "Work"]

_LABELS = ("tool", "model", "provider")


@dataclass(frozen=True, slots=True)
class Labels:
    """The values that labels may have, beside ``none`` and ``other``."""

    tools: Collection[str] = ()
    models: Collection[str] = ()
    providers: Collection[str] = ()

    def of(self, work: Work) -> tuple[str, str, str]:
        return (
            _known(work.tool, self.tools),
            _known(work.model, self.models),
            _known(work.provider, self.providers),
        )


@dataclass(frozen=True, slots=True)
class Work:
    """What a job runs on, as its callers named it."""

    tool: str | None
    model: str | None
    provider: str | None


NO_LABELS = Labels()


class JobMetrics:
    """The metrics of jobs in one process's registry."""

    def __init__(self, registry: CollectorRegistry, labels: Labels) -> None:
        self._labels = labels

        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(f"fencegate_{name}", text, (*_LABELS, *more), registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"fencegate_{name}", text, _LABELS, registry=registry)

        self._claimed = counter("jobs_claimed", "Leases handed out over HTTP.")
        self._reclaimed = counter(
            "jobs_reclaimed", "Of those, leases of a second or later attempt."
        )
        self._expired = counter("leases_expired", "Leases that ran out, recorded by this process.")
        self._failed = counter("renewals_failed", "Heartbeats that were refused.", "reason")
        self._rejected = counter("results_rejected", "Ends of leases that were over.")
        self._live = gauge("leases_live", "Leases that are not over, of the whole deployment.")
        self._beat = gauge("heartbeat_age_seconds", "Age of the oldest last heartbeat of a lease.")
        self._remaining = gauge(
            "lease_remaining_seconds", "Least that remains of a lease; below 0: not yet reaped."
        )
        self._show_zeros()

    def claimed(self, work: Work, *, again: bool) -> None:
        """One lease was handed out; ``again``: not the job's first."""
        labels = self._labels.of(work)
        self._claimed.labels(*labels).inc()
        if again:
            self._reclaimed.labels(*labels).inc()

    def lease_expired(self, work: Work) -> None:
        """One lease's running out was recorded."""
        self._expired.labels(*self._labels.of(work)).inc()

    def renewal_failed(self, work: Work, reason: LostReason) -> None:
        """One heartbeat was refused."""
        self._failed.labels(*self._labels.of(work), reason).inc()

    def result_rejected(self, work: Work) -> None:
        """One end came when its lease was over."""
        self._rejected.labels(*self._labels.of(work)).inc()

    def leases(self, found: Sequence[LeaseStats]) -> None:
        """What leases there are now, in place of what was said before. Nothing is said of work
        that has none."""
        for gauge in (self._live, self._beat, self._remaining):
            gauge.clear()
        merged: dict[tuple[str, str, str], tuple[int, float, float]] = {}
        for each in found:
            labels = self._labels.of(Work(each.tool, each.model, each.provider))
            live, beat_s, remaining_s = merged.get(labels, (0, each.beat_s, each.remaining_s))
            merged[labels] = (
                live + each.live,
                max(beat_s, each.beat_s),
                min(remaining_s, each.remaining_s),
            )
        for tool in self._labels.tools:
            self._live.labels(tool, _NONE, _NONE).set(0)
        for labels, (live, beat_s, remaining_s) in merged.items():
            self._live.labels(*labels).set(live)
            self._beat.labels(*labels).set(beat_s)
            self._remaining.labels(*labels).set(remaining_s)

    def _show_zeros(self) -> None:
        """Series that an alarm watches must be there before they first count: those of each tool
        whose jobs name neither model nor provider. With them it would be their product."""
        for tool in self._labels.tools:
            labels = (tool, _NONE, _NONE)
            for counter in (self._claimed, self._reclaimed, self._expired, self._rejected):
                counter.labels(*labels)
            for reason in get_args(LostReason):
                self._failed.labels(*labels, reason)


_NONE = "none"


def _known(name: str | None, known: Collection[str]) -> str:
    if name is None:
        return _NONE
    return name if name in known else "other"
