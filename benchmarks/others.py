"""What the gateway is compared with: nginx, natural versions, pgbench, peers; each checked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.kit import Broken, Cpu, Stage, peak_rss_mib, percentile, sql
from benchmarks.kit.figures import Figures
from benchmarks.load import Load, Target, run
from benchmarks.nginx import Upstream
from gateway.crew import CrewError, environment, free_port
from gateway.store.embedded import Cluster
from gateway.store.embedded.binaries import Binaries, find

__all__ = ["Absent", "PgBench", "Web", "logged", "natural", "peer", "plain", "programs"]

_QUIET_S = 20.0
_POLL_S = 0.2
_HERE = Path(__file__).parent
_NODE = _HERE / "peers" / "node"
_PEERS = {
    "asgi-idempotency-header": "idempotency_header_middleware",
    "fastapi-idempotency": "fastapi_idempotency",
}


class Absent(Exception):
    """It cannot run here. The text says why, and the mend."""


@dataclass(frozen=True, slots=True)
class Web:
    """A server under load. ``stored``: how many commands it has on record; None: it keeps none that
    can be counted from outside."""

    url: str
    pid: int
    upstream: Upstream
    cluster: Cluster | None = None
    stored: Callable[[], int] | None = None

    def run(self, connections: int, seconds: float, *, size: int = 200) -> Figures:
        """Fresh commands. Raises ``Broken`` where calls, records and answers differ."""
        rows, calls = self._stored(), self.upstream.count()
        own, database = Cpu.of(self.pid), self._database()
        seen = run(Load("fresh", connections, seconds, size), Target(self.url))
        figures = {
            "rate": seen.rate,
            "p50_ms": seen.p50_ms,
            "p99_ms": seen.p99_ms,
            "gateway_cpu_us": Cpu.of(self.pid).us_per(own, seen.answered),
            "postgres_cpu_us": self._database().us_per(database, seen.answered),
            "peak_rss_mib": peak_rss_mib(self.pid),
        }
        calls_after, rows_after = self._quiet()
        calls, rows = calls_after - calls, rows_after - rows
        if seen.refused:
            raise Broken(f"{seen.refused} of {seen.answered} were refused")
        # A server may drop what its caller no longer waits for, before or after the call.
        if not seen.issued >= calls >= seen.answered:
            raise Broken(f"begun, called, answered: {seen.issued}, {calls}, {seen.answered}")
        if self.stored is not None and not seen.issued >= rows >= seen.answered:
            raise Broken(f"begun, stored, answered: {seen.issued}, {rows}, {seen.answered}")
        return figures

    def _quiet(self) -> tuple[int, int]:
        """Calls and records, once they have not changed for a while: what was cut off goes on."""
        until, last = time.monotonic() + _QUIET_S, (-1, -1)
        while (now := (self.upstream.count(), self._stored())) != last:
            if time.monotonic() > until:
                raise Broken(f"it goes on working {_QUIET_S:.0f} s after its callers have gone")
            last = now
            time.sleep(_POLL_S)
        return now

    def _stored(self) -> int:
        return 0 if self.stored is None else self.stored()

    def _database(self) -> Cpu:
        return Cpu(0.0) if self.cluster is None else Cpu.of(self.cluster.pid)


def plain(url: str, pid: int, upstream: Upstream) -> Web:
    """nginx passing through."""
    return Web(url, pid, upstream)


def natural(on: Stage, client: str, dsn: str, cluster: Cluster, upstream: Upstream) -> Web:
    """One of the natural versions on a database with their schema."""
    _need(client, client)
    env = environment(
        NATURAL_CLIENT=client, NATURAL_DATABASE=dsn, NATURAL_UPSTREAM=upstream.url("200")
    )
    url, pid = _uvicorn(on, f"natural-{client}", "benchmarks.natural.app:app", env)
    counted = "select count(*) from commands where settled_at is not null"
    return Web(url, pid, upstream, cluster, lambda: int(sql.value(dsn, counted)))


def peer(on: Stage, name: str, upstream: Upstream) -> Web:
    if name == "node-idempotency":
        return _node(on, upstream)
    _need(_PEERS[name], name)
    env = environment(PEER_NAME=name, PEER_UPSTREAM=upstream.url("200"))
    url, pid = _uvicorn(on, name, "benchmarks.peers.app:app", env)
    return Web(url, pid, upstream)


def _need(module: str, distribution: str) -> None:
    if find_spec(module) is None:
        raise Absent(f"{distribution} is not installed. Mend: pip install 'fencegate[bench]'")


def _uvicorn(on: Stage, name: str, app: str, env: dict[str, str]) -> tuple[str, int]:
    port = free_port()
    where = ("--host", "127.0.0.1", "--port", str(port), "--backlog", "2048")
    how = ("--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning")
    command = [sys.executable, "-m", "uvicorn", app, *where, *how]
    url = f"http://127.0.0.1:{port}"
    return url, on.server(name, command, env, f"{url}/ready").pid


def _node(on: Stage, upstream: Upstream) -> Web:
    """Installed by npm into the stage's folder: two small packages."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise Absent("node-idempotency needs Node and npm. Mend: sudo apt-get install nodejs npm")
    folder = on.folder / "node"
    shutil.copytree(_NODE, folder)
    quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--silent")
    try:
        done = subprocess.run([npm, "install", *quiet], cwd=folder, timeout=60, capture_output=True)
    except subprocess.TimeoutExpired:
        raise Absent("npm did not install node-idempotency within 60 s") from None
    if done.returncode != 0:
        raise Absent(f"npm could not install node-idempotency (exit code {done.returncode})")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [node, str(folder / "server.cjs"), str(port), upstream.url("200")]
    return Web(url, on.server("node", command, environment(), url).pid, upstream)


