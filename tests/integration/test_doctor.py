"""`doctor` against real servers, each with something set wrong."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.kit.db import Server, dsn_of, execute, open_folder, server
from tests.kit.faults import until
from tests.kit.operating import fencegate
from tests.kit.standby import pair
from tests.kit.upstream import closed_port
from tests.kit.valkey import valkey


def findings(dsn: str, **env: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code, and verdict and fact of each check."""
    done = fencegate("doctor", "--format", "jsonl", dsn=dsn, env=env)
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert done.err == "", done.err
    return done.code, {line["check"]: (line["verdict"], line["found"]) for line in lines}


def wrong(dsn: str, **env: str) -> dict[str, str]:
    """The verdicts that are not ok. The exit code is 1 exactly where one fails."""
    code, found = findings(dsn, **env)
    bad = {check: verdict for check, (verdict, _) in found.items() if verdict != "ok"}
    assert code == ("fails" in bad.values())
    return bad


def test_the_embedded_server_is_set_up_well(database: str) -> None:
    code, found = findings(database)
    assert code == 0
    assert {verdict for verdict, _ in found.values()} == {"ok"}
    assert len(found) == 15


def test_people_hear_which_database_it_was_and_what_the_guarantees_are(
    database: str,
) -> None:
    url = urlsplit(database)
    lines = fencegate("doctor", dsn=database).out.splitlines()
    assert lines[0] == f"database: {url.hostname}:{url.port}{url.path}"
    assert lines[-7] == "  G1  at most once per key"
    assert url.password is not None
    assert url.password not in "\n".join(lines)
    with open_folder() as folder:
        env = {"FENCEGATE_DATA_DIR": str(folder / "here")}
        assert fencegate("migrate", env=env).code == 0
        lines = fencegate("doctor", env=env).out.splitlines()
    assert lines[0].startswith(f"database: the embedded one of {folder}/here, which was started")


SERVERS = {
    "fsync": ({"fsync": "off"}, {"fsync": "fails"}),
    "full_page_writes": ({"full_page_writes": "off"}, {"full_page_writes": "warning"}),
    "autovacuum": ({"autovacuum": "off"}, {"autovacuum": "warning"}),
    "wal_level": ({"wal_level": "minimal", "max_wal_senders": "0"}, {"wal_level": "warning"}),
    "synchronous_commit": ({"synchronous_commit": "off"}, {"synchronous_commit": "warning"}),
    "idle_session_timeout": ({"idle_session_timeout": "60s"}, {"timeouts": "warning"}),
    "lock_timeout": ({"lock_timeout": "200ms"}, {"timeouts": "warning"}),
    "read-only": ({"default_transaction_read_only": "on"}, {"writable": "fails"}),
    "max_connections": ({"max_connections": "10"}, {"connections": "fails"}),
}


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_with_one_setting_wrong(name: str) -> None:
    settings, expected = SERVERS[name]
    with server() as made:  # migrated as it should be, then restarted with the mistake
        dsn = made.create()
        made.cluster.stop()
        again = made.cluster.__class__(
            **{
                field: getattr(made.cluster, field)
                for field in ("data_dir", "dsn", "pid", "version", "port", "attached")
            },
            _options=made.cluster._options.__class__(watchdog=True, settings=settings),
        )
        made.cluster = again.restart()
        assert wrong(dsn) == expected


def test_what_is_wrong_for_this_role_or_database_only(postgres: Server, database: str) -> None:
    name = urlsplit(database).path.lstrip("/")
    for setting, expected in (
        ("synchronous_commit = off", {"synchronous_commit": "warning"}),
        ("lock_timeout = '100ms'", {"timeouts": "warning"}),
        ("default_transaction_read_only = on", {"writable": "fails"}),
        # The gateway asks for its own when it connects, so the defaults do not count.
        ("statement_timeout = '1h'", {}),
        ("default_transaction_isolation = 'serializable'", {}),
    ):
        execute(postgres.dsn, f"alter database {name} set {setting}")
        assert wrong(database) == expected, setting
        execute(postgres.dsn, f"alter database {name} reset all")


def test_one_of_our_tables_without_autovacuum(database: str) -> None:
    execute(database, "alter table gateway.commands set (autovacuum_enabled = false)")
    code, found = findings(database)
    assert (code, found["autovacuum"]) == (0, ("warning", "autovacuum is off for commands"))


def test_a_schema_that_is_not_this_releases(empty_database: str, database: str) -> None:
    assert wrong(empty_database) == {"schema": "fails"}
    execute(database, "insert into gateway.migrations values (9999, '9999_later.sql', 'x')")
    assert wrong(database) == {"schema": "fails"}


