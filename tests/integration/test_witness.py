"""What a process remembers of commands that were taken over, and what it finds when rows are gone.

Rows are taken away by hand, on the same server: a failover that loses them is in
``tests/faults/test_failover.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar
from uuid import UUID, uuid4

import asyncpg
import pytest

from gateway.core.command import Command, Hold, Release, Settle
from gateway.core.decide import Forward, RejectUnknown, decide
from gateway.core.evidence import Judged
from gateway.core.jobs import NewJob
from gateway.errors import AnswerLost, RowsLost
from gateway.store import losses
from gateway.store.commands import CommandStore
from gateway.store.database import Database
from gateway.store.doubts import Doubts
from gateway.store.jobs import JobStore
from gateway.store.unknowns import Report, UnknownStore
from gateway.store.witness import Witness
from gateway.upstream import now_s
from tests.kit.commands import OK, attempt, command
from tests.kit.jobs import terms
from tests.kit.operating import fencegate, move_clock

T = TypeVar("T")

FIRST = command(
    by=attempt(1),
    unknown="resend",
    upstream_key="fg-1",
    resend_within_ms=600_000,
    probe_target=b"/found?n=1",
)
SECOND = replace(FIRST, attempt=attempt(2))


class Process:
    """One gateway process's stores, on a pool of its own."""

    def __init__(self, dsn: str, runner: asyncio.Runner) -> None:
        self._runner = runner
        self.database = self.run(Database.open(dsn, size=2))
        self.witness = Witness(self.database, now_s)
        self.commands = CommandStore(self.database, self.witness)
        self.unknowns = UnknownStore(self.database, self.witness)

    def run(self, work: Awaitable[T]) -> T:
        async def main() -> T:
            return await asyncio.wait_for(work, 60)

        return self._runner.run(main())

    def admit(self, made: Command) -> None:
        assert isinstance(decide(self.run(self.commands.admit([made]))[0]), Forward)

    def take_over(self, by: Command, judged: Command) -> None:
        assert self.run(self.unknowns.take_over(by, judged.attempt)) == "taken"

    def rows(self, sql: str, *args: object) -> list[asyncpg.Record]:
        return list(self.run(self.database.fetch(sql, *args)))

    def row(self) -> asyncpg.Record:
        (row,) = self.rows("select * from gateway.commands")
        return row

    def look(self) -> None:
        """As after a connection that failed. Raises ``RowsLost``."""
        self.database.history.failed()
        self.run(self.witness.clear())

    def lost(self) -> list[tuple[str, bool]]:
        with pytest.raises(RowsLost):
            self.look()
        rows = self.run(losses.list_lost(self.database, acknowledged=False, limit=None))
        return [(row.what, row.restored) for row in rows]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def process(database: str, runner: asyncio.Runner) -> Iterator[Process]:
    made = Process(database, runner)
    yield made
    made.run(made.database.close())


@pytest.fixture
def other(database: str, runner: asyncio.Runner) -> Iterator[Process]:
    made = Process(database, runner)
    yield made
    made.run(made.database.close())


def unknown(process: Process, dsn: str) -> None:
    """``FIRST`` is admitted, and its outcome unknown."""
    process.admit(FIRST)
    process.run(process.commands.hold([Hold(FIRST, "no answer", None)]))
    move_clock(dsn, 36)


def as_before(process: Process) -> None:
    """The take-over is gone, and the attempt before it stands there."""
    process.rows(
        "update gateway.commands set attempt = $1, attempts = 1, earlier = null,"
        " deadline = gateway.clock() - interval '1 s', settled_at = null, settled_by = null,"
        " status = null, headers = null, body = null, expires_at = null",
        FIRST.attempt,
    )
    process.rows(
        "update gateway.entities set open_key = $1, open_attempt = $2,"
        " open_until = gateway.clock()",
        *(FIRST.key_digest, FIRST.attempt),
    )
    process.rows("delete from gateway.watched")


