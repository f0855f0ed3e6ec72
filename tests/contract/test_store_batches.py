"""A batch does what its commands would do one by one: the same facts, and the same rows left."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.core.command import Command, Hold, Release, Settle
from gateway.core.decide import Forward, WaitForEntity, decide
from gateway.errors import StoreUnavailable
from gateway.store.commands import CommandStore
from gateway.store.database import Database
from gateway.store.fences import FenceStore
from tests.integration.test_store_model import Bench
from tests.kit.commands import OK, attempt, command, response
from tests.kit.db import Server
from tests.kit.model import FIRST_ISSUED

_numbers = itertools.count(50_000)

TABLES = ("entities", "commands", "audit", "audit_repeats", "given_back")
ISSUED = FIRST_ISSUED


@dataclass
class Pair:
    """Two databases at one moment: one is asked in batches, the other one by one."""

    batched: Bench
    single: Bench

    def both(self, work: Callable[[Bench], Any]) -> None:
        for bench in (self.batched, self.single):
            bench.run(work(bench))

    def left(self, bench: Bench) -> dict[str, list[Any]]:
        return {
            table: sorted(
                (tuple(row.items()) for row in self._rows(bench, table)), key=lambda row: str(row)
            )
            for table in TABLES
        }

    def _rows(self, bench: Bench, table: str) -> list[Any]:
        found: list[Any] = bench.run(bench.watch.fetch(f"select * from gateway.{table}"))
        return found


@pytest.fixture(scope="module")
def pair(postgres: Server) -> Iterator[Pair]:
    with postgres.database() as first, postgres.database() as second:
        made = Pair(Bench(first), Bench(second))
        made.both(
            lambda bench: bench.watch.execute("update gateway.manual_clock set at = '2026-11-30'")
        )
        try:
            yield made
        finally:
            made.batched.close()
            made.single.close()


@dataclass
class Case:
    """What stands before, and what is asked. ``before``: what was done with each command."""

    asked: Command
    before: list[tuple[Command, str]] = field(default_factory=list)
    issued: bool = False

    async def prepare(self, bench: Bench) -> None:
        if self.issued:
            await FenceStore(bench.database).issue(self.asked.tenant, self.asked.entity)
        for made, end in self.before:
            (facts,) = await bench.store.admit([made])
            assert decide(facts) == Forward(made.attempt)
            await _END[end](bench.store, made)


async def _leave(_: CommandStore, __: Command) -> None: ...


_END: dict[str, Callable[[CommandStore, Command], Any]] = {
    "open": _leave,
    "settled": lambda store, made: store.settle([Settle(made, OK, True)]),
    "not kept": lambda store, made: store.settle([Settle(made, OK, False)]),
    "held": lambda store, made: store.hold([Hold(made, "no answer", response(503))]),
    "released": lambda store, made: store.release([Release(made, "status 429", True)]),
}


def new(key: str, entity: str, **about: Any) -> Command:
    return command(key, by=attempt(next(_numbers)), entity=entity, **about)


def cases(at: str) -> dict[str, Case]:
    """One of each kind; ``at``: what makes its keys and entities its own."""

    def ask(name: str, key: str = "", **about: Any) -> Command:
        return new(key or f"{name} {at}", f"{name}:{at}", **about)

    def other(name: str, **about: Any) -> Command:
        return new(f"other of {name} {at}", f"{name}:{at}", **about)

    own = ask("own again")
    return {
        "new": Case(ask("new")),
        "new, parallel": Case(ask("parallel", serial=False)),
        "new, bare": Case(ask("bare", serial=False, fence=None)),
        "new, no fence": Case(ask("none", fence=None)),
        "new, issuer here": Case(ask("here", issuer_here=True)),
        "new, expired": Case(ask("expired", f"00000000-0000-7000-8000-{at:0>12}")),
        "new, known key": Case(
            ask("moved", f"moved {at}"), [(new(f"moved {at}", f"before:{at}"), "settled")]
        ),
        "old, free": Case(ask("free", fence=9), [(other("free"), "settled")]),
        "old, free, no fence": Case(ask("plain", fence=None), [(other("plain"), "settled")]),
        "old, parallel": Case(ask("side", serial=False, fence=4), [(other("side"), "open")]),
        "old, busy": Case(ask("busy", fence=9), [(other("busy"), "open")]),
        "old, unresolved": Case(ask("stuck", fence=1), [(other("stuck"), "held")]),
        "replay": Case(ask("again", fence=2), [(ask("again"), "settled")]),
        "not kept": Case(ask("lean"), [(ask("lean"), "not kept")]),
        "in flight": Case(ask("flying"), [(ask("flying"), "open")]),
        "in flight, bare": Case(
            ask("loose", serial=False, fence=None),
            [(ask("loose", serial=False, fence=None), "open")],
        ),
        "unknown": Case(ask("lost"), [(ask("lost"), "held")]),
        "given back": Case(ask("back"), [(ask("back"), "released")]),
        "reused": Case(ask("reused", body="other"), [(ask("reused"), "settled")]),
        "stale": Case(ask("stale"), [(other("stale", fence=5), "settled")]),
        "stale, known": Case(
            ask("late"), [(ask("late"), "settled"), (other("late", fence=5), "settled")]
        ),
        "stale, busy": Case(ask("slow"), [(other("slow", fence=5), "open")]),
        "held": Case(ask("held", fence=ISSUED), issued=True),
        "held, no fence": Case(ask("kept", fence=None), issued=True),
        "not held": Case(ask("guessed", fence=ISSUED + 1), issued=True),
        "own again": Case(own, [(own, "open")]),
    }


KINDS = tuple(cases("0"))


@pytest.mark.parametrize("seed", range(3))
def test_a_mixed_batch_is_answered_and_leaves_what_single_admits_do(pair: Pair, seed: int) -> None:
    made = [case for copy in range(4) for case in cases(f"{seed}{copy}").values()]
    random.Random(seed).shuffle(made)
    for case in made:
        pair.both(case.prepare)
    asked = [case.asked for case in made]

    together = pair.batched.run(pair.batched.store.admit_free(asked))
    one_by_one = [pair.single.run(pair.single.store.admit([each]))[0] for each in asked]

    assert together == one_by_one
    assert pair.left(pair.batched) == pair.left(pair.single)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_alone_in_a_batch_with_a_new_one(pair: Pair, kind: str) -> None:
    """What stands beside it takes the short way, and is not taken along the long one."""
    case, beside = cases(f"alone {kind}")[kind], new(f"beside {kind}", f"beside:{kind}")
    if kind == "new, expired":
        case = cases("99")[kind]
    pair.both(case.prepare)

    together = pair.batched.run(pair.batched.store.admit_free([case.asked, beside]))
    one_by_one = [
        pair.single.run(pair.single.store.admit([each]))[0] for each in (case.asked, beside)
    ]

    assert together == one_by_one
    assert decide(together[1]) == Forward(beside.attempt)
    assert pair.left(pair.batched) == pair.left(pair.single)


def test_of_a_command_that_is_not_admitted_its_new_entity_keeps_the_fence_alone(pair: Pair) -> None:
    first = new("known", "entity:first")
    moved, after = new("known", "entity:new", fence=3), new("after", "entity:new", fence=3)
    here, outside = new("here", "entity:here", fence=9, issuer_here=True), new("o", "entity:here")
    stale = new("stale", "entity:new", fence=2)

    async def ask(bench: Bench) -> None:
        for each in (first, moved, here):
            await bench.store.admit([each])
        for each in (after, outside):
            (facts,) = await bench.store.admit([each])
            assert decide(facts) == Forward(each.attempt)
        (facts,) = await bench.store.admit([stale])
        assert (facts.mark, facts.known) == (3, None)

    pair.both(ask)


def ends(at: str) -> list[tuple[Case, Command]]:
    """What stands there, and whose answer comes."""

    def made(name: str, **about: Any) -> Command:
        return new(f"{name} {at}", f"{name}:{at}", **about)

    def case(name: str, end: str, **about: Any) -> tuple[Case, Command]:
        by = made(name, **about)
        return Case(by, [(by, end)]), by

    taken = made("taken")
    return [
        case("in time", "open"),
        case("in time, parallel", "open", serial=False),
        case("in time, bare", "open", serial=False, fence=None),
        case("late", "held"),
        case("again", "settled"),
        case("given back", "released"),
        (Case(taken, [(taken, "released"), (made("taken"), "open")]), taken),
    ]


@pytest.mark.parametrize("seed", range(2))
def test_a_mixed_batch_of_answers_leaves_what_single_settles_do(pair: Pair, seed: int) -> None:
    made = [each for copy in range(4) for each in ends(f"end {seed}{copy}")]
    random.Random(seed).shuffle(made)
    for case, _ in made:
        pair.both(case.prepare)
    settles = [
        Settle(by, response(201, bytes([at])), at % 3 > 0) for at, (_, by) in enumerate(made)
    ]

    together = pair.batched.run(pair.batched.store.settle_free(settles))
    one_by_one = [pair.single.run(pair.single.store.settle([each]))[0] for each in settles]

    assert together == one_by_one
    assert set(together) == {"settled", "late", "already", "contradicts", "duplicate"}
    assert pair.left(pair.batched) == pair.left(pair.single)


LOCK = "select 1 from gateway.entities where entity = any ($1) for no key update"


def test_what_somebody_else_has_locked_stops_nobody_else_in_its_batch(database: str) -> None:
    """An operator's transaction, another process: of the batch only their own commands wait."""
    names = [f"e{number}" for number in range(6)]

    async def work(pool: Database, store: CommandStore) -> None:
        first = [new(f"first {name}", name) for name in names]
        await store.admit(first)
        await store.settle([Settle(each, OK, True) for each in first])
        asked = [new(f"k {name}", name) for name in [*names, "fresh"]]
        async with pool.connection() as holder, holder.transaction():
            await holder.fetch(LOCK, ["e1", "e4"])
            found = await store.admit_free(asked)
            assert [facts is None for facts in found] == [
                False,
                True,
                False,
                False,
                True,
                False,
                False,
            ]
            assert all(decide(facts) == Forward(each.attempt)
                       for each, facts in zip(asked, found, strict=True) if facts)  # fmt: skip
            alone = asyncio.ensure_future(store.admit([asked[1]]))
            await _waits(pool)
            assert not alone.done()
        (facts,) = await alone
        assert decide(facts) == Forward(asked[1].attempt)
        (facts,) = await store.admit([new("next", "e0")])
        assert isinstance(decide(facts), WaitForEntity)

    _with_store(database, work)


