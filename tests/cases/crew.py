"""Steps that are no HTTP commands: workers and operators at the jobs of one case.

The store is the real one, on a clock that stands still until a step says ``at_s``, counted from the
beginning of the case. Beside it a gateway runs, whose reaper may reap first.

- ``enqueue``: a job under a name; ``key``, ``entity``, ``payload``, ``session``, ``on_behalf``,
  ``priority`` as in ``NewJob``; ``run_in_s``, ``give_up_in_s`` from then on
- ``worker`` with ``do``: ``claim`` (``lease_s``, ``total_s``, ``attempts``; ``jobs`` at most),
  ``heartbeat``, ``complete``, ``fail``, ``hand back``; the lease is that of the worker's last
  claim, or that of the claim ``of``
- ``behind``: another session holds the row of that table for ``for_s``, and the step waits for
  it; ``since_s``: the step runs in a transaction that began then
- ``clock_s``: the worker's host is so far ahead of the database; ``dies``: ``kill -9`` behind it
- ``operator``: ``cancel``, ``cancel session``, ``retry``; ``reap``; ``forget finished``; ``sql``
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from gateway.core.jobs import (
    Cancelled,
    Complete,
    End,
    Ended,
    Fail,
    Finished,
    HandBack,
    Held,
    NewJob,
    Renewed,
    Terms,
)
from gateway.store.jobs import JobStore
from tests.cases.elsewhere import ask
from tests.integration.test_store_model import OneConnection
from tests.kit.db import execute, with_connection
from tests.kit.faults import until, wait_for_lock_waits
from tests.kit.gateway import rows
from tests.kit.operating import ROOT, on

__all__ = ["Crew"]

Step = Mapping[str, Any]

_TOOL = "t"
_LOCKED = {
    "lease": "select from gateway.job_leases where tenant = {} for update",
    "entity": "select from gateway.entities where tenant = {} for update",
}
_CALLED = {"heartbeat": "renew_leases", "complete": "end_leases", "claim": "claim_jobs"}


@dataclass
class Crew:
    """The jobs of one case, and what workers were told: by label, in words."""

    dsn: str
    tenant: int
    env: Mapping[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, UUID] = field(default_factory=dict)
    leases: dict[str, list[Held]] = field(default_factory=dict)
    """By label of the claim, and by worker: its last."""

    def __post_init__(self) -> None:
        self._began = self._now()
        self._at_s = 0.0

    def step(self, step: Step) -> None:
        """Do it, and remember what was answered."""
        if "since_s" in step:
            with self._transaction_since(step["since_s"]) as store:
                self._until(step["at_s"])
                said = self._worker(step, store)
        else:
            self._until(step.get("at_s", self._at_s))
            said = self._said(step)
        if "label" in step:
            self.answers[step["label"]] = said

    def fence(self, label: str) -> int:
        """That of a claim."""
        return self.leases[label][0].fence

    # What there is at the end.

    def state(self, name: str) -> str:
        found = self._on(lambda store: store.find(self.tenant, self.jobs[name]))
        return "forgotten" if found is None else str(found.job.state)

    def result(self, name: str) -> str:
        found = self._on(lambda store: store.find(self.tenant, self.jobs[name]))
        return "" if found.result is None else str(found.result.decode())

    def runs(self, name: str) -> list[str]:
        sql = "select how from gateway.job_runs where tenant = $1 and job = $2 order by fence"
        return [row["how"] for row in rows(self.dsn, sql, self.tenant, self.jobs[name])]

    # Time.

    def _now(self) -> datetime:
        (row,) = rows(self.dsn, "select at from gateway.manual_clock")
        found: datetime = row["at"]
        return found

    def _until(self, at_s: float) -> None:
        """Backwards too, if a case says so."""
        by = self._began + timedelta(seconds=at_s) - self._now()
        if at_s != self._at_s:
            execute(self.dsn, f"update gateway.manual_clock set at = at + interval '{by}'")
            self._at_s = at_s

    # Steps.

    def _said(self, step: Step) -> str:
        if "enqueue" in step:
            return self._enqueue(step["enqueue"])
        if "operator" in step:
            return self._operator(step)
        if "reap" in step:
            return self._reap()
        if "sql" in step:
            execute(self.dsn, step["sql"].replace("$1", str(self.tenant)))
            return "done"
        if "behind" in step:
            return self._behind_a_lock(step)
        if "clock_s" in step or "dies" in step:
            return self._elsewhere(step)
        return self._worker(step)

    def _enqueue(self, wanted: Step) -> str:
        about = dict(wanted)
        name = about.pop("job")
        job = uuid4()
        for ours, theirs in (("run_in_s", "run_at"), ("give_up_in_s", "give_up_at")):
            if ours in about:
                about[theirs] = self._now() + timedelta(seconds=about.pop(ours))
        given = {"key": str(job), "payload": "{}", **about}
        given["payload"] = given["payload"].encode()
        (done,) = self._on(
            lambda store: store.enqueue(self.tenant, [NewJob(id=job, tool=_TOOL, **given)])
        )
        self.jobs.setdefault(name, done.job)
        if done.created:
            return "created"
        return f"known as {self._name(done.job)}"

    def _worker(self, step: Step, store: JobStore | None = None) -> str:
        if step["do"] == "claim":
            return self._claim(step)
        if step["do"] == "heartbeat":
            (renewed,) = self._on(lambda s: s.renew(self.tenant, [self._lease(step)]), store)
            if isinstance(renewed, Renewed):
                return f"held {renewed.remaining_ms}"
            return f"lost: {renewed.reason}"
        (ended,) = self._on(lambda s: s.end(self.tenant, step["worker"], [self._end(step)]), store)
        if isinstance(ended, Ended):
            return f"{ended.state} again" if ended.again else str(ended.state)
        return f"rejected: {ended.reason}"

    def _claim(self, step: Step) -> str:
        found = self._on(
            lambda store: store.claim(
                self.tenant, step.get("jobs", 100), step["worker"], uuid4(), [_terms(step)]
            )
        )
        return self._took(step, [lease.held for lease in found])

    def _took(self, step: Step, taken: list[Held]) -> str:
        if taken:
            self.leases[step["worker"]] = taken
        self.leases[step.get("label", "")] = taken
        return ", ".join(f"{self._name(each.job)} {each.fence}" for each in taken) or "none"

    def _lease(self, step: Step) -> Held:
        held = self.leases[step.get("of", step["worker"])][0]
        return Held(held.entity, held.job, held.fence + step.get("fence_off_by", 0))

    def _end(self, step: Step) -> End:
        lease = self._lease(step)
        match step["do"]:
            case "complete":
                return Complete(lease, step.get("result", '"done"').encode())
            case "fail":
                delay_ms = int(step.get("delay_s", 0) * 1000)
                return Fail(lease, "broken", step.get("retry", True), delay_ms)
            case "hand back":
                return HandBack(lease)
            case other:
                raise AssertionError(f"no worker does {other!r}")

    def _operator(self, step: Step) -> str:
        job = self.jobs.get(step.get("job", ""))
        match step["operator"]:
            case "cancel":
                done = self._on(lambda s: s.cancel(self.tenant, job, "operator:ann", "wrong"))
                match done:
                    case Cancelled():
                        return "cancelled"
                    case Finished(state):
                        return f"finished: {state}"
                    case _:
                        return "missing"
            case "cancel session":
                found = self._on(lambda s: s.of_session(self.tenant, step["session"]))
                for each in found:
                    self._on(lambda s, j=each: s.cancel(self.tenant, j, "operator:ann", "wrong"))
                return f"{len(found)} cancelled"
            case _:
                done = self._on(lambda s: s.retry(self.tenant, job, "operator:ann", "again"))
                return "queued" if done else "refused"

    def _reap(self) -> str:
        """Until nobody's lease is over: the gateway's own reaper may hold some of them."""
        over = "select from gateway.job_leases where tenant = $1 and lease_until <= gateway.clock()"

        async def work(store: JobStore) -> None:
            found = [each for each in await store.expired(1000) if each.tenant == self.tenant]
            await store.reap([(each, 0) for each in found])
            await store.give_up(1000)

        def done() -> bool:
            self._on(work)
            return not rows(self.dsn, over, self.tenant)

        until(done, "leases that are over are reaped")
        return "done"

    def _behind_a_lock(self, step: Step) -> str:
        said: list[str] = []
        asks = threading.Thread(target=lambda: said.append(self._worker(step)))
        with self.locked(_LOCKED[step["behind"]].format(self.tenant)):
            asks.start()
            wait_for_lock_waits(self.dsn, 1, _CALLED[step["do"]])
            self._until(self._at_s + step["for_s"])
        asks.join(30)
        return said[0]

    def _elsewhere(self, step: Step) -> str:
        what: dict[str, Any] = {
            "dsn": self.dsn,
            "tenant": self.tenant,
            "do": step["do"],
            "owner": step["worker"],
            "clock_s": step.get("clock_s", 0),
            "claim": str(uuid4()),
            "terms": [_columns(_terms(step))],
        }
        if step["do"] == "heartbeat":
            lease = self._lease(step)
            what["lease"] = [lease.entity, str(lease.job), lease.fence]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **self.env}
        said = ask(what, environment, dies=step.get("dies", False))
        if step["do"] == "heartbeat":
            return str(said)
        return self._took(step, [Held(entity, UUID(job), fence) for entity, job, fence in said])

    # The database.

    def _name(self, job: UUID) -> str:
        return next(name for name, each in self.jobs.items() if each == job)

    def _on(self, work: Callable[[JobStore], Any], store: JobStore | None = None) -> Any:
        if store is not None:
            return self._inside.run(work(store))

        async def run(database: Any) -> Any:
            return await work(JobStore(database))

        return on(self.dsn, run)

    @contextlib.contextmanager
    def _transaction_since(self, at_s: float) -> Iterator[JobStore]:
        """A store within one transaction, whose ``now()`` stands still from here on."""
        import asyncpg

        self._until(at_s)
        with asyncio.Runner() as self._inside:
            connection = self._inside.run(asyncpg.connect(self.dsn))
            self._inside.run(connection.execute("begin; select now()"))
            yield JobStore(OneConnection(connection))  # type: ignore[arg-type]
            self._inside.run(connection.execute("commit"))
            self._inside.run(connection.close())

    @contextlib.contextmanager
    def locked(self, sql: str) -> Iterator[None]:
        """Another session holds what ``sql`` locks until the block ends."""
        locked, done = threading.Event(), threading.Event()

        async def hold(connection: Any) -> None:
            async with connection.transaction():
                await connection.fetch(sql)
                locked.set()
                await asyncio.to_thread(done.wait)

        thread = threading.Thread(target=with_connection, args=(self.dsn, hold), daemon=True)
        thread.start()
        try:
            assert locked.wait(10), "the lock was not taken"
            yield
        finally:
            done.set()
            thread.join(10)


def _terms(step: Step) -> Terms:
    lease_ms = int(step.get("lease_s", 60) * 1000)
    total_ms = int(step.get("total_s", 3600) * 1000)
    return Terms(_TOOL, lease_ms, total_ms, step.get("attempts", 3), None, None)


def _columns(terms: Terms) -> list[Any]:
    return [getattr(terms, name) for name in Terms.__slots__]
