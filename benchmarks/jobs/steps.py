"""The statements of a queue alone, one after the other from one client, each timed by itself.

python -m benchmarks.jobs.steps KIND
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID, uuid4

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, Queries
from pgqueuer.ports.repository import EntrypointExecutionParameter
from procrastinate import App, PsycopgConnector
from procrastinate.jobs import Status
from procrastinate.types import JSONValue

from benchmarks.jobs.queues import TENANT, TOOL
from benchmarks.jobs.worker import TERMS
from gateway.core.jobs import Complete, Held, NewJob
from gateway.store.database import Database
from gateway.store.jobs import JobStore
from gateway.worker import Client
from gateway.worker.endings import Completed, body_of

__all__ = ["BATCH", "BEATEN", "SINGLES"]

SINGLES = 200
"""Jobs that are enqueued, claimed and completed one by one."""

BATCH = 100

_BATCHES = 10

BEATEN = 200
"""Running jobs of one worker, which its heartbeats are about."""

_BEATS = 20


class Hand(Protocol):
    """What a queue lets one client do."""

    async def enqueue(self, count: int) -> None: ...
    async def claim(self, count: int) -> Sequence[Any]: ...
    async def beat(self, claimed: Sequence[Any]) -> None: ...
    async def complete(self, claimed: Sequence[Any]) -> None: ...


class OfStore:
    def __init__(self, store: JobStore, tenant: int) -> None:
        self._store, self._tenant = store, tenant

    async def enqueue(self, count: int) -> None:
        ids = [uuid4() for _ in range(count)]
        jobs = [NewJob(each, str(each), TOOL, b"{}") for each in ids]
        await self._store.enqueue(self._tenant, jobs)

    async def claim(self, count: int) -> Sequence[Held]:
        leases = await self._store.claim(self._tenant, count, "w", uuid4(), TERMS)
        return [Held(each.entity, each.job, each.fence) for each in leases]

    async def beat(self, claimed: Sequence[Held]) -> None:
        await self._store.renew(self._tenant, claimed)

    async def complete(self, claimed: Sequence[Held]) -> None:
        await self._store.end(self._tenant, "b", [Complete(each, b"null") for each in claimed])


class OfApi:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def enqueue(self, count: int) -> None:
        wishes = [{"tool": TOOL, "payload": {}} for _ in range(count)]
        await self._client._ask("POST", "/v1/jobs", json.dumps({"jobs": wishes}).encode())

    async def claim(self, count: int) -> Sequence[Any]:
        return await self._client.claim("w", str(uuid4()), count, [TOOL])

    async def beat(self, claimed: Sequence[Any]) -> None:
        await self._client.heartbeat("w", claimed)

    async def complete(self, claimed: Sequence[Any]) -> None:
        end = Completed("null")
        await self._client.end("w", [(each.job, body_of(each.reference, end)) for each in claimed])


class OfProcrastinate:
    """Jobs are claimed and completed one by one; a heartbeat is about the worker."""

    def __init__(self, app: App, worker: int) -> None:
        self._app, self._worker = app, worker

    async def enqueue(self, count: int) -> None:
        await self._app.configure_task(TOOL).batch_defer_async(*_arguments(count))

    async def claim(self, count: int) -> Sequence[Any]:
        fetch = self._app.job_manager.fetch_job
        return [await fetch(queues=None, worker_id=self._worker) for _ in range(count)]

    async def beat(self, claimed: Sequence[Any]) -> None:
        await self._app.job_manager.update_heartbeat(self._worker)

    async def complete(self, claimed: Sequence[Any]) -> None:
        for each in claimed:
            await self._app.job_manager.finish_job(each, Status.SUCCEEDED, delete_job=False)


def _arguments(count: int) -> list[dict[str, JSONValue]]:
    return [{"number": number} for number in range(count)]


class OfPgQueuer:
    def __init__(self, queries: Queries) -> None:
        self._queries, self._manager = queries, UUID(int=1)

    async def enqueue(self, count: int) -> None:
        await self._queries.enqueue([TOOL] * count, [b"{}"] * count, [0] * count)

    async def claim(self, count: int) -> Sequence[Any]:
        return await self._queries.dequeue(
            batch_size=count,
            entrypoints={TOOL: EntrypointExecutionParameter(0)},  # type: ignore[dict-item]
            queue_manager_id=self._manager,  # type: ignore[arg-type]
            global_concurrency_limit=None,
            heartbeat_timeout=timedelta(seconds=30),
        )

    async def beat(self, claimed: Sequence[Any]) -> None:
        await self._queries.update_heartbeat([each.id for each in claimed])

    async def complete(self, claimed: Sequence[Any]) -> None:
        await self._queries.log_jobs([(each, "successful", None) for each in claimed])


class Timed:
    """Statements of ``hand`` in a row; rates in jobs a second."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self._claimed: list[Sequence[Any]] = []

    async def enqueue(self, count: int, times: int) -> float:
        began = time.perf_counter()
        for _ in range(times):
            await self._hand.enqueue(count)
        return count * times / (time.perf_counter() - began)

    async def claim(self, count: int, times: int) -> float:
        began = time.perf_counter()
        self._claimed = [await self._hand.claim(count) for _ in range(times)]
        took_s = time.perf_counter() - began
        assert sum(map(len, self._claimed)) == count * times, "a claim found too few jobs"
        return count * times / took_s

    async def beat(self, jobs: int, times: int) -> float:
        held = [each for claimed in self._claimed for each in claimed][:jobs]
        began = time.perf_counter()
        for _ in range(times):
            await self._hand.beat(held)
        return jobs * times / (time.perf_counter() - began)

    async def complete(self) -> float:
        began = time.perf_counter()
        for each in self._claimed:
            await self._hand.complete(each)
        return sum(map(len, self._claimed)) / (time.perf_counter() - began)


