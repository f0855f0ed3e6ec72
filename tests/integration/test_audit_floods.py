"""Equal refusals share an audit row once there are many of them; the counts add up, whatever is
repeated, and nothing is left out."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.command import Command
from gateway.core.decide import Forward, RejectReused, RejectStale, decide
from gateway.core.jobs import Complete, Fail, Rejected
from gateway.limits import REPEAT_WINDOW_S, REPEATS
from gateway.store import audit
from gateway.store.audit import Entry, Row
from gateway.store.commands import CommandStore
from tests.integration.test_store_model import Bench, OneConnection
from tests.kit.commands import attempt, command
from tests.kit.db import Server
from tests.kit.jobs import LEASE_MS, Yard, yard
from tests.kit.operating import fencegate

ROWS = (
    "select a.event, a.key, a.fence, a.at, a.attempt, r.times, r.last_at,"
    " cardinality(r.recent) as recent"
    " from gateway.audit a left join gateway.audit_repeats r using (tenant, id)"
    " where a.entity = $1 order by a.at, r.times nulls first"
)


class Zombie(Bench):
    """Who sends for ever under fences that are stale."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._attempts = itertools.count()
        self._entities = itertools.count()

    def entity(self) -> str:
        """One whose mark is 9."""
        made = f"invoice:{next(self._entities)}"
        assert isinstance(self.admit(self.wish("owner", made, 9, serial=False)), Forward)
        return made

    def wish(self, key: str, entity: str, fence: int | None, **more: bool) -> Command:
        return command(
            f"{key}/{entity}", by=attempt(next(self._attempts)), entity=entity, fence=fence, **more
        )

    def admit(self, made: Command) -> object:
        return decide(self.run(self.store.admit([made]))[0])

    def rows(self, entity: str) -> list[asyncpg.Record]:
        return self.run(self.watch.fetch(ROWS, entity))


@pytest.fixture(scope="module")
def zombie(postgres: Server) -> Iterator[Zombie]:
    with postgres.database() as dsn:
        made = Zombie(dsn)
        try:
            yield made
        finally:
            made.close()


def total(rows: list[asyncpg.Record]) -> int:
    return sum(row["times"] or 1 for row in rows)


def test_the_first_refusals_have_a_row_each_and_the_rest_share_one(zombie: Zombie) -> None:
    entity = zombie.entity()
    for _ in range(REPEATS + 40):
        zombie.advance(1_000)
        assert isinstance(zombie.admit(zombie.wish("k", entity, 3)), RejectStale)
    rows = zombie.rows(entity)
    assert [row["times"] for row in rows] == [None] * REPEATS + [40]
    assert rows[-1]["last_at"] == zombie.now()
    assert rows[-1]["at"] == zombie.now() - timedelta(seconds=39)
    assert {row["event"] for row in rows} == {"fence_stale"}


_HOUR = timedelta(seconds=REPEAT_WINDOW_S)

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from([3, 4]),
        st.sampled_from(["new", "again", "last but one again"]),
        st.sampled_from([0, 1_000, 1_300_000]),
        st.integers(1, 14),
    ),
    min_size=1,
    max_size=8,
)


@given(STEPS)
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_the_counts_add_up(zombie: Zombie, steps: list[tuple[str, int, str, int, int]]) -> None:
    entity = zombie.entity()
    sent: list[Command] = []
    at: list[datetime] = []
    for key, fence, which, pause_ms, often in steps:
        zombie.advance(pause_ms)
        now = zombie.now()
        # A statement is repeated after a lost answer, within seconds; here an hour.
        recent = [one for one, when in zip(sent, at, strict=True) if now - when < _HOUR]
        for _ in range(often):
            if which == "new" or not recent:
                recent.append(zombie.wish(key, entity, fence))
                sent.append(recent[-1])
                at.append(now)
                again = recent[-1]
            else:
                again = recent[-1] if which == "again" else recent[-2:][0]
            assert isinstance(zombie.admit(again), RejectStale)
    rows = zombie.rows(entity)
    told: Counter[tuple[str, int]] = Counter()
    for row in rows:
        told[row["key"], row["fence"]] += row["times"] or 1
    assert told == Counter((each.key, each.fence) for each in sent)
    # In no hour more rows than that, of equal refusals: ten, and one for each hour of the clock.
    for row in rows:
        until = row["at"] + _HOUR
        alike = [
            each
            for each in rows
            if (each["key"], each["fence"]) == (row["key"], row["fence"])
            and row["at"] <= each["at"] < until
        ]
        assert len(alike) <= REPEATS + 2