def test_a_take_over_that_was_lost_is_put_back(process: Process, database: str) -> None:
    unknown(process, database)
    process.take_over(SECOND, FIRST)
    process.look()
    as_before(process)
    assert process.lost() == [("command", True)]
    row = process.row()
    assert (row["attempt"], row["earlier"], row["attempts"]) == (
        *(SECOND.attempt, [FIRST.attempt]),
        2,
    )
    (entity,) = process.rows("select open_key, open_attempt from gateway.entities")
    assert (entity["open_key"], entity["open_attempt"]) == (SECOND.key_digest, SECOND.attempt)
    assert len(process.rows("select from gateway.watched where attempt = $1", SECOND.attempt)) == 1
    # Both attempts' answers are still those of this command.
    assert process.run(process.commands.settle([Settle(FIRST, OK, True)])) == ["late"]


def test_a_take_over_that_was_lost_with_its_settlement_is_settled_again(
    process: Process, database: str
) -> None:
    unknown(process, database)
    process.take_over(SECOND, FIRST)
    assert process.run(process.commands.settle([Settle(SECOND, OK, True)])) == ["settled"]
    as_before(process)
    assert process.lost() == [("settlement", True)]
    row = process.row()
    assert (row["attempt"], row["status"], row["settled_by"]) == (SECOND.attempt, 200, "late")
    assert process.rows("select from gateway.entities where open_key is not null") == []


def test_a_command_that_was_taken_over_and_lost_comes_back_held(
    process: Process, database: str
) -> None:
    """When it was first sent is forgotten, and so for how long its upstream knows its key."""
    unknown(process, database)
    process.take_over(SECOND, FIRST)
    process.rows("delete from gateway.commands")
    process.rows(
        "update gateway.entities set open_key = null, open_attempt = null, open_until = null"
    )
    assert process.lost() == [("command", True)]
    row = process.row()
    assert (row["attempt"], row["earlier"]) == (SECOND.attempt, [FIRST.attempt])
    assert (row["unknown"], row["probe_target"]) == ("hold", b"/found?n=1")
    # It proves nothing of the attempt before it, so it is not given back.
    assert process.run(process.commands.release([Release(SECOND, "not sent")])) == [False]

    process.run(losses.acknowledge(process.database, reason="looked", by="ops"))
    process.rows("update gateway.commands set deadline = gateway.clock()")
    process.rows("update gateway.entities set open_until = gateway.clock()")
    third = replace(FIRST, attempt=attempt(3))
    (facts,) = process.run(CommandStore(process.database).admit([third]))
    assert isinstance(decide(facts), RejectUnknown)


def test_a_key_whose_first_send_was_lost_is_never_in_its_window_again(
    process: Process, database: str
) -> None:
    unknown(process, database)
    process.rows("delete from gateway.commands")
    process.rows(
        "update gateway.entities set open_key = null, open_attempt = null, open_until = null"
    )
    assert process.lost() == [("command", True)]
    process.run(losses.acknowledge(process.database, reason="looked", by="ops"))
    process.run(acknowledged(process))
    # Nothing proves that its upstream did not store its key, so this is all that is given back.
    assert process.run(process.commands.release([Release(FIRST, "busy", heard=True)])) == [True]
    process.admit(SECOND)
    move_clock(database, 72)
    third = replace(FIRST, attempt=attempt(3))
    assert process.run(process.unknowns.take_over(third, SECOND.attempt)) == "refused"


def test_a_command_that_another_process_took_over_is_not_missing(
    process: Process, other: Process, database: str
) -> None:
    unknown(process, database)
    other.take_over(SECOND, FIRST)
    process.look()
    # Nor once it was given back: the audit names the attempt that took over.
    move_clock(database, 36 + 36 + SECOND.settle_delay_s)
    report = Report(
        *(FIRST.tenant, FIRST.key_digest, FIRST.key, None, False, "no such charge"),
        *("worker-1", "request-9", None),
    )
    assert other.run(other.unknowns.report(report)) == ("resolved", 0)
    process.look()
    assert process.rows("select from gateway.losses") == []


def test_a_late_answer_of_the_attempt_before_is_remembered(
    process: Process, other: Process, database: str
) -> None:
    unknown(process, database)
    other.take_over(SECOND, FIRST)
    assert process.run(process.commands.settle([Settle(FIRST, OK, True)])) == ["late"]
    process.look()
    process.rows(
        "update gateway.commands set settled_at = null, settled_by = null, status = null,"
        " headers = null, body = null, expires_at = null"
    )
    assert process.lost() == [("settlement", True)]
    assert process.row()["status"] == 200


