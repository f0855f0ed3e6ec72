"""A worker of procrastinate. W2 also does what its documentation calls retrying stalled jobs, once
a second in place of once a minute."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import procrastinate

from tests.peers.part import NAME, STALLED_S, perform

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["PEER_DSN"]))


@app.task(name="effects", pass_context=True)
async def effects(context: Any, fence: int | None = None) -> None:
    await perform(context.job.id, fence)


async def retry_stalled() -> None:
    while True:
        stalled = await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_S)
        for job in stalled:
            await app.job_manager.retry_job(job)
        await asyncio.sleep(1)


async def main() -> None:
    async with app.open_async():
        retrying = asyncio.create_task(retry_stalled()) if NAME == "W2" else None
        # W1 ends when nothing is left to do, which tells that its result was written.
        await app.run_worker_async(
            wait=NAME == "W2",
            update_heartbeat_interval=STALLED_S / 3,
            stalled_worker_timeout=STALLED_S,
            fetch_job_polling_interval=0.5,
        )
        if retrying is not None:
            retrying.cancel()


if __name__ == "__main__":
    asyncio.run(main())
