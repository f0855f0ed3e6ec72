"""What the comparison found, as tables and as what is wanted of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.jobs.cases import STATEMENTS, WORKERS
from benchmarks.jobs.steps import BATCH, BEATEN
from benchmarks.kit import Results, number

__all__ = ["tables", "wanted"]

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Title, head, rows."""

_COSTS = ("worker_us", "gateway_us", "postgres_us", "transactions", "wal_bytes")

_STATEMENTS = (
    ("enqueue", "enqueue_rate"),
    (f"enqueue {BATCH}", f"enqueue_{BATCH}_rate"),
    ("claim", "claim_rate"),
    (f"claim {BATCH}", f"claim_{BATCH}_rate"),
    (f"heartbeat of {BEATEN} (procrastinate: of their worker)", "beat_rate"),
    ("complete", "complete_rate"),
    (f"complete {BATCH}", f"complete_{BATCH}_rate"),
)

_PEERS = ("procrastinate", "pgqueuer")


def tables(results: Results) -> list[Table]:
    head = (
        "worker",
        "jobs/s",
        "of it us CPU",
        "gateway",
        "PostgreSQL",
        "transactions",
        "WAL bytes",
    )
    made: list[Table] = []
    for what in dict.fromkeys(mode.what for mode in WORKERS):
        rows = []
        for mode in WORKERS:
            key = (mode.subject, f"jobs, {what}")
            if mode.what == what and (rate := results.median(key, "rate")) is not None:
                costs = [number(results.median(key, each)) for each in _COSTS]
                rows.append((mode.subject, number(rate), *costs))
        made.append((f"Jobs, {what}; costs for each job", head, rows))
    rows = [
        (name, *(number(results.median((each, "job statements"), figure)) for each in STATEMENTS))
        for name, figure in _STATEMENTS
    ]
    made.append(("Jobs a second by statement, one client", ("", *STATEMENTS), rows))
    return [each for each in made if each[2]]


def wanted(results: Results) -> Iterator[tuple[str, float | None, float]]:
    """Name, what was found, and what it is to be at least: medians of ratios in a round."""
    for peer in _PEERS:
        ratio = results.ratio(("fencegate worker", "jobs, single"), (peer, "jobs, single"))
        yield f"jobs, single, by {peer}", ratio, 3.0
    theirs = (("pgqueuer", "10 at once"), ("pgqueuer, 5 managers", "10 at once"))
    for peer, what in (*theirs, ("pgqueuer", "100 at once"), ("procrastinate", "100 at once")):
        for ours in ("fencegate worker", "fencegate API", "fencegate store"):
            ratio = results.ratio((ours, "jobs, 100 at once"), (peer, f"jobs, {what}"))
            yield f"jobs, batched: {ours} by {peer}, {what}", ratio, 1.0
