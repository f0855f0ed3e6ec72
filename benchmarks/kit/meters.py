"""What a run costs: CPU time and memory from /proc, transactions and log bytes from PostgreSQL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kit.sql import rows

__all__ = ["Cpu", "Writes", "peak_rss_mib"]

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds so far of some processes and all below them, the ended ones too."""

    seconds: float

    @classmethod
    def of(cls, *pids: int) -> Cpu:
        children: dict[int, list[int]] = {}
        used: dict[int, float] = {}
        for pid, parent, seconds in _processes():
            children.setdefault(parent, []).append(pid)
            used[pid] = seconds
        return cls(sum(used[pid] for pid in _below(pids, children) if pid in used))

    def us_per(self, before: Cpu, count: float) -> float:
        """Microseconds for each of ``count`` since ``before``."""
        return (self.seconds - before.seconds) * 1e6 / max(count, 1)


def _processes() -> Iterable[tuple[int, int, float]]:
    """Pid, parent, CPU seconds of its own and of children that ended and were waited for."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                own = _precise(entry, (int(fields[11]) + int(fields[12])) / _TICKS)
            except OSError:  # it has ended
                continue
            yield int(entry.name), int(fields[1]), own + sum(map(int, fields[13:15])) / _TICKS


def _precise(process: Path, else_s: float) -> float:
    """In place of ``stat``'s, which cuts each process down to whole ticks of 10 ms: of twenty
    backends in a short run that would be most."""
    try:
        threads = [(each / "schedstat").read_text() for each in (process / "task").iterdir()]
    except OSError:  # a kernel without them
        return else_s
    return sum(int(each.split()[0]) for each in threads) / 1e9


def _below(pids: Iterable[int], children: dict[int, list[int]]) -> set[int]:
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += children.get(pid, [])
    return found


def peak_rss_mib(pid: int) -> float:
    """The largest memory that a process ever had resident."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


@dataclass(frozen=True, slots=True)
class Writes:
    """Of a whole server, so far. ``transactions``: those that wrote, subtransactions among them,
    and so no fewer than commits that cost a flush. The server's own statistics come up to ten
    seconds late; these two counters are exact at once."""

    transactions: int
    wal_bytes: int

    @classmethod
    def of(cls, dsn: str) -> Writes:
        sql = (
            "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as xid,"
            " pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint as bytes"
        )
        (row,) = rows(dsn, sql)
        return cls(row["xid"], row["bytes"])
