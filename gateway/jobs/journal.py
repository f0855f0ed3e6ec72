"""Who is told of everything that happens to jobs: log lines and metrics. Never payloads, results,
errors or the values of fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias
from uuid import UUID

from gateway.core.jobs import (
    Ended,
    Enqueued,
    Expired,
    Lease,
    Lost,
    LostReason,
    NewJob,
    Reaped,
    Rejected,
    Renewed,
)
from gateway.jobs.values import Asker, EndOf, Reference
from gateway.observe import log
from gateway.observe.jobmetrics import JobMetrics, Work

__all__ = ["TOLD", "Journal"]

TOLD = 10
"""Refused leases of one request that have a line each: as many as a worker runs jobs."""

Values: TypeAlias = dict[str, log.Value]

_FINISHED = frozenset({"succeeded", "failed", "cancelled"})


class Journal:
    """One method for each thing that happens."""

    def __init__(self, metrics: JobMetrics) -> None:
        self._metrics = metrics

    def enqueued(self, asker: Asker, job: NewJob, answer: Enqueued) -> None:
        if answer.created:
            _write("job_enqueued", _who(asker), {"job": str(job.id), "tool": job.tool})

    def claimed(self, asker: Asker, lease: Lease) -> None:
        """A claim repeated after a lost answer is told again: nobody knows that it was."""
        work = Work(lease.tool, lease.model, lease.provider)
        self._metrics.claimed(work, again=lease.attempt > 1)
        about: Values = {
            "job": str(lease.job),
            "entity": lease.entity,
            "fence": lease.fence,
            "tool": lease.tool,
            "attempt": lease.attempt,
            "lease_ms_left": lease.remaining_ms,
        }
        _write("job_claimed", _who(asker), about)

    def beaten(
        self, asker: Asker, leases: Sequence[Reference], answers: Sequence[Renewed | Lost]
    ) -> None:
        """One heartbeat. Of lost leases the first have a line each, the rest one together."""
        lost = _Bounded("heartbeat_lost", "heartbeats_lost", "info")
        for reference, answer in zip(leases, answers, strict=True):
            match answer:
                case Renewed(remaining_ms):
                    about = _about(reference) | {"lease_ms_left": remaining_ms}
                    _write("heartbeat_ok", _who(asker), about, level="debug")
                case Lost(reason):
                    self._metrics.renewal_failed(_work(reference), reason)
                    lost.say(asker, reference, reason)
        lost.close(asker)

    def ended(
        self, asker: Asker, ends: Sequence[EndOf], answers: Sequence[Ended | Rejected]
    ) -> None:
        """One batch of ends; rejected ones as ``beaten`` tells of lost leases."""
        rejected = _Bounded("result_rejected", "results_rejected", "warning")
        for each, answer in zip(ends, answers, strict=True):
            match answer:
                case Rejected(reason):
                    self._metrics.result_rejected(_work(each.reference))
                    rejected.say(asker, each.reference, reason)
                case Ended(state, again=False) if state in _FINISHED:
                    about = _about(each.reference) | {"state": state}
                    _write("job_finished", _who(asker), about)
                case Ended():
                    pass  # it goes on: whoever claims it next is told of
        rejected.close(asker)

    def cancelled(self, asker: Asker, job: UUID) -> None:
        _write("job_finished", _who(asker), {"job": str(job), "state": "cancelled"})

    def reaped(self, expired: Expired, reaped: Reaped) -> None:
        self._metrics.lease_expired(Work(expired.tool, expired.model, expired.provider))
        about: Values = {
            "job": str(reaped.job),
            "entity": expired.lease.entity,
            "fence": reaped.fence,
            "tool": expired.tool,
            "attempt": expired.attempts,
            "lease_ms_left": -expired.over_ms,
            "state": reaped.state,
        }
        _write("lease_expired", {"tenant_number": expired.tenant}, about)

    def given_up(self, tenant: int, job: UUID) -> None:
        _write("job_given_up", {"tenant_number": tenant}, {"job": str(job)})


class _Bounded:
    """Lines about what one request is refused. They are written while nothing else of the process
    runs, and who makes leases up may ask for 1,000 at once: the first have a line each (``one``),
    the rest a line together (``many``) with how many there are for each reason."""

    def __init__(self, one: str, many: str, level: log.Level) -> None:
        self._one, self._many, self._level = one, many, level
        self._told = 0
        self._rest = Counter[LostReason]()

    def say(self, asker: Asker, reference: Reference, reason: LostReason) -> None:
        if self._told == TOLD:
            self._rest[reason] += 1
            return
        self._told += 1
        about = _about(reference) | {"reason": reason}
        _write(self._one, _who(asker), about, level=self._level)

    def close(self, asker: Asker) -> None:
        """To be called at the end of the request."""
        if self._rest:
            counts: Values = {str(reason): count for reason, count in self._rest.items()}
            _write(self._many, _who(asker), counts, level=self._level)


def _write(name: str, who: Values, about: Values, *, level: log.Level = "info") -> None:
    log.event(name, level=level, **{**who, **about})


def _who(asker: Asker) -> Values:
    return {
        "request_id": asker.request_id,
        "tenant": asker.tenant_name,
        "principal": asker.principal,
        "worker": asker.worker,
    }


def _about(reference: Reference) -> Values:
    held = reference.held
    return {
        "job": str(held.job),
        "entity": held.entity,
        "fence": held.fence,
        "tool": reference.tool,
        "attempt": reference.attempt,
    }


def _work(reference: Reference) -> Work:
    return Work(reference.tool, reference.model, reference.provider)
