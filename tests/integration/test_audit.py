"""The audit: what is appended, and what a search finds of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from gateway.store import audit
from gateway.store.audit import EVENTS, Entry, Filter, Row
from gateway.store.database import Database
from tests.kit.db import execute, with_connection
from tests.kit.operating import move_clock, on, unknown


def find(dsn: str, **wanted: Any) -> list[Row]:
    async def work(db: Database) -> list[Row]:
        return [row async for row in audit.search(db, Filter(**wanted))]

    return on(dsn, work)


def append(dsn: str, *entries: Entry) -> None:
    async def work(db: Database) -> None:
        for entry in entries:
            await audit.append(db, entry)

    on(dsn, work)


def fill(dsn: str, count: int) -> None:
    """Rows r-1 to r-<count>, a second apart, two at a time in the same moment."""
    execute(
        dsn,
        "insert into gateway.audit (tenant, id, at, event, entity, key, reason) "
        "select 1 + i % 2, gen_random_uuid(), "
        "       timestamptz '2026-01-01T00:00:00Z' + (i / 2) * interval '1 s', "
        "       case when i % 10 = 0 then 'released' else 'fence_stale' end, "
        "       'invoice:' || i % 3, 'k-' || i, 'r-' || i "
        f"  from generate_series(1, {count}) i",
    )


def test_an_entry_is_found_as_it_was_written(database: str) -> None:
    entry = Entry(
        tenant=1,
        event="entity_mismatch",
        reason="the request is for invoice:1, its header says invoice:2",
        principal="worker",
        policy="payments/capture",
        entity="invoice:1",
        key="k-1",
        fence=2**62 - 1,
        high_water_mark=5,
        request_id="r-1",
        fingerprint=bytes(range(32)),
    )
    append(database, entry)
    (row,) = find(database)
    for name in Entry.__slots__:
        assert getattr(row, name) == getattr(entry, name), name
    assert row.tenant_name == "default"
    assert row.at.utcoffset() == timedelta(0)


def test_repeating_an_entry_writes_it_once(database: str) -> None:
    attempt = uuid4()
    plain = Entry(tenant=1, event="operator", reason="a")
    append(database, plain, plain)
    append(
        database,
        Entry(tenant=1, event="fence_refused", reason="b", attempt=attempt),
        Entry(tenant=1, event="fence_refused", reason="b again", attempt=attempt),
        Entry(tenant=1, event="entity_mismatch", reason="c", attempt=attempt),
    )
    assert sorted(row.reason or "" for row in find(database)) == ["a", "b", "c"]


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "\udcff caf\udce9", "x" * 100_000, "\u202e\n"])
def test_evidence_never_fails_for_what_it_is_evidence_of(database: str, text: str) -> None:
    append(database, Entry(tenant=1, event="operator", reason=text, entity="e", key=text[:200]))
    assert len(find(database)) == 1


def test_the_events_are_those_of_the_schema(database: str) -> None:
    append(database, *(Entry(tenant=1, event=event, reason="x") for event in EVENTS))
    allowed = with_connection(
        database,
        lambda conn: conn.fetchval(
            "select pg_get_constraintdef(oid) from pg_constraint"
            " where conname = 'audit_event_check'"
        ),
    )
    assert str(allowed).count("'") == 2 * len(EVENTS)


def test_every_filter_narrows(database: str) -> None:
    execute(database, "insert into gateway.tenants (name) values ('billing')")
    fill(database, 60)
    everything = find(database)
    assert len(everything) == 60
    assert find(database, tenant="billing") == [r for r in everything if r.tenant == 2]
    assert find(database, tenant="nobody") == []
    assert find(database, event="released") == [r for r in everything if r.event == "released"]
    assert find(database, entity="invoice:2") == [r for r in everything if r.entity == "invoice:2"]
    assert [r.reason for r in find(database, key="k-7")] == ["r-7"]
    assert find(database, key="K-7") == []
    since = datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC)
    until = datetime(2026, 1, 1, 0, 0, 20, tzinfo=UTC)
    window = [r for r in everything if since <= r.at < until]
    assert window
    assert find(database, since=since, until=until) == window
    assert find(database, limit=7) == everything[:7]
    assert find(database, limit=7, newest_first=False) == everything[::-1][:7]
    assert (
        find(database, tenant="billing", entity="invoice:0", event="fence_stale", limit=2)
        == [
            r
            for r in everything
            if (r.tenant, r.entity, r.event) == (2, "invoice:0", "fence_stale")
        ][:2]
    )


def test_pages_meet_without_gap_or_repeat(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where rows of two tenants, and of one, share a moment."""
    execute(database, "insert into gateway.tenants (name) values ('billing')")
    fill(database, 50)
    execute(database, "update gateway.audit set at = '2026-01-01T00:00:07Z' where key < 'k-3'")
    whole = find(database)
    assert len(whole) == 50
    assert [row.at for row in whole] == sorted((row.at for row in whole), reverse=True)
    for page in (1, 2, 7, 49, 50, 51):
        monkeypatch.setattr(audit, "_PAGE", page)
        assert find(database) == whole
        assert find(database, newest_first=False) == whole[::-1]
        assert find(database, limit=20) == whole[:20]


def test_ago_is_counted_on_the_databases_clock(database: str) -> None:
    append(database, Entry(tenant=1, event="operator", reason="now"))
    move_clock(database, 3600)
    append(database, Entry(tenant=1, event="operator", reason="in an hour"))
    assert [r.reason for r in find(database, since=timedelta(minutes=30))] == ["in an hour"]
    assert [r.reason for r in find(database, until=timedelta(minutes=30))] == ["now"]
    assert len(find(database, since=timedelta(hours=2))) == 2


def test_a_search_holds_nothing_between_pages(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that stops in the middle, e.g. a pager, must not hold a transaction open."""
    fill(database, 20)
    monkeypatch.setattr(audit, "_PAGE", 5)

    async def work(db: Database) -> None:
        found = audit.search(db, Filter())
        for _ in range(7):
            await anext(found)
        async with db.connection() as conn:
            held = await conn.fetchval(
                "select count(*) from pg_stat_activity where datname = current_database() "
                "and xact_start is not null and pid <> pg_backend_pid()"
            )
        assert held == 0

    on(database, work)


def test_what_the_store_writes_itself_is_found_too(database: str) -> None:
    made = unknown(database)
    (row,) = find(database, event="outcome_unknown")
    assert (row.key, row.attempt, row.fence) == ("k-1", made.attempt, 7)


def test_searches_use_the_indexes_however_often_they_are_prepared(database: str) -> None:
    """The plan must be made for the filters that are there; a generic one would scan the table."""
    fill(database, 20_000)
    execute(database, "analyze gateway.audit")

    async def work(db: Database) -> None:
        sql = audit._SQL["newest_first"]
        cases = [
            (("default", None, "invoice:1", None, None, None), "audit_entity_idx"),
            (("default", None, None, None, None, None), "audit_at_idx"),
        ]
        for arguments, index in cases:
            async with db.connection() as conn, conn.transaction(readonly=True):
                await conn.execute("set local plan_cache_mode = force_custom_plan")
                for _ in range(7):
                    plan = await conn.fetch(f"explain {sql}", *arguments, None, None, None, 10)
                text = "\n".join(line[0] for line in plan)
            assert index in text, text
            assert "Seq Scan on audit" not in text

    on(database, work)
