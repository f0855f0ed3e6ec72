"""Who may use how many of a process's connections to the database.

Whoever asks on behalf of a caller may wait for a lock that somebody's own transaction holds, for
two seconds each time. So each kind has a share, and what the shares leave is the commands': their
admits and settles, the looks of those who wait, and readiness. Commands also use what the others do
not. The numbers for some sizes: docs/architecture.md, "Connections".
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BESIDE", "LEAST_POOL", "USUAL_POOL", "Shares"]

BESIDE = ("reaper", "retention", "prober", "witness", "keys", "lease gauges")
"""What runs beside the requests, each with one connection at most."""

LEAST_POOL = 6 + len(BESIDE) + 1
"""One for each kind, one for each of ``BESIDE``, and one for commands."""

USUAL_POOL = 20
"""The smallest with two for each kind whose questions wait for locks of many entities or keys."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Connections at most, by kind of question: heartbeats, ends, claims and all else about jobs;
    fences; evidence. Heartbeats and claims take milliseconds and wait for no lock of an entity;
    evidence is rare."""

    beats: int
    ends: int
    claims: int
    others: int
    fences: int
    evidence: int
    commands: int
    """Left to commands where all others have what they may."""

    @property
    def beside(self) -> int:
        """Of those left to commands: admits, and as many settles, that are asked alone because
        their first try or their batch failed. Half, so that batches go on meanwhile."""
        return max(1, self.commands // 2)

    @property
    def mismatches(self) -> int:
        """Of those left to commands: mismatches of entities that are written together. They wait
        for no lock but that of a row which only such statements lock, for milliseconds."""
        return self.evidence

    @classmethod
    def of(cls, pool_size: int) -> Shares:
        """Those of a pool. Raises ``ValueError`` where it is below ``LEAST_POOL``."""
        if pool_size < LEAST_POOL:
            raise ValueError(
                f"{pool_size} connections are too few: one for each of heartbeats, ends, claims, "
                f"other questions about jobs, fences and evidence, one for each of "
                f"{', '.join(BESIDE)}, and one for commands are {LEAST_POOL}; take {LEAST_POOL} "
                f"or more, or the usual {USUAL_POOL}"
            )
        some, one = max(1, pool_size // 10), max(1, pool_size // 20)
        left = pool_size - 3 * some - 3 * one - len(BESIDE)
        return cls(one, some, one, some, some, one, left)