def programs() -> Binaries:
    """PostgreSQL's, as the launcher finds them."""
    explicit = os.environ.get("FENCEGATE_POSTGRES_BIN")
    return find(Path(explicit) if explicit else None)


class PgBench:
    """PostgreSQL's own load generator, on a database with the natural schema."""

    def __init__(self, on: Stage, dsn: str, cluster: Cluster) -> None:
        self._program = programs().bin_dir / "pgbench"
        if not self._program.is_file():
            raise CrewError("this PostgreSQL has no pgbench. Mend: pip install 'fencegate[local]'")
        self._on, self._dsn, self._cluster = on, dsn, cluster
        sql.execute(dsn, (_HERE / "natural" / "schema.sql").read_text())
        sql.execute(dsn, "create table one_row (id bigserial primary key, at timestamptz not null)")

    def commands(self, clients: int, seconds: float) -> Figures:
        """Both transactions of a command."""
        return self._run("command.sql", "commands", clients, seconds)

    def commits(self, seconds: float) -> Figures:
        """The latency of a single commit, from one client."""
        return self._run("commit.sql", "one_row", 1, seconds)

    def _run(self, script: str, table: str, clients: int, seconds: float) -> Figures:
        before = int(sql.value(self._dsn, f"select count(*) from {table}"))
        folder = self._on.folder / "pgbench-logs"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        database = Cpu.of(self._cluster.pid)
        command = [
            *(str(self._program), "--no-vacuum", "--protocol", "prepared", "--log"),
            *("--client", str(clients), "--jobs", "1", "--time", f"{seconds:.0f}"),
            *("--file", str(_HERE / "pgbench" / script), self._dsn),
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise Broken(f"pgbench failed: {done.stderr.strip()[-300:]}")
        cpu = Cpu.of(self._cluster.pid)
        lines = [line for log in folder.iterdir() for line in log.read_text().splitlines()]
        if not lines:
            raise Broken(f"no transaction within {seconds:.0f} s, connecting among them")
        times, span_s = logged(lines)
        stored = int(sql.value(self._dsn, f"select count(*) from {table}")) - before
        if stored != len(times):
            raise Broken(f"stored, answered: {stored}, {len(times)}")
        return {
            "rate": len(times) / span_s,
            "p50_ms": percentile(times, 0.5),
            "p99_ms": percentile(times, 0.99),
            "postgres_cpu_us": cpu.us_per(database, len(times)),
        }


def logged(lines: Sequence[str]) -> tuple[list[float], float]:
    """Of pgbench's log: milliseconds of each transaction, and seconds from the first one's begin to
    the last one's end, since clients that still connect are not what is measured."""
    rows = [[int(field) for field in line.split()[:6]] for line in lines]
    ends = [second + us / 1e6 for _, _, _, _, second, us in rows]
    begins = [end - row[2] / 1e6 for end, row in zip(ends, rows, strict=True)]
    return [row[2] / 1000 for row in rows], max(ends) - min(begins)
