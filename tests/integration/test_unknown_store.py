"""The list of what is not settled: who looks after what, how often, through which crashes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import asyncpg
import pytest

from gateway.core.command import Command, Hold, Release, Settle
from gateway.core.decide import Forward, RejectNotRetained, decide
from gateway.core.evidence import Judged, Verdict
from gateway.core.model import Response
from gateway.store.commands import CommandStore
from gateway.store.database import Database
from gateway.store.unknowns import Due, UnknownStore
from tests.kit.commands import OK, attempt, command, digest
from tests.kit.db import execute, with_connection
from tests.kit.operating import move_clock, on

T = TypeVar("T")
Asks = dict[str, bytes]

ASKS: Asks = {"pay/charge": digest("upstream")}
BUSY_MS = 30_000


@pytest.fixture(autouse=True)
def soon(database: str) -> None:
    execute(database, "update gateway.sweeps set lag = '0 s'")


def asked(number: int, **about: Any) -> Command:
    about = {"unknown": "probe", "probe_target": b"/found?n=%d" % number, **about}
    return command(f"k{number}", by=attempt(number), entity=f"e:{number}", **about)


def admit(dsn: str, *commands: Command) -> None:
    async def work(database: Database) -> None:
        for each in commands:
            (facts,) = await CommandStore(database).admit([each])
            assert isinstance(decide(facts), Forward)

    on(dsn, work)


def hold(dsn: str, *commands: Command) -> None:
    async def work(database: Database) -> None:
        await CommandStore(database).hold([Hold(each, "no answer", None) for each in commands])

    on(dsn, work)


def settle(dsn: str, number: int) -> None:
    made = asked(number)
    results = on(dsn, lambda db: CommandStore(db).settle([Settle(made, OK, True)]))
    assert results == ["settled"]


def store(dsn: str, use: Callable[[UnknownStore], Awaitable[T]]) -> T:
    return on(dsn, lambda database: use(UnknownStore(database)))


def look(dsn: str, asks: Asks = ASKS, room: int = 100) -> list[bytes]:
    """One look, and what it is to ask."""

    async def use(unknowns: UnknownStore) -> list[bytes]:
        await unknowns.sweep("near", 1_000)
        return [due.target for due in await unknowns.take_due(asks, 100, room, BUSY_MS)]

    return sorted(store(dsn, use))


def listed(dsn: str) -> int:
    return with_connection(dsn, lambda conn: conn.fetchval("select count(*) from gateway.watched"))


def watched(dsn: str) -> list[dict[str, Any]]:
    sql = "select * from gateway.watched order by tenant, key_digest"
    found = with_connection(dsn, lambda conn: conn.fetch(sql))
    return [dict(row) for row in found]


def audit(dsn: str) -> list[str]:
    sql = "select event || ': ' || reason as it from gateway.audit order by at"
    found = with_connection(dsn, lambda conn: conn.fetch(sql))
    return [row["it"].partition(",")[0] for row in found]


CRASHED = "outcome_unknown: the gateway ended before it was recorded"


# -- finding them


def test_what_nobody_settled_is_found_and_told_once(database: str) -> None:
    """A crash leaves a row, and nobody who could say so."""
    made = asked(1, unknown="hold", probe_target=None)
    admit(database, made)
    assert look(database) == []
    assert (listed(database), audit(database)) == (1, [])
    move_clock(database, 36)
    for _ in range(3):
        assert look(database) == []
    assert (listed(database), audit(database)) == (0, [CRASHED])
    # The second pass comes by hours later, and leaves it at that.
    store(database, lambda unknowns: unknowns.sweep("far", 1_000))
    look(database)
    assert (listed(database), audit(database)) == (0, [CRASHED])


def test_what_is_unknown_is_found_after_the_clock_stepped_back(database: str) -> None:
    """By a day: what was read up to is a day ahead of all that is admitted from now on."""
    execute(database, "update gateway.sweeps set lag = '5 s' where name = 'near'")
    execute(database, "update gateway.sweeps set lag = '2 h' where name = 'far'")

    def swept() -> list[bytes]:
        store(database, lambda unknowns: unknowns.sweep("far", 1_000))
        return look(database)

    for number, hours in enumerate((40, 43)):
        move_clock(database, hours * 3600)
        admit(database, asked(number))
        settle(database, number)
        move_clock(database, hours * 3600 + 10)
        assert swept() == []
    move_clock(database, 10 * 3600)
    early, late = asked(5), asked(6)
    admit(database, early)  # nobody looks until it is old enough
    move_clock(database, 10 * 3600 + 60)
    assert swept() == []
    admit(database, late)
    move_clock(database, 10 * 3600 + 120)
    assert swept() == [b"/found?n=6"]
    move_clock(database, 13 * 3600)
    assert b"/found?n=5" in swept()


def test_what_was_held_is_not_told_again(database: str) -> None:
    made = asked(1, unknown="hold", probe_target=None)
    admit(database, made)
    hold(database, made)
    look(database)
    assert audit(database) == ["outcome_unknown: no answer"]
    assert listed(database) == 0


@pytest.mark.parametrize("end", ["settle", "release"])
def test_what_ends_meanwhile_is_forgotten(database: str, end: str) -> None:
    made = asked(1)
    admit(database, made)
    look(database)
    assert listed(database) == 1

    async def work(opened: Database) -> None:
        if end == "settle":
            await CommandStore(opened).settle([Settle(made, OK, True)])
        else:
            await CommandStore(opened).release([Release(made, "status 429")])

    on(database, work)
    move_clock(database, 36)
    assert look(database) == []
    assert (listed(database), CRASHED in audit(database)) == (0, False)


def test_a_key_that_was_given_back_and_sent_again_is_its_new_attempt(database: str) -> None:
    first = asked(1)
    admit(database, first)
    look(database)
    on(database, lambda opened: CommandStore(opened).release([Release(first, "status 429")]))
    second = replace(first, attempt=attempt(2), probe_target=b"/second")
    admit(database, second)
    move_clock(database, 36)
    assert look(database) == [b"/second"]


def test_every_command_is_passed_whatever_the_limit(database: str) -> None:
    admit(database, *(asked(number) for number in range(7)))
    move_clock(database, 36)
    read = []

    async def use(unknowns: UnknownStore) -> None:
        while count := await unknowns.sweep("near", 3):
            read.append(count)

    store(database, use)
    assert sum(read) == 7
    assert listed(database) == 7


def test_a_batch_admitted_at_one_moment_is_never_cut(database: str) -> None:
    batch = [asked(number) for number in range(5)]
    on(database, lambda opened: CommandStore(opened).admit(batch))
    store(database, lambda unknowns: unknowns.sweep("near", 2))
    assert listed(database) == 5


def test_what_is_younger_than_the_lag_is_left_for_later(database: str) -> None:
    execute(database, "update gateway.sweeps set lag = '1 h'")
    admit(database, asked(1))
    look(database)
    assert listed(database) == 0
    move_clock(database, 3_601)
    look(database)
    assert listed(database) == 1


# -- asking about them


def test_one_process_asks_and_if_it_dies_another_does(database: str) -> None:
    admit(database, *(asked(number) for number in range(3)))
    move_clock(database, 36)
    assert len(look(database)) == 3
    assert look(database) == []
    move_clock(database, 36 + 31)
    assert len(look(database)) == 3
    assert audit(database) == [CRASHED] * 3


def test_many_at_once_take_each_command_once(database: str) -> None:
    admit(database, *(asked(number) for number in range(40)))
    move_clock(database, 36)

    async def work(opened: Database) -> list[bytes]:
        unknowns = UnknownStore(opened)
        await unknowns.sweep("near", 1_000)
        looks = await asyncio.gather(*(unknowns.take_due(ASKS, 7, 7, BUSY_MS) for _ in range(10)))
        return [due.target for found in looks for due in found]

    taken = on(database, work)
    assert len(taken) == len(set(taken))
    assert len(taken) + len(look(database)) == 40


def test_what_is_beyond_the_room_stays_due_and_is_told_all_the_same(database: str) -> None:
    admit(database, *(asked(number) for number in range(5)))
    move_clock(database, 36)
    assert look(database, room=0) == []
    assert audit(database) == [CRASHED] * 5
    assert len(look(database, room=2)) == 2
    assert len(look(database, room=9)) == 3
    assert look(database) == []


@pytest.mark.parametrize(
    "asks",
    [{}, {"pay/refund": digest("upstream")}, {"pay/charge": digest("another account")}],
    ids=["none", "another-policy", "another-account"],
)
def test_who_cannot_ask_about_it_leaves_it_to_others(database: str, asks: Asks) -> None:
    """Its own process comes when it comes, and need not wait."""
    admit(database, asked(1))
    move_clock(database, 36)
    assert look(database, asks) == []
    assert audit(database) == [CRASHED]
    left = watched(database)
    assert left[0]["upstream_digest"] == digest("upstream")
    for _ in range(3):
        assert look(database, asks) == []
    assert watched(database) == left
    assert look(database) == [b"/found?n=1"]


OTHERS: Asks = {"pay/charge": digest("another account")}


def test_what_nobody_here_may_ask_about_hides_nothing_else(database: str) -> None:
    """Twenty of another account, of a policy that is served here and of one that is not, are due
    first and stay so."""
    others = [asked(number, upstream="another account") for number in range(10)]
    gone = [asked(number, policy="pay/gone") for number in range(10, 20)]
    admit(database, *others, *gone)
    move_clock(database, 36)
    look(database)
    admit(database, asked(20))
    move_clock(database, 72)

    async def use(unknowns: UnknownStore) -> list[bytes]:
        await unknowns.sweep("near", 1_000)
        return [due.target for due in await unknowns.take_due(ASKS, 2, 2, BUSY_MS)]

    assert store(database, use) == [b"/found?n=20"]
    assert len(look(database, OTHERS)) == 10


def test_a_long_list_of_one_command_leaves_room_for_another(database: str) -> None:
    admit(database, *(asked(number) for number in range(10)))
    admit(database, asked(10, policy="pay/refund"))
    move_clock(database, 36)
    both = {"pay/charge": digest("upstream"), "pay/refund": digest("upstream")}
    assert look(database, both, room=2) == [b"/found?n=0", b"/found?n=10"]
    assert look(database, both, room=2) == [b"/found?n=1", b"/found?n=2"]


def test_what_may_not_be_asked_about_is_named_until_it_is_decided(database: str) -> None:
    made = asked(1)
    admit(database, made)
    move_clock(database, 36)
    look(database, OTHERS)

    def named(asks: Asks) -> list[str]:
        return store(database, lambda unknowns: unknowns.not_ours(asks, 60))

    assert named(OTHERS) == []  # the process that may ask has a minute to come
    move_clock(database, 36 + 61)
    assert (named(OTHERS), named(ASKS), named({})) == (["pay/charge"], [], [])
    assert named({**OTHERS, "pay/refund": digest("upstream")}) == ["pay/charge"]
    on(database, lambda opened: CommandStore(opened).settle([Settle(made, OK, True)]))
    assert named(OTHERS) == []


def test_a_caller_asks_at_once_and_the_background_meanwhile_not(database: str) -> None:
    made = asked(1)
    admit(database, made)
    hold(database, made)

    async def now(unknowns: UnknownStore) -> Due | None:
        return await unknowns.ask_now(made, made.attempt, BUSY_MS)

    due = store(database, now)
    assert due is not None
    assert due.target == b"/found?n=1"
    assert store(database, now) is None
    assert look(database) == []
    store(database, lambda unknowns: unknowns.probed(due, Judged("nothing", "why"), 60, None))
    assert store(database, now) is not None


# -- what they show


def says(dsn: str, made: Command, verdict: Verdict, interval_s: int = 60) -> str | None:
    """Ask now, and record that; ``None`` where nobody may ask."""

    async def use(unknowns: UnknownStore) -> str | None:
        due = await unknowns.ask_now(made, made.attempt, BUSY_MS)
        if due is None:
            return None
        return await unknowns.probed(due, Judged(verdict, "a probe was answered"), interval_s, None)

    return store(dsn, use)


def test_absence_takes_two_late_and_far_apart(database: str) -> None:
    """The window closes at 35 s, and the upstream may act for 300 s more."""
    made = asked(1)
    admit(database, made)
    assert says(database, made, "absent") is None  # in flight
    move_clock(database, 36)
    assert says(database, made, "absent") == "asked"
    move_clock(database, 334)
    assert says(database, made, "absent") == "asked"
    move_clock(database, 340)
    assert says(database, made, "absent") == "absent-once"
    move_clock(database, 399)
    assert says(database, made, "absent") == "asked"
    move_clock(database, 402)
    assert says(database, made, "nothing") == "asked"
    assert says(database, made, "absent") == "resolved"
    assert audit(database) == [CRASHED, "resolved: not executed: a probe was answered"]
    assert re.search(rf", asked at {TIME}; so was one that was recorded at {TIME}$", last(database))
    admit(database, replace(made, attempt=attempt(9)))


def last(dsn: str) -> str:
    sql = "select reason from gateway.audit order by at desc limit 1"
    return str(with_connection(dsn, lambda conn: conn.fetchval(sql)))


TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{12}Z"


def test_what_came_of_the_last_look_is_kept(database: str) -> None:
    made = asked(1)
    admit(database, made)
    move_clock(database, 36)
    said = []
    for seconds, verdict in ((36, "nothing"), (37, "absent"), (340, "absent"), (341, "absent")):
        move_clock(database, seconds)
        says(database, made, verdict)
        said.append(watched(database)[0]["said"])
    assert said == [
        "a probe was answered",
        "a probe was answered; that counts only when settle_delay_s is over",
        "a probe was answered; it takes a second one",
        "a probe was answered; too soon behind the first that counts",
    ]
    assert watched(database)[0]["asked_at"] is not None


def test_what_is_sent_again_has_its_beginning_and_its_end_in_the_audit(database: str) -> None:
    first = asked(1, unknown="resend", probe_target=None, upstream_key="u")
    admit(database, first)
    hold(database, first)
    second = replace(first, attempt=attempt(2), resend_within_ms=600_000)

    async def work(opened: Database) -> None:
        unknowns, commands = UnknownStore(opened), CommandStore(opened)
        for _ in range(2):  # a lost answer, repeated
            assert await unknowns.take_over(second, first.attempt) == "taken"
        assert await commands.settle([Settle(second, OK, True)]) == ["settled"]

    on(database, work)
    assert audit(database) == [
        "outcome_unknown: no answer",
        "taken_over: sent again under the same key of its upstream",
        "settled: sent again",
    ]


def test_one_that_was_asked_before_it_counts_does_not_count_when_it_is_recorded(
    database: str,
) -> None:
    made = asked(1)
    admit(database, made)
    move_clock(database, 334)
    due = store(database, lambda unknowns: unknowns.ask_now(made, made.attempt, BUSY_MS))
    assert due is not None
    move_clock(database, 340)
    told = Judged("absent", "why")
    result = store(database, lambda unknowns: unknowns.probed(due, told, 60, None))
    assert result == "asked"


def test_what_was_found_settles_at_once_and_frees_the_entity(database: str) -> None:
    made = asked(1)
    admit(database, made)
    move_clock(database, 36)
    assert says(database, made, "absent") == "asked"
    assert says(database, made, "applied") == "resolved"
    assert listed(database) == 0
    admit(database, replace(asked(2), entity="e:1"))


def test_pauses_grow_and_end_when_absence_begins_to_count(database: str) -> None:
    made = asked(1)
    admit(database, made)
    move_clock(database, 36)

    def due_in() -> float:
        sql = "select extract(epoch from due_at - gateway.clock())::float8 from gateway.watched"
        return float(with_connection(database, lambda conn: conn.fetchval(sql)))

    pauses = []
    for _ in range(12):
        says(database, made, "nothing", interval_s=5)
        pauses.append(round(due_in()))
    assert pauses[:7] == [5, 10, 20, 40, 80, 160, 300]
    assert set(pauses[7:]) == {300}
    says(database, made, "absent", interval_s=5)
    assert 295 <= due_in() <= 300  # 335 s after its admission
    move_clock(database, 330)
    says(database, made, "absent", interval_s=5)
    assert due_in() <= 6


# -- beside the release before


class Before:
    """Calls the admit of the release before this."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def fetch(self, sql: str, *args: object) -> Sequence[asyncpg.Record]:
        numbers = ", ".join(f"${number}" for number in range(1, 22))
        return await self._connection.fetch(
            f"select *, 'hold', 0::bigint, null, false, false from gateway.admit({numbers})"
            " order by ord",
            *args[:21],
        )


