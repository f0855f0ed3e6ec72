"""The gateway under load, as it ships: what it is asked, and what must have become of it."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.kit import Broken, Cpu, Gateway, Stage, Writes, peak_rss_mib, sql
from benchmarks.kit.figures import Figures
from benchmarks.load import Kind, Load, Seen, Target, run
from benchmarks.nginx import SIZES, Upstream
from gateway.store.embedded import Cluster

__all__ = ["Measured", "policies"]

_QUIET_S = 20.0
_POLL_S = 0.05
_IDLE_S = 3.0
_SEEDS = 1000
"""Commands that replays and refusals go round in."""

_POLICY = """\
name = "bench-{size}"
mount = "/bench-{size}"
upstream = "{url}"

[[commands]]
name = "charge"
match = "POST /v1/customers/{{customer}}/charges"
entity = "{size}-customer:{{path.customer}}"
fence = "required"
"""

_BODY = '{{"amount":1200,"currency":"eur","customer":"{}","note":"{}"}}'
"""As requests.lua writes it."""

_EVENT = {"stale": "fence_stale", "reused": "key_reused"}


def policies(on: Stage, upstream: Upstream) -> Any:
    """A folder with one policy for each size of answers; all else at its defaults."""
    folder = on.folder / "policies"
    folder.mkdir()
    for size in SIZES:
        text = _POLICY.format(size=size, url=upstream.url(size))
        (folder / f"bench-{size}.toml").write_text(text)
    return folder


@dataclass(frozen=True, slots=True)
class _State:
    """Before a run."""

    at: Any
    calls: int
    refusals: int


class Measured:
    """Processes of the gateway on one database of ``cluster``, and their upstream."""

    def __init__(
        self,
        gateways: Sequence[Gateway],
        cluster: Cluster,
        upstream: Upstream,
        *,
        idle: tuple[float, float] | None = None,
    ) -> None:
        """``idle``: transactions and bytes a second that they write without any load; found out
        before the first one, where it is not given."""
        self._gateways = gateways
        self._cluster = cluster
        self._upstream = upstream
        self._dsn = gateways[0].dsn
        self._seeds: tuple[str, int] | None = None
        self._idle = idle

    def run(
        self,
        kind: Kind,
        connections: int,
        seconds: float,
        *,
        size: str = "200",
        seeds: tuple[str, int] | None = None,
    ) -> Figures:
        """One load, and what it cost. ``size``: of request and response, see ``SIZES``. ``seeds``:
        of settled commands, its own by default. Raises ``Broken`` where effects are not what they
        must be."""
        seeds = seeds or (("none", 1) if kind == "fresh" else self._seeded())
        load = Load(kind, connections, seconds, SIZES[size], seeds)
        before = self._state(kind)
        if self._idle is None:
            self._idle = self._written_idle()
        writes, began = Writes.of(self._dsn), time.monotonic()
        gateway, database = self._own(), Cpu.of(self._cluster.pid)
        seen = run(load, *self._targets(size))
        gateway_us = self._own().us_per(gateway, seen.answered)
        database_us = Cpu.of(self._cluster.pid).us_per(database, seen.answered)
        done = self._check(kind, before, seen)
        written = self._written(writes, began)
        for each in self._gateways:
            os.truncate(each.log, 0)  # it is appended to: hours of lines need not be kept
        return {
            "rate": seen.rate,
            "p50_ms": seen.p50_ms,
            "p99_ms": seen.p99_ms,
            "gateway_cpu_us": gateway_us,
            "postgres_cpu_us": database_us,
            "commits": written.transactions / done,
            "wal_bytes": written.wal_bytes / done,
            "peak_rss_mib": max(peak_rss_mib(each.pid) for each in self._gateways),
        }

    def known(self, prefix: str, count: int) -> Figures:
        """That keys which were loaded are remembered: asked again with another body."""
        return self.run("reused", 16, 1, seeds=(prefix, count))

    def _written(self, before: Writes, began: float) -> Writes:
        """What commands have written since: less what the processes write without any."""
        now, seconds = Writes.of(self._dsn), time.monotonic() - began
        transactions, wal_bytes = self._idle or (0.0, 0.0)
        return Writes(
            now.transactions - before.transactions - round(transactions * seconds),
            now.wal_bytes - before.wal_bytes - round(wal_bytes * seconds),
        )

    def _written_idle(self) -> tuple[float, float]:
        """Transactions and bytes a second."""
        before = Writes.of(self._dsn)
        time.sleep(_IDLE_S)
        now = self._written(before, time.monotonic())
        return now.transactions / _IDLE_S, now.wal_bytes / _IDLE_S

    def _own(self) -> Cpu:
        return Cpu.of(*(each.pid for each in self._gateways))

    def _targets(self, size: str) -> list[Target]:
        return [Target(f"{each.url}/bench-{size}", each.token) for each in self._gateways]

    def _seeded(self) -> tuple[str, int]:
        """Settled commands to come back to; made once."""
        if self._seeds is None:
            before = self._state("fresh")
            seen = run(Load("fresh", 16, 2.0), self._targets("200")[0])
            self._check("fresh", before, seen)
            self._seeds = (seen.prefix, min(seen.answered - 16, _SEEDS))
            self._check_replay()
        return self._seeds

    def _check_replay(self) -> None:
        """One by hand: a load's answers are counted, not read."""
        assert self._seeds is not None
        customer, served = f"{self._seeds[0]}{1:09d}", self._gateways[0]
        note = "x" * (200 - len(_BODY.format(customer, "")))
        request = urllib.request.Request(
            f"{served.url}/bench-200/v1/customers/{customer}/charges",
            _BODY.format(customer, note).encode(),
            {
                "Authorization": f"Bearer {served.token}",
                "Content-Type": "application/json",
                "Idempotency-Key": f'"{customer}"',
                "X-Execution-Fence": "7",
            },
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            replayed = answer.headers["Idempotent-Replayed"]
            _hold("a seeded command once more, replayed", replayed == "true", str(replayed))

    # -- what must have become of it

    def _state(self, kind: Kind) -> _State:
        at = sql.value(self._dsn, "select gateway.clock()")
        return _State(at, self._upstream.count(), self._refusals(kind))

    def _refusals(self, kind: Kind) -> int:
        if kind not in _EVENT:
            return 0
        counted = (
            "select coalesce(sum(coalesce(r.times, 1)), 0)::bigint from gateway.audit a"
            " left join gateway.audit_repeats r using (tenant, id) where a.event = $1"
        )
        return int(sql.value(self._dsn, counted, _EVENT[kind]))

    def _check(self, kind: Kind, before: _State, seen: Seen) -> int:
        """How many commands or refusals are stored. Calls of the upstream are fresh commands, and
        stored ones are answered ones; only of what the end of the run cut off nobody heard."""
        rows, settled, unexpected = self._quiet(before)
        calls = self._upstream.count() - before.calls
        if kind == "fresh":
            _hold("upstream calls, stored commands", calls == rows, f"{calls}, {rows}")
            _hold("stored commands, settled ones", rows == settled, f"{rows}, {settled}")
            _hold("settled otherwise than 200", unexpected == 0, str(unexpected))
            _hold("refused", seen.refused == 0, str(seen.refused))
            stored = rows
        elif kind == "replay":
            _hold("upstream calls, stored commands", calls == rows == 0, f"{calls}, {rows}")
            _hold("refused", seen.refused == 0, str(seen.refused))
            return seen.answered
        else:
            stored = self._settled_refusals(kind) - before.refusals
            _hold("upstream calls, stored commands", calls == rows == 0, f"{calls}, {rows}")
            _hold(
                "refused, answered",
                seen.refused == seen.answered,
                f"{seen.refused}, {seen.answered}",
            )
        _hold(
            "begun, stored, answered",
            seen.issued >= stored >= seen.answered,
            f"{seen.issued}, {stored}, {seen.answered}",
        )
        return stored

    def _quiet(self, before: _State) -> tuple[int, int, int]:
        """Commands since ``before``, once all are settled: how many; settled; not with 200."""
        counted = (
            "select count(*) as stored, count(settled_at) as settled,"
            " count(*) filter (where status is distinct from 200) as unexpected"
            " from gateway.commands where admitted_at >= $1"
        )
        until = time.monotonic() + _QUIET_S
        last = None
        while True:
            (row,) = sql.rows(self._dsn, counted, before.at)
            rows, settled = row["stored"], row["settled"]
            if (rows == settled and rows == last) or time.monotonic() > until:
                return rows, settled, row["unexpected"]
            last = rows
            time.sleep(_POLL_S)

    def _settled_refusals(self, kind: Kind) -> int:
        """Once no more come: callers that were cut off have theirs recorded all the same."""
        last = -1
        while (now := self._refusals(kind)) != last:
            last = now
            time.sleep(_POLL_S)
        return now


def _hold(what: str, true: bool, found: str) -> None:
    if not true:
        raise Broken(f"{what}: {found}")