def test_the_counts_add_up_where_many_are_refused_at_once(zombie: Zombie) -> None:
    entity = zombie.entity()
    # Without fences nothing is locked for them but the row that they share.
    zombie.admit(replace(zombie.wish("k", entity, None, serial=False), fingerprint=bytes(32)))

    async def some() -> None:
        wishes = [zombie.wish("k", entity, None, serial=False) for _ in range(20)]
        found = await asyncio.gather(*(zombie.store.admit([wish]) for wish in wishes))
        assert all(isinstance(decide(facts), RejectReused) for (facts,) in found)

    for _ in range(6):
        zombie.run(some())
    rows = zombie.rows(entity)
    assert {row["event"] for row in rows} == {"key_reused"}
    assert total(rows) == 120
    assert len(rows) <= REPEATS + 4  # two connections look at the same time


def test_what_differs_has_rows_of_its_own(zombie: Zombie) -> None:
    entity = zombie.entity()
    for _ in range(REPEATS + 5):
        zombie.admit(zombie.wish("k", entity, 3))
    zombie.admit(zombie.wish("other", entity, 3))
    zombie.admit(zombie.wish("k", entity, 4))
    zombie.admit(replace(zombie.wish("k", entity, 3), principal="somebody else"))
    zombie.admit(zombie.wish("new", entity, 12, serial=False))  # the mark rises
    zombie.admit(zombie.wish("k", entity, 3))
    assert [row["times"] for row in zombie.rows(entity)].count(None) == REPEATS + 4
    assert total(zombie.rows(entity)) == REPEATS + 5 + 4


def test_after_an_hour_rows_are_written_again(zombie: Zombie) -> None:
    entity = zombie.entity()
    for _ in range(2):
        for _ in range(REPEATS + 5):
            zombie.admit(zombie.wish("k", entity, 3))
        zombie.advance(REPEAT_WINDOW_S * 1_000)
    shared = [row["times"] for row in zombie.rows(entity) if row["times"]]
    assert shared == [5, 5]
    assert total(zombie.rows(entity)) == 2 * (REPEATS + 5)


def test_a_repeat_in_the_next_hour_of_the_clock_counts_once(zombie: Zombie) -> None:
    entity = zombie.entity()
    now = zombie.now()
    next_hour = now.replace(minute=0, second=0, microsecond=0) + _HOUR
    zombie.advance(round((next_hour - now).total_seconds() * 1_000) - 1)
    for _ in range(REPEATS + 2):
        last = zombie.wish("k", entity, 3)
        zombie.admit(last)
    zombie.advance(1)
    zombie.admit(last)
    assert [row["times"] for row in zombie.rows(entity)] == [None] * REPEATS + [2]


def test_what_is_remembered_of_repeats_is_bounded(zombie: Zombie) -> None:
    entity = zombie.entity()
    for _ in range(REPEATS + 90):
        zombie.admit(zombie.wish("k", entity, 3))
    assert zombie.rows(entity)[-1]["recent"] == 64


def test_a_refusal_for_the_entity_is_counted_too(zombie: Zombie) -> None:
    entry = Entry(
        tenant=1,
        event="entity_mismatch",
        reason="the request is for invoice:m, its header says invoice:2",
        principal="worker",
        policy="pay/charge",
        entity="invoice:m",
        key="k",
        fence=3,
    )

    async def loop() -> None:
        for _ in range(REPEATS + 7):
            again = Entry(**{name: getattr(entry, name) for name in _NAMES})
            await audit.append(zombie.database, again)
            await audit.append(zombie.database, again)  # its answer was lost

    zombie.run(loop())
    assert [row["times"] for row in zombie.rows("invoice:m")] == [None] * REPEATS + [7]


_NAMES = ("tenant", "event", "reason", "principal", "policy", "entity", "key", "fence")