@pytest.mark.parametrize("by", ["probe", "report"])
def test_the_release_before_takes_what_was_proven_for_a_persons_word(
    database: str, by: str
) -> None:
    made = asked(1, unknown="hold")
    admit(database, made)
    hold(database, made)
    sql = f"select * from gateway.conclude($1, $2, $3, true, '{by}', 'r', 'p', null, null, null)"

    async def work(conn: asyncpg.Connection) -> object:
        await conn.fetch(sql, made.tenant, made.key_digest, made.attempt)
        store = CommandStore(Before(conn))  # type: ignore[arg-type]
        (facts,) = await store.admit([replace(made, attempt=attempt(2))])
        return decide(facts)

    assert with_connection(database, work) == RejectNotRetained(None, "resolved", compared=True)


def test_a_late_answer_after_a_proof_goes_to_the_audit(database: str) -> None:
    made = asked(1)
    admit(database, made)
    move_clock(database, 36)
    assert says(database, made, "applied") == "resolved"
    late = Settle(made, Response(201, (), b"late"), True)
    assert on(database, lambda opened: CommandStore(opened).settle([late])) == ["resolved"]
    assert audit(database)[-1].startswith("late_evidence: response 201 of a command that was")


# -- plans


PLANS = """
select relname, seq_scan, coalesce(idx_scan, 0) as idx_scan from pg_stat_user_tables
 where schemaname = 'gateway' and relname in ('commands', 'watched', 'audit')
"""