def test_limits_of_the_role_and_the_pool(postgres: Server, database: str) -> None:
    name = urlsplit(database).path.lstrip("/")
    execute(postgres.dsn, f"alter database {name} connection limit 30")
    assert wrong(database) == {}
    assert wrong(database, FENCEGATE_POOL_SIZE="50") == {"connections": "fails"}


def test_an_ordinary_role_may_ask_all_of_it(postgres: Server, database: str) -> None:
    execute(postgres.dsn, "drop role if exists plain; create role plain login password 'x'")
    for grant in ("usage on schema gateway", "select on all tables in schema gateway"):
        execute(database, f"grant {grant} to plain")
    url = urlsplit(database)
    plain = url._replace(netloc=f"plain:x@{url.hostname}:{url.port}").geturl()
    assert wrong(plain) == {}
    execute(database, "drop owned by plain; drop role plain")


def test_standbys_in_step_behind_and_gone() -> None:
    with pair(synchronous=True) as made:
        code, found = findings(made.primary.dsn)
        assert (code, found["standbys"][0]) == (0, "ok")
        assert wrong(made.standby.dsn) == {"writable": "fails"} | _of_standby(made.standby.dsn)

        made.cut_off()
        sql = "select count(*) as n from pg_stat_replication"
        until(lambda: _count(made.primary.dsn, sql) == 0, "the primary noticed")
        assert wrong(made.primary.dsn) == {"standbys": "fails"}

    with pair(synchronous=False) as made:
        assert wrong(made.primary.dsn) == {"standbys": "warning"}


def _of_standby(dsn: str) -> dict[str, str]:
    """A copy has the names of its primary's standbys, and none of them."""
    _, found = findings(dsn)
    return {} if found["standbys"][0] == "ok" else {"standbys": found["standbys"][0]}


def _count(dsn: str, sql: str) -> int:
    from tests.kit.gateway import rows

    return int(rows(dsn, sql)[0]["n"])


# -- a pooler in between

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pooler(dsn: str, mode: str) -> Iterator[str]:
    """PgBouncer in front of a database, as people run it; the DSN through it."""
    assert PGBOUNCER is not None
    url = urlsplit(dsn)
    with open_folder() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        (folder / "users").write_text(f'"{url.username}" "{url.password}"\n')
        (folder / "ini").write_text(
            f"[databases]\n* = host={url.hostname} port={url.port}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = plain\nauth_file = {folder}/users\npool_mode = {mode}\n"
            "ignore_startup_parameters = statement_timeout, idle_in_transaction_session_timeout,"
            " synchronous_commit, default_transaction_isolation, extra_float_digits\n"
        )
        for path in folder.iterdir():
            path.chmod(0o644)
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        process = subprocess.Popen(
            [PGBOUNCER, "-q", *user, str(folder / "ini")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(lambda: _listens(port), "the pooler listens")
            yield url._replace(netloc=f"{url.username}:{url.password}@127.0.0.1:{port}").geturl()
        finally:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


DROPPED = {"timeouts": "fails"}
"""The pooler was told to pass over what the gateway asks for."""


@pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")
@pytest.mark.parametrize(
    ("mode", "size", "expected"),
    [
        ("session", "100", DROPPED),
        ("transaction", "0", DROPPED),
        ("transaction", "100", {**DROPPED, "pooler": "fails"}),
    ],
)
def test_a_pooler_is_noticed_and_its_mode(
    database: str, mode: str, size: str, expected: dict[str, str]
) -> None:
    with pooler(database, mode) as through:
        found = wrong(through, FENCEGATE_STATEMENT_CACHE_SIZE=size)
        assert found == expected
        _, lines = findings(through, FENCEGATE_STATEMENT_CACHE_SIZE=size)
        assert mode in lines["pooler"][1]


def test_no_database_is_no_finding(tmp_path: Path) -> None:
    done = fencegate("doctor", env={"FENCEGATE_DATA_DIR": str(tmp_path)})
    assert done.code == 2
    gone = dsn_of("postgresql://x:y@127.0.0.1:1/x", "x")
    assert fencegate("doctor", dsn=gone).code == 1


def test_what_it_says_of_redis(database: str) -> None:
    with valkey() as redis:
        assert findings(database, FENCEGATE_REDIS_URL=redis.url)[1]["cache"][0] == "ok"
        redis.ask("REPLICAOF", "127.0.0.1", closed_port())
        verdict, found = findings(database, FENCEGATE_REDIS_URL=redis.url)[1]["cache"]
        assert verdict == "warning"
        assert "takes no entries: ReadOnlyError" in found
    code, lines = findings(database, FENCEGATE_REDIS_URL=redis.url.replace("//", "//:hush@"))
    assert (code, lines["cache"]) == (0, ("warning", "it cannot be asked: ConnectionError"))