def test_many_rows_of_an_entity_are_not_read_for_each_refusal(zombie: Zombie) -> None:
    entity = zombie.entity()

    async def fill() -> None:
        await zombie.watch.execute(
            "insert into gateway.audit (tenant, id, at, event, entity, key, reason)"
            " select 1, gen_random_uuid(), gateway.clock(), 'fence_stale', $1, 'k' || i, 'r'"
            " from generate_series(1, 20000) i",
            entity,
        )

    async def read() -> dict[str, int]:
        await zombie.watch.execute("select pg_stat_force_next_flush()")
        await zombie.watch.execute("select pg_stat_clear_snapshot()")
        found = await zombie.watch.fetch(
            "select indexrelname, idx_tup_read from pg_stat_user_indexes where relname = 'audit'"
        )
        return {row["indexrelname"]: row["idx_tup_read"] for row in found}

    async def refused() -> None:
        made = zombie.wish("k", entity, 3)
        await CommandStore(OneConnection(zombie.watch)).admit([made])  # type: ignore[arg-type]

    zombie.run(fill())
    before = zombie.run(read())
    zombie.run(refused())
    after = zombie.run(read())
    assert after["audit_at_idx"] == before["audit_at_idx"]
    assert after["audit_entity_idx"] - before["audit_entity_idx"] <= 200


# -- results that come too late


@pytest.fixture
def jobs(postgres: Server) -> Iterator[Yard]:
    with yard(postgres) as made:
        yield made


def test_late_results_of_one_lease_share_a_row_whatever_they_are(jobs: Yard) -> None:
    jobs.add()
    lease = jobs.one()
    jobs.advance(LEASE_MS)
    sent = 0
    for number in range(REPEATS + 15):
        end = (
            Complete(lease.held, b"%d" % number)
            if number % 2
            else Fail(lease.held, f"broken {number}", True, 0)
        )
        jobs.advance(10)
        for _ in range(1 + number % 3):  # a worker repeats what had no answer
            assert jobs.end(end) == [Rejected("expired")]
        sent += 1
    rows = jobs.sql(ROWS, lease.held.entity)
    assert {row["event"] for row in rows} == {"result_rejected"}
    assert [row["times"] for row in rows] == [None] * REPEATS + [15]
    assert total(rows) == sent


def test_a_batch_of_late_results_leaves_the_rows_of_each(jobs: Yard) -> None:
    for _ in range(3):
        jobs.add()
    leases = jobs.claim(3)
    jobs.advance(LEASE_MS)
    for number in range(REPEATS + 2):
        jobs.end(*(Complete(lease.held, b"%d" % number) for lease in leases))
    for lease in leases:
        assert [row["times"] for row in jobs.sql(ROWS, lease.held.entity)] == [
            *[None] * REPEATS,
            2,
        ]


# -- what people see, and what is forgotten


def test_the_command_line_shows_how_many_there_were(database: str) -> None:
    made = Zombie(database)
    try:
        entity = made.entity()
        for _ in range(REPEATS + 30):
            made.advance(1_000)
            made.admit(made.wish("k", entity, 3))
        last = made.now()
    finally:
        made.close()
    done = fencegate("audit", "--entity", entity, "--format", "jsonl", dsn=database)
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["times"] for row in rows] == [30] + [1] * REPEATS
    assert rows[0]["last_at"].startswith(last.strftime("%Y-%m-%dT%H:%M:%S"))
    table = fencegate("audit", "--entity", entity, dsn=database).out
    assert "TIMES" in table.upper()
    assert any(" 30 " in line for line in table.splitlines())


def test_a_shared_row_is_forgotten_with_its_count(zombie: Zombie) -> None:
    entity = zombie.entity()
    for _ in range(REPEATS + 5):
        zombie.admit(zombie.wish("k", entity, 3))
    zombie.advance(400 * 86_400_000)
    while zombie.run(zombie.watch.fetchval("select gateway.forget_audit(400, 500)")):
        pass
    assert zombie.run(zombie.watch.fetchval("select count(*) from gateway.audit_repeats")) == 0


def test_the_release_before_reads_rows_that_are_shared(zombie: Zombie) -> None:
    """It selects all columns of the audit, so those must stay as they are."""
    (columns,) = zombie.run(
        zombie.watch.fetch(
            "select array_agg(attname::text order by attnum) from pg_attribute"
            " where attrelid = 'gateway.audit'::regclass and attnum > 0"
        )
    )
    ours = [name for name in Row.__dataclass_fields__ if name != "tenant_name"]
    assert columns[0] == [name for name in ours if name not in ("times", "last_at")]
