"""The real store against the naive one, step by step, with a clock that is moved by hand.

Every step is done twice, in Postgres and in ``tests.kit.model``; answers, tables and audit must
agree afterwards, and the guarantees must hold of everything that happened so far.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from gateway.core.command import Command, Hold, Release, Settle
from gateway.core.decide import Facts, Forward, RejectNotHeld, RejectStale, decide
from gateway.core.evidence import Judged, Verdict
from gateway.core.headers import decode_lines
from gateway.core.issuing import Issued
from gateway.core.model import Response
from gateway.store.commands import CommandStore
from gateway.store.database import Database
from gateway.store.fences import FenceStore
from gateway.store.unknowns import Due, Report, UnknownStore
from tests.kit.commands import attempt, command, digest, response
from tests.kit.db import Server
from tests.kit.invariants import (
    Admission,
    End,
    Evidence,
    History,
    How,
    Observation,
    Refusal,
    Send,
    assert_holds,
)
from tests.kit.model import Model, Row

T = TypeVar("T")

MANUAL_CLOCK = """
create table gateway.manual_clock as select timestamptz '2026-01-01 00:00:00+00' as at;
create or replace function gateway.clock() returns timestamptz
    language sql volatile
    return (select at from gateway.manual_clock);
"""


class Bench:
    """One database whose clock is moved by hand; every example gets a tenant of its own."""

    def __init__(self, dsn: str) -> None:
        self._runner = asyncio.Runner()
        self._dsn = dsn
        self.tenants = itertools.count(1)
        self.run(self._open())

    async def _open(self) -> None:
        self.database = await Database.open(self._dsn, size=2)
        self.store = CommandStore(self.database)
        self.first = await asyncpg.connect(self._dsn)
        self.watch = await asyncpg.connect(self._dsn)
        await self.watch.execute(MANUAL_CLOCK)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(work, 30))

    def close(self) -> None:
        self.run(self._close())
        self._runner.close()

    async def _close(self) -> None:
        await self.database.close()
        await self.first.close()
        await self.watch.close()

    def now(self) -> datetime:
        return self.run(self.watch.fetchval("select gateway.clock()"))

    def advance(self, by_ms: int) -> None:
        self.run(
            self.watch.execute(
                "update gateway.manual_clock set at = at + $1", timedelta(milliseconds=by_ms)
            )
        )

    async def blocked(self, task: asyncio.Task[Any]) -> bool:
        """Whether the backend of ``task`` comes to wait for a lock of ``first``."""
        pid = self.first.get_server_pid()
        blocked = (
            "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))"
        )
        while not task.done():
            if await self.watch.fetchval(blocked, pid):
                return True
        return False


class OneConnection:
    """In place of a ``Database``: everything within the connection's open transaction."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def fetch(self, sql: str, *args: Any) -> Sequence[asyncpg.Record]:
        return await self._connection.fetch(sql, *args)


# One step: what it does to the store, and what to the model.


@dataclass(frozen=True)
class Admit:
    commands: tuple[Command, ...]

    async def perform(self, database: Any) -> list[Facts]:
        return await CommandStore(database).admit(self.commands)

    def expect(self, model: Model) -> list[Facts]:
        return [model.admit(each) for each in self.commands]


@dataclass(frozen=True)
class Finish:
    """Settle, release or hold."""

    end: Settle | Release | Hold

    @property
    def command(self) -> Command:
        return self.end.command

    async def perform(self, database: Any) -> object:
        store = CommandStore(database)
        match self.end:
            case Settle():
                return (await store.settle([self.end]))[0]
            case Release():
                return (await store.release([self.end]))[0]
            case Hold():
                return (await store.hold([self.end]))[0]

    def expect(self, model: Model) -> object:
        match self.end:
            case Settle():
                return model.settle(self.end)
            case Release():
                return model.release(self.end)
            case Hold():
                return model.hold(self.end)