def test_no_look_reads_a_whole_table(database: str) -> None:
    """On fresh tables, which nobody has analysed."""

    async def work(conn: asyncpg.Connection) -> dict[str, int]:
        class Direct:
            async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
                return await conn.fetch(sql, *args)

        direct: Any = Direct()
        commands, unknowns = CommandStore(direct), UnknownStore(direct)
        for start in range(0, 1_000, 100):
            await commands.admit([asked(number) for number in range(start, start + 100)])
        await commands.hold([Hold(asked(number), "no answer", None) for number in range(50)])
        await conn.execute("select pg_stat_force_next_flush()")
        before = {row["relname"]: row["seq_scan"] for row in await conn.fetch(PLANS)}
        await unknowns.sweep("near", 500)
        await unknowns.sweep("near", 500)
        for due in await unknowns.take_due(ASKS, 20, 20, BUSY_MS):
            await unknowns.probed(due, Judged("absent", "why"), 60, None)
            await unknowns.probed(due, Judged("applied", "why"), 60, None)
        await unknowns.ask_now(asked(30), attempt(30), BUSY_MS)
        await unknowns.take_over(asked(40), attempt(40))
        await conn.execute("select pg_stat_force_next_flush()")
        await conn.execute("select pg_stat_clear_snapshot()")
        after = {row["relname"]: row["seq_scan"] for row in await conn.fetch(PLANS)}
        return {name: after[name] - before[name] for name in after}

    assert with_connection(database, work) == {"commands": 0, "watched": 0, "audit": 0}


