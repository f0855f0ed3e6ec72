"""What the store of jobs promises, on the real database with a clock that is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from gateway.core.jobs import (
    PAYLOAD_LIMIT,
    Cancelled,
    Complete,
    Ended,
    Fail,
    Finished,
    HandBack,
    Held,
    LeaseStats,
    Lost,
    NextStage,
    Reaped,
    Rejected,
    Renewed,
)
from tests.kit.db import Server
from tests.kit.jobs import LEASE_MS, TOTAL_MS, Yard, sibling, terms, yard


@pytest.fixture(scope="module")
def opened(postgres: Server) -> Iterator[Yard]:
    with yard(postgres) as made:
        yield made


@pytest.fixture
def jobs(opened: Yard) -> Yard:
    """A tenant of its own for each test."""
    return sibling(opened)


# Enqueue.


def test_a_job_is_enqueued_and_claimed_with_all_it_carries(jobs: Yard) -> None:
    about = {
        "session": "s1",
        "on_behalf": "user:7",
        "model": "m",
        "provider": "p",
        "stage": "case",
        "entity": "customer:1",
        "payload": b'{"n": 1.0}',
    }
    job = jobs.add("k", **about)
    lease = jobs.one(owner="w9")
    assert (lease.job, lease.key, lease.tool, lease.attempt) == (job, "k", "t", 1)
    assert {name: getattr(lease, name) for name in about} == about
    assert (lease.remaining_ms, lease.total_remaining_ms) == (LEASE_MS, TOTAL_MS)
    assert (lease.stage_no, lease.previous, lease.give_up_ms) == (1, None, None)
    found = jobs.run(jobs.store.find(jobs.tenant, job))
    assert found is not None
    assert (found.job.state, found.job.owner, found.job.beat_ms) == ("running", "w9", 0)


def test_a_second_enqueue_returns_the_first_job_and_what_became_of_it(jobs: Yard) -> None:
    """QUEUE-06: the key outlives the job's move to the history."""
    first = jobs.new("k", payload=b'"a"')
    assert jobs.enqueue(first)[0].created
    (again,) = jobs.enqueue(jobs.new("k", payload=b'"a"'))
    assert (again.job, again.created, again.same, again.state) == (first.id, False, True, "queued")
    (other,) = jobs.enqueue(jobs.new("k", payload=b'"b"'))
    assert (other.job, other.same) == (first.id, False)
    jobs.complete(jobs.one(), b'"done"')
    (late,) = jobs.enqueue(jobs.new("k", payload=b'"a"'))
    assert (late.job, late.created, late.state) == (first.id, False, "succeeded")
    assert (late.result, late.same) == (b'"done"', True)
    assert jobs.claim() == []


def test_a_key_whose_job_is_forgotten_says_so_and_makes_none(jobs: Yard) -> None:
    wish = jobs.new("k")
    jobs.enqueue(wish)
    jobs.complete(jobs.one())
    jobs.sql("delete from gateway.job_history where id = $1", wish.id)
    for each in (wish, jobs.new("k")):  # also under the first one's id
        (said,) = jobs.enqueue(each)
        assert (said.job, said.created, said.same, said.state) == (
            *(wish.id, False, False),
            "forgotten",
        )
    assert jobs.claim() == []


def test_an_enqueue_repeated_after_a_lost_answer_is_its_own(jobs: Yard) -> None:
    batch = [jobs.new(), jobs.new()]
    assert [each.created for each in jobs.enqueue(*batch)] == [True, True]
    assert [each.created for each in jobs.enqueue(*batch)] == [True, True]
    jobs.complete(jobs.one())
    assert [each.created for each in jobs.enqueue(*batch)] == [True, True]
    assert len(jobs.claim(10)) == 1


def test_a_key_twice_in_one_batch_is_one_job(jobs: Yard) -> None:
    first, second = jobs.new("k"), jobs.new("k")
    done = jobs.enqueue(first, second)
    assert [(each.job, each.created) for each in done] == [(first.id, True), (first.id, False)]


@pytest.mark.parametrize("finished", [False, True])
def test_an_id_of_a_job_with_another_key_is_refused_and_nothing_is_kept(
    jobs: Yard, finished: bool
) -> None:
    """Else two jobs of one id would come to the history, and the second could never end."""
    job = jobs.add("k")
    if finished:
        jobs.complete(jobs.one())
    beside = jobs.new("beside")
    again = [jobs.new("k", id=job), jobs.new("k2", id=job)]
    assert [each.created for each in jobs.enqueue(again[0])] == [True]
    with pytest.raises(ValueError, match="another key"):
        jobs.enqueue(beside, again[1])
    kept = "select key from gateway.job_keys where tenant = $1"
    assert [row["key"] for row in jobs.sql(kept, jobs.tenant)] == ["k"]
    (other,) = sibling(jobs).enqueue(again[1])
    assert other.created