@dataclass(frozen=True)
class Resolve:
    command: Command
    executed: bool

    async def perform(self, database: Any) -> object:
        c = self.command
        rows = await database.fetch(
            "select result from gateway.resolve($1, $2, $3, $4, 'asked the bank', 'operator:o')",
            *(c.tenant, c.key_digest, c.attempt, self.executed),
        )
        return rows[0]["result"]

    def expect(self, model: Model) -> object:
        return model.resolve(self.command, executed=self.executed)


@dataclass(frozen=True)
class Issue:
    """A fence to somebody outside; from then on only the one that is held is admitted."""

    tenant: int
    entity: str

    async def perform(self, database: Any) -> object:
        return await FenceStore(database).issue(self.tenant, self.entity)

    def expect(self, model: Model) -> object:
        return Issued(model.issue(self.tenant, self.entity))


BUSY_MS = 30_000
INTERVAL_S = 60


@dataclass(frozen=True)
class TakeOver:
    """``command`` in place of the attempt that was judged; by its own key, as it is told."""

    command: Command
    judged: UUID

    async def perform(self, database: Any) -> object:
        return await UnknownStore(database).take_over(self.command, self.judged)

    def expect(self, model: Model) -> object:
        return model.take_over(self.command, self.judged)


@dataclass(frozen=True)
class AskNow:
    """The look of a caller's own request; ``Probed`` is what it shows."""

    command: Command

    async def perform(self, database: Any) -> object:
        c = self.command
        return await UnknownStore(database).ask_now(c, c.attempt, BUSY_MS) is not None

    def expect(self, model: Model) -> object:
        return model.ask_now(self.command, self.command.attempt, BUSY_MS)


@dataclass(frozen=True)
class Probed:
    """``asked_at``, ``asked_ms``: one moment, as the store and as the model name it."""

    command: Command
    verdict: Verdict
    asked_at: datetime
    asked_ms: int

    async def perform(self, database: Any) -> object:
        c = self.command
        target = c.probe_target or b""
        due = Due(*(c.tenant, c.key_digest, c.attempt, c.policy, c.entity, target, self.asked_at))
        judged = Judged(self.verdict, "a probe was answered")
        return await UnknownStore(database).probed(due, judged, INTERVAL_S, None)

    def expect(self, model: Model) -> object:
        c = self.command
        return model.probed(c, c.attempt, self.verdict, self.asked_ms, INTERVAL_S)


@dataclass(frozen=True)
class Reported:
    command: Command
    executed: bool
    named: bool

    async def perform(self, database: Any) -> object:
        c = self.command
        report = Report(
            *(c.tenant, c.key_digest, c.key, c.attempt if self.named else None, self.executed),
            *("a webhook said so", "worker-1", "r", None),
        )
        return (await UnknownStore(database).report(report))[0]

    def expect(self, model: Model) -> object:
        attempt = self.command.attempt if self.named else None
        return model.report(self.command, attempt, executed=self.executed)


Step = Admit | Finish | Resolve | Issue | TakeOver | AskNow | Probed | Reported


@dataclass(frozen=True)
class Together:
    """What two interleaved steps answered, and whether the second had to wait for the first."""

    one: object
    other: object
    waited: bool


# What is drawn: numbers that pick, turned into steps by the machine that knows what exists.