READ = """
select sum(idx_tup_read)::int as n from pg_stat_user_indexes where relname = 'watched'
"""


def test_a_look_reads_little_however_much_of_others_is_due(database: str) -> None:
    fill = """
        insert into gateway.watched (tenant, key_digest, attempt, policy, due_at, upstream_digest)
        select 1, decode(md5(n::text), 'hex'), gen_random_uuid(),
               case when n %% 2 = 0 then 'pay/charge' else 'pay/gone' end,
               gateway.clock() - n * interval '1 s', $1
          from generate_series(1, 5000) n"""

    async def work(conn: asyncpg.Connection) -> list[int]:
        class Direct:
            async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
                return await conn.fetch(sql, *args)

        async def read() -> int:
            await conn.execute("select pg_stat_force_next_flush()")
            await conn.execute("select pg_stat_clear_snapshot()")
            return int(await conn.fetchval(READ) or 0)

        direct: Any = Direct()
        commands, unknowns = CommandStore(direct), UnknownStore(direct)
        await commands.admit([asked(number) for number in range(20)])
        await commands.hold([Hold(asked(number), "no answer", None) for number in range(20)])
        await conn.execute(fill.replace("%%", "%"), digest("another account"))
        await unknowns.sweep("near", 500)
        counts = [await read()]
        assert len(await unknowns.take_due(ASKS, 100, 10, BUSY_MS)) == 10
        counts.append(await read())
        assert await unknowns.not_ours(ASKS, 60) == []  # they have no command
        counts.append(await read())
        return [after - before for before, after in pairwise(counts)]

    assert max(with_connection(database, work)) < 500
