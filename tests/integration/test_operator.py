"""Finding commands and deciding unknown ones, judged by what the store then does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal
from uuid import UUID, uuid4

import pytest

from gateway.core.decide import decide
from gateway.store import operator
from gateway.store.commands import CommandStore
from gateway.store.database import Database
from gateway.store.operator import (
    AlreadySettled,
    Ambiguous,
    Changed,
    CommandDetail,
    CommandInfo,
    Filter,
    InFlight,
    Missing,
    NoTenant,
    Resolution,
    Resolved,
    TooEarly,
)
from tests.kit.db import execute
from tests.kit.operating import Made, in_flight, move_clock, on, released, settled, unknown

Verdict = Literal["executed", "not-executed"]


def find(dsn: str, tenant: str = "default", **which: str) -> Any:
    return on(dsn, lambda db: operator.find(db, tenant, **which))


def listed(dsn: str, **wanted: Any) -> list[CommandInfo]:
    async def work(db: Database) -> list[CommandInfo]:
        return [info async for info in operator.list_commands(db, Filter(**wanted))]

    return on(dsn, work)


def resolve(dsn: str, key: str, verdict: Verdict, attempt: UUID | None = None) -> Resolution:
    async def work(db: Database) -> Resolution:
        found = await operator.find(db, "default", key=key)
        assert isinstance(found, CommandDetail)
        return await operator.resolve(
            db,
            found.info,
            attempt=attempt or found.info.attempt,
            verdict=verdict,
            reason="looked",
            by="ann",
        )

    return on(dsn, work)


def admit_again(dsn: str, made: Made, **changes: Any) -> str:
    """The name of the decision on another command like ``made``."""

    async def work(db: Database) -> str:
        command = replace(made.command, attempt=uuid4(), **changes)
        (facts,) = await CommandStore(db).admit([command])
        return type(decide(facts)).__name__

    return on(dsn, work)


def events(dsn: str, key: str = "k-1") -> list[str]:
    return [row.event for row in on(dsn, lambda db: operator.trail(db, "default", key))]


def test_states_are_derived_at_the_databases_clock(database: str) -> None:
    settled(database, "k-1", entity="invoice:1")
    unknown(database, "k-2", entity="invoice:2")
    in_flight(database, "k-3", entity="invoice:3")
    assert [(c.key, c.state) for c in listed(database)] == [
        ("k-3", "in-flight"),
        ("k-2", "unknown"),
        ("k-1", "settled"),
    ]
    move_clock(database, 31)
    assert [c.key for c in listed(database, state="unknown")] == ["k-3", "k-2"]
    assert listed(database, state="in-flight") == []
    assert [c.key for c in listed(database, state="settled")] == ["k-1"]


def test_every_filter_narrows_and_a_key_is_looked_up_in_every_tenant(database: str) -> None:
    execute(database, "insert into gateway.tenants (name) values ('billing')")
    settled(database, "k-1", entity="invoice:1")
    settled(database, "k-1", tenant="billing", entity="invoice:1")
    settled(database, "K-1", tenant="billing", entity="invoice:2", policy="payments/refund")
    assert {(c.tenant_name, c.key) for c in listed(database, key="k-1")} == {
        ("default", "k-1"),
        ("billing", "k-1"),
    }
    assert [c.key for c in listed(database, key="k-1", tenant="billing")] == ["k-1"]
    assert [c.key for c in listed(database, key="K-1")] == ["K-1"]
    assert len(listed(database, tenant="billing")) == 2
    assert listed(database, tenant="nobody") == []
    assert [c.key for c in listed(database, entity="invoice:2")] == ["K-1"]
    assert [c.key for c in listed(database, policy="payments/refund")] == ["K-1"]
    assert len(listed(database, limit=2)) == 2


def test_pages_of_a_list_meet(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        settled(database, f"k-{number}", entity=f"invoice:{number}")
    execute(
        database,
        "update gateway.commands set admitted_at = (select min(admitted_at) from gateway.commands)",
    )
    whole = [c.key for c in listed(database)]
    assert len(set(whole)) == 6
    for page in (1, 2, 5, 6, 7):
        monkeypatch.setattr(operator, "_PAGE", page)
        assert [c.key for c in listed(database)] == whole
        assert [c.key for c in listed(database, limit=4)] == whole[:4]


def test_one_command_is_shown_whole(database: str) -> None:
    made = settled(database, "k-1", body=b'{"id": 1}')
    found = find(database, key="k-1")
    assert isinstance(found, CommandDetail)
    assert (found.info.status, found.body) == (201, b'{"id": 1}')
    assert found.headers == ((b"Content-Type", b"application/json"),)
    assert (found.info.fence, found.mark, found.is_open) == (7, 7, False)
    assert found.info.settled_by == "answer"
    assert found.info.attempt == made.attempt

    held = unknown(database, "k-2", evidence=b"<html>\x00\xff")
    found = find(database, key="k-2")
    assert (found.info.evidence_status, found.evidence) == (502, b"<html>\x00\xff")
    assert (found.body, found.headers, found.is_open) == (None, (), True)
    assert find(database, digest=held.digest[:8]).info.key == "k-2"
    assert find(database, digest=held.digest).info.key == "k-2"


def test_what_is_not_there_is_told_apart(database: str) -> None:
    settled(database, "k-1")
    assert find(database, tenant="nobody", key="k-1") == NoTenant("nobody")
    assert find(database, key="k-2") == Missing()
    assert find(database, digest="00000000") == Missing()
    execute(
        database,
        "insert into gateway.commands select (jsonb_populate_record(c, jsonb_build_object("
        "'key', 'other', 'key_digest', '\\x' || encode("
        "set_byte(key_digest, 15, 255 - get_byte(key_digest, 15)), 'hex')))).* "
        "from gateway.commands c",
    )
    digest = on(database, lambda db: operator.find(db, "default", key="k-1"))
    assert isinstance(digest, CommandDetail)
    found = find(database, digest=digest.info.key_digest.hex()[:8])
    assert isinstance(found, Ambiguous)
    assert set(found.keys) == {"k-1", "other"}


def test_executed_settles_the_key_and_frees_the_entity(database: str) -> None:
    made = unknown(database)
    assert admit_again(database, made, key_digest=bytes(16), key="k-2") == "RejectUnresolved"
    assert resolve(database, "k-1", "executed") == Resolved()
    assert admit_again(database, made) == "RejectNotRetained"
    assert admit_again(database, made, key_digest=bytes(16), key="k-2") == "Forward"
    found = find(database, key="k-1")
    assert (found.info.state, found.info.settled_by) == ("settled", "resolved")
    assert events(database) == ["outcome_unknown", "resolved"]
    row = on(database, lambda db: operator.trail(db, "default", "k-1"))[-1]
    assert (row.principal, row.reason) == ("operator:ann", "executed: looked")


def test_not_executed_waits_for_the_settle_delay_and_gives_the_key_back(database: str) -> None:
    made = unknown(database)
    early = resolve(database, "k-1", "not-executed")
    assert isinstance(early, TooEarly)
    assert 290 <= early.remaining_s <= 300
    assert admit_again(database, made) == "RejectUnknown"
    move_clock(database, 301)
    assert resolve(database, "k-1", "not-executed") == Resolved()
    assert find(database, key="k-1") == Missing()
    assert events(database) == ["outcome_unknown", "resolved"]
    assert admit_again(database, made) == "Forward"


def test_what_is_in_flight_or_settled_is_not_decided(database: str) -> None:
    in_flight(database, "k-1")
    result = resolve(database, "k-1", "executed")
    assert isinstance(result, InFlight)
    assert 25 <= result.remaining_s <= 30
    settled(database, "k-2", entity="invoice:2")
    assert resolve(database, "k-2", "executed") == AlreadySettled()
    assert resolve(database, "k-2", "not-executed") == AlreadySettled()
    assert "resolved" not in events(database, "k-1") + events(database, "k-2")


def test_a_decision_names_the_attempt_that_was_judged(database: str) -> None:
    made = unknown(database)
    assert resolve(database, "k-1", "executed", attempt=uuid4()) == Changed()
    assert find(database, key="k-1").info.state == "unknown"
    assert resolve(database, "k-1", "executed", attempt=made.attempt) == Resolved()
    assert resolve(database, "k-1", "executed", attempt=made.attempt) == AlreadySettled()


def test_a_command_given_back_between_look_and_decision_is_missing(database: str) -> None:
    made = unknown(database)

    async def work(db: Database) -> Resolution:
        found = await operator.find(db, "default", key="k-1")
        assert isinstance(found, CommandDetail)
        await db.fetch("delete from gateway.commands")  # as another person's "not executed" does
        return await operator.resolve(
            db, found.info, attempt=made.attempt, verdict="executed", reason="x", by="ann"
        )

    assert on(database, work) == Missing()


def test_the_trail_of_a_key_outlives_its_command(database: str) -> None:
    released(database, "k-1")
    assert find(database, key="k-1") == Missing()
    assert events(database) == ["released"]
