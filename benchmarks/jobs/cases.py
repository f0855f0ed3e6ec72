"""What is played: whole workers, and the statements alone."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial

from benchmarks.jobs.queues import QUEUES, empty, fill, install
from benchmarks.kit import Broken, Case, Cpu, Stage, Writes
from benchmarks.kit.sql import rows
from gateway.crew import environment

__all__ = ["STATEMENTS", "WORKERS", "JobBench", "Mode"]

_POLICY = """
name     = "bench"
mount    = "/bench"
upstream = "http://127.0.0.1:9"

[[commands]]
name   = "charge"
match  = "POST /charges/{account}"
entity = "account:{path.account}"
"""

_TOOLS = '[[tools]]\nname = "noop"\n'


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to work. ``kind``: of ``benchmarks.jobs.worker``. ``at_once``: handlers, or jobs of
    one claim. ``jobs``: of one round, a second or two."""

    subject: str
    what: str
    queue: str
    kind: str
    at_once: int
    jobs: int


WORKERS = (
    Mode("fencegate worker", "single", "fencegate", "sdk", 1, 1_500),
    Mode("fencegate API", "single", "fencegate", "api", 1, 200),
    Mode("fencegate store", "single", "fencegate", "store", 1, 300),
    Mode("procrastinate", "single", "procrastinate", "procrastinate", 1, 500),
    Mode("pgqueuer", "single", "pgqueuer", "pgqueuer", 1, 500),
    Mode("fencegate worker", "10 at once", "fencegate", "sdk", 10, 2_000),
    Mode("procrastinate", "10 at once", "procrastinate", "procrastinate", 10, 600),
    Mode("pgqueuer", "10 at once", "pgqueuer", "pgqueuer", 10, 4_000),
    Mode("pgqueuer, 5 managers", "10 at once", "pgqueuer", "pgqueuer_5", 10, 5_000),
    Mode("fencegate worker", "100 at once", "fencegate", "sdk", 100, 3_000),
    Mode("fencegate API", "100 at once", "fencegate", "api", 100, 4_000),
    Mode("fencegate store", "100 at once", "fencegate", "store", 100, 5_000),
    Mode("procrastinate", "100 at once", "procrastinate", "procrastinate", 100, 600),
    Mode("pgqueuer", "100 at once", "pgqueuer", "pgqueuer", 100, 8_000),
)

STATEMENTS = {
    "fencegate API": ("fencegate", "api"),
    "fencegate store": ("fencegate", "store"),
    "procrastinate": ("procrastinate", "procrastinate"),
    "pgqueuer": ("pgqueuer", "pgqueuer"),
}


class JobBench:
    """The servers of the comparison on ``on``, and its cases."""

    def __init__(self, on: Stage) -> None:
        self._on = on
        self._cluster = on.postgres("jobs-database")
        migrated = on.migrated(self._cluster, "fencegate_jobs")
        self._dsns = {
            queue: migrated if queue == "fencegate" else on.database(self._cluster, f"{queue}_jobs")
            for queue in QUEUES
        }
        for queue, dsn in self._dsns.items():
            install(queue, dsn)
        policies = on.folder / "jobs-policies"
        policies.mkdir()
        (policies / "tools.toml").write_text(_TOOLS)
        (policies / "bench.toml").write_text(_POLICY)
        token = on.key(migrated, policies)
        self._gateway = on.gateway("jobs-gateway", migrated, policies, token)

    def cases(self) -> list[Case]:
        workers = [
            Case(mode.subject, f"jobs, {mode.what}", partial(self._work, mode)) for mode in WORKERS
        ]
        alone = [
            Case(subject, "job statements", partial(self._statements, *of))
            for subject, of in STATEMENTS.items()
        ]
        return workers + alone

    def _work(self, mode: Mode) -> dict[str, float]:
        dsn = self._dsns[mode.queue]
        fill(mode.queue, dsn, mode.jobs)
        before = self._costs(dsn)
        used = self._run("worker", mode.queue, mode.kind, str(mode.at_once), str(mode.jobs))
        after = self._costs(dsn)
        (found,) = rows(dsn, QUEUES[mode.queue].span)
        if not found["done"] == found["claims"] == mode.jobs:
            raise Broken(f"{mode.jobs} jobs, {found['claims']} claims, {found['done']} done")
        return {
            "rate": mode.jobs / found["span_s"],
            "worker_us": used["cpu_s"] * 1e6 / mode.jobs,
            "gateway_us": after[0].us_per(before[0], mode.jobs),
            "postgres_us": after[1].us_per(before[1], mode.jobs),
            "transactions": (after[2].transactions - before[2].transactions) / mode.jobs,
            "wal_bytes": (after[2].wal_bytes - before[2].wal_bytes) / mode.jobs,
        }

    def _statements(self, queue: str, kind: str) -> dict[str, float]:
        empty(queue, self._dsns[queue])
        return self._run("steps", queue, kind)

    def _costs(self, dsn: str) -> tuple[Cpu, Cpu, Writes]:
        return Cpu.of(self._gateway.pid), Cpu.of(self._cluster.pid), Writes.of(dsn)

    def _run(self, module: str, queue: str, *arguments: str) -> dict[str, float]:
        env = environment(
            BENCH_DSN=self._dsns[queue],
            BENCH_URL=self._gateway.url,
            BENCH_KEY=self._gateway.token,
        )
        command = [sys.executable, "-m", f"benchmarks.jobs.{module}", *arguments]
        done = self._on.crew.run("jobs-worker", command, env)
        if done.code != 0:
            raise Broken(done.output[-2_000:])
        last: dict[str, float] = json.loads(done.output.strip().splitlines()[-1])
        return last
