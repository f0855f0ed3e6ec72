"""The tables of a run, and what is wanted of it. Pure: from a document to cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks import jobs
from benchmarks.kit import Key, number, text_table
from benchmarks.plan import CONNECTIONS, SUBJECTS, what
from benchmarks.report.document import Document

__all__ = ["Table", "Wanted", "last_line", "tables", "targets", "text"]

_KINDS = {
    "fresh": "fresh",
    "replay": "replayed",
    "stale": "refused as stale, audited first",
    "reused": "refused as a reused key, audited first",
}
_SIZES = {"200": "200 bytes", "10k": "10 kB", "100k": "100 kB"}


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """``found`` is None where the run did not measure it, or it broke."""

    name: str
    found: float | None
    bound: float
    at_least: bool

    @property
    def met(self) -> bool | None:
        if self.found is None:
            return None
        return self.found >= self.bound if self.at_least else self.found <= self.bound


def tables(document: Document) -> list[Table]:
    made = [_fresh(document), _ratios(document), _kinds(document), _sizes(document)]
    made += [_costs(document), _growth(document)]
    made += [Table(*each) for each in jobs.tables(document.jobs)]
    return [each for each in made if each.rows]


def targets(document: Document) -> list[Wanted]:
    """What issue after issue is judged by."""
    results, growth = document.results, document.growth

    def by(kind: str, connections: int, to: str, subject: str = "fencegate") -> float | None:
        return results.ratio((subject, what(kind, connections)), (to, what("fresh", connections)))

    def figure(name: str, connections: int) -> float | None:
        return results.median(("fencegate", what("fresh", connections)), name)

    p99 = results.ratio(("fencegate", what("fresh", 64)), ("no-cache", what("fresh", 64)), "p99_ms")
    keys = sorted(int(name.split()[0]) for _, name in growth.rounds if name.endswith(" keys"))
    grown = (
        growth.ratio(("fencegate", f"{keys[-1]} keys"), ("fencegate", f"{keys[0]} keys"))
        if keys
        else None
    )
    most = f"{keys[-1]:,}" if keys else "many"
    return [
        Wanted("fresh, by nginx at 16", by("fresh", 16, "nginx"), 0.12, True),
        Wanted("fresh, by nginx at 64", by("fresh", 64, "nginx"), 0.18, True),
        Wanted("fresh, by nginx at 256", by("fresh", 256, "nginx"), 0.22, True),
        Wanted("fresh, by the natural httpx version at 64", by("fresh", 64, "httpx"), 25, True),
        Wanted("fresh, by the natural aiohttp version at 64", by("fresh", 64, "aiohttp"), 6, True),
        Wanted("p50 added at 1, in commit latencies", added_commits(document), 3.5, False),
        Wanted("commits for a command at 64", figure("commits", 64), 0.1, False),
        # Two; the hundredths are autovacuum's, whose transactions the counter does not tell apart.
        Wanted("commits for a command at 1", figure("commits", 1), 2.0, False),
        Wanted("bytes of WAL for a command at 64", figure("wal_bytes", 64), 1000, False),
        Wanted("replayed, by nginx at 64", by("replay", 64, "nginx"), 0.40, True),
        Wanted("the same without the cache", by("replay", 64, "nginx", "no-cache"), 0.22, True),
        Wanted("stale, by nginx at 64", by("stale", 64, "nginx"), 0.25, True),
        Wanted("p99 of fresh at 64, by that without the cache", p99, 1.5, False),
        Wanted(f"fresh at {most} remembered keys, by that at few", grown, 0.8, True),
        Wanted(
            "forgotten for each admitted",
            growth.median(("fencegate", "retention"), "keeps_up"),
            1.0,
            True,
        ),
        *(Wanted(*each, True) for each in jobs.wanted(document.jobs)),
    ]


def added_commits(document: Document) -> float | None:
    """What p50 at one connection is above nginx's, in latencies of one commit; by medians, since
    the three are not one ratio."""
    results = document.results
    mine = results.median(("fencegate", what("fresh", 1)), "p50_ms")
    plain = results.median(("nginx", what("fresh", 1)), "p50_ms")
    commit = results.median(("pgbench", what("commit", 1)), "p50_ms")
    if mine is None or plain is None or not commit:
        return None
    return (mine - plain) / commit


def last_line(document: Document) -> str:
    key: Key = ("fencegate", what("fresh", 64))
    ratio = document.results.ratio(key, ("nginx", what("fresh", 64)))
    rounds = len(document.results.values(key, "rate"))
    told = "no figure" if ratio is None else f"{ratio:.3f} (median of {rounds} rounds)"
    return f"fresh commands at 64 connections, ratio to nginx passing through: {told}"


def text(document: Document) -> str:
    """For the terminal."""
    parts = [f"{each.title}\n{text_table(each.head, each.rows)}" for each in tables(document)]
    rows = [
        (
            each.name,
            number(each.found),
            f"{'at least' if each.at_least else 'at most'} {each.bound:g}",
            {True: "yes", False: "NO", None: "not measured"}[each.met],
        )
        for each in targets(document)
    ]
    parts.append("What is wanted\n" + text_table(("", "found", "wanted", "met"), rows))
    parts += [f"left out: {subject}: {why}" for subject, why in document.absent.items()]
    parts += [f"BROKEN: {' '.join(key)}: {why}" for key, why in document.broken.items()]
    return "\n\n".join(parts)


def _measured(document: Document, kind: str) -> Iterator[str]:
    found = {key[0] for key in document.results.rounds if key[1].startswith(f"{kind} 200 ")}
    return (subject for subject in SUBJECTS if subject in found)


def _fresh(document: Document) -> Table:
    rows = []
    for subject in _measured(document, "fresh"):
        each = [document.results.median((subject, what("fresh", n)), "rate") for n in CONNECTIONS]
        rows.append((SUBJECTS[subject], *map(number, each)))
    head = ("at so many connections", *map(str, CONNECTIONS))
    return Table("Fresh commands of 200 bytes, per second", head, rows)


def _ratios(document: Document) -> Table:
    rows = []
    for subject in _measured(document, "fresh"):
        if subject != "nginx":
            each = [
                document.results.ratio((subject, name), ("nginx", name))
                for name in (what("fresh", n) for n in CONNECTIONS)
            ]
            rows.append((SUBJECTS[subject], *map(number, each)))
    head = ("at so many connections", *map(str, CONNECTIONS))
    return Table("The same by nginx", head, rows)


def _kinds(document: Document) -> Table:
    rows = []
    for kind, shown in _KINDS.items():
        for subject in ("fencegate", "no-cache"):
            each = [
                document.results.ratio((subject, what(kind, n)), ("nginx", what("fresh", n)))
                for n in CONNECTIONS
            ]
            if any(ratio is not None for ratio in each):
                rows.append((f"{shown}: {SUBJECTS[subject]}", *map(number, each)))
    head = ("at so many connections", *map(str, CONNECTIONS))
    return Table("Commands by what they are, by nginx with fresh ones", head, rows)


def _sizes(document: Document) -> Table:
    rows = []
    for size, shown in _SIZES.items():
        name = what("fresh", 64, size)
        mine, plain = ("fencegate", name), ("nginx", name)
        cells = (
            document.results.median(plain, "rate"),
            document.results.median(mine, "rate"),
            document.results.ratio(mine, plain),
            document.results.median(mine, "wal_bytes"),
        )
        if cells[1] is not None:
            rows.append((shown, *map(number, cells)))
    head = ("request and response of", "nginx", "Fencegate", "ratio", "bytes of WAL")
    return Table("Fresh commands at 64 connections by size", head, rows)


_COSTS = {
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "gateway_cpu_us": "own CPU µs",
    "postgres_cpu_us": "PostgreSQL CPU µs",
    "commits": "commits",
    "wal_bytes": "bytes of WAL",
    "peak_rss_mib": "peak RSS MiB",
}


def _costs(document: Document) -> Table:
    rows = []
    for subject, name in document.results.rounds:
        kind, size, connections = name.split()
        if size != "200" or kind == "commit":
            continue
        each = [document.results.median((subject, name), figure) for figure in _COSTS]
        if any(value is not None for value in each):
            shown = f"{SUBJECTS[subject]}: {_KINDS[kind]}, {connections[1:]}"
            rows.append((shown, *map(number, each)))
    commit = document.results.median(("pgbench", what("commit", 1)), "p50_ms")
    if commit is not None:
        rows.append(("one commit of one row, 1 client", number(commit), *["-"] * (len(_COSTS) - 1)))
    return Table("What each command costs", ("", *_COSTS.values()), rows)


def _growth(document: Document) -> Table:
    growth = document.growth
    counts = sorted(int(name.split()[0]) for _, name in growth.rounds if name.endswith(" keys"))
    rows = []
    for count in counts:
        key = ("fencegate", f"{count} keys")
        ratio = growth.ratio(key, ("fencegate", f"{counts[0]} keys"))
        rows.append(
            (f"{count:,} remembered keys", number(growth.median(key, "rate")), number(ratio))
        )
    key = ("fencegate", "retention")
    if (rate := growth.median(key, "rate")) is not None:
        rows.append(("beside retention", number(rate), "-"))
        rows.append(("forgotten meanwhile", number(growth.median(key, "forgotten")), "-"))
    return Table(
        "Fresh commands at 64 connections, as keys grow", ("", "per second", "by the first"), rows
    )
