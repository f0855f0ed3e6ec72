"""Many connections at once, on the real clock: who wins is open, that exactly one wins is not."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from gateway.core.command import Command, Release, Settle
from gateway.core.decide import (
    Decision,
    Forward,
    RejectStale,
    Replay,
    WaitForEntity,
    WaitForKey,
    decide,
)
from gateway.errors import StoreUnavailable
from gateway.store.commands import CommandStore
from gateway.store.database import Database
from tests.kit.commands import OK, attempt, command
from tests.kit.invariants import Admission, End, History, Send, assert_holds, read_store

CONNECTIONS = 8
_numbers = itertools.count()


def new(key: str = "k", **about: Any) -> Command:
    return command(key, by=attempt(next(_numbers)), **about)


def on(dsn: str, work: Callable[[CommandStore, Database], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        database = await Database.open(dsn, size=CONNECTIONS)
        try:
            await asyncio.wait_for(work(CommandStore(database), database), 60)
        finally:
            await database.close()

    asyncio.run(main())


async def admit(store: CommandStore, *batch: Command) -> list[Decision]:
    """As the gateway does it: the loser of a deadlock did nothing and tries again."""
    while True:
        try:
            return [decide(facts) for facts in await store.admit(batch)]
        except StoreUnavailable as error:
            if error.code != "40P01":
                raise


async def at_once(store: CommandStore, commands: Sequence[Command]) -> list[Decision]:
    found = await asyncio.gather(*(admit(store, each) for each in commands))
    return [decision for (decision,) in found]


def kinds(decisions: Sequence[Decision]) -> Counter[type]:
    return Counter(type(each) for each in decisions)


def test_of_many_callers_with_one_key_exactly_one_is_forwarded(database: str) -> None:
    async def work(store: CommandStore, _: Database) -> None:
        for about in ({}, {"serial": False}, {"serial": False, "fence": None}):
            key = f"k-{len(about)}"
            callers = [new(key, entity=key, **about) for _ in range(CONNECTIONS)]
            found = kinds(await at_once(store, callers))
            assert found == {Forward: 1, WaitForKey: CONNECTIONS - 1}

    on(database, work)


def test_of_many_commands_on_one_entity_exactly_one_is_forwarded_at_a_time(database: str) -> None:
    async def work(store: CommandStore, _: Database) -> None:
        left = [new(f"k{number}") for number in range(CONNECTIONS)]
        while left:
            found = await at_once(store, left)
            assert kinds(found) == Counter({Forward: 1, WaitForEntity: len(left) - 1}) - Counter()
            (won,) = (
                each
                for each, decision in zip(left, found, strict=True)
                if isinstance(decision, Forward)
            )
            assert await store.settle([Settle(won, OK, True)]) == ["settled"]
            left = [new(each.key) for each in left if each is not won]

    on(database, work)


def test_a_stale_fence_never_passes_a_newer_one_however_they_race(database: str) -> None:
    async def work(store: CommandStore, pool: Database) -> None:
        commands = [
            new(f"k{fence}", fence=fence, serial=False) for fence in range(1, 3 * CONNECTIONS)
        ]
        random.Random(7).shuffle(commands)
        found = await at_once(store, commands)
        stale = [
            each for each, d in zip(commands, found, strict=True) if isinstance(d, RejectStale)
        ]
        assert set(kinds(found)) <= {Forward, RejectStale}
        async with pool.connection() as connection:
            admitted = await connection.fetch(
                "select fence, attempt, key from gateway.commands order by admitted_at, fence"
            )
            history = await read_store(connection)
            mark = await connection.fetchval("select fence from gateway.entities")
        history.admissions = [
            Admission(at, 1, row["key"], "invoice:1", row["fence"], row["attempt"], serial=False)
            for at, row in enumerate(admitted)
        ]
        assert_holds(history)
        assert mark == 3 * CONNECTIONS - 1
        assert len(admitted) == len(commands) - len(stale)
        evidence = {row.attempt for row in history.evidence if row.event == "fence_stale"}
        assert evidence == {each.attempt for each in stale}

    on(database, work)


def test_batches_in_opposite_order_all_come_through(database: str) -> None:
    async def work(store: CommandStore, _: Database) -> None:
        places = [(f"k{number}", f"e{9 - number}") for number in range(10)]
        for serial in (True, False):
            batches = [
                [new(f"{key}-{serial}", entity=f"{entity}-{serial}", serial=serial)
                 for key, entity in places[:: 1 if turn % 2 else -1]]
                for turn in range(CONNECTIONS)
            ]  # fmt: skip
            found = await asyncio.gather(*(admit(store, *batch) for batch in batches))
            assert kinds(list(itertools.chain(*found))) == {
                Forward: len(places),
                WaitForKey: len(places) * (CONNECTIONS - 1),
            }

    on(database, work)


def test_batches_whose_keys_and_entities_cross_all_come_through(database: str) -> None:
    """Entities are locked before keys, so the order of one cannot meet the order of the other."""

    async def work(store: CommandStore, _: Database) -> None:
        keys, entities = [f"k{number}" for number in range(5)], [f"e{n}" for n in range(5)]
        draw = random.Random(3)
        batches = []
        for _ in range(4 * CONNECTIONS):
            size = draw.randint(2, 5)
            pairs = zip(draw.sample(keys, size), draw.sample(entities, size), strict=True)
            batches.append(
                [new(key, entity=entity, serial=draw.random() < 0.5) for key, entity in pairs]
            )
        found = await asyncio.gather(*(admit(store, *batch) for batch in batches))
        forwarded = [
            each.key
            for batch, decisions in zip(batches, found, strict=True)
            for each, decision in zip(batch, decisions, strict=True)
            if isinstance(decision, Forward)
        ]
        assert len(forwarded) == len(set(forwarded)) <= len(keys)

    on(database, work)


def test_guarantees_hold_while_everybody_admits_settles_and_gives_back(database: str) -> None:
    """Sends and ends are numbered where they cannot be later than they were, so that what is
    reported did happen."""
    history = History()
    steps = itertools.count()

    async def perform(store: CommandStore, made: Command, draw: random.Random) -> None:
        executed = draw.random() < 0.6
        history.sends.append(
            Send(next(steps), 1, made.key, made.entity, made.fence, True, executed, made.attempt)
        )
        how = "settled" if executed else "released"
        history.ends.append(End(next(steps), 1, made.key, how, made.attempt))
        if executed:
            await store.settle([Settle(made, OK, True)])
        else:
            await store.release([Release(made, "status 429")])

    async def worker(store: CommandStore, seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(12):
            made = new(f"k{draw.randrange(12)}", entity="invoice:1", fence=None)
            (decision,) = await admit(store, made)
            assert isinstance(decision, Forward | Replay | WaitForKey | WaitForEntity)
            if isinstance(decision, Forward):
                history.admissions.append(
                    Admission(next(steps), 1, made.key, made.entity, None, made.attempt)
                )
                await perform(store, made, draw)

    async def work(store: CommandStore, _: Database) -> None:
        await asyncio.gather(*(worker(store, seed) for seed in range(CONNECTIONS)))

    on(database, work)
    assert len(history.sends) > 5
    assert_holds(history)