def test_nothing_is_sent_again_and_no_report_is_judged_while_rows_are_lost(
    process: Process, database: str
) -> None:
    unknown(process, database)
    gone = command("gone", by=attempt(8), entity="invoice:8")
    process.admit(gone)
    process.rows("delete from gateway.commands where key = 'gone'")
    assert process.lost() == [("command", True)]
    with pytest.raises(RowsLost):
        process.run(process.unknowns.take_over(SECOND, FIRST.attempt))
    report = Report(
        *(gone.tenant, gone.key_digest, gone.key, None, True, "webhook"),
        *("worker-1", "request-9", None),
    )
    with pytest.raises(RowsLost):
        process.run(process.unknowns.report(report))
    assert process.rows("select attempt from gateway.commands where key = $1", FIRST.key) == [
        (FIRST.attempt,)
    ]


def test_no_probe_is_begun_or_judged_while_rows_are_lost_and_all_are_after_it(
    process: Process, database: str
) -> None:
    """A probe would be judged by the attempt before the one that was lost."""
    asked = replace(FIRST, unknown="probe", settle_delay_s=0)
    gone = command("gone", by=attempt(8), entity="invoice:8")
    process.admit(asked)
    process.admit(gone)
    process.run(process.commands.hold([Hold(asked, "no answer", None)]))
    move_clock(database, 36)
    store, asks = process.unknowns, {asked.policy: asked.upstream_digest}
    process.run(store.sweep("near", 100))
    (due,) = process.run(store.take_due(asks, 100, 10, 1000))

    process.rows("delete from gateway.commands where key = 'gone'")
    assert process.lost() == [("command", True)]
    proof = Judged("applied", "a probe was answered 200, as applied")
    move_clock(database, 38)
    for begun in (
        lambda: store.sweep("near", 100),
        lambda: store.take_due(asks, 100, 10, 1000),
        lambda: store.ask_now(asked, asked.attempt, 1000),
        lambda: store.probed(due, proof, 1, None),
    ):
        with pytest.raises(RowsLost):
            process.run(begun())
    held = process.rows(
        "select settled_at, attempt from gateway.commands where key = $1", FIRST.key
    )
    assert [tuple(row.values()) for row in held] == [(None, FIRST.attempt)]

    process.run(losses.acknowledge(process.database, reason="looked", by="ops"))
    process.run(acknowledged(process))
    assert [each.attempt for each in process.run(store.take_due(asks, 100, 10, 1000))] == [
        asked.attempt
    ]
    assert process.run(store.probed(due, proof, 1, None)) == "resolved"


async def acknowledged(process: Process) -> None:
    process.witness.start()
    while process.witness.lost is not None:
        await process.database.fetch("select")
    await process.witness.stop()


def test_a_claim_that_waited_for_a_connection_while_rows_were_lost_leases_nothing(
    process: Process,
) -> None:
    """What was looked up before it waited holds for the server before."""
    jobs = JobStore(process.database, process.witness)
    job = NewJob(id=uuid4(), key="k", tool="t", payload=b"{}", entity="a:1")
    process.run(jobs.enqueue(1, [job]))
    process.admit(FIRST)

    async def work() -> None:
        async with process.database.connection() as one, process.database.connection():
            asked = asyncio.ensure_future(jobs.claim(1, 1, "w", uuid4(), [terms("t")]))
            await asyncio.sleep(0)  # it waits: both connections of the pool are taken
            await one.execute("delete from gateway.commands")
            process.database.history.failed()
        with pytest.raises(RowsLost):
            await asked

    process.run(work())
    assert process.rows("select from gateway.job_leases") == []


