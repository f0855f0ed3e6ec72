"""Which cases are played, and in how many rounds. The names here are those of tables and JSON."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CONNECTIONS", "FULL", "QUICK", "SUBJECTS", "Plan", "what"]

CONNECTIONS = (1, 16, 64, 256)

SUBJECTS = {
    "nginx": "nginx, passing through",
    "fencegate": "Fencegate, as it ships",
    "no-cache": "Fencegate without its cache",
    "no-batches": "Fencegate without batches",
    "two": "two Fencegates on one database",
    "httpx": "natural version, Starlette and httpx",
    "aiohttp": "natural version, Starlette and aiohttp",
    "pgbench": "pgbench, the same two transactions",
    "asgi-idempotency-header": "asgi-idempotency-header, in memory",
    "fastapi-idempotency": "fastapi-idempotency, in memory",
    "node-idempotency": "node-idempotency, in memory",
}


def what(kind: str, connections: int, size: str = "200") -> str:
    """The name of a measurement, e.g. ``fresh 200 @64``."""
    return f"{kind} {size} @{connections}"


@dataclass(frozen=True, slots=True)
class Plan:
    """``rounds`` of what a promise rests on, ``fewer`` of the rest. ``seconds``: of one load.
    ``aside``: connections at which the rest is measured; what needs one or sixty-four has them.
    ``keys``: remembered keys in steps; ``due``: expired ones for retention."""

    rounds: int
    fewer: int
    seconds: int
    aside: tuple[int, ...]
    keys: tuple[int, ...]
    due: int
    limit_s: int
    rounds_s: int | None = None
    """No round begins later than so many seconds after the start; None: all are played."""
    growth_s: int | None = None
    """The same for growth as a whole."""
    jobs_s: int | None = None
    """The same for jobs, and each of their rounds."""


QUICK = Plan(5, 2, 2, (64,), (1_000, 100_000), 100_000, 540, 300, 400, 440)
"""Within 550 s on two cores: some thirty cases of 2.5 s in two rounds, half of them in three more,
and a minute for growth."""

FULL = Plan(5, 5, 4, CONNECTIONS, (1_000, 100_000, 1_000_000), 500_000, 4 * 3600)
