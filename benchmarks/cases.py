"""The servers of a run, and the cases on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import nginx, others
from benchmarks.gateway import Measured, policies
from benchmarks.growth import expired, fill, forgetting
from benchmarks.kit import Case, Results, Stage, play, sql
from benchmarks.kit.figures import Figures
from benchmarks.load import Kind
from benchmarks.plan import CONNECTIONS, Plan, what
from gateway.settings import Settings
from gateway.store.embedded import Cluster

__all__ = ["Bench", "of_pgbench"]

_KINDS: tuple[Kind, ...] = ("replay", "stale", "reused")
_VARIANTS = {
    "no-cache": ("cache_mib", {"FENCEGATE_CACHE_MIB": "0"}),
    "no-batches": ("batch_limit", {"FENCEGATE_BATCH_LIMIT": "1"}),
}
_PEERS = ("asgi-idempotency-header", "fastapi-idempotency", "node-idempotency")
_SCHEMA = Path(__file__).parent / "natural" / "schema.sql"


@dataclass(frozen=True, slots=True)
class _Database:
    name: str
    cluster: Cluster
    dsn: str
    token: str


class Bench:
    """Everything that one run measures. Into ``absent`` goes what cannot run here, and why, by
    subject."""

    def __init__(
        self, on: Stage, plan: Plan, say: Callable[[str], None], absent: dict[str, str]
    ) -> None:
        self._on, self._plan, self._say, self._absent = on, plan, say, absent
        self._upstream = nginx.start_upstream(on)
        self._proxy = others.plain(*nginx.start_proxy(on, self._upstream), self._upstream)
        self._policies = policies(on, self._upstream)

    # -- side by side

    def cases(self) -> list[Case]:
        made = [*self._of_nginx(), *self._of_fencegate(), *self._of_variants(), *self._of_others()]
        made += of_pgbench(self._on, self._plan)
        return sorted(made, key=lambda case: case.rounds is not None)

    def _of_nginx(self) -> Iterator[Case]:
        for size in nginx.SIZES:
            asked = nginx.SIZES[size]
            proxy = others.plain(f"{self._proxy.url}/{size}", self._proxy.pid, self._upstream)
            for each in CONNECTIONS if size == "200" else self._plan.aside:
                run = partial(proxy.run, each, self._plan.seconds, size=asked)
                yield self._case("nginx", "fresh", each, run, size, often=size == "200")

    def _of_fencegate(self) -> Iterator[Case]:
        measured = self._measured("fencegate", 1)
        for each in CONNECTIONS:
            yield self._gateway("fencegate", measured, "fresh", each, often=True)
        for kind in _KINDS:
            for each in self._plan.aside:
                yield self._gateway("fencegate", measured, kind, each, often=each == 64)
        for size in ("10k", "100k"):
            for each in self._plan.aside:
                yield self._gateway("fencegate", measured, "fresh", each, size)

    def _of_variants(self) -> Iterator[Case]:
        for name, (setting, environment) in _VARIANTS.items():
            if setting not in Settings.model_fields:
                self._absent[name] = f"this release has no setting {setting}"
                continue
            measured = self._measured(name, 1, environment)
            kinds: tuple[Kind, ...] = ("fresh", "replay") if name == "no-cache" else ("fresh",)
            for kind in kinds:
                for each in {*self._plan.aside, 64} | ({1} if name == "no-batches" else set()):
                    often = name == "no-cache" and each == 64
                    yield self._gateway(name, measured, kind, each, often=often)
        two = self._measured("two", 2)
        for each in sorted({*self._plan.aside, 64} - {1}):
            yield self._gateway("two", two, "fresh", each)

    def _of_others(self) -> Iterator[Case]:
        cluster = self._on.postgres("natural")
        for client in ("httpx", "aiohttp"):
            dsn = self._on.database(cluster, client)
            sql.execute(dsn, _SCHEMA.read_text())
            start = partial(others.natural, self._on, client, dsn, cluster, self._upstream)
            yield from self._of_web(client, start, {64, *self._plan.aside}, often=64)
        for name in _PEERS:
            start = partial(others.peer, self._on, name, self._upstream)
            yield from self._of_web(name, start, set(self._plan.aside))

    def _of_web(
        self,
        name: str,
        start: Callable[[], others.Web],
        connections: set[int],
        often: int | None = None,
    ) -> Iterator[Case]:
        try:
            web = start()
        except others.Absent as absent:
            self._lacks(name, str(absent))
            return
        for each in sorted(connections):
            run = partial(web.run, each, self._plan.seconds)
            yield self._case(name, "fresh", each, run, often=each == often)

    # -- growth

    def growth(self, results: Results) -> None:
        """Fresh commands beside so many remembered keys; retention beside a steady stream."""
        served: dict[int, tuple[Measured, str]] = {}
        for count in self._plan.keys:
            at = self._database(f"keys{count}", seeded=True)
            self._say(f"loading {count:,} remembered keys")
            prefix = fill(at.dsn, count)
            served[count] = (self._serve(at), prefix)
        cases = [
            Case("fencegate", f"{count} keys", partial(each.run, "fresh", 64, self._plan.seconds))
            for count, (each, _) in served.items()
        ]
        play(cases, self._plan.rounds, self._say, into=results)
        last = [
            Case("fencegate", f"{count} keys asked again", partial(each.known, prefix, count))
            for count, (each, prefix) in served.items()
        ]
        last.append(Case("fencegate", "retention", self._retention))
        play(last, 1, self._say, into=results)

    def _retention(self) -> Figures:
        at = self._database("retention", seeded=True)
        self._say(f"loading {self._plan.due:,} expired keys")
        expired(at.dsn, self._plan.due)
        sql.execute(at.dsn, "update gateway.retention set finished_at = null")
        served = self._on.gateway("retention-0", at.dsn, self._policies, at.token)
        # The round begins with the process, so there is no idle time to look at first.
        measured = Measured([served], at.cluster, self._upstream, idle=(0.0, 0.0))
        return forgetting(at.dsn, measured, self._plan.due, 2 * self._plan.seconds)

    # -- making them

    def _database(self, name: str, *, seeded: bool = False) -> _Database:
        """A server of its own, as it ships, with the schema and a gateway key. ``seeded``: with one
        settled command."""
        cluster = self._on.postgres(name)
        dsn = self._on.migrated(cluster, "bench")
        at = _Database(name, cluster, dsn, self._on.key(dsn, self._policies))
        if seeded:
            first = self._on.gateway(f"{name}-first", dsn, self._policies, at.token)
            Measured([first], cluster, self._upstream).run("fresh", 1, 1)
            self._on.stop(first.process)
        return at

    def _serve(
        self, at: _Database, processes: int = 1, environment: dict[str, str] | None = None
    ) -> Measured:
        served = [
            self._on.gateway(f"{at.name}-{n}", at.dsn, self._policies, at.token, environment)
            for n in range(processes)
        ]
        return Measured(served, at.cluster, self._upstream)

    def _measured(
        self, name: str, processes: int, environment: dict[str, str] | None = None
    ) -> Measured:
        return self._serve(self._database(name), processes, environment)

    def _gateway(
        self,
        name: str,
        measured: Measured,
        kind: Kind,
        connections: int,
        size: str = "200",
        *,
        often: bool = False,
    ) -> Case:
        run = partial(measured.run, kind, connections, self._plan.seconds, size=size)
        return self._case(name, kind, connections, run, size, often=often)

    def _case(
        self,
        subject: str,
        kind: str,
        connections: int,
        run: Callable[[], Any],
        size: str = "200",
        *,
        often: bool = False,
    ) -> Case:
        rounds = None if often else self._plan.fewer
        return Case(subject, what(kind, connections, size), run, rounds)

    def _lacks(self, subject: str, why: str) -> None:
        self._absent[subject] = why
        self._say(f"left out: {subject}: {why}")


def of_pgbench(on: Stage, plan: Plan) -> list[Case]:
    """It comes with the PostgreSQL that the gateway brings, and needs nothing else."""
    cluster = on.postgres("pgbench")
    pgbench = others.PgBench(on, on.database(cluster, "pgbench"), cluster)
    cases = [Case("pgbench", what("commit", 1), partial(pgbench.commits, plan.seconds))]
    for each in (1, 16, 64):
        run = partial(pgbench.commands, each, plan.seconds)
        cases.append(Case("pgbench", what("fresh", each), run, plan.fewer))
    return cases