def test_a_look_that_was_answered_late_does_not_open_what_a_later_one_closed(
    process: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two reads of what is reported, the one that was asked first came back last."""
    process.admit(FIRST)
    other.admit(command("other", by=attempt(9), entity="invoice:9"))
    real = losses.open_losses
    asked, late = asyncio.Event(), asyncio.Event()

    async def slow(database: Database, own: UUID | None) -> list[losses.Loss]:
        found = await real(database, own)
        if database is process.database and not asked.is_set():
            asked.set()
            await late.wait()
        return found

    monkeypatch.setattr(losses, "open_losses", slow)

    async def work() -> None:
        process.witness.start()
        await asked.wait()
        await other.database.fetch("delete from gateway.commands where key = 'other'")
        other.database.history.failed()
        with pytest.raises(RowsLost):
            await other.witness.clear()
        process.database.history.failed()
        looked = asyncio.ensure_future(process.witness.clear())
        await asyncio.wait({looked}, timeout=0.5)
        late.set()
        await asyncio.wait({looked})
        assert process.witness.lost is not None
        await process.witness.stop()
        assert process.witness.lost is not None

    process.run(work())


@pytest.mark.parametrize("doubted", [False, True])
def test_an_answer_ends_no_doubt_that_came_up_while_it_was_asked(doubted: bool) -> None:
    doubts = Doubts()
    if doubted:
        doubt(doubts)
    with doubts.about([attempt(1)]):
        doubt(doubts)
    asked = Flushes()
    for _ in range(2):
        with doubts.about([attempt(1)]) as ask:
            asyncio.run(ask.fetch(asked, "select"))  # type: ignore[arg-type]
    assert asked.flushed == [True, False]


def doubt(doubts: Doubts) -> None:
    with pytest.raises(AnswerLost), doubts.about([attempt(1)]):
        raise AnswerLost("the connection went away")


class Flushes:
    """Notes whether each statement waits for what is in doubt."""

    def __init__(self) -> None:
        self.flushed: list[bool] = []

    async def fetch(self, sql: str, *, flush: bool = False) -> list[object]:
        self.flushed.append(flush)
        return []


def lost_again(process: Process) -> list[tuple[str, bool]]:
    """A look while the gate is closed, as the watch in the background has it."""
    process.database.history.failed()
    with suppress(RowsLost):
        process.run(process.witness._looked_at())
    return process.lost()


def go_on(process: Process) -> None:
    """An operator acknowledges, and the process hears of it."""
    process.run(losses.acknowledge(process.database, reason="looked", by="ops"))
    process.run(acknowledged(process))


def test_what_was_put_back_is_found_missing_when_it_is_lost_again(process: Process) -> None:
    parallel = replace(command("k", by=attempt(1)), fence=None, serial=False)
    sent = replace(command("sent", by=attempt(2)), fence=None, serial=False)
    for made in (parallel, sent):
        process.admit(made)
    process.run(process.commands.settle([Settle(parallel, OK, True)]))
    for _ in range(3):
        process.rows("delete from gateway.commands")
        assert sorted(process.lost()) == [("command", True), ("settlement", True)]
        go_on(process)
    kept = process.rows("select status from gateway.commands order by key")
    assert [row["status"] for row in kept] == [200, None]


def test_what_was_lost_again_before_anybody_looked_is_put_back_and_named_once(
    process: Process,
) -> None:
    process.admit(FIRST)
    for _ in range(2):
        process.rows("delete from gateway.commands")
        assert lost_again(process) == [("command", True)]
    # With the report itself.
    process.rows("delete from gateway.commands")
    process.rows("delete from gateway.losses")
    process.rows("delete from gateway.lost_rows")
    assert lost_again(process) == [("command", True)]
    assert process.row()["attempt"] == FIRST.attempt


def test_what_another_command_has_the_key_of_is_named_once_and_not_again(process: Process) -> None:
    made = replace(command("k", by=attempt(1)), fence=None, serial=False)
    process.admit(made)
    process.rows("update gateway.commands set attempt = $1", attempt(9))
    assert process.lost() == [("command", False)]
    go_on(process)
    process.look()


def test_a_command_that_was_put_back_and_whose_key_is_taken_later_is_shown_so(
    process: Process,
) -> None:
    """One that has not heard of the loss may have admitted another meanwhile."""
    process.admit(FIRST)
    process.rows("delete from gateway.commands")
    assert process.lost() == [("command", True)]
    process.rows("update gateway.commands set attempt = $1", attempt(9))
    assert lost_again(process) == [("command", False)]


def test_the_answer_to_what_a_probe_had_decided_is_remembered(
    process: Process, database: str
) -> None:
    """Its row stands, and is still that of its attempt."""
    made = replace(command("k", by=attempt(1)), fence=None, serial=False)
    process.admit(made)
    process.run(process.commands.hold([Hold(made, "no answer", None)]))
    move_clock(database, 36)
    process.rows(
        "select * from gateway.conclude(1, $1, null, true, 'probe', 'r', 'gateway:probe', null,"
        " null, null)",
        made.key_digest,
    )
    assert process.run(process.commands.settle([Settle(made, OK, True)])) == ["resolved"]
    process.look()
    process.rows("delete from gateway.commands")
    process.rows("delete from gateway.audit")
    assert process.lost() == [("settlement", True)]
    assert process.row()["status"] == 200


def test_what_is_found_while_somebody_acknowledges_is_a_loss_of_its_own(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator has looked at the first alone."""
    for number in (1, 2):
        process.admit(command(f"k{number}", by=attempt(number), entity=f"e:{number}"))
    process.rows("delete from gateway.commands where key = 'k1'")
    assert process.lost() == [("command", True)]
    process.rows("delete from gateway.commands where key = 'k2'")
    real = losses.missing_commands

    async def meanwhile(
        database: Database, kept: list[losses.KeptCommand]
    ) -> list[losses.KeptCommand]:
        found = await real(database, kept)
        if found:
            await losses.acknowledge(database, reason="looked at k1", by="ops")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(losses, "missing_commands", meanwhile)
        process.database.history.failed()
        with pytest.raises(RowsLost):
            process.run(process.witness._looked_at())
    rows = process.run(losses.list_lost(process.database, acknowledged=True, limit=None))
    seen = {row.key: row.acknowledged_at is not None for row in rows}
    assert (seen, len({row.loss for row in rows})) == ({"k1": True, "k2": False}, 2)
    go_on(process)
    process.look()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0), (0, 2, 1)])