def test_a_job_of_that_id_that_moves_meanwhile_is_seen(jobs: Yard) -> None:
    """Its finishing is committed while the second enqueue waits for it."""
    job = jobs.add("k")
    lease = jobs.one()
    locks = jobs.watch.transaction()
    jobs.run(locks.start())
    jobs.sql("select from gateway.entities where entity = $1 for update", lease.entity)

    async def both() -> tuple[Any, Any]:
        end = asyncio.ensure_future(jobs.store.end(jobs.tenant, "w", [Complete(lease.held, b"1")]))
        second = asyncio.ensure_future(jobs.store.enqueue(jobs.tenant, [jobs.new("k2", id=job)]))
        await locks.rollback()
        return await asyncio.gather(end, second, return_exceptions=True)

    ended, second = jobs.run(both())
    assert ended == [Ended("succeeded", again=False)]
    assert isinstance(second, ValueError)


def test_statistics_of_leases_tell_live_ones_from_those_that_are_over(jobs: Yard) -> None:
    mine = {"model": f"m-{jobs.tenant}", "provider": "p"}
    for _ in range(3):
        jobs.add(**mine)
    first = jobs.claim(2)
    jobs.advance(LEASE_MS // 2)
    jobs.beat(first[0])
    jobs.one()

    def stats() -> list[LeaseStats]:
        found = jobs.run(jobs.store.leases(10_000))
        return [each for each in found if each.model == mine["model"]]

    assert stats() == [LeaseStats("t", *mine.values(), 3, LEASE_MS / 2_000, LEASE_MS / 2_000)]
    jobs.advance(LEASE_MS // 2 + 1_500)
    assert stats() == [LeaseStats("t", *mine.values(), 2, LEASE_MS / 1_000 + 1.5, -1.5)]


def test_keys_of_two_tenants_are_two_keys(jobs: Yard) -> None:
    other = sibling(jobs)
    assert jobs.add("k") != other.add("k")
    assert len(jobs.claim(10)) == 1


def test_enqueue_by_sql_is_part_of_the_callers_own_transaction(jobs: Yard) -> None:
    async def work() -> list[UUID]:
        transaction = jobs.watch.transaction()
        await transaction.start()
        name = "select gateway.enqueue('default', 'sql', '{\"a\": 1e2}', p_key => 'k')"
        await jobs.watch.fetchval(name)
        await transaction.rollback()
        return [await jobs.watch.fetchval(name), await jobs.watch.fetchval(name)]

    first, second = jobs.run(work())
    assert first == second
    default = sibling(jobs)
    default.tenant = 1
    (lease,) = default.claim(5, terms("sql"))
    assert (lease.job, lease.payload) == (first, b'{"a": 1e2}')


# Claim.


def test_jobs_are_taken_by_priority_then_time_then_order(jobs: Yard) -> None:
    late = jobs.add(run_at=jobs.now() + timedelta(milliseconds=5))
    order = [jobs.add(priority=priority) for priority in (5, 9, 1, 5)]
    jobs.advance(10)
    claimed = [jobs.one().job for _ in range(5)]
    assert claimed == [order[2], order[0], order[3], late, order[1]]
    assert jobs.claim() == []


def test_a_batch_is_taken_in_the_same_order_over_all_tools(jobs: Yard) -> None:
    order = [jobs.add(tool=tool) for tool in ("a", "b", "a", "c", "b")]
    claimed = jobs.claim(3, terms("b"), terms("a"))
    assert [lease.job for lease in claimed] == order[:3]
    assert [lease.job for lease in jobs.claim(3, terms("b"), terms("a"))] == [order[4]]


def test_scheduled_for_later_is_not_leased_and_not_claimed(jobs: Yard) -> None:
    """LEASE-11."""
    job = jobs.add(run_at=jobs.now() + timedelta(seconds=3))
    jobs.advance(1_000)
    assert jobs.claim() == []
    jobs.advance(3_000)
    assert jobs.reap() == []
    assert jobs.one().job == job


def test_a_claim_repeated_with_its_uuid_returns_the_same_leases(jobs: Yard) -> None:
    for _ in range(4):
        jobs.add()
    claim = uuid4()
    first = jobs.claim(2, claim=claim)
    jobs.advance(10)
    again = jobs.claim(2, claim=claim)
    assert [lease.held for lease in again] == [lease.held for lease in first]
    assert {lease.remaining_ms for lease in again} == {LEASE_MS - 10}
    jobs.advance(LEASE_MS)
    assert jobs.claim(2, claim=claim) == []


def test_the_claim_of_another_worker_with_the_same_uuid_is_a_wish_of_its_own(jobs: Yard) -> None:
    for _ in range(3):
        jobs.add()
    claim = uuid4()
    (first,) = jobs.claim(claim=claim, owner="w1")
    (second,) = jobs.claim(claim=claim, owner="w2")
    assert second.job != first.job
    assert [lease.held for lease in jobs.claim(3, claim=claim, owner="w1")] == [first.held]
    assert [lease.held for lease in jobs.claim(3, claim=claim, owner="w2")] == [second.held]
    jobs.complete(first)
    assert len(jobs.claim(3, claim=claim, owner="w3")) == 1
    assert jobs.claim(3, claim=claim, owner="w4") == []


def test_the_fence_is_the_entitys_counter_and_held_in_the_same_commit(jobs: Yard) -> None:
    jobs.add(entity="e")
    lease = jobs.one()
    assert jobs.counter("e") == (lease.fence, lease.fence)
    jobs.complete(lease)
    assert jobs.counter("e") == (lease.fence + 1, 0)
    jobs.add(entity="e")
    assert jobs.one().fence == lease.fence + 2


def test_the_first_claim_on_an_outside_issuers_entity_jumps(jobs: Yard) -> None:
    jobs.sql(
        "insert into gateway.entities (tenant, entity, fence, touched_at)"
        " values ($1, 'e', 41, gateway.clock())",
        jobs.tenant,
    )
    jobs.add(entity="e")
    assert jobs.one().fence == 41 + 2**20 + 1


def test_an_entity_has_one_lease_and_a_taken_one_raises_nothing(jobs: Yard) -> None:
    """FENCE-07: jobs that share an entity share its counter, one after the other."""
    first, second = jobs.add(entity="e"), jobs.add(entity="e")
    lease = jobs.one()
    assert jobs.claim(5) == []
    assert jobs.counter("e") == (lease.fence, lease.fence)
    assert (lease.job, jobs.stored(second)) == (first, "behind-entity")
    jobs.complete(lease)
    assert jobs.one().job == second
    jobs.nothing_is_lost()


def test_the_best_of_those_behind_comes_next(jobs: Yard) -> None:
    jobs.add(entity="e")
    lease = jobs.one()
    behind = [jobs.add(entity="e", priority=priority) for priority in (7, 3, 5)]
    assert jobs.claim(5) == []
    order = []
    for _ in behind:
        jobs.complete(lease)
        lease = jobs.one()
        order.append(lease.job)
    assert order == [behind[1], behind[2], behind[0]]
    jobs.nothing_is_lost()


def test_nothing_is_claimed_past_its_give_up(jobs: Yard) -> None:
    job = jobs.add(give_up_at=jobs.now() + timedelta(seconds=1))
    jobs.advance(1_000)
    assert jobs.claim() == []
    found = jobs.run(jobs.store.find(jobs.tenant, job))
    assert found is not None
    assert (found.job.state, found.job.error) == ("failed", "not done before give_up_at")


@pytest.mark.parametrize("state", ["ready", "scheduled", "waiting", "behind-entity"])
def test_the_reaper_gives_up_what_is_overdue_wherever_it_stands(jobs: Yard, state: str) -> None:
    at = jobs.now() + timedelta(seconds=5)
    about = {"entity": "e", "give_up_at": at}
    job = jobs.add(**about, run_at=at if state == "scheduled" else None)
    if state == "waiting":
        jobs.complete(jobs.one(), following=NextStage("second", wait=True))
    if state == "behind-entity":
        lease = jobs.one()
        job = jobs.add(**about)
        assert jobs.claim() == []
        assert jobs.stored(job) == "behind-entity"
        jobs.advance(5_000)
        assert (jobs.tenant, job) in jobs.run(jobs.store.give_up(100))
        assert jobs.complete(lease) == Ended("succeeded", again=False)
    else:
        assert jobs.stored(job) == state
        jobs.advance(5_000)
        assert (jobs.tenant, job) in jobs.run(jobs.store.give_up(100))
    assert jobs.state(job) == "failed"
    jobs.nothing_is_lost()


def test_giving_up_what_is_ready_frees_what_was_behind_it(jobs: Yard) -> None:
    jobs.add(entity="e")
    lease = jobs.one()
    soon = jobs.add(entity="e", give_up_at=jobs.now() + timedelta(seconds=1), priority=1)
    later = jobs.add(entity="e")
    assert jobs.claim() == []
    jobs.complete(lease)
    assert (jobs.stored(soon), jobs.stored(later)) == ("ready", "behind-entity")
    jobs.advance(1_000)
    jobs.run(jobs.store.give_up(100))
    assert jobs.one().job == later
    jobs.nothing_is_lost()


def test_a_backlog_of_a_thousand_is_served_in_a_thousand_claims(jobs: Yard) -> None:
    batch = [jobs.new(entity=f"e{number % 40}") for number in range(1_000)]
    jobs.enqueue(*batch)
    served = []
    for _ in range(1_000):
        lease = jobs.one()
        served.append(lease.job)
        jobs.complete(lease)
    assert served == [job.id for job in batch]
    assert jobs.claim() == []


# Limits.


def test_a_tools_limit_holds_over_all_its_workers(jobs: Yard) -> None:
    on = terms(max_running=3)
    for _ in range(8):
        jobs.add()
    leases = [*jobs.claim(2, on), *jobs.claim(5, on)]
    assert len(leases) == 3
    assert jobs.claim(5, on) == []
    jobs.complete(leases[0])
    assert len(jobs.claim(5, on)) == 1


def test_one_tools_limit_is_no_other_tools(jobs: Yard) -> None:
    for tool in ("a", "a", "b", "b"):
        jobs.add(tool=tool)
    on = [terms("a", max_running=1), terms("b")]
    assert [lease.tool for lease in jobs.claim(9, *on)] == ["a", "b", "b"]


def test_a_users_limit_lets_others_pass(jobs: Yard) -> None:
    on = terms(max_per_user=2)
    many = [jobs.add(on_behalf="u1") for _ in range(20)]
    other = jobs.add(on_behalf="u2")
    nobody = [jobs.add() for _ in range(3)]
    leases = jobs.claim(10, on)
    assert [lease.job for lease in leases] == [*many[:2], other, *nobody]
    assert jobs.stored(many[2]) == "behind-user"
    jobs.complete(leases[0])
    assert [lease.job for lease in jobs.claim(10, on)] == [many[2]]
    jobs.nothing_is_lost()


def test_a_user_at_its_limit_does_not_keep_an_entity_from_others(jobs: Yard) -> None:
    on = terms(max_per_user=1)
    jobs.add(on_behalf="u1")
    first = jobs.one()
    jobs.add(entity="e")
    second = jobs.claim(1, on)[0]
    theirs = jobs.add(on_behalf="u1", entity="e", priority=1)
    ours = jobs.add(on_behalf="u2", entity="e")
    assert jobs.claim(5, on) == []
    jobs.complete(second)
    assert [lease.job for lease in jobs.claim(5, on)] == [ours]
    assert jobs.stored(theirs) in ("behind-user", "behind-entity")
    jobs.complete(first)
    jobs.nothing_is_lost()


def test_an_entity_that_is_taken_does_not_keep_its_user_from_other_work(jobs: Yard) -> None:
    on = terms(max_per_user=1)
    jobs.add(on_behalf="u1")
    (first,) = jobs.claim(1, on)
    jobs.add(on_behalf="u1", entity="e", priority=1)
    free = jobs.add(on_behalf="u1")
    assert jobs.claim(5, on) == []
    jobs.add(on_behalf="u2", entity="e")
    assert len(jobs.claim(1, on)) == 1
    jobs.complete(first)
    assert [lease.job for lease in jobs.claim(5, on)] == [free]
    jobs.nothing_is_lost()


# Renew.


def test_a_heartbeat_gives_a_full_lease_and_never_more_than_the_total(jobs: Yard) -> None:
    jobs.add()
    lease = jobs.one()
    jobs.advance(50_000)
    assert jobs.beat(lease) == Renewed(LEASE_MS, TOTAL_MS - 50_000)
    for _ in range(10):
        jobs.advance(50_000)
        jobs.beat(lease)
    assert jobs.beat(lease) == Renewed(50_000, 50_000)
    jobs.advance(49_999)
    assert jobs.beat(lease) == Renewed(1, 1)
    jobs.advance(1)
    assert jobs.beat(lease) == Lost("expired")


def test_a_lease_that_is_over_is_never_renewed_though_nobody_reaped_it(jobs: Yard) -> None:
    jobs.add()
    lease = jobs.one()
    jobs.advance(LEASE_MS)
    assert jobs.beat(lease) == Lost("expired")
    jobs.advance(-10)
    assert jobs.beat(lease) == Renewed(LEASE_MS, TOTAL_MS - LEASE_MS + 10)


def test_one_heartbeat_answers_for_each_lease(jobs: Yard) -> None:
    for _ in range(4):
        jobs.add()
    leases = jobs.claim(4)
    jobs.complete(leases[1])
    jobs.run(jobs.store.cancel(jobs.tenant, leases[2].job, "operator:o", "no longer wanted"))
    answers = jobs.run(jobs.store.renew(jobs.tenant, [lease.held for lease in leases]))
    assert [type(each) for each in answers] == [Renewed, Lost, Lost, Renewed]
    assert answers[1:3] == [Lost("ended"), Lost("cancelled")]


def test_a_lease_is_named_by_job_and_fence_not_by_its_owner(jobs: Yard) -> None:
    """LEASE-06: a worker that restarts under its old name holds nothing."""
    job = jobs.add()
    lease = jobs.one(owner="same")
    guess = Held(lease.entity, job, lease.fence + 1)
    assert jobs.run(jobs.store.renew(jobs.tenant, [guess])) == [Lost("expired")]
    jobs.advance(LEASE_MS)
    jobs.reap()
    assert jobs.one(owner="same").fence > lease.fence


# Ends.


def test_an_end_repeated_with_the_same_result_gets_the_first_answer(jobs: Yard) -> None:
    jobs.add()
    lease = jobs.one()
    assert jobs.complete(lease, b"1") == Ended("succeeded", again=False)
    assert jobs.complete(lease, b"1") == Ended("succeeded", again=True)
    assert jobs.complete(lease, b"2") == Rejected("ended")
    assert jobs.fail(lease) == Rejected("ended")
    found = jobs.run(jobs.store.find(jobs.tenant, lease.job))
    assert found is not None
    assert found.result == b"1"


def test_a_failure_comes_back_later_until_its_attempts_are_used(jobs: Yard) -> None:
    jobs.add()
    for attempt in (1, 2):
        lease = jobs.one()
        assert lease.attempt == attempt
        assert jobs.fail(lease, f"no {attempt}", delay_ms=500) == Ended("queued", again=False)
        assert jobs.claim() == []
        jobs.advance(500)
    lease = jobs.one()
    assert (lease.attempt, lease.last_error) == (3, "no 2")
    assert jobs.fail(lease, "no 3", delay_ms=500) == Ended("failed", again=False)
    assert jobs.fail(lease, "no 3", delay_ms=700) == Ended("failed", again=True)
    assert jobs.claim() == []


def test_an_error_that_no_attempt_can_help_is_final_at_once(jobs: Yard) -> None:
    jobs.add()
    assert jobs.fail(jobs.one(), retry=False) == Ended("failed", again=False)


def test_a_failure_after_give_up_is_final(jobs: Yard) -> None:
    jobs.add(give_up_at=jobs.now() + timedelta(seconds=5))
    lease = jobs.one()
    assert lease.give_up_ms == 5_000
    jobs.advance(5_000)
    assert jobs.fail(lease) == Ended("failed", again=False)


def test_a_job_that_is_handed_back_loses_no_attempt_and_keeps_its_place(jobs: Yard) -> None:
    first = jobs.add()
    jobs.add()
    for _ in range(5):
        lease = jobs.one()
        assert (lease.job, lease.attempt) == (first, 1)
        assert jobs.hand_back(lease) == Ended("queued", again=False)
    assert jobs.hand_back(lease) == Ended("queued", again=True)


def test_a_stage_leads_to_the_next_with_its_result(jobs: Yard) -> None:
    job = jobs.add(stage="case", entity="customer:1")
    lease = jobs.one()
    following = NextStage("charge", "invoice:1")
    assert jobs.complete(lease, b'"case-9"', following) == Ended("queued", again=False)
    assert jobs.complete(lease, b'"case-9"', following) == Ended("queued", again=True)
    second = jobs.one()
    assert (second.job, second.stage, second.stage_no) == (job, "charge", 2)
    assert (second.entity, second.previous, second.attempt) == ("invoice:1", b'"case-9"', 1)
    assert jobs.complete(second, following=NextStage("last")) == Ended("queued", again=False)
    assert jobs.one().entity == f"job:{job}"


def test_the_end_of_a_stage_is_not_taken_for_that_of_the_next(jobs: Yard) -> None:
    """The two may well have the same fence, on different entities."""
    jobs.add(entity="case")
    first = jobs.one()
    jobs.complete(first, following=NextStage("charge", "invoice"))
    second = jobs.one()
    assert (second.job, second.fence) == (first.job, first.fence)
    assert jobs.fail(first) == Rejected("ended")
    assert jobs.beat(first) == Lost("ended")
    assert jobs.complete(second, b"charged") == Ended("succeeded", again=False)


def test_a_stage_that_waits_runs_once_it_is_approved(jobs: Yard) -> None:
    job = jobs.add()
    following = NextStage("charge", wait=True)
    assert jobs.complete(jobs.one(), following=following) == Ended("waiting", again=False)
    assert jobs.claim() == []
    approve = jobs.store.approve
    assert jobs.run(approve(jobs.tenant, job, "operator:o", "looks right")) is True
    assert jobs.run(approve(jobs.tenant, job, "operator:o", "looks right")) is False
    assert jobs.one().stage == "charge"
    (row,) = jobs.audit("operator")
    assert (row["principal"], row["job"]) == ("operator:o", str(job))
    assert "looks right" in row["reason"]


def test_a_batch_of_ends_is_judged_one_by_one(jobs: Yard) -> None:
    for _ in range(3):
        jobs.add()
    leases = jobs.claim(3)
    jobs.complete(leases[1], b"first")
    answers = jobs.end(*(Complete(lease.held, b"second") for lease in leases))
    assert answers == [
        Ended("succeeded", again=False),
        Rejected("ended"),
        Ended("succeeded", again=False),
    ]


def test_what_nobody_ever_leased_is_rejected(jobs: Yard) -> None:
    assert jobs.end(Complete(Held("e", uuid4(), 1), b"1")) == [Rejected("expired")]


# Expiry.


def test_a_zombie_can_neither_renew_nor_finish_after_the_takeover(jobs: Yard) -> None:
    """LEASE-03, LEASE-08."""
    job = jobs.add(key="k")
    zombie = jobs.one(owner="w1")
    jobs.advance(LEASE_MS)
    assert jobs.claim() == []  # never from expired ones: only the reaper ends a lease
    assert jobs.reap() == [Reaped(job, zombie.fence, "queued")]
    fence, held = jobs.counter(zombie.entity)
    assert fence == zombie.fence + 1  # stale at the gateway before anybody else claims
    assert held == 0
    owner = jobs.one(owner="w2")
    assert owner.fence > fence
    jobs.advance(7)
    assert jobs.beat(zombie) == Lost("taken")
    assert jobs.complete(zombie, b"late") == Rejected("taken")
    assert jobs.fail(zombie) == Rejected("taken")
    assert jobs.hand_back(zombie) == Rejected("taken")
    assert jobs.complete(owner, b"w2") == Ended("succeeded", again=False)
    found = jobs.run(jobs.store.find(jobs.tenant, job))
    assert found is not None
    assert (found.job.state, found.result) == ("succeeded", b"w2")

    (expired,) = jobs.audit("lease_expired")
    assert (expired["fence"], expired["high_water_mark"]) == (zombie.fence, fence)
    assert (expired["job"], expired["key"], expired["entity"]) == (str(job), "k", f"job:{job}")
    rejected = jobs.audit("result_rejected")
    assert [row["reason"].split()[0] for row in rejected] == ["completed", "failed"]
    assert "4 bytes" in rejected[0]["reason"]
    assert "7 ms late" in rejected[0]["reason"]
    assert {row["high_water_mark"] for row in rejected} == {owner.fence}


def test_a_late_result_is_recorded_once_however_often_it_is_sent(jobs: Yard) -> None:
    jobs.add()
    lease = jobs.one()
    jobs.advance(LEASE_MS)
    for _ in range(3):
        assert jobs.complete(lease, b"late") == Rejected("expired")
    assert len(jobs.audit("result_rejected")) == 1
    assert jobs.state(lease.job) == "running"


def test_a_made_up_result_leaves_no_row_and_one_of_a_forgotten_job_does(jobs: Yard) -> None:
    entity = f"e:{uuid4()}"
    jobs.add(entity=entity)
    lease = jobs.one()
    for held in (Held("e", uuid4(), 1), Held(entity, uuid4(), lease.fence)):
        assert isinstance(jobs.end(Complete(held, b"made up"))[0], Rejected)
    assert jobs.audit("result_rejected") == []
    # Of a job that is there, also under a fence that nobody ever had.
    guess = Held(entity, lease.job, lease.fence + 1)
    assert jobs.end(Complete(guess, b"1")) == [Rejected("expired")]
    assert len(jobs.audit("result_rejected")) == 1
    jobs.complete(lease, b"first")
    jobs.sql("delete from gateway.job_history where id = $1", lease.job)
    assert jobs.complete(lease, b"second") == Rejected("ended")
    assert len(jobs.audit("result_rejected")) == 2


def test_a_clock_that_steps_back_makes_no_lease_of_the_future(jobs: Yard) -> None:
    jobs.add()
    lease = jobs.one()
    jobs.advance(-2 * LEASE_MS)
    assert isinstance(jobs.beat(lease), Renewed)
    jobs.advance(LEASE_MS)
    jobs.reap()
    jobs.advance(-1_000)
    assert jobs.complete(lease, b"late") == Rejected("expired")
    assert "granted 0 ms before" in jobs.audit("lease_expired")[0]["reason"]
    assert "0 ms late" in jobs.audit("result_rejected")[0]["reason"]


def test_a_job_that_kills_its_workers_fails_when_its_attempts_are_used(jobs: Yard) -> None:
    """QUEUE-01."""
    job = jobs.add()
    for attempt in (1, 2, 3):
        lease = jobs.one()
        assert lease.attempt == attempt
        jobs.advance(LEASE_MS)
        (reaped,) = jobs.reap()
    assert reaped.state == "failed"
    assert jobs.claim() == []
    assert jobs.state(job) == "failed"
    assert len(jobs.audit("lease_expired")) == 3


def test_an_expired_job_waits_for_its_backoff(jobs: Yard) -> None:
    jobs.add()
    jobs.one()
    jobs.advance(LEASE_MS)
    jobs.reap(delay_ms=2_000)
    jobs.advance(1_999)
    assert jobs.claim() == []
    jobs.advance(1)
    assert jobs.one().attempt == 2


def test_only_what_is_over_is_reaped_and_once(jobs: Yard) -> None:
    jobs.add()
    jobs.add()
    old = jobs.one()
    jobs.advance(LEASE_MS - 1)
    jobs.one()
    assert jobs.reap() == []
    jobs.advance(1)
    found = [each for each in jobs.run(jobs.store.expired(1_000)) if each.tenant == jobs.tenant]
    assert [(each.lease, each.over_ms, each.attempts) for each in found] == [(old.held, 0, 1)]
    both = [(each, 0) for each in found]
    assert len(jobs.run(jobs.store.reap(both))) == 1
    assert jobs.run(jobs.store.reap(both)) == []
    assert jobs.counter(old.entity) == (old.fence + 1, 0)


# Cancel and retry.


def test_a_cancelled_job_ends_at_once_and_its_worker_hears_of_it(jobs: Yard) -> None:
    """QUEUE-03."""
    job = jobs.add()
    lease = jobs.one()
    cancel = jobs.store.cancel
    assert jobs.run(cancel(jobs.tenant, job, "operator:o", "wrong amount")) == Cancelled()
    assert jobs.counter(lease.entity) == (lease.fence + 1, 0)
    assert jobs.beat(lease) == Lost("cancelled")
    assert jobs.complete(lease) == Rejected("cancelled")
    assert jobs.state(job) == "cancelled"
    assert jobs.run(cancel(jobs.tenant, job, "operator:o", "again")) == Finished("cancelled")
    assert jobs.run(cancel(jobs.tenant, uuid4(), "operator:o", "?")) is None
    assert len(jobs.audit("result_rejected")) == 1


def test_a_sessions_jobs_are_cancelled_wherever_they_stand(jobs: Yard) -> None:
    jobs.add(session="other")
    later = jobs.now() + timedelta(hours=1)
    mine = [jobs.add(session="s", priority=1), jobs.add(session="s", run_at=later)]
    mine.append(jobs.add(session="s"))
    jobs.one()
    found = jobs.run(jobs.store.of_session(jobs.tenant, "s"))
    assert found == sorted(mine)
    for job in found:
        jobs.run(jobs.store.cancel(jobs.tenant, job, "operator:o", "session closed"))
    assert {jobs.state(job) for job in mine} == {"cancelled"}
    assert jobs.one().session == "other"
    assert jobs.claim() == []


def test_cancelling_what_is_ready_frees_what_was_behind_it(jobs: Yard) -> None:
    jobs.add(entity="e")
    lease = jobs.one()
    first, second = jobs.add(entity="e"), jobs.add(entity="e")
    assert jobs.claim() == []
    jobs.complete(lease)
    jobs.run(jobs.store.cancel(jobs.tenant, first, "operator:o", "no"))
    assert jobs.one().job == second
    jobs.nothing_is_lost()


def test_a_failed_job_can_be_run_again_under_its_id_and_key(jobs: Yard) -> None:
    job = jobs.add("k", give_up_at=jobs.now() + timedelta(seconds=1))
    lease = jobs.one()
    jobs.fail(lease, retry=False)
    jobs.advance(2_000)
    retry = jobs.store.retry
    assert jobs.run(retry(jobs.tenant, job, "operator:o", "fixed")) is True
    assert jobs.run(retry(jobs.tenant, job, "operator:o", "fixed")) is False
    again = jobs.one()
    assert (again.job, again.key, again.attempt) == (job, "k", 1)
    assert again.fence > lease.fence
    jobs.complete(again)
    assert jobs.run(retry(jobs.tenant, job, "operator:o", "once more")) is False


# Time.


def test_a_lease_is_judged_by_the_databases_clock_in_any_time_zone(jobs: Yard) -> None:
    """TIME-01, TIME-03: nobody's own clock or zone is asked."""
    job = jobs.add()
    first = jobs.one()
    jobs.sql("set timezone to 'Europe/Paris'")
    jobs.advance(5_000)
    assert jobs.claim() == []
    assert jobs.reap() == []
    jobs.advance(LEASE_MS)
    assert [each.job for each in jobs.reap()] == [job]
    assert jobs.one().fence > first.fence


def test_the_end_of_a_lease_frees_the_best_job_of_every_tool(jobs: Yard) -> None:
    """Nobody may be there who claims the tool of the best."""
    jobs.add(entity="e", tool="b")
    first = jobs.claim(1, terms("b"))[0]
    others = [jobs.add(entity="e", tool=tool) for tool in ("a", "a", "b", "b", "c")]
    assert jobs.claim(5, terms("a"), terms("b"), terms("c")) == []
    jobs.complete(first)
    assert [jobs.stored(job) for job in others] == [
        *("ready", "behind-entity", "ready", "behind-entity", "ready")
    ]
    jobs.nothing_is_lost()
    assert jobs.claim(1, terms("b"))[0].job == others[2]
    jobs.nothing_is_lost()


@pytest.mark.parametrize(("limit", "more"), [(4, 3), (None, 7)])
def test_a_users_limit_that_was_raised_or_removed_frees_who_was_behind_it(
    jobs: Yard, limit: int | None, more: int
) -> None:
    made = [jobs.add(on_behalf="u") for _ in range(8)]
    assert [each.job for each in jobs.claim(8, terms(max_per_user=1))] == made[:1]
    jobs.nothing_is_lost()
    freed = jobs.claim(8, terms(max_per_user=limit))
    assert [each.job for each in freed] == made[1 : 1 + more]
    jobs.nothing_is_lost()


def test_a_raised_limit_frees_no_more_than_have_room(jobs: Yard) -> None:
    made = [jobs.add(on_behalf="u") for _ in range(8)]
    assert len(jobs.claim(8, terms(max_per_user=1))) == 1
    for _ in range(3):  # those that are ready already count
        ahead = [jobs.add(priority=1)]
        assert [each.job for each in jobs.claim(1, terms(max_per_user=4))] == ahead
        assert [jobs.stored(job) for job in made].count("ready") == 3


@pytest.mark.parametrize("name", ["p_run_at", "p_give_up_at"])
@pytest.mark.parametrize("at", ["infinity", "-infinity", "1969-12-31", "9999-01-02"])
def test_times_that_not_every_language_holds_are_refused(jobs: Yard, name: str, at: str) -> None:
    """One job with such a time would fail every claim that meets it."""
    with pytest.raises(asyncpg.InvalidParameterValueError, match="1970 to 9998"):
        jobs.sql(f"select gateway.enqueue('default', 't', {name} => '{at}')")
    job = jobs.add()
    with pytest.raises(asyncpg.CheckViolationError):
        jobs.sql(f"update gateway.jobs set {name[2:]} = '{at}' where id = $1", job)


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"run_at": datetime.max.replace(tzinfo=UTC)}, "run_at"),
        ({"give_up_at": datetime(9999, 1, 1, tzinfo=UTC)}, "give_up_at"),
        ({"payload": b"1" * (PAYLOAD_LIMIT + 1)}, "payload"),
        ({"key": "k" * 256}, "key"),
        ({"tool": "t" * 65}, "tool"),
        ({"entity": "a\0"}, "entity"),
        ({"session": "\udc80"}, "session"),
        ({"priority": 0}, "priority"),
    ],
)
def test_what_the_database_cannot_hold_is_not_sent(
    jobs: Yard, about: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        jobs.add(**about)


def test_an_end_that_the_database_cannot_hold_is_not_sent(jobs: Yard) -> None:
    jobs.add()
    lease = jobs.one()
    for end, says in (
        (Complete(lease.held, b"1" * (PAYLOAD_LIMIT + 1)), "result"),
        (Complete(lease.held, b"1", NextStage("n" * 65)), r"next\.name"),
        (Complete(lease.held, b"1", NextStage("n", "e" * 256)), r"next\.entity"),
        (HandBack(lease.held, 2**62), "delay_ms"),
        (Fail(lease.held, "e", delay_ms=-1), "delay_ms"),
    ):
        with pytest.raises(ValueError, match=says):
            jobs.end(end)
    for reason in ("x" * 5_000, "a\0b", "\udc80"):
        with pytest.raises(ValueError, match="reason"):
            jobs.run(jobs.store.cancel(jobs.tenant, lease.job, "operator:o", reason))
    assert jobs.complete(lease) == Ended("succeeded", again=False)


def test_a_worker_can_say_that_it_failed_whatever_its_error_holds(jobs: Yard) -> None:
    job = jobs.add()
    lease = jobs.one()
    error = "x" * 5_000 + "a\0b\udc80c"
    for again in (False, True):
        assert jobs.fail(lease, error) == Ended("queued", again=again)
    found = jobs.run(jobs.store.find(jobs.tenant, job))
    assert found is not None
    assert found.job.error is not None
    assert (len(found.job.error), found.job.error[-5:]) == (4_096, "a\ufffdb?c")


@pytest.mark.parametrize("mark", [2**63 - 1, 2**63 - 2, 2**63 - 2**20])
def test_an_entity_whose_counter_is_used_up_fails_no_claim_of_others(jobs: Yard, mark: int) -> None:
    """An outside issuer may send the highest fence there is."""
    jobs.sql(
        "insert into gateway.entities (tenant, entity, fence, touched_at)"
        " values ($1, 'e', $2, gateway.clock())",
        *(jobs.tenant, mark),
    )
    used_up, other = jobs.add(entity="e"), jobs.add()
    assert [lease.job for lease in jobs.claim(2)] == [other]
    assert jobs.stored(used_up) == "ready"
