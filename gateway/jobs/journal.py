"""Who is told of everything that happens to jobs: log lines and metrics. Never payloads, results,
errors or the values of fields."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from gateway.core.jobs import (
    Ended,
    Enqueued,
    Expired,
    Lease,
    Lost,
    NewJob,
    Reaped,
    Rejected,
    Renewed,
)
from gateway.jobs.values import Asker, EndOf, Reference
from gateway.observe import log
from gateway.observe.jobmetrics import JobMetrics, Work

__all__ = ["Journal"]

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

    def beaten(self, asker: Asker, reference: Reference, answer: Renewed | Lost) -> None:
        about = _about(reference)
        match answer:
            case Renewed(remaining_ms):
                about |= {"lease_ms_left": remaining_ms}
                _write("heartbeat_ok", _who(asker), about, level="debug")
            case Lost(reason):
                self._metrics.renewal_failed(_work(reference), reason)
                _write("heartbeat_lost", _who(asker), about | {"reason": reason})

    def ended(self, asker: Asker, each: EndOf, answer: Ended | Rejected) -> None:
        about = _about(each.reference)
        match answer:
            case Rejected(reason):
                self._metrics.result_rejected(_work(each.reference))
                about |= {"reason": reason}
                _write("result_rejected", _who(asker), about, level="warning")
            case Ended(state, again=False) if state in _FINISHED:
                _write("job_finished", _who(asker), about | {"state": state})
            case Ended():
                pass  # it goes on: whoever claims it next is told of

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