@pytest.mark.parametrize("stands", [None, 0])
def test_what_was_taken_over_twice_is_put_back_whoever_reports_first(
    database: str, runner: asyncio.Runner, order: tuple[int, ...], stands: int | None
) -> None:
    """Each attempt was another process's. ``stands``: the attempt whose row is left."""
    made = [FIRST, SECOND, replace(FIRST, attempt=attempt(3))]
    processes = [Process(database, runner) for _ in made]
    unknown(processes[0], database)
    processes[1].take_over(made[1], made[0])
    move_clock(database, 72)
    processes[2].take_over(made[2], made[1])
    if stands is None:
        processes[0].rows("delete from gateway.commands")
    else:
        as_before(processes[0])
    for each in order:
        processes[each].database.history.failed()
        with suppress(RowsLost):  # that of the row that stands misses nothing
            processes[each].run(processes[each].witness._looked_at())
    row = processes[0].row()
    assert (row["attempt"], row["attempts"], row["earlier"]) == (
        *(made[2].attempt, 3),
        [made[0].attempt, made[1].attempt],
    )
    lost = processes[0].run(losses.list_lost(processes[0].database, acknowledged=True, limit=None))
    assert {each.restored for each in lost} == {True}
    for process in processes:
        process.run(process.database.close())


def test_what_a_tenant_lost_that_is_lost_itself_is_listed(process: Process, database: str) -> None:
    process.rows("insert into gateway.tenants (name) values ('billing')")
    process.admit(command("k", by=attempt(1), tenant=2))
    for table in ("commands", "entities"):
        process.rows(f"delete from gateway.{table}")
    process.rows("delete from gateway.tenants where tenant = 2")
    assert sorted(process.lost()) == [("command", True), ("mark", True)]
    process.rows(
        "insert into gateway.losses (id, found_at) values ($1, gateway.clock() - interval '1 h')",
        attempt(7),
    )
    shown = fencegate("losses", dsn=database)
    assert shown.out.count("tenant 2 (lost)") == 2
    assert len(shown.out.splitlines()) == 4, "the loss whose rows are gone is there too"
    done = fencegate("acknowledge-loss", "--reason", "looked", dsn=database)
    assert (done.code, "2 losses" in done.out) == (0, True)
    assert fencegate("losses", dsn=database).out.strip() == "nothing is lost"
