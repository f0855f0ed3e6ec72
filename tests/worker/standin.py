"""One lease and its keeper, or a whole worker, in front of a server that answers what the test
says."""

from __future__ import annotations

import json
from collections import deque
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
from tests.kit.upstream import Answer, Recorded, RecordingUpstream, respond

__all__ = ["Desk", "caller", "lease", "problem", "raw_lease", "tended"]

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


def raw_lease(job: str, *, lease_s: float = 60, remaining_ms: int = 60_000) -> dict[str, Any]:
    """One lease as a claim answers it."""
    about = {"job": job, "entity": f"job:{job}", "fence": 7, "tool": "order", "attempt": 1}
    terms = {"lease_s": lease_s, "heartbeat_s": 15, "jitter_s": 0, "misses": 3}
    return {
        "lease": about,
        "remaining_ms": remaining_ms,
        "total_remaining_ms": 600_000,
        "key": job,
        "stage_no": 0,
        "max_attempts": 3,
        "payload": None,
        "previous": None,
        "terms": {**terms, "stage_limit_s": 600},
    }


class Desk:
    """The job routes of a gateway, for a whole worker. ``claims``: the next claims' leases, or
    answers; then there is nothing to do. ``beats``, ``ends``: instead of confirming each lease and
    recording each end. ``asked``: the routes, in order."""

    def __init__(self, server: RecordingUpstream) -> None:
        self.url = server.url
        self.claims: deque[list[dict[str, Any]] | Answer] = deque()
        self.beats: Callable[[Recorded], Answer | None] = lambda _: None
        self.ends: Callable[[Recorded], Answer | None] = lambda _: None
        self.refused: Answer | None = None
        self._server = server
        server.script = self._answer

    def asked(self, *routes: str) -> list[Recorded]:
        wanted = [f"/v1/jobs/{each}".encode() for each in routes]
        return [each for each in self._server.requests if each.target in wanted]

    def ended(self) -> dict[str, dict[str, Any]]:
        """What the ends said, by job."""
        said = [end for each in self.asked("end") for end in each.json()["ends"]]
        return {each["lease"]["job"]: each for each in said}

    def _answer(self, request: Recorded) -> Answer:
        match request.target:
            case b"/v1/jobs/claim":
                following = self.claims.popleft() if self.claims else self.refused or []
                if not isinstance(following, list):
                    return following
                return _json({"leases": following})
            case b"/v1/jobs/heartbeat":
                left = {"remaining_ms": 60_000, "total_remaining_ms": 600_000}
                asked = [{"job": each["job"], **left} for each in request.json()["leases"]]
                return self.beats(request) or _json({"leases": asked})
            case b"/v1/jobs/end":
                jobs = [end["lease"]["job"] for end in request.json()["ends"]]
                done = [{"job": job, "state": "succeeded", "again": False} for job in jobs]
                return self.ends(request) or _json({"ends": done})
            case _:
                return respond(201, b"{}", [("Gateway-Outcome", "applied")])


def _json(document: object) -> Answer:
    return respond(200, json.dumps(document).encode())
