"""Tenants, caller keys and the snapshot that requests are judged by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from gateway.core.auth import Snapshot, parse_token
from gateway.core.scopes import ALL, BEFORE, DEFAULT, LIMIT
from gateway.errors import ConfigurationError, StoreUnavailable
from gateway.store import audit
from gateway.store.database import Database
from gateway.store.keyring import MAX_AGE_S, KeyRing
from gateway.store.tenants import (
    LeftBehind,
    add_key,
    change_scopes,
    list_keys,
    load_snapshot,
    revoke_key,
)
from tests.kit.db import Server, execute, with_connection
from tests.kit.operating import on, settled

MAY = "policy:* enqueue work"
"""What a key may do that was made without a word about it."""


def bearer(token: str) -> list[bytes]:
    return [f"Bearer {token}".encode()]


def test_a_key_that_was_made_is_taken_and_its_secret_is_nowhere(database: str) -> None:
    async def work(db: Database) -> tuple[str, Snapshot]:
        return await add_key(db, "billing", "worker", by="ann"), await load_snapshot(db)

    token, snapshot = on(database, work)
    principal = snapshot.authenticate(bearer(token))
    assert principal is not None
    assert (principal.tenant_name, principal.name) == ("billing", "worker")
    assert len(principal.salt) == 16
    assert snapshot.authenticate(bearer(token[:-1] + ("A" if token[-1] != "A" else "B"))) is None
    parsed = parse_token(token.encode())
    assert parsed is not None
    assert (parsed.tenant, parsed.key_id) == (principal.tenant, principal.key_id)
    dump = with_connection(
        database,
        lambda conn: conn.fetchval(
            "select string_agg(r, ' ') from (select row(k.*)::text as r from gateway.caller_keys k"
            " union all select row(a.*)::text from gateway.audit a) all_rows"
        ),
    )
    assert parsed.secret.decode() not in str(dump)


def test_anonymous_only_while_no_key_has_ever_existed(database: str) -> None:
    async def work(db: Database) -> None:
        before = await load_snapshot(db)
        assert before.anonymous is not None
        assert (before.anonymous.tenant_name, before.anonymous.name) == ("default", "anonymous")
        token = await add_key(db, "billing", "worker", by="ann")
        assert (await load_snapshot(db)).anonymous is None
        (key,) = await list_keys(db)
        assert await revoke_key(db, "billing", key.key_id, by="ann") == "revoked"
        after = await load_snapshot(db)
        assert after.anonymous is None
        assert after.authenticate(bearer(token)) is None
        assert not after.keys

    on(database, work)


def test_tenants_are_made_once_and_numbers_are_not_used_up(database: str) -> None:
    async def work(db: Database) -> None:
        for number in range(5):
            await add_key(db, "billing", f"worker-{number}", by="ann")
        await add_key(db, "support", "worker", by="ann")
        numbers = {key.tenant_name: key.tenant for key in await list_keys(db)}
        assert numbers == {"billing": 2, "support": 3}
        assert len(await list_keys(db, "billing")) == 5
        assert await list_keys(db, "nobody") == []

    on(database, work)


def test_many_at_once_make_one_tenant(database: str) -> None:
    async def work(db: Database) -> None:
        tokens = await asyncio.gather(*(add_key(db, "new", f"w{n}", by="ann") for n in range(20)))
        snapshot = await load_snapshot(db)
        holders = [snapshot.authenticate(bearer(token)) for token in tokens]
        assert [holder.name for holder in holders if holder] == [f"w{n}" for n in range(20)]
        assert len({holder.tenant for holder in holders if holder}) == 1

    on(database, work)


def test_revoking_is_for_one_tenants_key_and_once(database: str) -> None:
    async def work(db: Database) -> None:
        token = await add_key(db, "billing", "worker", by="ann")
        await add_key(db, "support", "worker", by="ann")
        (key,) = await list_keys(db, "billing")
        assert await revoke_key(db, "support", key.key_id, by="ann") == "missing"
        assert (await load_snapshot(db)).authenticate(bearer(token)) is not None
        assert await revoke_key(db, "billing", key.key_id, by="ann") == "revoked"
        (first,) = await list_keys(db, "billing")
        assert await revoke_key(db, "billing", key.key_id, by="bob") == "already"
        assert await list_keys(db, "billing") == [first]
        assert len((await load_snapshot(db)).keys) == 1

    on(database, work)


def test_making_and_revoking_are_audited_in_the_same_commit(database: str) -> None:
    async def work(db: Database) -> None:
        await add_key(db, "billing", "worker", by="ann")
        (key,) = await list_keys(db)
        await revoke_key(db, "billing", key.key_id, by="bob")
        await revoke_key(db, "billing", key.key_id, by="bob")
        rows = [row async for row in audit.search(db, audit.Filter(newest_first=False))]
        assert [(row.event, row.tenant_name, row.principal, row.reason) for row in rows] == [
            ("operator", "billing", "operator:ann", f"key {key.key_id} added for worker: {MAY}"),
            ("operator", "billing", "operator:bob", f"key {key.key_id} of worker revoked"),
        ]
        assert rows[0].at == key.created_at

    on(database, work)


@pytest.mark.parametrize(
    ("tenant", "principal"),
    [
        ("", "w"),
        ("Billing", "w"),
        ("a b", "w"),
        ("x" * 64, "w"),
        ("billing\n", "w"),
        ("billing", ""),
        ("billing", " w"),
        ("billing", "w\n"),
        ("billing", "x" * 101),
        ("billing", "operator:ann"),
        ("billing", "anonymous"),
    ],
)
def test_names_that_mislead_are_refused(database: str, tenant: str, principal: str) -> None:
    with pytest.raises(ConfigurationError):
        on(database, lambda db: add_key(db, tenant, principal, by="ann"))


@pytest.mark.parametrize("apart", [False, True])
def test_marks_alone_are_left_behind_too(database: str, apart: bool) -> None:
    execute(
        database,
        "insert into gateway.entities (tenant, entity, fence, touched_at)"
        " values (1, 'invoice:1', 7, gateway.clock())",
    )

    async def work(db: Database) -> None:
        await add_key(db, "billing", "worker", by="ann", apart=apart)

    with nullcontext() if apart else pytest.raises(LeftBehind, match="0 commands"):
        on(database, work)
    assert on(database, list_keys) == [] or apart


def test_a_revoked_key_of_default_keeps_nothing_together(database: str) -> None:
    settled(database)

    async def work(db: Database) -> None:
        await add_key(db, "default", "worker", by="ann")
        (key,) = await list_keys(db)
        await revoke_key(db, "default", key.key_id, by="ann")
        with pytest.raises(LeftBehind, match="1 command and"):
            await add_key(db, "billing", "worker", by="ann")

    on(database, work)


def test_a_snapshot_ages_and_an_old_one_authenticates_nobody(database: str) -> None:
    now = [1000.0]

    async def work(db: Database) -> None:
        ring = KeyRing(db, lambda: now[0])
        assert ring.current() is None
        assert ring.age_s is None
        await ring.refresh()
        assert ring.current() is not None
        now[0] += MAX_AGE_S
        assert ring.current() is not None
        now[0] += 0.1
        assert ring.current() is None
        await ring.refresh()
        assert ring.age_s == 0
        assert ring.current() is not None

    on(database, work)


def test_a_snapshot_is_as_old_as_the_question(database: str) -> None:
    """What changed while the answer was on its way is not in it."""
    readings = iter([10.0, 13.0])

    async def work(db: Database) -> None:
        ring = KeyRing(db, lambda: next(readings))
        await ring.refresh()
        assert ring.age_s == 3.0

    on(database, work)


def test_keys_that_vanish_do_not_open_the_gate(database: str) -> None:
    """E.g. a restored, emptier database: a process that knew keys stays closed."""

    async def work(db: Database, forget: Callable[[], None]) -> None:
        ring = KeyRing(db, lambda: 0.0)
        await ring.refresh()
        open_one = ring.current()
        assert open_one is not None
        assert open_one.anonymous is not None
        await add_key(db, "billing", "worker", by="ann")
        await ring.refresh()
        await asyncio.to_thread(forget)
        assert (await load_snapshot(db)).anonymous is not None
        await ring.refresh()
        current = ring.current()
        assert current is not None
        assert current.anonymous is None

    on(database, lambda db: work(db, lambda: forget_keys(database)))


def forget_keys(dsn: str) -> None:
    execute(dsn, "delete from gateway.caller_keys")


def test_the_ring_reads_in_the_background_and_survives_an_outage(
    postgres: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.store.keyring.RELOAD_S", 0.01)

    async def work(db: Database) -> None:
        ring = KeyRing(db, asyncio.get_running_loop().time)
        ring.start()
        ring.start()
        await until(lambda: ring.current() is not None)
        token = await add_key(db, "billing", "worker", by="ann")
        await until(lambda: knows(ring, token))
        await asyncio.to_thread(postgres.cluster.stop, immediate=True)
        with pytest.raises(StoreUnavailable):
            await ring.refresh()
        assert knows(ring, token)
        await asyncio.to_thread(postgres.restart)
        (key,) = await list_keys(db)
        await revoke_key(db, "billing", key.key_id, by="ann")
        await until(lambda: not knows(ring, token))
        await ring.stop()
        await ring.stop()

    on(database, work)


def knows(ring: KeyRing, token: str) -> bool:
    snapshot = ring.current()
    return snapshot is not None and snapshot.authenticate(bearer(token)) is not None


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - the ring has no event of its own to wait for
            await asyncio.sleep(0.005)


# --- scopes ----------------------------------------------------------------------------------


def may(snapshot: Snapshot, token: str) -> frozenset[str]:
    principal = snapshot.authenticate(bearer(token))
    assert principal is not None
    return principal.scopes


def test_a_key_may_do_what_was_said_when_it_was_made(database: str) -> None:
    async def work(db: Database) -> None:
        anonymous = (await load_snapshot(db)).anonymous
        assert anonymous is not None
        assert anonymous.scopes == ALL
        usual = await add_key(db, "billing", "usual", by="ann")
        chosen = await add_key(
            db, "billing", "chosen", by="ann", scopes=["audit", "policy:pay", "audit"]
        )
        snapshot = await load_snapshot(db)
        assert may(snapshot, usual) == DEFAULT
        assert may(snapshot, chosen) == {"policy:pay", "audit"}
        assert [key.may for key in await list_keys(db)] == [
            ("policy:*", "enqueue", "work"),
            ("policy:pay", "audit"),
        ]

    on(database, work)


def test_a_key_of_before_keeps_what_it_could_do_until_somebody_changes_it(database: str) -> None:
    """As the release before makes them: it names no scopes."""
    execute(
        database,
        "insert into gateway.caller_keys (tenant, key_id, principal, secret_digest)"
        " values (1, 'abcdefgh22', 'old', sha256(''))",
    )

    async def work(db: Database) -> None:
        (old,) = await list_keys(db)
        assert (old.scopes, frozenset(old.may)) == (None, BEFORE)
        (held,) = (await load_snapshot(db)).keys.values()
        assert held.principal.scopes == BEFORE
        assert await change_scopes(db, old, ["work"], by="ann")
        assert not await change_scopes(db, old, ["audit"], by="bob")  # it is another one since
        (new,) = await list_keys(db)
        assert new.may == ("work",)

    on(database, work)


def test_changing_is_audited_in_the_same_commit_and_counts_for_one_tenants_key(
    database: str,
) -> None:
    async def work(db: Database) -> None:
        token = await add_key(db, "billing", "worker", by="ann")
        other = await add_key(db, "support", "worker", by="ann")
        await asyncio.to_thread(
            execute, database, "update gateway.caller_keys set key_id = 'abcdefgh22'"
        )
        (key,) = await list_keys(db, "billing")
        assert await change_scopes(db, key, ["operate", "policy:pay"], by="bob")
        tokens = [each.split("_", 3) for each in (token, other)]
        known = [f"fg_{tenant}_abcdefgh22_{secret}" for _, tenant, _, secret in tokens]
        snapshot = await load_snapshot(db)
        assert [may(snapshot, each) for each in known] == [{"operate", "policy:pay"}, DEFAULT]
        rows = [row async for row in audit.search(db, audit.Filter(limit=1))]
        assert [(row.tenant_name, row.principal, row.reason) for row in rows] == [
            (
                "billing",
                "operator:bob",
                "key abcdefgh22 of worker may from now on: policy:pay operate",
            )
        ]

    on(database, work)


def test_a_revoked_key_is_not_changed(database: str) -> None:
    async def work(db: Database) -> None:
        token = await add_key(db, "billing", "worker", by="ann")
        (key,) = await list_keys(db)
        await revoke_key(db, "billing", key.key_id, by="ann")
        assert not await change_scopes(db, key, ["operate"], by="ann")
        assert (await load_snapshot(db)).authenticate(bearer(token)) is None

    on(database, work)


@pytest.mark.parametrize(
    "scopes",
    [[], ["everything"], ["policy:Pay"], ["work", ""], [f"policy:p{n}" for n in range(LIMIT + 1)]],
)
def test_scopes_that_cannot_be_are_refused(database: str, scopes: list[str]) -> None:
    async def work(db: Database) -> None:
        with pytest.raises(ConfigurationError, match="scope"):
            await add_key(db, "billing", "worker", by="ann", scopes=scopes)
        assert await list_keys(db) == []
        await add_key(db, "billing", "worker", by="ann")
        (key,) = await list_keys(db)
        with pytest.raises(ConfigurationError, match="scope"):
            await change_scopes(db, key, scopes, by="ann")

    on(database, work)


def test_scopes_of_a_later_release_are_read_and_allow_nothing(database: str) -> None:
    async def work(db: Database) -> None:
        token = await add_key(db, "billing", "worker", by="ann")
        await asyncio.to_thread(
            execute, database, "update gateway.caller_keys set scopes = '{later,work}'"
        )
        assert may(await load_snapshot(db), token) == {"later", "work"}

    on(database, work)
