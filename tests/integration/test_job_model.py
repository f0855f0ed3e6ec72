"""Random work on the real SQL, with a clock that is moved by hand: what must hold after every step.

Workers claim, beat, end, fall silent and come back; the clock jumps in both directions; two steps
may meet, the first not yet committed. At the end of each run everything is worked off, which shows
that no job was lost on the way.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from gateway.core.jobs import (
    Complete,
    End,
    Ended,
    Fail,
    HandBack,
    Lease,
    NextStage,
    Rejected,
    Renewed,
)
from gateway.store.jobs import JobStore
from tests.integration.test_store_model import OneConnection
from tests.kit.db import Server
from tests.kit.jobs import LEASE_MS, TOTAL_MS, Yard, behind_nothing, sibling, terms, yard

ATTEMPTS = 3
MAX_RUNNING = 3
MAX_PER_USER = 2
TERMS = [
    terms("plain", attempts=ATTEMPTS),
    terms("limited", attempts=ATTEMPTS, max_running=MAX_RUNNING, max_per_user=MAX_PER_USER),
]

JOB = st.fixed_dictionaries(
    {
        "tool": st.sampled_from(["plain", "limited", "limited"]),
        "entity": st.sampled_from([None, "e1", "e1", "e2"]),
        "on_behalf": st.sampled_from([None, "u1", "u1", "u2"]),
        "priority": st.sampled_from([1, 5, 9]),
        "run_in": st.sampled_from([0, 0, 0, 5_000, 90_000]),
        "give_up_in": st.sampled_from([None, None, 30_000, 300_000]),
    }
)
JOBS = st.lists(JOB, min_size=1, max_size=6)
PICK = st.integers(0, 30)
STAGE = st.sampled_from(
    [None, None, NextStage("n"), NextStage("n", "e1"), NextStage("n", "e2", True)]
)
DELAY_MS = st.sampled_from([0, 0, 1_000, 100_000])
JUMP_MS = st.sampled_from([1, 1_000, LEASE_MS - 1, LEASE_MS, TOTAL_MS, -1_000, -LEASE_MS])
END = st.one_of(
    st.tuples(st.just("complete"), PICK, STAGE),
    st.tuples(st.just("fail"), PICK, st.booleans(), DELAY_MS),
    st.tuples(st.just("hand_back"), PICK, DELAY_MS),
)
STEP = st.one_of(
    st.tuples(st.just("enqueue"), JOBS),
    st.tuples(st.just("claim"), st.integers(1, 6)),
    st.tuples(st.just("beat"), PICK),
    END,
    st.tuples(st.just("reap"), DELAY_MS),
    st.tuples(st.just("give_up")),
    st.tuples(st.just("cancel"), PICK),
    st.tuples(st.just("approve"), PICK),
    st.tuples(st.just("retry"), PICK),
)

Work = Callable[[JobStore], Coroutine[Any, Any, Any]]

TABLES = "select " + ", ".join(
    f"(select coalesce(array_agg(r), '{{}}') from gateway.{table} r where r.tenant = $1) as {table}"
    for table in ("jobs", "job_leases", "job_history", "entities", "job_runs")
)


class JobMachine(RuleBasedStateMachine):
    """``ground`` is set by whoever runs it."""

    ground: ClassVar[Yard]

    def __init__(self) -> None:
        super().__init__()
        self.yard = sibling(self.ground)
        self.jobs: list[UUID] = []
        self.leases: list[Lease] = []
        self.marks: dict[str, int] = {}
        self.granted: dict[str, int] = defaultdict(int)
        self.done: set[UUID] = set()
        self.runs = 0

    # Steps.

    @initialize(about=st.lists(JOB, min_size=8, max_size=16), limit=st.integers(1, 4))
    def there_is_work_and_somebody_at_it(self, about: list[dict[str, Any]], limit: int) -> None:
        self.one(("enqueue", about))
        self.one(("claim", limit))

    def one(self, step: tuple[Any, ...]) -> None:
        work = self._work(*step)
        if work is not None:
            answer = self.yard.run(work(self.yard.store))
            self._note(step, answer)

    @rule(about=JOBS, limit=st.integers(1, 6))
    def more_work_is_claimed(self, about: list[dict[str, Any]], limit: int) -> None:
        self.one(("enqueue", about))
        self.one(("claim", limit))

    @rule(limit=st.integers(1, 6))
    def more_is_claimed(self, limit: int) -> None:
        self.one(("claim", limit))

    @rule(delay_ms=DELAY_MS)
    def all_fall_silent_and_are_reaped(self, delay_ms: int) -> None:
        self.yard.advance(LEASE_MS)
        self.one(("reap", delay_ms))

    @rule(by_ms=JUMP_MS)
    def what_is_overdue_is_given_up(self, by_ms: int) -> None:
        self.yard.advance(by_ms)
        self.one(("give_up",))

    @rule(name=st.sampled_from(["cancel", "cancel", "approve", "retry"]), pick=PICK)
    def an_operator_decides(self, name: str, pick: int) -> None:
        self.one((name, pick))

    @precondition(lambda self: self.leases)
    @rule(ends=st.lists(END, min_size=2, max_size=5))
    def some_come_to_their_ends(self, ends: list[tuple[Any, ...]]) -> None:
        for end in ends:
            self.one(end)

    @precondition(lambda self: self.leases)
    @rule(end=END)
    def end_is_accepted_exactly_while_the_lease_lasts(self, end: tuple[Any, ...]) -> None:
        sent = self._end(*end)
        lasts = self._lasts(sent.lease)
        (answer,) = self.yard.end(sent)
        if lasts:
            assert isinstance(answer, Ended)
            assert not answer.again
            assert self.yard.end(sent) == [Ended(answer.state, again=True)]
        else:
            assert isinstance(answer, Rejected) or answer.again

    @precondition(lambda self: self.leases)
    @rule(pick=PICK)
    def a_beat_is_answered_by_what_remains_exactly_while_the_lease_lasts(self, pick: int) -> None:
        lease = self.leases[-1 - pick % len(self.leases)]
        lasts = self._lasts(lease.held)
        answer = self.yard.beat(lease)
        assert isinstance(answer, Renewed) == lasts
        if isinstance(answer, Renewed):
            assert 0 < answer.remaining_ms <= LEASE_MS
            assert answer.remaining_ms <= answer.total_remaining_ms

    @rule(limit=st.integers(1, 4))
    def a_repeated_claim_returns_the_same(self, limit: int) -> None:
        wish = uuid4()
        first = self.yard.claim(limit, *TERMS, claim=wish)
        self._granted(first)
        again = self.yard.claim(limit, *TERMS, claim=wish)
        if first:
            assert again == first
        else:
            self._granted(again)

    @rule(by_ms=JUMP_MS)
    def the_clock_jumps(self, by_ms: int) -> None:
        self.yard.advance(by_ms)

    @rule(first=STEP, second=STEP, commit=st.booleans())
    def any_two_steps_meet(
        self, first: tuple[Any, ...], second: tuple[Any, ...], commit: bool
    ) -> None:
        self.two_steps_meet(first, second, commit)

    def two_steps_meet(self, first: tuple[Any, ...], second: tuple[Any, ...], commit: bool) -> None:
        one, other = self._work(*first), self._work(*second)
        if one is not None and other is not None:
            answers = self.yard.run(self._at_once(one, other, commit))
            for step, answer in zip((first, second), answers, strict=True):
                self._note(step, answer)

    @precondition(lambda self: self.leases)
    @rule(
        end=END,
        other=st.one_of(
            st.tuples(st.just("claim"), st.integers(1, 6)),
            st.tuples(st.just("cancel"), PICK),
            st.tuples(st.just("give_up")),
            END,
        ),
        turned=st.booleans(),
    )
    def an_end_meets_another_step(
        self, end: tuple[Any, ...], other: tuple[Any, ...], turned: bool
    ) -> None:
        pair = (other, end) if turned else (end, other)
        self.two_steps_meet(*pair, commit=True)

    async def _at_once(self, one: Work, other: Work, commit: bool) -> tuple[Any, Any]:
        blocked = (
            "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))"
        )
        holder = await asyncpg.connect(self.yard.dsn)
        try:
            transaction = holder.transaction()
            await transaction.start()
            answer = await one(JobStore(OneConnection(holder)))  # type: ignore[arg-type]
            task = asyncio.ensure_future(other(self.yard.store))
            while not task.done():
                if await self.yard.watch.fetchval(blocked, holder.get_server_pid()):
                    break
            await (transaction.commit() if commit else transaction.rollback())
            return answer if commit else None, await task
        finally:
            await holder.close()

    # Making steps.

    def _work(self, name: str, *drawn: Any) -> Work | None:
        tenant = self.yard.tenant
        match name:
            case "enqueue":
                batch = [self._new(about) for about in drawn[0]]
                return lambda store: store.enqueue(tenant, batch)
            case "claim":
                wish = uuid4()
                return lambda store: store.claim(tenant, drawn[0], "w", wish, TERMS)
            case "reap":
                return lambda store: self._reap(store, drawn[0])
            case "give_up":
                return lambda store: store.give_up(1_000)
            case "beat" | "complete" | "fail" | "hand_back":
                return self._of_lease(name, *drawn) if self.leases else None
            case _:
                return self._of_job(name, drawn[0]) if self.jobs else None

    def _of_lease(self, name: str, pick: int, *drawn: Any) -> Work:
        tenant = self.yard.tenant
        if name == "beat":
            held = self.leases[-1 - pick % len(self.leases)].held
            return lambda store: store.renew(tenant, [held])
        end = self._end(name, pick, *drawn)
        return lambda store: store.end(tenant, "w", [end])

    def _of_job(self, name: str, pick: int) -> Work:
        tenant, job = self.yard.tenant, self.jobs[-1 - pick % len(self.jobs)]
        return lambda store: getattr(store, name)(tenant, job, "operator:o", "because")

    def _end(self, name: str, pick: int, *drawn: Any) -> End:
        held = self.leases[-1 - pick % len(self.leases)].held
        match name:
            case "complete":
                return Complete(held, uuid4().bytes, drawn[0])
            case "fail":
                return Fail(held, uuid4().hex, drawn[0], drawn[1])
            case _:
                return HandBack(held, drawn[0])

    def _new(self, about: dict[str, Any]) -> Any:
        rest = {name: value for name, value in about.items() if not name.endswith("_in")}
        now, give_up = self.yard.now(), about["give_up_in"]
        return self.yard.new(
            run_at=now + timedelta(milliseconds=about["run_in"]),
            give_up_at=None if give_up is None else now + timedelta(milliseconds=give_up),
            **rest,
        )

    async def _reap(self, store: JobStore, delay_ms: int) -> Any:
        found = [e for e in await store.expired(1_000) if e.tenant == self.yard.tenant]
        return await store.reap([(each, delay_ms) for each in found])

    # What came of them.

    def _note(self, step: tuple[Any, ...], answer: Any) -> None:
        if step[0] == "enqueue" and answer is not None:
            self.jobs += [each.job for each in answer]
        if step[0] == "claim" and answer is not None:
            self._granted(answer)

    def _granted(self, leases: list[Lease]) -> None:
        for lease in leases:
            assert lease.fence > self.granted[lease.entity], "fences strictly rise"
            self.granted[lease.entity] = lease.fence
            assert 1 <= lease.attempt <= ATTEMPTS, "none is started after exhaustion"
            assert lease.give_up_ms is None or lease.give_up_ms > 0, "nor after give_up_at"
            assert (lease.remaining_ms, lease.total_remaining_ms) == (LEASE_MS, TOTAL_MS)
        self.leases += leases

    def _lasts(self, held: Any) -> bool:
        (row,) = self.yard.sql(
            "select exists (select from gateway.job_leases where tenant = $1 and entity = $2"
            " and job = $3 and fence = $4 and lease_until > gateway.clock()) as it",
            *(self.yard.tenant, held.entity, held.job, held.fence),
        )
        return bool(row["it"])

    # What holds.

    @invariant()
    def everything_holds(self) -> None:
        (row,) = self.yard.sql(TABLES, self.yard.tenant)
        self._no_job_is_lost(row)
        self._leases_fit_their_jobs(row)
        self._limits_hold(row)
        self._counters_only_rise(row)
        assert self.yard.run(behind_nothing(self.yard.watch)) == []
        assert len(row["job_runs"]) >= self.runs, "runs are never forgotten"
        self.runs = len(row["job_runs"])

    def _no_job_is_lost(self, row: asyncpg.Record) -> None:
        there = [job["id"] for job in row["jobs"]] + [job["id"] for job in row["job_history"]]
        assert sorted(there) == sorted(self.jobs)
        succeeded = {job["id"] for job in row["job_history"] if job["state"] == "succeeded"}
        assert succeeded >= self.done, "what succeeded once stays so"
        self.done = succeeded

    def _leases_fit_their_jobs(self, row: asyncpg.Record) -> None:
        running = {(j["id"], j["entity"]) for j in row["jobs"] if j["state"] == "running"}
        assert {(lease["job"], lease["entity"]) for lease in row["job_leases"]} == running
        assert len(row["job_leases"]) == len(running)
        held = {e["entity"]: (e["fence"], e["held"]) for e in row["entities"]}
        for lease in row["job_leases"]:
            assert held.pop(lease["entity"]) == (lease["fence"], lease["fence"])
        for entity, (fence, nobody) in held.items():
            assert nobody == 0
            assert fence > self.granted[entity], "every end raises the counter"

    def _limits_hold(self, row: asyncpg.Record) -> None:
        limited = [lease for lease in row["job_leases"] if lease["tool"] == "limited"]
        assert len(limited) <= MAX_RUNNING
        for user in ("u1", "u2"):
            assert sum(lease["on_behalf"] == user for lease in limited) <= MAX_PER_USER

    def _counters_only_rise(self, row: asyncpg.Record) -> None:
        for entity in row["entities"]:
            assert entity["fence"] >= self.marks.get(entity["entity"], 0)
            self.marks[entity["entity"]] = entity["fence"]

    def teardown(self) -> None:
        """Work everything off: a job that nobody can ever claim again would stay."""
        jobs = self.yard
        for job in self.jobs:
            jobs.run(jobs.store.approve(jobs.tenant, job, "operator:o", "go on"))
        for _ in range(len(self.jobs) + 5):
            jobs.advance(TOTAL_MS)
            jobs.reap()
            jobs.run(jobs.store.give_up(1_000))
            for lease in jobs.claim(50, *TERMS):
                jobs.complete(lease)
            if not jobs.sql("select from gateway.jobs where tenant = $1", jobs.tenant):
                return
        left = jobs.sql("select id, state from gateway.jobs where tenant = $1", jobs.tenant)
        raise AssertionError(f"never served: {left}")


STEPS = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def ground(postgres: Server) -> Iterator[Yard]:
    with yard(postgres) as made:
        yield made


def test_whatever_workers_and_clocks_do_every_promise_about_jobs_holds(ground: Yard) -> None:
    bound = type("Bound", (JobMachine,), {"ground": ground})
    run_machine(bound, settings=STEPS)
