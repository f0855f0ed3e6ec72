"""The command line as it is typed, against a real database."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.resources import migrations_dir
from gateway.store import audit
from gateway.store.database import Database
from gateway.store.embedded import attach, start
from gateway.store.tenants import load_snapshot
from tests.kit.db import Server, dsn_of, execute, open_folder, with_connection
from tests.kit.operating import (
    ROOT,
    Done,
    fencegate,
    in_flight,
    move_clock,
    on,
    released,
    settled,
    unknown,
)

READS = [["keys", "list"], ["audit"], ["commands", "list"], ["commands", "show", "k-1"]]
WRITES = [
    ["keys", "add", "--tenant", "billing", "--name", "worker", "--apart"],
    ["commands", "resolve", "k-1", "--executed", "--reason", "x"],
]

POLICY = """
name     = "payments"
mount    = "/payments"
upstream = "https://payments.internal.example"

[[commands]]
name   = "capture"
match  = "POST /v1/invoices/{invoice_id}/capture"
entity = "invoice:{path.invoice_id}"
"""


def refused(done: Done, code: int, *said: str) -> None:
    """One line that says it, and the exit code."""
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("fencegate: ")
    assert done.err.count("\n") == 1, done.err
    for words in said:
        assert words in done.err


# --- the database's own troubles -------------------------------------------------------------


@pytest.mark.parametrize("argv", [*READS, *WRITES, ["migrate"]])
def test_a_database_that_is_down_is_one_line(argv: list[str]) -> None:
    done = fencegate(*argv, dsn="postgresql://u:hush@127.0.0.1:1/x")
    refused(done, 1, "the database cannot be reached", "FENCEGATE_DATABASE_URL")
    assert "hush" not in done.err


@pytest.mark.parametrize("argv", [*READS, *WRITES])
def test_an_unmigrated_database_names_the_mend(empty_database: str, argv: list[str]) -> None:
    refused(fencegate(*argv, dsn=empty_database), 2, "run: fencegate migrate")


@pytest.mark.parametrize("argv", [*READS, *WRITES, ["migrate"]])
def test_a_newer_database_is_left_alone(database: str, argv: list[str]) -> None:
    execute(database, "insert into gateway.migrations values (999, '0999_later.sql', 'x')")
    refused(fencegate(*argv, dsn=database), 2, "newer than this release")


def test_a_database_behind_this_release_names_the_mend(database: str) -> None:
    execute(database, "delete from gateway.migrations where version > 1")
    refused(fencegate("audit", dsn=database), 2, "run: fencegate migrate")


def test_a_read_only_database_can_be_read(database: str) -> None:
    unknown(database)
    execute(
        database,
        "do $$ begin execute format('alter database %I set default_transaction_read_only = on',"
        " current_database()); end $$",
    )
    for argv in READS:
        assert fencegate(*argv, dsn=database).code == 0
    for argv in WRITES:
        refused(fencegate(*argv, dsn=database), 1, "read-only", "primary")


def test_a_wrong_name_password_or_dsn_is_one_line(postgres: Server, database: str) -> None:
    refused(fencegate("audit", dsn=dsn_of(postgres.dsn, "missing")), 1, "missing")
    wrong = database.replace(":", ":wrong", 2).replace(":wrong", ":", 1)
    refused(fencegate("audit", dsn=wrong), 1, "password")
    refused(fencegate("audit", dsn="mysql://u:hush@h/d"), 2, "FENCEGATE_DATABASE_URL")
    refused(fencegate("audit", dsn="postgresql://u:hush@h:port/d"), 2, "FENCEGATE_DATABASE_URL")
    for dsn in (wrong, "mysql://u:hush@h/d", "postgresql://u:hush@h:port/d"):
        assert "hush" not in fencegate("audit", dsn=dsn).err


def test_with_no_loss_open_it_says_where_to_look(database: str) -> None:
    done = fencegate("acknowledge-loss", "--reason", "looked", dsn=database)
    refused(done, 1, "`fencegate losses --all` lists those that were acknowledged")


def test_a_misspelt_setting_is_not_passed_over(database: str) -> None:
    done = fencegate("audit", env={"FENCEGATE_DATABSE_URL": database})
    refused(done, 2, "did you mean FENCEGATE_DATABASE_URL")


def test_migrate_says_what_it_applied_and_can_be_repeated(empty_database: str) -> None:
    first = fencegate("migrate", dsn=empty_database)
    files = sorted(path.name for path in migrations_dir().glob("*.sql"))
    assert first.out.splitlines()[:-1] == [f"applied {name}" for name in files]
    again = fencegate("migrate", dsn=empty_database)
    assert (again.code, again.out) == (0, "the database schema is current\n")


# --- the embedded database -------------------------------------------------------------------


@pytest.fixture
def opened() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.mark.parametrize("argv", [*READS, *WRITES])
def test_without_any_database_none_is_made(tmp_path: Path, argv: list[str]) -> None:
    """A wrong folder must not answer for another database; the message says which was looked in."""
    ways = ("FENCEGATE_DATABASE_URL", "FENCEGATE_DATA_DIR", "fencegate migrate")
    refused(fencegate(*argv, cwd=tmp_path), 2, str(tmp_path / ".fencegate"), *ways)
    assert list(tmp_path.iterdir()) == []


def test_migrate_makes_the_embedded_database_and_leaves_no_server(opened: Path) -> None:
    folder = opened / "db"
    env = {"FENCEGATE_DATA_DIR": "db"}
    made = fencegate("migrate", env=env, cwd=opened)
    assert made.code == 0, made.err
    assert made.out.startswith(f"made an embedded database in {folder}\n")
    assert attach(folder) is None
    again = fencegate("migrate", env=env, cwd=opened)
    assert again.out == f"the database schema is current (embedded, in {folder})\n"
    key = fencegate("keys", "add", "--tenant", "x", "--name", "worker", env=env, cwd=opened)
    assert key.code == 0, key.err
    assert "worker" in fencegate("keys", "list", env=env, cwd=opened).out
    assert attach(folder) is None


def test_a_running_embedded_server_is_used_and_left_running(opened: Path) -> None:
    cluster = start(opened / "db", watchdog=True)
    try:
        env = {"FENCEGATE_DATA_DIR": str(opened / "db")}
        assert fencegate("migrate", env=env).code == 0
        assert fencegate("audit", env=env).out == "no audit row matches\n"
        found = attach(opened / "db")
        assert found is not None
        assert found.pid == cluster.pid
    finally:
        cluster.stop(immediate=True)


# --- keys ------------------------------------------------------------------------------------


def test_a_key_from_its_making_to_its_end(database: str) -> None:
    made = fencegate("keys", "add", "--tenant", "billing", "--name", "worker", dsn=database)
    assert made.code == 0
    token = made.out.removesuffix("\n")
    assert "\n" not in token
    assert token not in made.err
    assert holder(database, token) == "worker"

    shown = fencegate("keys", "list", "--format", "jsonl", dsn=database)
    (key,) = [json.loads(line) for line in shown.out.splitlines()]
    assert key["key_id"] in token
    assert token.split("_", 3)[3] not in shown.out

    refused(fencegate("keys", "revoke", "nonsense", dsn=database), 1, "keys list")
    ended = fencegate("keys", "revoke", key["key_id"], "--by", "ann", dsn=database)
    assert (ended.code, ended.out) == (0, f"key {key['key_id']} of billing/worker is revoked\n")
    assert holder(database, token) is None
    again = fencegate("keys", "revoke", token, dsn=database)
    assert (again.code, again.out.endswith("was revoked before\n")) == (0, True)
    assert "operator:ann" in fencegate("audit", "--event", "operator", dsn=database).out


def test_a_first_key_does_not_part_callers_from_what_they_did(database: str) -> None:
    add = ("keys", "add", "--name", "worker", "--tenant")
    unknown(database, "k-1", entity="invoice:1")
    settled(database, "k-2", entity="invoice:2")
    done = fencegate(*add, "billing", dsn=database)
    refused(done, 1, "2 commands", "new command", "--tenant default", "--apart")
    assert tenants(database) == ["default"]
    refused(fencegate(*add, "Big Bill", dsn=database), 2, "cannot name a tenant")
    assert fencegate(*add, "billing", "--apart", dsn=database).code == 0
    assert fencegate(*add, "billing", dsn=database).code == 0  # that was decided with its first
    refused(fencegate(*add, "support", dsn=database), 1, "--apart")
    assert fencegate(*add, "default", dsn=database).code == 0
    assert fencegate(*add, "support", dsn=database).code == 0


def tenants(dsn: str) -> list[str]:
    rows = with_connection(dsn, lambda conn: conn.fetch("select name from gateway.tenants"))
    return sorted(row["name"] for row in rows)


def test_lists_of_a_tenant_that_is_not_there_are_no_empty_lists(database: str) -> None:
    for argv in (["audit"], ["keys", "list"], ["commands", "list"], ["keys", "revoke", "x"]):
        done = fencegate(*argv, "--tenant", "nope", dsn=database)
        refused(done, 1, "there is no tenant 'nope'; name another one with --tenant")
    done = fencegate("audit", "--tenant", "nope", "--format", "csv", dsn=database)
    refused(done, 1, "there is no tenant")
    assert "default never had a key" in (
        fencegate("keys", "list", "--tenant", "default", dsn=database).out
    )


def holder(dsn: str, token: str) -> str | None:
    async def work(db: Database) -> str | None:
        found = (await load_snapshot(db)).authenticate([f"Bearer {token}".encode()])
        return found.name if found else None

    return on(dsn, work)


def test_one_id_in_two_tenants_asks_whose(database: str) -> None:
    for tenant in ("billing", "support"):
        fencegate("keys", "add", "--tenant", tenant, "--name", "worker", dsn=database)
    execute(database, "update gateway.caller_keys set key_id = 'abcdefgh22'")
    done = fencegate("keys", "revoke", "abcdefgh22", dsn=database)
    refused(done, 1, "--tenant", "billing, support")
    done = fencegate("keys", "revoke", "abcdefgh22", "--tenant", "support", dsn=database)
    assert done.out.startswith("key abcdefgh22 of support/worker is revoked")


def test_what_a_key_may_do_is_said_granted_and_withdrawn(database: str) -> None:
    add = ("keys", "add", "--tenant", "billing", "--name")
    usual = fencegate(*add, "usual", dsn=database)
    assert "It may: policy:* enqueue work" in usual.err
    chosen = fencegate(*add, "hook", "--scope", "operate", "--scope", "policy:pay", dsn=database)
    assert "It may: policy:pay operate" in chosen.err
    assert scopes(database) == ["policy:* enqueue work", "policy:pay operate"]
    hook = chosen.out.split("_")[2]

    more = fencegate("keys", "grant", hook, "--scope", "audit", "--scope", "policy:*", dsn=database)
    assert more.out == f"key {hook} of billing/hook may: policy:* policy:pay operate audit\n"
    again = fencegate("keys", "grant", hook, "--scope", "audit", dsn=database)
    assert (again.code, again.out) == (0, more.out)
    less = fencegate(
        *("keys", "withdraw", chosen.out.strip(), "--scope", "policy:*", "--scope", "audit"),
        *("--by", "ann"),
        dsn=database,
    )
    assert less.out == f"key {hook} of billing/hook may: policy:pay operate\n"
    assert holder(database, chosen.out.strip()) == "hook"
    told = fencegate("audit", "--event", "operator", "--format", "jsonl", dsn=database).out
    rows = [json.loads(line) for line in told.splitlines()]
    assert len(rows) == 4  # what changed nothing is none
    assert (rows[0]["principal"], rows[0]["reason"]) == (
        "operator:ann",
        f"key {hook} of hook may from now on: policy:pay operate",
    )


def test_what_cannot_be_granted_or_withdrawn_is_refused_with_its_mend(database: str) -> None:
    add = ("keys", "add", "--tenant", "billing", "--name", "worker")
    wrong = fencegate(*add, "--scope", "policies", dsn=database)
    assert (wrong.code, "'policies' is no scope; write policy:NAME" in wrong.err) == (2, True)
    key_id = fencegate(*add, "--scope", "work", dsn=database).out.split("_")[2]
    nobody = fencegate("keys", "grant", "nonsense", "--scope", "work", dsn=database)
    refused(nobody, 1, "keys list")
    withdraw = ("keys", "withdraw", key_id, "--scope")
    refused(fencegate(*withdraw, "operate", dsn=database), 1, "no scope operate; it may: work")
    refused(fencegate(*withdraw, "work", dsn=database), 1, "fencegate keys revoke")
    assert fencegate("keys", "revoke", key_id, dsn=database).code == 0
    done = fencegate("keys", "grant", key_id, "--scope", "operate", dsn=database)
    refused(done, 1, "is revoked", "keys add")
    assert scopes(database) == ["work"]


def test_a_scope_of_a_policy_that_is_not_there_is_a_warning(database: str, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(POLICY)
    add = ("keys", "add", "--tenant", "billing", "--name", "worker", "--policies", str(tmp_path))
    slip = fencegate(*add, "--scope", "policy:payment", dsn=database)
    assert "no policy in" in slip.err
    assert "is payments meant?" in slip.err
    early = fencegate(*add, "--scope", "policy:cases", "--scope", "policy:payments", dsn=database)
    assert "called cases; it counts as soon as there is one" in early.err
    assert "payments" not in early.err.partition("warning")[2]
    elsewhere = fencegate(*add[:-1], str(tmp_path / "no"), "--scope", "policy:x", dsn=database)
    assert (elsewhere.code, "warning" in elsewhere.err) == (0, False)
    granted = fencegate(
        *("keys", "grant", early.out.split("_")[2], "--scope", "policy:y"),
        *("--policies", str(tmp_path)),
        dsn=database,
    )
    assert (granted.code, "called y;" in granted.err) == (0, True)


def scopes(dsn: str) -> list[str]:
    shown = fencegate("keys", "list", "--format", "jsonl", dsn=dsn).out
    return [json.loads(line)["scopes"] for line in shown.splitlines()]


def test_names_that_cannot_be_used_are_refused(database: str) -> None:
    done = fencegate("keys", "add", "--tenant", "Big Bill", "--name", "worker", dsn=database)
    refused(done, 2, "cannot name a tenant")
    done = fencegate("keys", "add", "--tenant", "billing", "--name", "a\nb", dsn=database)
    refused(done, 2, "cannot name a caller")


# --- audit -----------------------------------------------------------------------------------


def test_every_format_keeps_hostile_text_in_its_line(database: str) -> None:
    hostile = '=cmd|"\n\x1b[2J\u2028\u202e'

    async def work(db: Database) -> None:
        for number in range(3):
            await audit.append(
                db,
                audit.Entry(
                    tenant=1, event="entity_mismatch", reason=hostile, entity=f"e:{number}{hostile}"
                ),
            )

    on(database, work)
    table = fencegate("audit", dsn=database).out
    jsonl = fencegate("audit", "--format", "jsonl", dsn=database).out
    table_of_csv = fencegate("audit", "--format", "csv", dsn=database).out
    for text, count in ((table, 4), (jsonl, 3), (table_of_csv, 4)):
        assert text.count("\n") == count
        assert all(line.isprintable() for line in text.split("\n"))
    assert [json.loads(line)["reason"] for line in jsonl.splitlines()] == [hostile] * 3
    rows = list(csv.DictReader(table_of_csv.splitlines()))
    assert all(row["reason"].startswith("'=cmd") for row in rows)


def test_filters_and_limits(database: str) -> None:
    unknown(database, "k-1", entity="invoice:1")
    released(database, "k-2", entity="invoice:2")
    assert "k-1" not in fencegate("audit", "--event", "released", dsn=database).out
    assert "k-2" not in fencegate("audit", "--entity", "invoice:1", dsn=database).out
    assert "k-2" in fencegate("audit", "--key", "k-2", "--since", "15m", dsn=database).out
    nothing = fencegate("audit", "--key", "k-3", dsn=database)
    assert (nothing.code, nothing.out) == (0, "no audit row matches\n")
    assert fencegate("audit", "--until", "1h", "--format", "csv", dsn=database).out.count("\n") == 1
    cut = fencegate("audit", "--limit", "1", dsn=database)
    assert cut.out.count("\n") == 2
    assert "k-2" in cut.out
    assert "--limit 0 shows all" in cut.err
    oldest = fencegate("audit", "--limit", "1", "--oldest-first", dsn=database)
    assert "k-1" in oldest.out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has it")
@pytest.mark.parametrize("arguments", [["audit"], ["commands", "list"]])
def test_a_full_disk_is_one_line_with_its_mend(database: str, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gateway.cli", *arguments],
            cwd=ROOT,
            env={**os.environ, "FENCEGATE_DATABASE_URL": database},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("fencegate: the output cannot be written (No space left")
    assert done.stderr.count("\n") == 1


def test_a_closed_pipe_is_no_error(database: str) -> None:
    execute(
        database,
        "insert into gateway.audit (tenant, id, at, event, reason) select 1, gen_random_uuid(), "
        "clock_timestamp(), 'operator', repeat('x', 200) from generate_series(1, 20000)",
    )
    with subprocess.Popen(
        [sys.executable, "-m", "gateway.cli", "audit", "--limit", "0", "--format", "jsonl"],
        cwd=ROOT,
        env={**os.environ, "FENCEGATE_DATABASE_URL": database},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0


# --- commands --------------------------------------------------------------------------------


def test_list_and_show(database: str) -> None:
    settled(database, "k-1", entity="invoice:1", body=b'{"id": "\x1b[2J"}')
    made = unknown(database, "k-2", entity="invoice:2", evidence=b"<h1>Bad\nGateway</h1>")
    listed = fencegate("commands", "list", "--state", "unknown", dsn=database)
    assert listed.out.count("\n") == 2
    assert "invoice:2" in listed.out
    shown = fencegate("commands", "show", "k-2", dsn=database)
    assert shown.code == 0
    assert "<h1>Bad\\nGateway</h1>" in shown.out
    assert f"--attempt {made.attempt} --executed" in shown.out
    assert "outcome_unknown" in shown.out
    assert fencegate("commands", "show", "--digest", made.digest[:10], dsn=database).code == 0
    first = fencegate("commands", "show", "k-1", dsn=database)
    assert "\x1b" not in first.out
    document = json.loads(
        fencegate("commands", "show", "k-2", "--format", "json", dsn=database).out
    )
    assert document["state"] == "unknown"
    assert document["audit"][0]["event"] == "outcome_unknown"


def test_show_of_a_released_command_still_shows_its_audit(database: str) -> None:
    released(database, "k-1")
    done = fencegate("commands", "show", "k-1", dsn=database)
    assert done.code == 1
    assert "has no such command" in done.err
    assert "released" in done.out
    refused(fencegate("commands", "show", "k-1", "--tenant", "nobody", dsn=database), 1, "--tenant")


def test_resolve_says_what_it_means(database: str) -> None:
    unknown(database, "k-1", entity="invoice:1")
    early = resolve(database, "k-1", "--not-executed")
    refused(early, 1, "may still act", "try again in ", " s (settle_delay_s")
    done = resolve(database, "k-1", "--executed")
    assert done.code == 0
    assert "410 response-not-retained" in done.out
    assert "invoice:1 is free" in done.out
    again = resolve(database, "k-1", "--executed")
    assert (again.code, again.err) == (0, "")
    assert "is settled already" in again.out
    refused(resolve(database, "k-1", "--not-executed"), 1, "is settled as executed")
    assert state(database, "k-1") == ("resolved", "executed: the ledger says so")

    unknown(database, "k-2", entity="invoice:2")
    move_clock(database, 301)
    done = resolve(database, "k-2", "--not-executed", "--by", "ann")
    assert "may be sent again" in done.out
    assert state(database, "k-2") == ("resolved", "not executed: the ledger says so")
    refused(resolve(database, "k-2", "--executed"), 1, "fencegate audit --key k-2")
    refused(resolve(database, "k-1", "--executed", "--tenant", "nope"), 1, "there is no tenant 'no")

    in_flight(database, "k-3", entity="invoice:3")
    refused(resolve(database, "k-3", "--executed"), 1, "in flight", "try again in ")

    judged = "00000000-0000-0000-0000-000000000001"
    unknown(database, "k-4", entity="invoice:4")
    done = resolve(database, "k-4", "--executed", "--attempt", judged)
    refused(done, 1, "another attempt", "fencegate commands show k-4 --tenant default")
    assert state(database, "k-4")[0] == "outcome_unknown"


def resolve(dsn: str, key: str, *more: str) -> Done:
    reason = ("--reason", "the ledger says so")
    return fencegate("commands", "resolve", key, *reason, *more, dsn=dsn)


def state(dsn: str, key: str) -> tuple[str, str]:
    """The latest audit event of a key and its reason."""
    row = with_connection(
        dsn,
        lambda conn: conn.fetchrow(
            "select event, reason from gateway.audit where key = $1 order by at desc limit 1", key
        ),
    )
    assert row is not None
    return row["event"], row["reason"]


def test_keys_are_looked_up_bytewise_within_their_tenant(database: str) -> None:
    """KEY-04: scope and key are two columns, and case is kept."""
    for tenant in ("a", "ab"):
        execute(database, f"insert into gateway.tenants (name) values ('{tenant}')")
    settled(database, "b:c", tenant="a", entity="invoice:1")
    settled(database, "c", tenant="ab", entity="invoice:2")
    settled(database, "K-1", tenant="a", entity="invoice:3")
    assert fencegate("commands", "show", "b:c", "--tenant", "a", dsn=database).code == 0
    assert fencegate("commands", "show", "c", "--tenant", "ab", dsn=database).code == 0
    for tenant, key in (("ab", "b:c"), ("a", "c"), ("a", "k-1"), ("ab", "K-1")):
        assert fencegate("commands", "show", key, "--tenant", tenant, dsn=database).code == 1


def test_a_key_of_another_tenant_is_pointed_to(database: str) -> None:
    for tenant in ("billing", "support"):
        execute(database, f"insert into gateway.tenants (name) values ('{tenant}')")
    unknown(database, "k-1", tenant="billing", entity="invoice:1")
    refused(resolve(database, "k-1", "--executed"), 1, "stands under billing;", "--tenant billing")
    unknown(database, "k-1", tenant="support", entity="invoice:1")
    shown = fencegate("commands", "show", "k-1", dsn=database)
    refused(shown, 1, "stands under billing, support;")
    assert resolve(database, "k-1", "--executed", "--tenant", "billing").code == 0


# --- check -----------------------------------------------------------------------------------


def test_check_shows_good_policies_and_every_mistake(tmp_path: Path) -> None:
    (tmp_path / "payments.toml").write_text(POLICY)
    good = fencegate("check", "--policies", str(tmp_path))
    assert (good.code, good.err) == (0, "")
    assert "POST /v1/invoices/{invoice_id}/capture" in good.out
    file = fencegate("check", "--policies", "payments.toml", cwd=tmp_path)
    refused(file, 1, f"{tmp_path / 'payments.toml'}: is a file; name its folder")
    refused(fencegate("check", cwd=tmp_path), 1, f"{tmp_path / 'policies'}: is not a folder")
    (tmp_path / "payments.toml").write_text(POLICY.replace("entity =", "entty ="))
    (tmp_path / "other.toml").write_text("name = ")
    bad = fencegate("check", env={"FENCEGATE_POLICIES_DIR": str(tmp_path)})
    assert (bad.code, bad.out) == (1, "")
    assert "payments.toml" in bad.err
    assert "other.toml" in bad.err
    assert all(line.startswith("fencegate: ") for line in bad.err.splitlines())
