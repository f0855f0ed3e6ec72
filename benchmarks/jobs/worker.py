"""One worker process that works until the queue is empty, and says what it cost.

python -m benchmarks.jobs.worker KIND AT_ONCE JOBS
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, PgQueuer
from pgqueuer.domain.types import QueueExecutionMode
from procrastinate import App, PsycopgConnector

from benchmarks.jobs.queues import TENANT, TOOL
from gateway.core.jobs import Complete, Held, Terms
from gateway.store.database import Database
from gateway.store.jobs import JobStore
from gateway.worker import Client, Worker
from gateway.worker.endings import Completed, body_of

__all__: list[str] = []

TERMS = [Terms(TOOL, 60_000, 3_600_000, 5, None, None)]

_CONNECTIONS = 20


def sdk(at_once: int, jobs: int) -> None:
    """``gateway.worker`` as it ships, told to stop by the last job."""
    worker, done = Worker(os.environ["BENCH_URL"], os.environ["BENCH_KEY"]), 0

    @worker.tool(TOOL)
    async def noop(job: object) -> None:
        nonlocal done
        done += 1
        if done == jobs:
            os.kill(os.getpid(), signal.SIGTERM)

    worker.run(concurrency=at_once)


def api(at_once: int, jobs: int) -> None:
    """Claims and ends of so many by the HTTP routes, two at a time where they are batches: what
    a worker of one's own can do."""

    async def one(client: Client) -> None:
        while leases := await client.claim("w", str(uuid4()), at_once, [TOOL]):
            end = Completed("null")
            await client.end("w", [(each.job, body_of(each.reference, end)) for each in leases])

    async def both() -> None:
        async with Client(os.environ["BENCH_URL"], os.environ["BENCH_KEY"]) as client:
            await asyncio.gather(*(one(client) for _ in range(1 if at_once == 1 else 2)))

    uvloop.run(both())


def store(at_once: int, jobs: int) -> None:
    """The statements, from one connection."""

    async def work() -> None:
        database = await Database.open(os.environ["BENCH_DSN"], size=1)
        tenant = (await database.fetch(TENANT))[0][0]
        made = JobStore(database)
        while leases := await made.claim(tenant, at_once, "w", uuid4(), TERMS):
            held = [Held(each.entity, each.job, each.fence) for each in leases]
            await made.end(tenant, "bench", [Complete(each, b"null") for each in held])
        await database.close()

    uvloop.run(work())


def procrastinate(at_once: int, jobs: int) -> None:
    """Its connector for async apps, with a connection for each job at once."""
    size = min(at_once, _CONNECTIONS) + 1  # one listens
    connector = PsycopgConnector(conninfo=os.environ["BENCH_DSN"], min_size=size, max_size=size)
    app = App(connector=connector)

    @app.task(name=TOOL)
    async def noop(number: int) -> None: ...

    async def work() -> None:
        async with app.open_async():
            await app.run_worker_async(
                concurrency=at_once, wait=False, install_signal_handlers=False
            )

    uvloop.run(work())


def pgqueuer(at_once: int, jobs: int, managers: int = 1) -> None:
    """Its asyncpg driver with a connection for each manager, as its own benchmark has them."""

    async def one() -> None:
        connection = await asyncpg.connect(os.environ["BENCH_DSN"])
        queue = PgQueuer(AsyncpgDriver(connection))

        @queue.entrypoint(TOOL)
        async def noop(job: object) -> None: ...

        await queue.run(
            batch_size=at_once,
            mode=QueueExecutionMode.drain,
            dequeue_timeout=timedelta(seconds=0.5),
        )
        await connection.close()

    async def work() -> None:
        await asyncio.gather(*(one() for _ in range(managers)))

    uvloop.run(work())


def pgqueuer_5(at_once: int, jobs: int) -> None:
    """Five of them in one process, the number of its own benchmark."""
    pgqueuer(at_once, jobs, 5)


KINDS: dict[str, Callable[[int, int], None]] = {
    each.__name__: each for each in (sdk, api, store, procrastinate, pgqueuer, pgqueuer_5)
}


def main() -> None:
    kind, at_once, jobs = sys.argv[1:]
    used_s = _used_s()  # what was imported does not count
    KINDS[kind](int(at_once), int(jobs))
    print(json.dumps({"cpu_s": _used_s() - used_s}))


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