ENTITY = st.sampled_from(["e1", "e2", "e3"])
SPEC = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["k1", "k2", "k3", "k4", "k5"]),
        "entity": ENTITY,
        "fence": st.none() | st.integers(0, 4),
        "lease": st.sampled_from([None, None, None, -1, 0, 1]),
        "issuer_here": st.sampled_from([False, False, True]),
        "body": st.sampled_from(["", "", "other"]),
        "policy": st.sampled_from(["pay/charge", "pay/charge", "pay/charge", "pay/refund"]),
        "rules": st.sampled_from(["v1", "v1", "v2"]),
        "serial": st.sampled_from([True, True, False]),
        "unknown": st.sampled_from(["hold", "resend", "probe", "probe"]),
        "upstream": st.sampled_from(["up", "up", "up", "down"]),
    }
)
BATCH = st.lists(SPEC, min_size=1, max_size=5)
PICK = st.integers(0, 11)
STATUS = st.sampled_from([200, 201, 404])
EVIDENCE = st.sampled_from([None, response(503, b"try later")])
VERDICT = st.sampled_from(["applied", "absent", "absent", "absent", "nothing"])
ONE = st.one_of(
    st.tuples(st.just("admit"), BATCH),
    st.tuples(st.just("again"), PICK),
    st.tuples(st.just("settle"), PICK, STATUS, st.booleans()),
    st.tuples(st.just("release"), PICK, st.booleans()),
    st.tuples(st.just("hold"), PICK, EVIDENCE),
    st.tuples(st.just("resolve"), PICK, st.booleans()),
    st.tuples(st.just("issue"), ENTITY),
    st.tuples(st.just("take_over"), PICK, st.integers(0, 4), st.booleans()),
    st.tuples(st.just("ask_now"), PICK),
    st.tuples(st.just("probed"), PICK, VERDICT, st.integers(0, 3)),
    st.tuples(st.just("report"), PICK, st.booleans(), st.booleans()),
)
# Deadlines lie 35 s ahead, the settle delay is 300 s.
ADVANCE_MS = st.sampled_from([1, 500, 30_000, 34_999, 35_000, 60_000, 300_000, 335_000])
# First sent at most so long ago, to be sent again.
RESEND_WITHIN_MS = 600_000


