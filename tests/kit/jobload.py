"""Workers and their callers at several gateways of one database, while something breaks.

Each repeats what it asked for, under the same id, until it is answered. ``reckon`` compares what
they heard with what the database holds.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg

from tests.kit.client import Caller, Reply
from tests.kit.db import execute, with_connection
from tests.kit.desk import Desk
from tests.kit.gateway import rows
from tests.kit.jobs import behind_nothing

__all__ = ["TOOLS", "JobCounts", "JobLoad"]

TOOLS = """
[[tools]]
name = "t"
backoff_s = 0
backoff_max_s = 0
"""

ENTITIES = 10
PATIENCE_S = 60.0
"""In which every wish is answered: a database or a gateway that is started again takes seconds."""

_AWAY = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


@dataclass(frozen=True, slots=True)
class JobCounts:
    jobs: int
    leases: int
    completed: int
    dropped: int
    """Leases that their worker let run out."""
    fences: int
    repeats: int


@dataclass
class JobLoad:
    """``urls``: of the gateways that may be there now. One thread runs it."""

    urls: Callable[[], Sequence[str]]
    database: str
    seed: int = 1
    patience_s: float = PATIENCE_S
    made: list[str] = field(default_factory=list)
    granted: list[tuple[str, str, int]] = field(default_factory=list)
    """Entity, job and fence of each lease, in the order in which they were granted."""
    completed: dict[str, int] = field(default_factory=dict)
    """Of each job whose end was acknowledged: the number that is its result."""
    dropped: int = 0
    fences: list[int] = field(default_factory=list)
    repeats: int = 0

    def run(self, turn: Callable[[int], bool]) -> None:
        """Round after round, each when its ``turn`` has come, until that says no."""
        self._chance = random.Random(self.seed)
        for number in itertools.count():
            if not turn(number):
                return
            self._round(number)

    def _round(self, number: int) -> None:
        job = self._uuid()
        entity = f"job-of:{self._chance.randrange(ENTITIES)}"
        wish = {"id": job, "key": job, "tool": "t", "entity": entity, "payload": {"n": number}}
        assert self._ask("", {"jobs": [wish]}).status in (200, 201)
        self.made.append(job)
        issued = self._ask_of(lambda caller: caller.call("POST", "/v1/fences", _JSON, _ENTITY))
        self.fences.append(issued.json()["fence"])
        asked = {"worker": "w", "claim": self._uuid(), "limit": 1, "tools": ["t"]}
        for found in self._ask("/claim", asked).json()["leases"]:
            self._work(found["lease"], number)

    def _work(self, lease: dict[str, Any], number: int) -> None:
        job, fence = str(lease["job"]), int(lease["fence"])
        assert job not in self.completed, lease
        self.granted.append((str(lease["entity"]), job, fence))
        beaten = self._ask("/heartbeat", {"worker": "w", "leases": [lease]}).json()["leases"]
        assert "remaining_ms" in beaten[0], beaten
        if self._chance.random() < 0.3:
            self.dropped += 1
            self._let_it_run_out(job, fence)
            return
        end = {"lease": lease, "how": "completed", "result": number}
        (answer,) = self._ask("/end", {"worker": "w", "ends": [end]}).json()["ends"]
        assert answer["state"] == "succeeded", answer
        self.completed[job] = number

    def _let_it_run_out(self, job: str, fence: int) -> None:
        sql = (
            "update gateway.job_leases set lease_until = gateway.clock()"
            f" where job = '{UUID(job)}' and fence = {fence}"
        )
        until = time.monotonic() + self.patience_s
        while True:
            try:
                execute(self.database, sql)
                return
            except _AWAY:
                assert time.monotonic() < until, "the database did not come back"

    def _ask(self, tail: str, document: object) -> Reply:
        return self._ask_of(lambda caller: Desk(caller).post(tail, document))

    def _ask_of(self, ask: Callable[[Caller], Reply]) -> Reply:
        until = time.monotonic() + self.patience_s
        while time.monotonic() < until:
            try:
                reply = ask(Caller(self._chance.choice(self.urls())))
            except (OSError, http.client.HTTPException):
                self.repeats += 1
                continue
            if reply.status not in (503, 504):
                return reply
            assert reply.json()["retry"] in ("same-key", "wait"), reply
            self.repeats += 1
        raise AssertionError(f"no answer within {self.patience_s} s")

    def _uuid(self) -> str:
        return str(UUID(int=self._chance.getrandbits(128), version=4))

    def reckon(self) -> JobCounts:
        """No job is lost, no end forgotten, no completed job worked on again, and every lease and
        every issued fence is above those before."""
        stored = {
            str(row["id"]): row
            for row in rows(
                self.database,
                "select id, state, result from gateway.job_history"
                " union all select id, 'unfinished', null from gateway.jobs",
            )
        }
        assert set(self.made) <= set(stored)
        for job, number in self.completed.items():
            assert stored[job]["state"] == "succeeded", job
            assert json.loads(stored[job]["result"]) == number, job
        highest: dict[str, int] = {}
        for entity, job, fence in self.granted:
            assert fence > highest.get(entity, 0), (entity, job, fence)
            highest[entity] = fence
        assert self.fences == sorted(set(self.fences))
        assert with_connection(self.database, behind_nothing) == []
        return JobCounts(
            jobs=len(self.made),
            leases=len(self.granted),
            completed=len(self.completed),
            dropped=self.dropped,
            fences=len(self.fences),
            repeats=self.repeats,
        )


_JSON = (("Content-Type", "application/json"),)
_ENTITY = b'{"entity": "issued:1"}'
