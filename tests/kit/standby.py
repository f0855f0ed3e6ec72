"""A primary and a standby, made from the same programs as every other server here.

What a failover takes is in hand: the standby's WAL can be cut off before the end, the primary dies
like a machine that lost its power, and the standby is promoted when the test says so.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from gateway.resources import migrations_dir
from gateway.store.embedded import Cluster, start
from gateway.store.embedded.binaries import find
from gateway.store.embedded.create import environment
from gateway.store.embedded.layout import Layout
from gateway.store.embedded.privileges import choose
from gateway.store.migrations import migrate
from tests.kit.db import execute, open_folder, with_connection
from tests.kit.faults import until
from tests.kit.gateway import rows

__all__ = ["Pair", "pair"]

NAME = "standby1"


@dataclass
class Pair:
    """``dsn`` names both, and leads to whichever takes writes."""

    primary: Cluster
    standby: Cluster
    synchronous: bool
    _primary_was: str = ""

    @property
    def dsn(self) -> str:
        one, other = urlsplit(self.primary.dsn), urlsplit(self.standby.dsn)
        credentials, _, place = one.netloc.rpartition("@")
        hosts = f"{credentials}@{place},{other.hostname}:{other.port}"
        return urlunsplit(one._replace(netloc=hosts, query="target_session_attrs=read-write"))

    def wait_caught_up(self) -> None:
        """Until the standby has everything that is committed now."""
        (now,) = rows(self.primary.dsn, "select pg_current_wal_lsn()::text as lsn")
        sql = "select coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, false) as has"
        until(lambda: rows(self.standby.dsn, sql, now["lsn"])[0]["has"], "the standby caught up")

    def cut_off(self) -> None:
        """From now on the standby hears nothing of the primary."""
        (told,) = rows(self.standby.dsn, "select current_setting('primary_conninfo') as value")
        self._primary_was = str(told["value"])
        self._standby_setting("primary_conninfo", "")
        sql = "select count(*) as n from pg_stat_wal_receiver"
        until(lambda: rows(self.standby.dsn, sql) == [{"n": 0}], "the standby stopped receiving")

    def connect_again(self) -> None:
        """Undo ``cut_off``."""
        self._standby_setting("primary_conninfo", self._primary_was)
        sql = "select count(*) as n from pg_stat_replication"
        until(lambda: rows(self.primary.dsn, sql) == [{"n": 1}], "the standby is connected")

    def lose_primary(self) -> None:
        """It is gone, with whatever only it has."""
        self.primary.stop(immediate=True)

    def promote(self) -> None:
        if self.synchronous:
            self._standby_setting("synchronous_standby_names", "")
        execute(self.standby.dsn, "select pg_promote(true, 60)")

    def _standby_setting(self, name: str, value: str) -> None:
        quoted = value.replace("'", "''")
        execute(self.standby.dsn, f"alter system set {name} = '{quoted}'")
        execute(self.standby.dsn, "select pg_reload_conf()")


@contextmanager
def pair(*, synchronous: bool) -> Iterator[Pair]:
    """A migrated primary with one standby that streams from it."""
    with ExitStack() as held:
        first = held.enter_context(open_folder()) / "db"
        second = held.enter_context(open_folder()) / "db"
        primary = start(first, watchdog=True)
        held.callback(lambda: made.primary.stop(immediate=True))
        with_connection(primary.dsn, lambda conn: migrate(conn, migrations_dir()))
        _copy(primary, first, second)
        standby = start(second, watchdog=True)
        held.callback(lambda: made.standby.stop(immediate=True))
        made = Pair(primary, standby, synchronous)
        sql = "select count(*) as n from pg_stat_replication where state = 'streaming'"
        until(lambda: rows(primary.dsn, sql) == [{"n": 1}], "the standby streams")
        if synchronous:
            execute(primary.dsn, f"alter system set synchronous_standby_names = '{NAME}'")
            execute(primary.dsn, "select pg_reload_conf()")
            state = "select sync_state from pg_stat_replication"
            until(lambda: rows(primary.dsn, state) == [{"sync_state": "sync"}], "it is in step")
        yield made


def _copy(primary: Cluster, source: Path, target: Path) -> None:
    """``pg_basebackup`` into a data directory that the launcher takes for its own."""
    layout = Layout(target)
    layout.create()
    layout.password_file.write_text(Layout(source).password_file.read_text())
    layout.password_file.chmod(0o600)
    account = choose(find(None), layout.root, layout.pgdata)
    layout.pgdata.mkdir(mode=0o700)
    account.own(layout.pgdata)
    url = urlsplit(primary.dsn)
    connect = (
        f"host={url.hostname} port={url.port} user={url.username} password={url.password}"
        f" application_name={NAME}"
    )
    done = subprocess.run(
        account.command(
            "pg_basebackup",
            *("-D", layout.pgdata, "-d", connect, "-X", "stream", "-R", "-c", "fast"),
        ),
        cwd="/",
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **account.switch,
    )
    assert done.returncode == 0, done.stderr