class StoreMachine(RuleBasedStateMachine):
    """``bench`` is set by whoever runs it."""

    bench: ClassVar[Bench]

    def __init__(self) -> None:
        super().__init__()
        self.tenant = next(self.bench.tenants)
        self.model = Model()
        self.started = self.bench.now()
        self.at = 0
        self.numbers = itertools.count()
        self.admits: list[Command] = []
        self.sent: dict[UUID, Send] = {}
        self.commands: dict[UUID, Command] = {}
        self.history = History()
        self.seen: set[UUID] = set()
        self.moments: list[tuple[datetime, int]] = [(self.started, 0)]

    # Rules.

    @rule(batch=BATCH)
    def admit(self, batch: list[dict[str, Any]]) -> None:
        self._do(self._admit(batch))

    @rule(spec=SPEC)
    def rehearse(self, spec: dict[str, Any]) -> None:
        """What an admit would answer; that nothing of it stays is the invariant's to see."""
        number = self.tenant * 10_000 + next(self.numbers)
        made = self._made(number, spec)
        facts = self.bench.run(self.bench.store.rehearse(made))
        assert facts == deepcopy(self.model).admit(made)

    @precondition(lambda self: self.admits)
    @rule(pick=PICK)
    def admit_again_after_a_lost_answer(self, pick: int) -> None:
        self._do(self._again(pick))

    @precondition(lambda self: self.sent)
    @rule(pick=PICK, status=STATUS, keep=st.booleans())
    def settle(self, pick: int, status: int, keep: bool) -> None:
        self._do(self._settle(pick, status, keep))

    @precondition(lambda self: self.sent)
    @rule(pick=PICK, heard=st.booleans())
    def release(self, pick: int, heard: bool) -> None:
        self._do(self._release(pick, heard))

    @precondition(lambda self: self.sent)
    @rule(pick=PICK, evidence=EVIDENCE)
    def hold(self, pick: int, evidence: Response | None) -> None:
        self._do(self._hold(pick, evidence))

    @precondition(lambda self: self.sent)
    @rule(pick=PICK, executed=st.booleans())
    def resolve(self, pick: int, executed: bool) -> None:
        self._do(self._resolve(pick, executed))

    @rule(entity=ENTITY)
    def issue(self, entity: str) -> None:
        self._do(self._issue(entity))

    @rule(by_ms=ADVANCE_MS)
    def advance(self, by_ms: int) -> None:
        self.bench.advance(by_ms)
        self.model.advance(by_ms)
        self.moments.append((self.bench.now(), self.model.now_ms))
        self.at += 1

    @precondition(lambda self: self.sent)
    @rule(pick=PICK, fence=st.integers(0, 4), same=st.booleans())
    def take_over(self, pick: int, fence: int, same: bool) -> None:
        self._do(self._take_over(pick, fence, same))

    @precondition(lambda self: self.sent)
    @rule(pick=PICK)
    def ask_now(self, pick: int) -> None:
        self._do(self._ask_now(pick))

    @precondition(lambda self: self.sent)
    @rule(pick=PICK, verdict=VERDICT, ago=st.integers(0, 3))
    def probed(self, pick: int, verdict: Verdict, ago: int) -> None:
        self._do(self._probed(pick, verdict, ago))

    @precondition(lambda self: self.sent)
    @rule(pick=PICK, executed=st.booleans(), named=st.booleans())
    def report(self, pick: int, executed: bool, named: bool) -> None:
        self._do(self._report(pick, executed, named))

    @rule(first=ONE, second=ONE, commit=st.booleans())
    def interleave(self, first: tuple[Any, ...], second: tuple[Any, ...], commit: bool) -> None:
        """The second begins while the first is done but not committed. One that had to wait comes
        after it; one that did not may have come before."""
        one, other = self._step(first), self._step(second)
        if one is None or other is None or _two_outcomes(one, other):
            return
        did = self.bench.run(self._at_once(one, other, commit))
        order = [(one, did.one), (other, did.other)] if commit else [(other, did.other)]
        if not did.waited and not self._fits(order):
            order.reverse()
        for step, answer in order:
            self._compare(step, answer)

    @rule()
    def waiters_are_woken_for_what_changed(self) -> None:
        keys = [(self.tenant, digest(f"k{number}")) for number in range(7)]
        entities = [(self.tenant, f"e{number}") for number in range(5)]
        ready = self.bench.run(self.bench.store.ready(keys, entities))
        assert tuple(map(sorted, ready)) == self.model.ready(keys, entities)

    @invariant()
    def everything_agrees_and_every_guarantee_holds(self) -> None:
        self._tables_agree()
        self.history.sends = list(self.sent.values())
        assert_holds(self.history)

    def _tables_agree(self) -> None:
        rows, entities, audit = self.bench.run(self._read())
        assert {row["key"]: self._row(row) for row in rows} == {
            row.command.key: row for row in self.model.rows.values()
        }
        opened = {row["entity"]: self._slot(row) for row in entities}
        assert opened == {
            name: (entity.mark, entity.held, entity.open, self._open_until(entity.open))
            for (_, name), entity in self.model.entities.items()
        }
        self._audit_agrees(audit)
        self._observe({row["attempt"]: self._row(row) for row in rows})

    # Doing a step.

    def _do(self, step: Step | None) -> None:
        if step is not None:
            self._compare(step, self.bench.run(step.perform(self.bench.database)))

    def _compare(self, step: Step, answer: object) -> None:
        before = [row.command for row in self.model.rows.values()]
        expected = step.expect(self.model)
        assert answer == expected, (step, answer, expected)
        self.at += 1
        match step:
            case Admit(commands):
                assert isinstance(answer, list)
                for each, facts in zip(commands, answer, strict=True):
                    self._note_admit(each, facts)
            case Finish(Settle()) if answer in ("settled", "late", "contradicts"):
                # Under the attempt that holds the key now: it may have taken over.
                held = self.model.rows[self.tenant, step.command.key_digest].command
                self._note_end(held, "settled")
            case Finish(Release()) if answer:
                self._note_end(step.command, "released")
                self._not_executed(step.command)
            case Resolve(_, executed) if answer == "resolved":
                self._note_end(step.command, "executed" if executed else "not-executed")
            case Probed(_, verdict) if answer == "resolved":
                self._note_end(step.command, "executed" if verdict == "applied" else "not-executed")
            case Reported(_, executed) if answer == "resolved":
                ended = next(each for each in before if each.key == step.command.key)
                self._note_end(ended, "executed" if executed else "not-executed")
            case TakeOver(command, judged) if answer == "taken":
                self._note_taken_over(command, judged)

    def _fits(self, order: list[tuple[Step, object]]) -> bool:
        trial = deepcopy(self.model)
        return all(step.expect(trial) == answer for step, answer in order)

    async def _at_once(self, one: Step, other: Step, commit: bool) -> Together:
        transaction = self.bench.first.transaction()
        await transaction.start()
        try:
            one_answer = await one.perform(OneConnection(self.bench.first))
            task = asyncio.create_task(other.perform(self.bench.database))
            waited = await self.bench.blocked(task)
        finally:
            await (transaction.commit() if commit else transaction.rollback())
        return Together(one_answer, await task, waited)

    # Making steps.

    def _step(self, drawn: tuple[Any, ...]) -> Step | None:
        make: dict[str, Callable[..., Step | None]] = {
            "admit": self._admit,
            "again": self._again,
            "settle": self._settle,
            "release": self._release,
            "hold": self._hold,
            "resolve": self._resolve,
            "issue": self._issue,
            "take_over": self._take_over,
            "ask_now": self._ask_now,
            "probed": self._probed,
            "report": self._report,
        }
        return make[drawn[0]](*drawn[1:])

    def _admit(self, batch: list[dict[str, Any]]) -> Admit:
        commands: list[Command] = []
        keys, entities = set(), set()
        for spec in batch:
            number = self.tenant * 10_000 + next(self.numbers)
            made = self._made(number, spec)
            if made.key in keys or (made.has_entity_row and made.entity in entities):
                continue
            keys.add(made.key)
            entities.add(made.entity if made.has_entity_row else None)
            commands.append(made)
        self.admits.extend(commands)
        return Admit(tuple(commands))

    def _made(self, number: int, spec: dict[str, Any]) -> Command:
        again = spec["unknown"] == "resend"
        return command(
            by=attempt(number),
            tenant=self.tenant,
            upstream_key=f"fg-{spec['key']}" if again else None,
            resend_within_ms=RESEND_WITHIN_MS if again else None,
            probe_target=b"/found" if spec["unknown"] == "probe" else None,
            **self._with_fence(spec),
        )

    def _with_fence(self, spec: dict[str, Any]) -> dict[str, Any]:
        """``lease``: in place of the small number, one next to what the entity has come to."""
        about = {name: value for name, value in spec.items() if name != "lease"}
        entity = self.model.entities.get((self.tenant, spec["entity"]))
        if spec["lease"] is not None and spec["fence"] is not None and entity is not None:
            about["fence"] = max(0, entity.mark + spec["lease"])
        return about

    def _issue(self, entity: str) -> Issue:
        return Issue(self.tenant, entity)

    def _again(self, pick: int) -> Admit | None:
        return Admit((_pick(self.admits, pick),)) if self.admits else None

    def _settle(self, pick: int, status: int, keep: bool) -> Finish | None:
        chosen = self._pick_sent(pick)
        return chosen and Finish(Settle(chosen, response(status), keep))

    def _release(self, pick: int, heard: bool) -> Finish | None:
        """Only what never was held: an executor has one outcome per attempt."""
        chosen = self._pick_sent(pick)
        if chosen is None or any(
            row.attempt == chosen.attempt and row.event == "outcome_unknown"
            for row in self.model.audit
        ):
            return None
        return Finish(Release(chosen, "status 429" if heard else "refused", heard))

    def _hold(self, pick: int, evidence: Response | None) -> Finish | None:
        chosen = self._pick_sent(pick)
        return chosen and Finish(Hold(chosen, "no answer", evidence))

    def _resolve(self, pick: int, executed: bool) -> Resolve | None:
        chosen = self._pick_sent(pick)
        return chosen and Resolve(chosen, executed)

    def _take_over(self, pick: int, fence: int, same: bool) -> TakeOver | None:
        """By a request of its own: mostly the same as the one that was sent."""
        chosen = self._pick_sent(pick)
        if chosen is None:
            return None
        entity = self.model.entities.get((self.tenant, chosen.entity))
        number = self.tenant * 10_000 + next(self.numbers)
        own = max(fence, entity.mark if entity is not None else 0) if same else fence
        made = replace(
            chosen,
            attempt=attempt(number),
            fence=None if chosen.fence is None else own,
            upstream_digest=chosen.upstream_digest if same or fence else digest("elsewhere"),
        )
        return TakeOver(made, chosen.attempt)

    def _ask_now(self, pick: int) -> AskNow | None:
        chosen = self._pick_sent(pick)
        return chosen and AskNow(chosen)

    def _probed(self, pick: int, verdict: Verdict, ago: int) -> Probed | None:
        """By a look that began ``ago`` moments before now: its answer took that long."""
        chosen = self._pick_sent(pick)
        return chosen and Probed(chosen, verdict, *_pick(self.moments, ago))

    def _report(self, pick: int, executed: bool, named: bool) -> Reported | None:
        chosen = self._pick_sent(pick)
        return chosen and Reported(chosen, executed, named)

    def _pick_sent(self, pick: int) -> Command | None:
        return _pick(list(self.commands.values()), pick) if self.commands else None

    # The history.

    def _note_admit(self, each: Command, facts: Facts) -> None:
        where = (self.at, each.tenant, each.key)
        match decide(facts):
            case Forward():
                about = (each.entity, each.fence)
                self.history.admissions.append(Admission(*where, *about, each.attempt, each.serial))
                send = Send(self.at + 0.5, *where[1:], *about, each.serial, attempt=each.attempt)
                self.sent.setdefault(each.attempt, send)
                self.commands[each.attempt] = each
            case RejectStale() | RejectNotHeld():
                self.history.refusals.append(Refusal(each.tenant, each.key, each.attempt))

    def _note_taken_over(self, each: Command, judged: UUID) -> None:
        """It is sent again, in the same slot; what was judged has come to no other end."""
        if each.attempt in self.sent:
            return  # the repeat of one whose answer was lost
        about = (self.tenant, each.key, each.entity, each.fence)
        self.history.admissions.append(Admission(self.at, *about, each.attempt, each.serial))
        self.history.ends.append(End(self.at, each.tenant, each.key, "resent", judged))
        self.sent[each.attempt] = Send(self.at + 0.5, *about, each.serial, attempt=each.attempt)
        self.commands[each.attempt] = each

    def _note_end(self, each: Command, how: How) -> None:
        self.history.ends.append(End(self.at, each.tenant, each.key, how, each.attempt))

    def _not_executed(self, each: Command) -> None:
        """So the upstream said. Where a late response says otherwise, the audit must tell."""
        self.sent[each.attempt] = replace(self.sent[each.attempt], may_have_executed=False)

    def _observe(self, rows: dict[UUID, Row]) -> None:
        for by, each in self.commands.items():
            state = rows[by].state(self.model.now_ms) if by in rows else "gone"
            self.history.observations.append(
                Observation(self.at + 0.9, each.tenant, each.key, by, state)
            )

    # The tables.

    async def _read(self) -> tuple[list[asyncpg.Record], ...]:
        return tuple(
            [
                await self.bench.watch.fetch(
                    f"select * from gateway.{table} where tenant = $1", self.tenant
                )
                for table in ("commands", "entities", "audit")
            ]
        )

    def _ms(self, when: datetime | None) -> int | None:
        return None if when is None else round((when - self.started) / timedelta(milliseconds=1))

    def _row(self, row: asyncpg.Record) -> Row:
        """As the model would have it; what it does not know is asserted here."""
        expected = self.model.rows.get((self.tenant, row["key_digest"]))
        assert expected is not None
        c = expected.command
        fields = ("key", "policy", "entity", "fingerprint", "rules", "fence", "principal")
        assert [row[name] for name in fields] == [getattr(c, name) for name in fields]
        earlier = tuple(row["earlier"] or ())
        assert (row["serial"], row["attempts"]) == (c.serial, 1 + len(earlier))
        assert (row["unknown"], row["upstream_key"]) == (c.unknown, c.upstream_key)
        unmatched = row["settled_by"] == "late" and row["admitted_at"] == row["deadline"]
        assert row["outline"] == c.outline or (unmatched and row["outline"] is None)
        target = row["probe_target"]
        assert target == c.probe_target or (unmatched and target is None)
        if row["settled_at"] is not None:
            assert row["expires_at"] == row["settled_at"] + timedelta(days=c.key_days)
        kept = row["body"] is not None
        return Row(
            command=replace(c, attempt=row["attempt"]),
            admitted_ms=self._ms(row["admitted_at"]) or 0,
            deadline_ms=self._ms(row["deadline"]) or 0,
            held=row["evidence_at"] is not None,
            evidence=_evidence(row, expected),
            settled_by=row["settled_by"],
            settled_ms=self._ms(row["settled_at"]),
            response=Response(row["status"], decode_lines(row["headers"]), row["body"])
            if kept
            else None,
            status=row["status"],
            earlier=earlier,
        )

    def _slot(self, row: asyncpg.Record) -> tuple[int, int | None, Command | None, int | None]:
        holder = None
        if row["open_attempt"] is not None:
            held = self.model.rows[(self.tenant, row["open_key"])].command
            holder = replace(held, attempt=row["open_attempt"])
        return row["fence"], row["held"], holder, self._ms(row["open_until"])

    def _open_until(self, holder: Command | None) -> int | None:
        """The slot and its command's deadline always change in the same statement."""
        return holder and self.model.rows[(self.tenant, holder.key_digest)].deadline_ms

    def _audit_agrees(self, audit: list[asyncpg.Record]) -> None:
        assert Counter((row["attempt"], _event(row)) for row in audit) == Counter(
            (row.attempt, row.event) for row in self.model.audit
        )
        for row in audit:
            if row["id"] in self.seen:
                continue
            self.seen.add(row["id"])
            assert row["reason"]
            deciders = ("operator:o", "gateway:probe", "worker-1")
            assert row["principal"] in (deciders if row["event"] == "resolved" else ("worker-1",))
            if not _event(row).endswith(" by time"):
                self.history.evidence.append(
                    Evidence(self.at, self.tenant, row["event"], row["key"], row["attempt"])
                )


