"""Two servers that Patroni keeps: which of them leads, and which is promoted, it alone decides.

Each server has its own ``patroni``; a third process votes, so that one of the two can be lost.
Their store is Patroni's own Raft, which is installed with it. What one server streams to the other
goes through a proxy, which a test can cut while everything else goes on.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from gateway.faultkit.proxy import FaultProxy
from gateway.resources import migrations_dir
from gateway.store.embedded import EmbeddedPostgresError
from gateway.store.embedded.binaries import find
from gateway.store.embedded.create import environment
from gateway.store.embedded.privileges import Account, choose
from gateway.store.migrations import migrate
from tests.kit.db import dsn_of, execute, open_folder, with_connection
from tests.kit.faults import until
from tests.kit.gateway import rows

__all__ = ["TTL_S", "Node", "Patroni", "patroni", "why_not"]

HOST = "127.0.0.1"
ROLE = "fencegate"
REPLICATION = "replicator"

TTL_S = 20
"""The least that Patroni takes. So long after a leader was last heard of another is promoted."""

_PORTS = range(20_000, 32_000)
"""As in ``gateway.store.embedded.cluster``: no client is ever given one of them as its own."""

_MADE_S = 60.0
"""A cluster is made, or a server rejoins, in some 10 s; on two busy cores in some more."""

_VOTER = "from patroni.raft_controller import main; main()"

_PROC = Path("/proc")


def why_not() -> str | None:
    """Why there can be no Patroni here, or ``None``."""
    if importlib.util.find_spec("patroni") is None or importlib.util.find_spec("pysyncobj") is None:
        return "Patroni is not installed; `python3 dev.py soak` installs it (extra: soak)"
    if not _PROC.is_dir():
        return "the servers that Patroni started are found through /proc, to be killed"
    with open_folder() as folder:
        try:
            _account(folder)
        except EmbeddedPostgresError as error:
            return str(error)
    return None


def _account(folder: Path) -> Account:
    """As whom Patroni and its servers run: they share their files, so root's are root's own, in a
    user namespace in which it looks like somebody else."""
    pgdata = folder / "pgdata"
    pgdata.mkdir(mode=0o700)
    return choose(find(None), folder, pgdata)


def _free_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        port = secrets.choice(_PORTS)
        with socket.socket() as sock:
            try:
                sock.bind((HOST, port))
            except OSError:
                continue
        found.add(port)
    return list(found)


class _Kept:
    """A process that is told to end, by SIGTERM, when this one has died of whatever."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                cwd="/",
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            self._keeper = subprocess.Popen(
                ["/bin/sh", "-c", 'cat; kill -TERM "$0"', str(self.process.pid)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def kill(self) -> None:
        self._keeper.kill()
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        self.process.kill()
        self.process.wait()


@dataclass
class Node:
    """A server and its ``patroni``. ``dsn``: this server alone, whatever it is at the time."""

    name: str
    folder: Path
    account: Account
    port: int
    rest: int
    link: FaultProxy
    password: str = field(repr=False)
    _patroni: _Kept | None = None

    @property
    def pgdata(self) -> Path:
        return self.folder / "pgdata"

    @property
    def dsn(self) -> str:
        return f"postgresql://{ROLE}:{self.password}@{HOST}:{self.port}/fencegate"

    @property
    def log(self) -> str:
        return (self.folder / "patroni.log").read_text()

    def start(self) -> None:
        command = [sys.executable, "-m", "patroni", str(self.folder / "patroni.json")]
        self._patroni = _Kept([*self.account.prefix, *command], self.folder / "patroni.log")

    def kill(self) -> None:
        """``kill -9``, Patroni first and then every process of its server: the machine is gone."""
        if self._patroni is not None:
            self._patroni.kill()
            self._patroni = None
        until(lambda: not self._kill_servers(), f"every process of {self.name} has ended")

    def asked(self, path: str) -> dict[str, Any]:
        """What this node's Patroni answers; nothing where it does not."""
        connection = http.client.HTTPConnection(HOST, self.rest, timeout=5)
        try:
            connection.request("GET", path)
            found: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        finally:
            connection.close()
        return found

    def leads(self) -> bool:
        """It takes writes, and Patroni says that it is to."""
        said = self.asked("/patroni")
        return said.get("role") in ("primary", "master") and said.get("state") == "running"

    @contextmanager
    def disk(self) -> Iterator[str]:
        """A copy of the dead server's disk as a server of its own, which nobody else reaches: what
        it had committed when it died. Gives its DSN."""
        copy = self.folder / "disk"
        shutil.copytree(self.pgdata, copy, symlinks=True)
        (port,) = _free_ports(1)
        settings = {"port": port, "unix_socket_directories": "", "primary_conninfo": ""}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = self.account.command("postgres", "-D", copy, *options)
        server = _Kept(command, self.folder / "disk.log")
        try:
            dsn = f"postgresql://{ROLE}:{self.password}@{HOST}:{port}/fencegate"
            until(lambda: _answers(dsn), "the dead server's disk can be read", _MADE_S)
            yield dsn
        finally:
            server.kill()
            until(lambda: not self._kill_servers(), "every process of the copy has ended")
            shutil.rmtree(copy)

    def _kill_servers(self) -> int:
        found = [pid for pid in _pids() if _is_server(pid, self.folder)]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return len(found)


def _pids() -> Iterator[int]:
    return (int(each.name) for each in _PROC.iterdir() if each.name.isdigit())


def _answers(dsn: str) -> bool:
    try:
        return rows(dsn, "select 1 as n") == [{"n": 1}]
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False


def _is_server(pid: int, folder: Path) -> bool:
    """Whether its data directory, in which it works, is in ``folder``."""
    try:
        here = (_PROC / str(pid) / "cwd").readlink().parent == folder
        return here and (_PROC / str(pid) / "comm").read_text().strip() == "postgres"
    except OSError:  # gone, or another user's
        return False


@dataclass
class Patroni:
    """``leader`` and ``standby``: as they were when it was made."""

    leader: Node
    standby: Node

    @property
    def dsn(self) -> str:
        """Both, and leads to whichever takes writes."""
        places = ",".join(f"{HOST}:{node.port}" for node in (self.leader, self.standby))
        credentials = f"{ROLE}:{self.leader.password}"
        return f"postgresql://{credentials}@{places}/fencegate?target_session_attrs=read-write"

    def wait_caught_up(self) -> None:
        """Until the standby has everything that is committed now."""
        (now,) = rows(self.leader.dsn, "select pg_current_wal_lsn()::text as lsn")
        sql = "select coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, false) as has"
        until(lambda: rows(self.standby.dsn, sql, now["lsn"])[0]["has"], "the standby caught up")

    def cut_off(self) -> None:
        """From now on nothing of what the leader writes comes to the standby."""
        self.leader.link.cut()

    def wait_promoted(self) -> None:
        until(self.standby.leads, "Patroni promoted the standby", TTL_S + _MADE_S)

    def wait_in_step(self, leader: Node, standby: Node) -> None:
        """Until the leader waits for the standby, and Patroni knows that it may promote it."""

        def in_step() -> bool:
            members = leader.asked("/cluster").get("members", ())
            return any(
                (each["name"], each["role"]) == (standby.name, "sync_standby") for each in members
            )

        until(in_step, "the standby is in step", _MADE_S)


@contextmanager
def patroni(*, synchronous: bool, maximum_lag: int) -> Iterator[Patroni]:
    """A migrated leader and a standby that streams from it. ``synchronous``: in Patroni's strict
    mode, in which a leader without a standby acknowledges nothing. ``maximum_lag``, in bytes:
    Patroni's ``maximum_lag_on_failover``."""
    settings = {
        "ttl": TTL_S,
        "loop_wait": 1,
        "retry_timeout": 3,
        "maximum_lag_on_failover": maximum_lag,
        "synchronous_mode": synchronous,
        "synchronous_mode_strict": synchronous,
    }
    with ExitStack() as held:
        folder = held.enter_context(open_folder())
        *votes, one, other, rest_one, rest_other = _free_ports(7)
        password = secrets.token_urlsafe(16)
        nodes = [
            _node(held, folder / name, password, port, rest)
            for name, port, rest in (("one", one, rest_one), ("other", other, rest_other))
        ]
        raft = [f"{HOST}:{port}" for port in votes]
        for place, node in enumerate(nodes):
            _configure(node, raft, place, settings)
        _vote(held, folder / "vote", raft, nodes[0].account)
        made = Patroni(*nodes)
        made.leader.start()
        until(made.leader.leads, "the first server leads", _MADE_S)
        made.standby.start()
        sql = "select count(*) as n from pg_stat_replication where state = 'streaming'"
        first = dsn_of(made.leader.dsn, "postgres")
        until(lambda: rows(first, sql) == [{"n": 1}], "the standby streams", _MADE_S)
        execute(first, "create database fencegate")  # strict: it waits for the standby
        with_connection(made.leader.dsn, lambda conn: migrate(conn, migrations_dir()))
        until(lambda: _answers(made.standby.dsn), "the standby can be read", _MADE_S)
        if synchronous:
            made.wait_in_step(made.leader, made.standby)
        yield made


def _node(held: ExitStack, folder: Path, password: str, port: int, rest: int) -> Node:
    folder.mkdir()
    link = FaultProxy(HOST, port)
    link.start()
    held.callback(link.stop)
    node = Node(folder.name, folder, _account(folder), port, rest, link, password)
    held.callback(node.kill)
    return node


def _configure(node: Node, raft: list[str], place: int, settings: dict[str, Any]) -> None:
    """JSON is YAML."""
    sockets = node.folder / "run"
    sockets.mkdir()
    secret = {"password": node.password}
    document = {
        "scope": "fencegate",
        "name": node.name,
        "restapi": {
            "listen": f"{HOST}:{node.rest}",
            "connect_address": f"{HOST}:{node.rest}",
        },
        "raft": _raft(node.folder, raft, place),
        "bootstrap": {
            "dcs": {
                **settings,
                "postgresql": {
                    "use_pg_rewind": True,
                    "parameters": {"max_connections": 100, "shared_buffers": "64MB", "jit": "off"},
                },
            },
            "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums"],
        },
        "postgresql": {
            "listen": f"{HOST}:{node.port}",
            "connect_address": f"{HOST}:{node.link.port}",
            "data_dir": str(node.pgdata),
            "bin_dir": str(node.account.bin_dir),
            "pgpass": str(node.folder / "pgpass"),
            "authentication": {
                "superuser": {"username": ROLE, **secret},
                "replication": {"username": REPLICATION, **secret},
            },
            "parameters": {"unix_socket_directories": str(sockets)},
            "pg_hba": [
                f"host all all {HOST}/32 scram-sha-256",
                f"host replication {REPLICATION} {HOST}/32 scram-sha-256",
            ],
        },
    }
    path = node.folder / "patroni.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(document))


def _vote(held: ExitStack, folder: Path, raft: list[str], account: Account) -> None:
    folder.mkdir()
    path = folder / "vote.json"
    path.write_text(json.dumps({"raft": _raft(folder, raft, len(raft) - 1)}))
    command = [sys.executable, "-c", _VOTER, str(path)]
    kept = _Kept([*account.prefix, *command], folder / "vote.log")
    held.callback(kept.kill)


def _raft(folder: Path, raft: list[str], place: int) -> dict[str, Any]:
    return {
        "self_addr": raft[place],
        "partner_addrs": [each for each in raft if each != raft[place]],
        "data_dir": str(folder / "raft"),
    }
