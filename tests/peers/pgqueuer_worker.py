"""A worker of pgqueuer, whose dequeue takes jobs without a heartbeat by itself."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import AsyncpgDriver, PgQueuer
from pgqueuer.domain.types import QueueExecutionMode

from tests.peers.part import NAME, STALLED_S, perform


async def effects(job: Any) -> None:
    headers = job.headers or {}
    await perform(job.id, headers.get("fence"))


async def main() -> None:
    connection = await asyncpg.connect(os.environ["PEER_DSN"])
    queue = PgQueuer(AsyncpgDriver(connection))
    queue.entrypoint("effects")(effects)
    # W1 ends when nothing is left to do, which tells that its result was written.
    mode = QueueExecutionMode.continuous if NAME == "W2" else QueueExecutionMode.drain
    await queue.run(
        batch_size=1,
        mode=mode,
        dequeue_timeout=timedelta(seconds=0.5),
        heartbeat_timeout=timedelta(seconds=STALLED_S),
    )


if __name__ == "__main__":
    asyncio.run(main())