def _event(row: asyncpg.Record) -> str:
    """As the model has it: who said so is part of the name."""
    if row["reason"].startswith("the gateway ended before it was recorded"):
        return f"{row['event']} by time"
    if row["event"] == "late_evidence" and row["reason"].startswith("reported "):
        return "late_evidence reported"
    return str(row["event"])


def _pick(items: Sequence[T], pick: int) -> T:
    """Counted from the latest, where most is going on."""
    return items[-1 - pick % len(items)]


def _evidence(row: asyncpg.Record, expected: Row) -> Response | None:
    if row["evidence_status"] is None:
        return None
    assert expected.evidence is not None  # its headers are not kept
    return Response(row["evidence_status"], expected.evidence.headers, row["evidence"])


def _two_outcomes(one: Step, other: Step) -> bool:
    """Whether an attempt would be held and given back: an executor has one outcome per attempt."""
    if not isinstance(one, Finish) or not isinstance(other, Finish):
        return False
    kinds = {type(one.end), type(other.end)}
    return kinds == {Hold, Release} and one.command.attempt == other.command.attempt


STEPS = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def bench(postgres: Server) -> Iterator[Bench]:
    with postgres.database() as dsn:
        made = Bench(dsn)
        try:
            yield made
        finally:
            made.close()


def test_the_store_does_what_the_naive_model_does(bench: Bench) -> None:
    bound = type("Bound", (StoreMachine,), {"bench": bench})
    run_machine(bound, settings=STEPS)
