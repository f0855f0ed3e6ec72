"""The store of the model against the real SQL: the same random trace through both, and after every
step the same answer and the same rows. A tick is a minute of a clock that is moved by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, get_args
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.command import Command, Hold, Release, Settle
from gateway.core.decide import Decision, Probe, TakeOver, decide
from gateway.core.evidence import Judged
from gateway.core.issuing import Issued
from gateway.core.jobs import Ended, HandBack, Held, NewJob, Renewed, Terms
from gateway.store.commands import CommandStore
from gateway.store.fences import FenceStore
from gateway.store.jobs import JobStore
from gateway.store.unknowns import Due, UnknownStore
from tests.integration.test_store_model import Bench
from tests.kit.commands import OK, attempt, command, digest
from tests.kit.db import Server
from tests.model import state
from tests.model.judging import TICK_MS, decided
from tests.model.state import NOBODY, Entity, Lease, Mode, Row, Watched
from tests.model.store import Rules, empty

TERMS = state.Terms()
ENTITY_OF = (0, 0, 1)
TICK = timedelta(milliseconds=TICK_MS)
LONG_MS = 1_000_000_000

TABLES = "select gateway.clock() as now, " + ", ".join(
    f"(select coalesce(array_agg(r), '{{}}') from gateway.{table} r where r.tenant = $1) as {table}"
    for table in ("commands", "entities", "job_leases", "watched", "given_back")
)

KEY = st.integers(0, len(ENTITY_OF) - 1)
AT = st.integers(0, 1)
PICK = st.integers(0, 5)
STEP = st.one_of(
    st.tuples(st.just("admit"), KEY, st.sampled_from([-1, 0, 0, 0, 1])),
    st.tuples(st.just("admit_again"), PICK),
    st.tuples(st.just("settle"), PICK),
    st.tuples(st.just("release"), PICK),
    st.tuples(st.just("release_unheard"), PICK),
    st.tuples(st.just("hold"), PICK),
    st.tuples(st.just("conclude"), PICK, st.booleans()),
    st.tuples(st.just("take_over"), PICK, st.sampled_from([-1, 0, 0, 0, 1])),
    st.tuples(st.just("take_again"), PICK),
    st.tuples(st.just("ask"), PICK),
    st.tuples(
        st.just("probed"),
        PICK,
        st.sampled_from(["applied", "absent", "absent", "absent", "nothing"]),
        st.integers(0, TERMS.look),
    ),
    st.tuples(st.just("issue"), AT),
    st.tuples(st.just("claim"), AT),
    st.tuples(st.just("renew"), AT, PICK),
    st.tuples(st.just("end"), AT, PICK),
    st.tuples(st.just("reap")),
    st.tuples(st.just("tick")),
    st.tuples(st.just("tick")),
)


class Pair:
    """One tenant in the database, and the model of it."""

    def __init__(self, bench: Bench, mode: Mode) -> None:
        self.bench, self.mode = bench, mode
        self.tenant = next(bench.tenants)
        self.rules = Rules(TERMS, ENTITY_OF, mode)
        self.model = empty(2, len(ENTITY_OF))
        self.numbers = itertools.count()
        self.admits: list[Command] = []
        self.takes: list[tuple[Command, int]] = []
        self.held: list[list[Held]] = [[], []]
        self.jobs = JobStore(bench.database)
        self.run(self.jobs.enqueue, self.tenant, [self._job(at) for at in (0, 0, 1, 1)])

    def run(self, work: Callable[..., Any], *args: Any) -> Any:
        return self.bench.run(work(*args))

    def _job(self, at: int) -> NewJob:
        job = uuid4()
        return NewJob(id=job, key=str(job), tool=f"t{at}", payload=b"{}", entity=f"e{at}")

    def do(self, name: str, *drawn: Any) -> None:
        real, expected = getattr(self, name)(*drawn)
        assert real == expected, (name, drawn, real, expected)

    # One step each: what the database answers, and what the model does.

    def admit(self, key: int, above: int) -> tuple[object, object]:
        return self._admit(self._command(key, self._fence(ENTITY_OF[key], above)))

    def admit_again(self, pick: int) -> tuple[object, object]:
        return self._admit(_pick(self.admits, pick)) if self.admits else (None, None)

    def settle(self, pick: int) -> tuple[object, object]:
        return self._finish(pick, lambda c: Settle(c, OK, True), "settle")

    def release(self, pick: int) -> tuple[object, object]:
        return self._finish(pick, lambda c: Release(c, "status 429"), "release")

    def release_unheard(self, pick: int) -> tuple[object, object]:
        return self._finish(pick, lambda c: Release(c, "refused", heard=False), "release", False)

    def hold(self, pick: int) -> tuple[object, object]:
        return self._finish(pick, lambda c: Hold(c, "no answer", None), "hold")

    def conclude(self, pick: int, executed: bool) -> tuple[object, object]:
        if not self.admits:
            return None, None
        c = _pick(self.admits, pick)
        sql = "select result from gateway.resolve($1, $2, $3, $4, 'because', 'operator:o')"
        rows = self.run(self.bench.database.fetch, sql, c.tenant, c.key_digest, c.attempt, executed)
        about = (_key(c), _number(c), executed, "resolved")
        self.model, expected = self.rules.conclude(self.model, *about)  # type: ignore[arg-type]
        return rows[0]["result"], expected

    def take_over(self, pick: int, above: int) -> tuple[object, object]:
        if not self.admits:
            return None, None
        c = _pick(self.admits, pick)
        made = self._command(_key(c), self._fence(ENTITY_OF[_key(c)], above))
        self.admits.append(made)
        self.takes.append((made, _number(c)))
        return self._take(made, _number(c))

    def take_again(self, pick: int) -> tuple[object, object]:
        return self._take(*_pick(self.takes, pick)) if self.takes else (None, None)

    def ask(self, pick: int) -> tuple[object, object]:
        if not self.admits:
            return None, None
        c = _pick(self.admits, pick)
        due = self.run(
            UnknownStore(self.bench.database).ask_now, c, c.attempt, TERMS.busy * TICK_MS
        )
        self.model, expected = self.rules.ask(self.model, _key(c), _number(c))
        return due is not None, expected

    def probed(self, pick: int, verdict: Any, age: int) -> tuple[object, object]:
        if not self.admits or self.mode != "probe":  # nothing else is asked about
            return None, None
        c = _pick(self.admits, pick)
        asked_at = self.bench.now() - age * TICK
        due = Due(c.tenant, c.key_digest, c.attempt, c.policy, c.entity, b"/", asked_at)
        real = self.run(
            UnknownStore(self.bench.database).probed,
            *(due, Judged(verdict, "why"), TERMS.interval * TICK_MS // 1000, None),
        )
        about = (_key(c), _number(c), verdict, age)
        self.model, expected = self.rules.probed(self.model, *about)
        return real, expected

    def issue(self, at: int) -> tuple[object, object]:
        real = self.run(FenceStore(self.bench.database).issue, self.tenant, f"e{at}")
        self.model, expected = self.rules.issue(self.model, at)
        return real.fence if isinstance(real, Issued) else None, expected

    def claim(self, at: int) -> tuple[object, object]:
        terms = Terms(f"t{at}", TERMS.lease * TICK_MS, LONG_MS, 1_000_000, None, None)
        leases = self.run(self.jobs.claim, self.tenant, 1, "w", uuid4(), [terms])
        self.held[at] += [lease.held for lease in leases]
        self.model, expected = self.rules.claim(self.model, at)
        return leases[0].fence if leases else None, expected

    def renew(self, at: int, pick: int) -> tuple[object, object]:
        if not self.held[at]:
            return None, None
        held = _pick(self.held[at], pick)
        (answer,) = self.run(self.jobs.renew, self.tenant, [held])
        real = answer.remaining_ms // TICK_MS if isinstance(answer, Renewed) else None
        self.model, expected = self.rules.renew(self.model, at, held.fence)
        return real, expected

    def end(self, at: int, pick: int) -> tuple[object, object]:
        if not self.held[at]:
            return None, None
        held = _pick(self.held[at], pick)
        (answer,) = self.run(self.jobs.end, self.tenant, "w", [HandBack(held)])
        self.model, expected = self.rules.end(self.model, at, held.fence)
        return isinstance(answer, Ended) and not answer.again, expected

    def reap(self) -> tuple[object, object]:
        found = [e for e in self.run(self.jobs.expired, 1_000) if e.tenant == self.tenant]
        self.run(self.jobs.reap, [(each, 0) for each in found])
        expected = []
        for at in (0, 1):
            self.model, done = self.rules.reap(self.model, at)
            expected += [f"e{at}"] if done else []
        return sorted(each.lease.entity for each in found), expected

    def tick(self) -> tuple[object, object]:
        self.bench.advance(TICK_MS)
        self.model = self.rules.tick(self.model)
        return None, None

    # What they are made of.

    def _command(self, key: int, fence: int) -> Command:
        return command(
            f"k{key}",
            by=attempt(self.tenant * 1_000 + next(self.numbers)),
            entity=f"e{ENTITY_OF[key]}",
            fence=fence,
            tenant=self.tenant,
            deadline_ms=TERMS.deadline * TICK_MS,
            settle_delay_s=TERMS.settle_delay * TICK_MS // 1000,
            unknown=self.mode,
            upstream_key="up" if self.mode == "resend" else None,
            probe_target=b"/" if self.mode == "probe" else None,
            resend_within_ms=TERMS.within * TICK_MS if self.mode == "resend" else None,
        )

    def _fence(self, at: int, above: int) -> int:
        return max(self.model.entities[at].mark + above, 0)

    def _admit(self, made: Command) -> tuple[object, object]:
        (facts,) = self.run(CommandStore(self.bench.database).admit, [made])
        if made not in self.admits:
            self.admits.append(made)
        assert made.fence is not None
        about = (_key(made), made.fence, _number(made))
        self.model = self.rules.admit(self.model, *about)
        return _said(decide(facts)), _said(decided(self.rules, self.model, *about))

    def _take(self, made: Command, judged: int) -> tuple[object, object]:
        real = self.run(UnknownStore(self.bench.database).take_over, made, attempt(judged))
        assert made.fence is not None
        about = (_key(made), made.fence, judged, _number(made))
        self.model, expected = self.rules.take_over(self.model, *about)
        return real, expected

    def _finish(
        self, pick: int, end: Callable[[Command], Settle | Release | Hold], name: str, *about: Any
    ) -> tuple[object, object]:
        if not self.admits:
            return None, None
        c = _pick(self.admits, pick)
        (real,) = self.run(getattr(CommandStore(self.bench.database), name), [end(c)])
        self.model, expected = getattr(self.rules, name)(self.model, _key(c), _number(c), *about)
        return real, expected

    # The tables.

    def compare(self) -> None:
        tables = self.run(self.bench.watch.fetchrow, TABLES, self.tenant)

        def ticks(when: Any) -> int:
            return round((when - tables["now"]) / TICK)

        def read(table: str) -> list[Any]:
            return list(tables[table])

        keys = {digest(f"k{key}"): key for key in range(len(ENTITY_OF))}
        rows: list[Row | None] = [None] * len(ENTITY_OF)
        given_back = {row["key_digest"]: row["first_sent_at"] for row in read("given_back")}
        for row in read("commands"):
            open_row = row["settled_by"] is None
            least = -TERMS.settle_delay - (TERMS.look if self.mode == "probe" else 0)
            first = min(row["admitted_at"], given_back.get(row["key_digest"], row["admitted_at"]))
            age = min(-ticks(first), TERMS.within) if self.mode == "resend" else 0
            rows[keys[row["key_digest"]]] = Row(
                row["attempt"].int - 1,
                tuple(each.int - 1 for each in row["earlier"] or ()),
                max(ticks(row["deadline"]), least) if open_row else 0,
                age if open_row else 0,
                row["evidence_at"] is not None if open_row else False,
                row["settled_by"],
            )
        assert tuple(rows) == self.model.rows
        if self.mode == "resend":
            self._compare_given_back(read("given_back"), keys, ticks)
        entities = [Entity(), Entity()]
        for row in read("entities"):
            key = keys.get(row["open_key"], NOBODY)
            by = NOBODY if row["open_attempt"] is None else row["open_attempt"].int - 1
            entities[int(row["entity"][1:])] = Entity(row["fence"], row["held"], key, by)
            if key != NOBODY:
                (holder,) = [c for c in read("commands") if c["key_digest"] == row["open_key"]]
                assert row["open_until"] == holder["deadline"], "they change together"
        assert tuple(entities) == self.model.entities
        leases: list[Lease | None] = [None, None]
        for row in read("job_leases"):
            at = int(row["entity"][1:])
            leases[at] = Lease(row["fence"], max(ticks(row["lease_until"]), 0))
        assert tuple(leases) == self.model.leases
        if self.mode == "probe":
            self._compare_watched(read("watched"), keys, ticks)

    def _compare_given_back(self, found: list[Any], keys: dict[bytes, int], ticks: Any) -> None:
        """Of settled commands it is still there, and nobody asks."""
        given = [NOBODY] * len(ENTITY_OF)
        for row in found:
            key = keys[row["key_digest"]]
            known = self.model.rows[key]
            if known is None or known.by is None:
                given[key] = min(-ticks(row["first_sent_at"]), TERMS.within)
        assert tuple(given) == self.model.given_back

    def _compare_watched(self, rows: list[Any], keys: dict[bytes, int], ticks: Any) -> None:
        found: list[Watched | None] = [None] * len(ENTITY_OF)
        for row in rows:
            absent = NOBODY
            if row["absent_at"] is not None:
                absent = min(-ticks(row["absent_at"]), TERMS.look + TERMS.interval)
            busy = max(ticks(row["busy_until"]), 0)
            found[keys[row["key_digest"]]] = Watched(row["attempt"].int - 1, busy, absent)
        assert tuple(found) == self.model.watched


def _pick(items: Any, pick: int) -> Any:
    """Counted from the latest."""
    return items[-1 - pick % len(items)]


def _key(made: Command) -> int:
    return int(made.key[1:])


def _number(made: Command) -> int:
    return made.attempt.int - 1


def _said(decision: Decision) -> tuple[str, object]:
    judged = decision.judged if isinstance(decision, TakeOver | Probe) else None
    return type(decision).__name__, judged


@pytest.fixture(scope="module")
def bench(postgres: Server) -> Iterator[Bench]:
    with postgres.database() as dsn:
        made = Bench(dsn)
        yield made
        made.close()


@pytest.mark.parametrize("mode", get_args(Mode))
def test_the_models_store_does_what_the_sql_does(bench: Bench, mode: Mode) -> None:
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(STEP, min_size=20, max_size=40))
    def run(steps: list[tuple[Any, ...]]) -> None:
        pair = Pair(bench, mode)
        for step in steps:
            pair.do(*step)
            pair.compare()

    run()


def test_a_store_that_differs_is_noticed(bench: Bench) -> None:
    """The comparison itself: one rule broken in the model."""
    pair = Pair(bench, "hold")
    pair.rules = type("Broken", (Rules,), {"is_not_stale": lambda *_: True})(
        TERMS, ENTITY_OF, "hold"
    )
    pair.do("admit", 0, 1)
    pair.do("release", 0)
    with pytest.raises(AssertionError):
        pair.do("admit", 1, -1)
