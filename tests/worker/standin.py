"""One lease and its keeper, in front of a server that answers what the test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx

from gateway.core.leases import LeaseClass
from gateway.core.problems import PREFIX, TYPES
from gateway.worker.client import Client
from gateway.worker.clock import now_mono_s
from gateway.worker.http import Caller, Lane
from gateway.worker.keeper import Keeper, Tended
from gateway.worker.wire import Leased
from tests.kit.upstream import Answer, respond

__all__ = ["caller", "lease", "problem", "tended"]

TERMS = LeaseClass(lease_s=60, heartbeat_s=15, jitter_s=2)


def lease(job: str = "j-1", **more: Any) -> Leased:
    made = Leased(
        reference={"job": job, "entity": f"job:{job}", "fence": 7},
        job=job,
        entity=f"job:{job}",
        fence=7,
        tool="order",
        attempt=1,
        max_attempts=3,
        model=None,
        provider=None,
        remaining_ms=60_000,
        total_remaining_ms=600_000,
        key=job,
        session=None,
        on_behalf=None,
        stage=None,
        stage_no=0,
        payload=None,
        previous=None,
        last_error=None,
        terms=TERMS,
    )
    return replace(made, **more)


def tended(
    keeper: Keeper, leased: Leased | None = None, *, alive: Callable[[], bool] = lambda: True
) -> tuple[Tended, list[str]]:
    """A lease that was confirmed just now, and the losses that its executor hears of."""
    losses: list[str] = []
    now = now_mono_s()
    made = keeper.tend(leased or lease(), now, now, alive=alive, on_lost=losses.append)
    return made, losses


def caller(url: str, **more: Any) -> tuple[Caller, Tended, list[str]]:
    """Made in the event loop in which it is used."""
    keeper = Keeper(Client(url, "fg_k"), "w")
    kept, losses = tended(keeper, lease(**more))
    return Caller(Lane(httpx.URL(url), "fg_k", 2), kept, keeper, "w"), kept, losses


def problem(name: str, *, after_s: int = 0, outcome: str = "rejected", **members: Any) -> Answer:
    """A problem document, as the gateway sends it."""
    import json

    kind = TYPES[name]  # type: ignore[index]
    document = {"type": PREFIX + name, "detail": "so", "sent": kind.sent, "retry": kind.retry}
    return respond(
        kind.status,
        json.dumps({**document, **members}).encode(),
        [
            ("Content-Type", "application/problem+json"),
            ("Gateway-Outcome", outcome),
            ("Retry-After", str(after_s)),
        ],
    )
