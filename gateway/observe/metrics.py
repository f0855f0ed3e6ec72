"""Metrics for Prometheus, in a registry of their own.

Every label has a closed set of values: ``policy`` takes only names of loaded policies, everything
else comes from this package's own lists. Nothing that a caller sends can add a time series.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import product
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.core.command import SettleResult
from gateway.core.decide import Decision
from gateway.core.evidence import Probed
from gateway.core.problems import TYPES, ProblemType
from gateway.observe.durations import Durations
from gateway.observe.jobmetrics import NO_LABELS, JobMetrics, Labels

__all__ = ["Asked", "Found", "Kept", "Metrics", "Operation", "RequestOutcome", "Wrote"]

RequestOutcome = Literal[
    "applied", "replayed", "not-sent", "not-executed", "unknown", "rejected", "unguarded"
]
Operation = Literal["admit", "settle", "release", "hold"]
Found = Literal["local", "redis"]
"""The cache in this process, and the one that processes share."""
Asked = Literal["hit", "miss", "failed"]
Wrote = Literal["written", "failed", "dropped"]
Kept = Literal["bodies", "keys", "audit", "jobs", "job_keys", "given_back", "entities"]

Counted = defaultdict[tuple[Counter, *tuple[str, ...]], int]

_NO_POLICY = "none"
"""Label of requests that no policy covers, or that were refused before one was looked for."""

_STORE_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""A commit takes 1 to 5 ms; an admit ends at its send deadline of 7 s at the latest."""