async def measured(hand: Hand) -> dict[str, float]:
    """Rates by name. The first of each kind do not count: they make connections and plans."""
    timed, found = Timed(hand), dict[str, float]()
    for count, times, name in ((1, SINGLES, ""), (BATCH, _BATCHES, f"_{BATCH}")):
        await timed.enqueue(count, 10)
        await timed.claim(count, 10)
        await timed.complete()
        found[f"enqueue{name}_rate"] = await timed.enqueue(count, times)
        found[f"claim{name}_rate"] = await timed.claim(count, times)
        if count == BATCH:
            found["beat_rate"] = await timed.beat(BEATEN, _BEATS)
        found[f"complete{name}_rate"] = await timed.complete()
    return found


async def store() -> dict[str, float]:
    database = await Database.open(os.environ["BENCH_DSN"], size=1)
    tenant = (await database.fetch(TENANT))[0][0]
    return await measured(OfStore(JobStore(database), tenant))


async def api() -> dict[str, float]:
    async with Client(os.environ["BENCH_URL"], os.environ["BENCH_KEY"]) as client:
        return await measured(OfApi(client))


async def procrastinate() -> dict[str, float]:
    app = App(connector=PsycopgConnector(conninfo=os.environ["BENCH_DSN"]))

    @app.task(name=TOOL)
    async def noop(number: int) -> None: ...

    async with app.open_async():
        return await measured(OfProcrastinate(app, await app.job_manager.register_worker()))


async def pgqueuer() -> dict[str, float]:
    connection = await asyncpg.connect(os.environ["BENCH_DSN"])
    return await measured(OfPgQueuer(Queries(AsyncpgDriver(connection))))


if __name__ == "__main__":
    kinds = {each.__name__: each for each in (store, api, procrastinate, pgqueuer)}
    print(json.dumps(uvloop.run(asyncio.wait_for(kinds[sys.argv[1]](), 50))))
