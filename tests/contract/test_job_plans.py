"""How the statements of jobs run beside 200,000 finished and 20,000 ready jobs, on tables that
nobody has analysed: by index, and reading about as many rows as they change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from gateway.core.jobs import Complete, Fail, Lease, NewJob, Terms
from gateway.store.job_reads import JobFilter, Listed, Story, job_story, list_jobs
from gateway.store.jobs import JobStore
from gateway.store.operator import Filter, list_commands
from tests.integration.test_store_model import OneConnection
from tests.kit.db import Server
from tests.kit.jobs import MANUAL_CLOCK, behind_nothing, terms

HISTORY = 200_000
READY = 20_000
BACKLOG = 6_000
"""Ready jobs of one entity, in front of all others, and as many of one user."""

FILL = """
insert into gateway.job_history (
    tenant, id, key, tool, stage_no, entity, payload, priority, created_at, attempts, finished_at,
    state, result)
select 1, i, i, 't', 1, 'job:' || i, '{}', 5, c, 1, c, 'succeeded', '1'
  from gateway.clock() as c, lateral (
       select md5(n::text)::uuid as i from generate_series(1, %(history)s) as n) as n;
insert into gateway.job_runs (
    tenant, job, fence, stage_no, entity, owner, granted_at, ended_at, how, state, digest)
select 1, id, 1, 1, entity, 'w', created_at, created_at, 'completed', 'succeeded', sha256('1')
  from gateway.job_history;
insert into gateway.job_keys (tenant, key, job) select 1, key, id from gateway.job_history;
insert into gateway.entities (tenant, entity, fence, held, touched_at)
select 1, entity, 2, 0, created_at from gateway.job_history;
insert into gateway.jobs (
    tenant, id, key, tool, entity, payload, priority, run_at, created_at, state)
select 1, i, i, 't' || n %% 4, 'job:' || i, '{}', 5, c, c, 'ready'
  from gateway.clock() as c, lateral (
       select n, md5('r' || n)::uuid as i from generate_series(1, %(ready)s) as n) as n;
"""

COUNTS = """
select 'seq' as what, sum(seq_scan) as n from pg_stat_user_tables
 where relname in (
       'jobs', 'job_history', 'job_runs', 'job_keys', 'entities', 'job_leases', 'commands')
union all
select 'read ' || relname, sum(idx_tup_read) from pg_stat_user_indexes
 where relname in (
       'jobs', 'job_history', 'job_runs', 'job_keys', 'entities', 'job_leases', 'commands')
 group by relname