_SEND_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""From a neighbour in the same rack to the longest timeouts in use."""


class Metrics:
    """All metrics of one process. ``policies``: the names of the loaded commands. ``labels``: what
    metrics of jobs tell apart."""

    def __init__(self, policies: Iterable[str] = (), labels: Labels = NO_LABELS) -> None:
        self._policies = frozenset(policies)
        self._registry = CollectorRegistry()
        # A counter hears of it when it is rendered: it takes a lock, and looks its labels up.
        self._counted: Counted = defaultdict(int)
        self._requests = self._counter(
            "requests", "Requests answered, by outcome.", "policy", "outcome"
        )
        self._problems = self._counter("problems", "Problem documents sent, by type.", "type")
        self._decisions = self._counter(
            "decisions", "Decisions of the store, by name.", "policy", "decision"
        )
        self._settles = self._counter("settles", "Responses recorded, by result.", "result")
        self._retries = self._counter(
            "store_retries", "Statements repeated after a database error.", "operation"
        )
        self._late = self._counter(
            "late_evidence", "Responses heard after their command had become unknown."
        )
        self._duplicates = self._counter(
            "duplicate_effects_suspected", "Responses whose key a newer attempt holds. Alarm on it."
        )
        self._equal = self._counter(
            "equal_commands", "Commands that an earlier one equals but for its key.", "policy"
        )
        self._fences = self._counter("fences_issued", "Fences issued over HTTP.")
        self._probes = self._counter(
            "probes", "Status queries about unknown commands, by what came of them.", "result"
        )
        self._forgotten = self._counter("forgotten", "Rows that retention let go, by kind.", "what")
        self._admit = self._histogram("admit", "Admitting one command.", _STORE_BUCKETS_S)
        self._send = self._histogram(
            "send", "Sending one attempt, until its response is complete.", _SEND_BUCKETS_S
        )
        self._settle = self._histogram(
            "settle", "Recording one outcome, repeats included.", _STORE_BUCKETS_S
        )
        asked = self._counter(
            "cache_asked", "Looks for a replay in a cache, by what came of them.", "cache", "result"
        )
        self._asked = {
            which: asked.labels(*which) for which in product(get_args(Found), get_args(Asked))
        }
        self._wrote = self._counter(
            "cache_writes", "Responses for the cache in Redis, by what became of them.", "result"
        )
        self.jobs = JobMetrics(self._registry, labels)
        self._show_zeros()

    def request(self, policy: str | None, outcome: RequestOutcome) -> None:
        """One request was answered."""
        self._counted[self._requests, self._known(policy), outcome] += 1

    def problem(self, kind: ProblemType) -> None:
        """One problem document was sent."""
        self._counted[self._problems, kind] += 1

    def decided(self, policy: str | None, decision: Decision, admit_s: float) -> None:
        """One command was decided; ``admit_s`` seconds from asking to knowing."""
        known = self._known(policy)
        self._counted[self._decisions, known, type(decision).__name__] += 1
        self._admit.observe(known, admit_s)

    def sent(self, policy: str | None, send_s: float) -> None:
        """One attempt ended, however; ``send_s`` seconds after it began."""
        self._send.observe(self._known(policy), send_s)

    def settled(self, policy: str | None, result: SettleResult, settle_s: float) -> None:
        """One response was recorded. Counts late evidence and suspected duplicates as well."""
        self._counted[self._settles, result] += 1
        self._settle.observe(self._known(policy), settle_s)
        if result in ("late", "contradicts", "resolved"):
            self._late.inc()
        elif result == "duplicate":
            self._duplicates.inc()

    def equal_command(self, policy: str | None) -> None:
        """One command was sent that equals an earlier one under another key."""
        self._equal.labels(self._known(policy)).inc()

    def probed(self, result: Probed) -> None:
        """One status query about an unknown command came to its end."""
        self._probes.labels(result).inc()

    def fence_issued(self) -> None:
        """One fence was issued over HTTP."""
        self._fences.inc()

    def forgotten(self, what: Kept, count: int) -> None:
        """Retention let so many rows go."""
        self._forgotten.labels(what).inc(count)

    def cache_asked(self, cache: Found, result: Asked) -> None:
        """One cache was asked for a replay."""
        self._asked[cache, result].inc()

    def cache_wrote(self, result: Wrote, count: int) -> None:
        """So many responses were to be kept in Redis."""
        self._wrote.labels(result).inc(count)

    def store_retry(self, operation: Operation) -> None:
        """One statement is about to be repeated."""
        self._retries.labels(operation).inc()

    def watch(
        self,
        *,
        attempts: Callable[[], float],
        waiting: Callable[[], float],
        key_age_s: Callable[[], float],
        rows_lost: Callable[[], float],
        cache_bytes: Callable[[], float],
        cache_entries: Callable[[], float],
    ) -> None:
        """Where the gauges read their values, at each ``render``. To be called once."""
        for name, text, read in (
            ("attempts_in_flight", "Attempts in flight.", attempts),
            ("waiting_callers", "Callers that wait for a key or an entity.", waiting),
            (
                "key_snapshot_age_seconds",
                "Age of the gateway keys in use; above 60 s nobody is authenticated.",
                key_age_s,
            ),
            (
                "rows_lost",
                "Acknowledged rows that the database lost, until an operator acknowledges. Alarm.",
                rows_lost,
            ),
            ("cache_bytes", "Memory that the cache of this process takes.", cache_bytes),
            ("cache_entries", "Responses in the cache of this process.", cache_entries),
        ):
            Gauge(f"fencegate_{name}", text, registry=self._registry).set_function(read)

    def render(self) -> tuple[bytes, str]:
        """The exposition document and its content type."""
        counted, self._counted = self._counted, defaultdict(int)
        for (counter, *labels), count in counted.items():
            counter.labels(*labels).inc(count)
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _known(self, policy: str | None) -> str:
        return policy if policy in self._policies and policy is not None else _NO_POLICY

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"fencegate_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Durations:
        made = Durations(f"fencegate_{name}_seconds", text, buckets)
        self._registry.register(made)
        return made

    def _show_zeros(self) -> None:
        """Series that an alarm watches must be there before they first count."""
        for policy in self._policies:
            for outcome in get_args(RequestOutcome):
                self._requests.labels(policy, outcome)
            self._equal.labels(policy)
        for kind in TYPES:
            self._problems.labels(kind)
        for result in get_args(SettleResult):
            self._settles.labels(result)
        for probed in get_args(Probed):
            self._probes.labels(probed)
        for what in get_args(Kept):
            self._forgotten.labels(what)
        for wrote in get_args(Wrote):
            self._wrote.labels(wrote)
        for operation in get_args(Operation):
            self._retries.labels(operation)