def test_a_batch_of_answers_is_cut_off_soon_where_a_lock_is_held_and_nothing_of_it_stays(
    database: str,
) -> None:
    async def work(pool: Database, store: CommandStore) -> None:
        made = [new(f"k{number}", f"e{number}") for number in range(3)]
        await store.admit(made)
        settles = [Settle(each, OK, True) for each in made]
        async with pool.connection() as holder, holder.transaction():
            await holder.fetch(LOCK, ["e1"])
            with pytest.raises(StoreUnavailable) as caught:
                await store.settle_free(settles)
            assert caught.value.code == "55P03"
            assert await store.settle_free(settles[:1]) == ["settled"]
            alone = asyncio.ensure_future(store.settle([settles[1]]))
            await _waits(pool)
        assert await alone == ["settled"]
        assert await store.settle(settles) == ["already", "already", "settled"]

    _with_store(database, work)


async def _waits(pool: Database) -> None:
    sql = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    async with pool.connection() as watch:
        while True:  # each look is a round trip
            if await watch.fetchval(sql):
                return


def _with_store(dsn: str, work: Callable[[Database, CommandStore], Any]) -> None:
    async def main() -> None:
        pool = await Database.open(dsn, size=4)
        try:
            await asyncio.wait_for(work(pool, CommandStore(pool)), 30)
        finally:
            await pool.close()

    asyncio.run(main())
