"""How retention runs beside 200,000 rows of each kind, on tables that nobody has analysed: by
index, reading about what one chunk looks at, whatever is due."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from gateway.store.retention import CHUNK
from tests.kit.db import Server
from tests.kit.jobs import MANUAL_CLOCK

ROWS = 200_000
TABLES = (
    *("commands", "entities", "audit", "jobs", "job_history", "job_runs", "job_keys"),
    "given_back",
)

# Of the commands one in a hundred is due, one in ten is unsettled, all have an entity; the rest is
# not due, or due as a whole.
FILL = """
insert into gateway.commands (
    tenant, key_digest, key, policy, entity, fingerprint, rules, attempt, principal, request_id,
    serial, unknown, upstream_digest, settle_delay_s, response_days, key_days, admitted_at,
    deadline, settled_at, settled_by, status, headers, body, expires_at)
select 1, substring(sha256(n::text::bytea) for 16), 'k' || n, 'p', 'e:' || n, '', '', i, 'w', 'r',
       false, 'hold', '', 300, 30, 400, a, a, s, case when s is not null then 'answer' end,
       case when s is not null then 201 end, null,
       case when s is not null then '\\x7b7d'::bytea end,
       s + interval '1 day' * case when n %% 100 = 0 then 1 else 400 end
  from gateway.clock() as c, lateral (
       select n, md5(n::text)::uuid as i, c - interval '20 days' + n * interval '1 s' as a,
              case when n %% 10 <> 1 then c - interval '20 days' + n * interval '1 s' end as s
         from generate_series(1, %(rows)s) as n) as n;
insert into gateway.entities (tenant, entity, touched_at)
select 1, 'e:' || n, c - interval '20 days'
  from gateway.clock() as c, generate_series(1, %(rows)s) as n;
insert into gateway.audit (tenant, id, at, event)
select 1, md5(n::text)::uuid, c - interval '20 days' + n * interval '1 s', 'operator'
  from gateway.clock() as c, generate_series(1, %(rows)s) as n;
insert into gateway.given_back (tenant, key_digest, first_sent_at, expires_at)
select 1, substring(sha256(n::text::bytea) for 16), c - interval '30 days',
       c - interval '20 days' + n * interval '1 s'
  from gateway.clock() as c, generate_series(1, %(rows)s) as n;
insert into gateway.job_history (
    tenant, id, key, tool, stage_no, entity, payload, priority, created_at, attempts, finished_at,
    state)
select 1, md5(n::text)::uuid, n::text, 't', 1, 'e:' || n, '{}', 5, f, 1, f, 'succeeded'
  from gateway.clock() as c, lateral (
       select n, c - interval '20 days' + n * interval '1 s' as f
         from generate_series(1, %(rows)s) as n) as n;
insert into gateway.job_runs (
    tenant, job, fence, stage_no, entity, owner, granted_at, ended_at, how, state, digest)
select 1, id, 1, 1, entity, 'w', created_at, created_at, 'completed', 'succeeded', sha256('1')
  from gateway.job_history;
insert into gateway.job_keys (tenant, key, job) select 1, key, id from gateway.job_history;
insert into gateway.job_keys (tenant, key, job, finished_at, state, digest)
select 1, 'old' || n, md5(n::text)::uuid, c - interval '20 days' + n * interval '1 s', 'failed', ''
  from gateway.clock() as c, generate_series(1, %(rows)s) as n;
insert into gateway.jobs (
    tenant, id, key, tool, entity, payload, priority, run_at, created_at, state)
select 1, md5('j' || n)::uuid, 'j' || n, 't', 'e:' || n, '{}', 5, c, c, 'ready'
  from gateway.clock() as c, generate_series(1, %(rows)s) as n
"""

COUNTS = """
select 'seq ' || relname as what, seq_scan as n from pg_stat_user_tables
 where relname = any ($1)
union all
select 'read ' || relname, sum(idx_tup_read)::bigint from pg_stat_user_indexes
 where relname = any ($1) group by relname
"""


class Plant:
    """A full database on one connection, whose statistics are exact once they are asked for."""

    def __init__(self, dsn: str) -> None:
        self._runner = asyncio.Runner()
        self.connection: asyncpg.Connection = self.run(asyncpg.connect(dsn))
        for table in TABLES:  # autovacuum would analyse some of them, some of the time
            self.sql(f"alter table gateway.{table} set (autovacuum_enabled = off)")
        for statement in (MANUAL_CLOCK + FILL % {"rows": ROWS}).split(";\n"):
            if statement.strip():
                self.sql(statement)

    def run(self, work: Any) -> Any:
        return self._runner.run(asyncio.wait_for(work, 120))

    def sql(self, text: str, *args: Any) -> Any:
        return self.run(self.connection.fetch(text, *args))

    def counts(self) -> dict[str, int]:
        self.sql("select pg_stat_force_next_flush()")
        self.sql("select pg_stat_clear_snapshot()")
        return {row["what"]: row["n"] for row in self.sql(COUNTS, list(TABLES))}

    def during(self, text: str) -> tuple[Any, dict[str, int]]:
        before = self.counts()
        rows = self.sql(text)
        after = self.counts()
        return rows, {what: after[what] - before[what] for what in after}

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


MIDDLE = "gateway.clock() - interval '20 days' + interval '100000 s'"

STATEMENTS = {
    "commands, the first": f"gateway.forget_commands('-infinity', 0, '', {CHUNK})",
    "commands, from the middle": f"gateway.forget_commands({MIDDLE}, 0, '', {CHUNK})",
    "commands, nothing left": f"gateway.forget_commands(gateway.clock(), 0, '', {CHUNK})",
    "audit, due": f"gateway.forget_audit(19, {CHUNK})",
    "audit, not due": f"gateway.forget_audit(400, {CHUNK})",
    "jobs, due": f"gateway.forget_jobs(19, {CHUNK})",
    "jobs, not due": f"gateway.forget_jobs(400, {CHUNK})",
    "keys of jobs, due": f"gateway.forget_job_keys(19, {CHUNK})",
    "keys of jobs, not due": f"gateway.forget_job_keys(400, {CHUNK})",
    "keys that were given back, due": f"gateway.forget_given_back({CHUNK})",
    "entities of jobs": f"gateway.touch_job_entities(0, '{UUID(int=0)}', {CHUNK})",
    "entities, due": f"gateway.forget_entities(1, 'e:1', 10, {CHUNK})",
    "entities, not due": f"gateway.forget_entities(1, 'e:5', 400, {CHUNK})",
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_chunk_reads_about_what_it_looks_at(plant: Plant, name: str) -> None:
    rows, did = plant.during(f"select * from {STATEMENTS[name]}")
    assert {what: n for what, n in did.items() if what.startswith("seq") and n} == {}
    read = {what: n for what, n in did.items() if what.startswith("read")}
    assert {what: n for what, n in read.items() if n > 5 * CHUNK} == {}
    if name.endswith(", due"):
        assert rows[0][0] > 0, "nothing was done, so nothing was measured"


def test_fewer_rows_than_a_chunk_are_read_where_few_are_due(plant: Plant) -> None:
    """The unsettled ones and those not due yet are looked at once, by the index, and left."""
    rows, did = plant.during(f"select * from gateway.forget_commands({MIDDLE}, 0, '', 100)")
    assert rows[0]["keys"] <= 2
    assert rows[0]["last_digest"] is not None
    assert did["read commands"] <= 1000