union all
select 'updated', n_tup_upd from pg_stat_user_tables where relname = 'job_leases'
union all
select 'hot', n_tup_hot_upd from pg_stat_user_tables where relname = 'job_leases'
"""

TOOLS = tuple(terms(f"t{number}") for number in range(4))


class Plant:
    """A full database on one connection, whose statistics are exact once they are asked for."""

    def __init__(self, dsn: str, *, fill: bool = True) -> None:
        self._runner = asyncio.Runner()
        self.connection: asyncpg.Connection = self.run(asyncpg.connect(dsn))
        # Autovacuum would analyse some of the tables, some of the time.
        for table in ("jobs", "job_history", "job_runs", "job_keys", "entities", "job_leases"):
            self.sql(f"alter table gateway.{table} set (autovacuum_enabled = off)")
        script = MANUAL_CLOCK + FILL % {"history": HISTORY, "ready": READY}
        for statement in script.split(";\n"):
            if fill and statement.strip():
                self.sql(statement)
        self.store = JobStore(OneConnection(self.connection))  # type: ignore[arg-type]

    def run(self, work: Any) -> Any:
        return self._runner.run(asyncio.wait_for(work, 60))

    def sql(self, text: str, *args: Any) -> Any:
        return self.run(self.connection.fetch(text, *args))

    def counts(self) -> dict[str, int]:
        self.sql("select pg_stat_force_next_flush()")
        self.sql("select pg_stat_clear_snapshot()")
        return {row["what"]: int(row["n"]) for row in self.sql(COUNTS)}

    def during(self, work: Callable[[], Any]) -> dict[str, int]:
        before = self.counts()
        work()
        after = self.counts()
        return {what: after[what] - before[what] for what in after}

    def advance(self, by_ms: int) -> None:
        self.sql("update gateway.manual_clock set at = at + $1 * interval '1 ms'", by_ms)

    def claim(self, limit: int, *on: Terms) -> list[Lease]:
        return list(self.run(self.store.claim(1, limit, "w", uuid4(), on or TOOLS)))

    def close(self) -> None:
        self.run(self.connection.close())
        self._runner.close()


@pytest.fixture(scope="module")
def plant(postgres: Server) -> Iterator[Plant]:
    with postgres.database() as dsn:
        made = Plant(dsn)
        try:
            yield made
        finally:
            made.close()


def _by_index(did: dict[str, int], rows: int) -> None:
    """No sequential scan, and no table of which more than ``rows`` index entries were read."""
    assert did["seq"] == 0
    read = {what: n for what, n in did.items() if what.startswith("read")}
    assert {what: n for what, n in read.items() if n > rows} == {}


@pytest.mark.parametrize(("limit", "rows"), [(1, 60), (100, 3_500)])
def test_a_claim_reads_about_what_it_takes(plant: Plant, limit: int, rows: int) -> None:
    leases: list[Lease] = []
    did = plant.during(lambda: leases.extend(plant.claim(limit)))
    assert len(leases) == limit
    _by_index(did, rows)


def test_a_claim_reads_no_more_where_statistics_are_of_empty_tables(postgres: Server) -> None:
    """Plans that were made then are still used once there are thousands of entities and leases."""
    with postgres.database() as dsn:
        young = Plant(dsn, fill=False)
        young.sql("analyze")
        for _ in range(15):
            ids = [uuid4() for _ in range(100)]
            young.run(young.store.enqueue(1, [NewJob(i, str(i), "t0", b"{}") for i in ids]))
            young.claim(100)
        ids = [uuid4() for _ in range(100)]
        young.run(young.store.enqueue(1, [NewJob(i, str(i), "t0", b"{}") for i in ids]))
        did = young.during(lambda: young.claim(100))
        _by_index({"seq": did["seq"], "read entities": did["read entities"]}, 1_000)
        young.close()


def test_heartbeats_are_hot_and_read_their_own_rows(plant: Plant) -> None:
    leases = plant.claim(100)
    held = [lease.held for lease in leases]
    did = plant.during(lambda: plant.run(plant.store.renew(1, held)))
    assert (did["updated"], did["hot"]) == (100, 100)
    _by_index(did, 450)  # four look-ups for each
    for _ in range(20):
        plant.run(plant.store.renew(1, held))
    did = plant.during(lambda: plant.run(plant.store.renew(1, held)))
    assert (did["updated"], did["hot"]) == (100, 100)


def test_ends_read_about_what_they_end(plant: Plant) -> None:
    leases = plant.claim(60)
    ends = [
        Complete(lease.held, b"1") if number % 2 else Fail(lease.held, "e", delay_ms=9)
        for number, lease in enumerate(leases)
    ]
    for again in (False, True):
        answers: list[Any] = []
        did = plant.during(lambda out=answers: out.extend(plant.run(plant.store.end(1, "w", ends))))
        assert [each.again for each in answers] == [again] * 60
        _by_index(did, 1_000)


def test_the_reaper_reads_leases_and_what_it_reaps(plant: Plant) -> None:
    plant.claim(50)
    plant.advance(10_000_000)

    def work() -> None:
        found = plant.run(plant.store.expired(50))
        assert len(found) == 50
        assert len(plant.run(plant.store.reap([(each, 5) for each in found]))) == 50
        assert plant.run(plant.store.give_up(100)) == []

    _by_index(plant.during(work), 1_500)


def test_the_gauges_read_leases_and_their_jobs_and_no_more_than_their_limit(plant: Plant) -> None:
    plant.claim(60)
    scans = "select seq_scan as n from pg_stat_user_tables where relname = 'jobs'"
    for limit, least, rows in ((10_000, 60, 1_500), (10, 0, 60)):
        found: list[Any] = []
        plant.counts()
        before = plant.sql(scans)[0]["n"]

        def work(limit: int = limit, out: list[Any] = found) -> None:
            out.extend(plant.run(plant.store.leases(limit)))

        did = plant.during(work)
        assert least <= sum(each.live for each in found) <= limit
        assert plant.sql(scans)[0]["n"] == before
        _by_index({**did, "seq": 0}, rows)  # the leases themselves may be read whole


def test_enqueue_and_look_ups_go_by_key(plant: Plant) -> None:
    known = UUID(str(plant.sql("select id from gateway.job_history limit 1")[0]["id"]))
    batch = [
        NewJob(id=uuid4(), key=str(known), tool="t", payload=b"{}"),
        NewJob(id=uuid4(), key=uuid4().hex, tool="t0", payload=b"{}"),
    ]

    def work() -> None:
        assert [each.created for each in plant.run(plant.store.enqueue(1, batch))] == [False, True]
        assert plant.run(plant.store.find(1, known)) is not None
        assert plant.run(plant.store.cancel(1, batch[1].id, "o", "r")) is not None

    _by_index(plant.during(work), 30)


@pytest.mark.parametrize("busy", ["entity", "user"])
def test_a_backlog_that_cannot_be_served_makes_no_claim_of_others_slow(
    plant: Plant, busy: str
) -> None:
    """It is set behind once, and its jobs come back one by one."""
    on = [terms(tool.tool, max_per_user=1) for tool in TOOLS]
    entity = "'busy'" if busy == "entity" else "'job:' || i"
    plant.sql(
        "insert into gateway.jobs (tenant, id, key, tool, entity, on_behalf, payload, priority,"
        f" run_at, created_at, state) select 1, i, i, 't1', {entity}, 'user:{busy}', '{{}}', 1, c,"
        " c, 'ready' from gateway.clock() as c, lateral (select gen_random_uuid() as i"
        f" from generate_series(1, {BACKLOG}) as n) as n"
    )
    first = plant.claim(1, *on)
    assert [lease.on_behalf for lease in first] == [f"user:{busy}"]
    passed = [len(plant.claim(1, *on)) for _ in range(3)]
    assert passed[-1] == 1
    plant.claim(1, *on)  # passes what the index still holds of them, for the last time
    did = plant.during(lambda: plant.claim(1, *on))
    _by_index(did, 1_500)  # claims of limited tools count the leases

    plant.run(plant.store.end(1, "w", [Complete(first[0].held, b"1")]))
    second = plant.claim(1, *on)
    assert [lease.on_behalf for lease in second] == [f"user:{busy}"]
    assert plant.run(behind_nothing(plant.connection)) == []


class OperatorsConnection(OneConnection):
    """The same connection for what operators read, which wants one of its own."""

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        yield self._connection


def _listed(plant: Plant, **wanted: Any) -> list[Listed]:
    database = OperatorsConnection(plant.connection)

    async def work() -> list[Listed]:
        return [each async for each in list_jobs(database, JobFilter(**wanted))]  # type: ignore[arg-type]

    return list(plant.run(work()))


@pytest.mark.parametrize(
    "wanted",
    [{}, {"state": "queued"}, {"state": "succeeded"}, {"tool": "t1"}, {"tenant": "default"}],
    ids=str,
)
def test_a_page_of_a_list_is_read_by_index(plant: Plant, wanted: dict[str, Any]) -> None:
    """As many rows as it shows; of one tool four times as many, since every fourth has it."""
    found: list[Listed] = []
    did = plant.during(lambda: found.extend(_listed(plant, limit=100, **wanted)))
    assert len(found) == 100
    _by_index(did, 3_000)


@pytest.mark.parametrize("by", ["entity", "session"])
def test_few_among_many_finished_are_found_by_what_they_belong_to(plant: Plant, by: str) -> None:
    plant.sql(
        f"update gateway.job_history set {by} = $1 where id in"
        " (select id from gateway.job_history order by id limit 3)",
        f"rare:{by}",
    )
    wanted = {"state": "succeeded", by: f"rare:{by}"}
    assert (
        len(_listed(plant, **wanted)) == 3
    )  # and takes what the update left behind out of the way
    found: list[Listed] = []
    did = plant.during(lambda: found.extend(_listed(plant, **wanted)))
    assert len(found) == 3
    _by_index(did, 20)


def test_the_story_of_one_job_is_read_by_key(plant: Plant) -> None:
    key = str(plant.sql("select key from gateway.job_history limit 1")[0]["key"])
    database = OperatorsConnection(plant.connection)
    stories: list[Any] = []

    def work() -> None:
        stories.append(plant.run(job_story(database, "default", key=key)))  # type: ignore[arg-type]

    _commands(plant, "'k-' || n", 1)
    plant.sql(
        "update gateway.entities set open_key = c.key_digest, open_attempt = c.attempt,"
        " open_until = c.deadline from gateway.commands c, gateway.job_keys k"
        " where c.key = 'k-1' and k.key = $1 and entities.entity = 'job:' || k.job",
        key,
    )
    _by_index(plant.during(work), 20)
    assert isinstance(stories[0], Story)
    assert [command.key for command in stories[0].open_commands] == ["k-1"]
    assert [run.how for run in stories[0].runs] == ["completed"]


def _commands(plant: Plant, key: str, count: int, age: str = "0") -> None:
    plant.sql(
        "insert into gateway.commands (tenant, key_digest, key, policy, entity, fingerprint, rules,"
        " attempt, principal, request_id, serial, unknown, upstream_digest, settle_delay_s,"
        " response_days, key_days, admitted_at, deadline)"
        f" select 1, substring(sha256(convert_to({key}, 'UTF8')) from 1 for 16), {key}, 'p/c', 'e',"
        " sha256('f'), substring(sha256('r') from 1 for 8), gen_random_uuid(), 'p', 'r', false,"
        " 'hold', substring(sha256('u') from 1 for 16), 10, 30, 400,"
        f" c - interval '{age}', c from gateway.clock() as c, generate_series(1, {count}) as n"
    )


def test_the_commands_of_a_job_are_found_among_what_is_younger_than_it(plant: Plant) -> None:
    job = plant.sql("select id from gateway.jobs where state = 'ready' limit 1")[0]["id"]
    _commands(plant, "'old-' || n", 20_000, "1 day")
    _commands(plant, f"'tool-job:{job}:' || n", 2)
    database = OperatorsConnection(plant.connection)
    found: list[str] = []

    async def read() -> None:
        async for command in list_commands(database, Filter(job=job)):  # type: ignore[arg-type]
            found.append(command.key)

    _by_index(plant.during(lambda: plant.run(read())), 30)
    assert sorted(found) == [f"tool-job:{job}:{number}" for number in (1, 2)]
