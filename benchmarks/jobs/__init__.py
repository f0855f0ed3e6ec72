"""Job rates beside procrastinate and pgqueuer, on one server, in rounds that take turns.

What is measured twice over: whole workers, one process each, that work off a queue of jobs that do
nothing; and the statements alone (enqueue, claim, heartbeat, complete), one after the other.

Theirs speak SQL from the worker. Ours speaks HTTP to a gateway that speaks SQL: "fencegate worker"
is the library as it ships, "fencegate API" the routes without it, "fencegate store" the statements
from one process, which no user has, and which shows what HTTP costs.
"""

from benchmarks.jobs.cases import JobBench
from benchmarks.jobs.report import tables, wanted

__all__ = ["JobBench", "tables", "wanted"]
