"""What both workers do with their job, whichever queue they have it from.

W1 sends the first effect, waits for its go-ahead and sends the second one. W2 sends both and keeps
the job until it is told to end. The word is a line on standard input; what happens is a JSON line
on standard output.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import httpx

from gateway.drill.upstream import WORKER_FIELD

__all__ = ["NAME", "STALLED_S", "VARIANT", "perform", "say"]

NAME = os.environ["PEER_NAME"]
VARIANT = os.environ["PEER_VARIANT"]
PROVIDER = os.environ["PEER_PROVIDER"]
SUBJECT = os.environ["PEER_SUBJECT"]

STALLED_S = 4
"""After so long without a heartbeat a worker counts as dead. Both queues say 30 by default; the
ratio to their heartbeats is kept."""

# A connection for each request, so that what the network holds can be told apart.
_HTTP = httpx.AsyncClient(
    base_url=PROVIDER,
    timeout=60,
    trust_env=False,
    limits=httpx.Limits(max_keepalive_connections=0),
)


def say(what: str, **more: object) -> None:
    print(json.dumps({"job": "job", "say": what, **more}), flush=True)


async def perform(job: object, fence: object) -> None:
    """The job. ``fence``: with the recipe, of this hand-out."""
    say("claimed", fence=fence)
    await effect(job, "capture", fence)
    if NAME == "W2":
        await effect(job, "notify", fence)
        say("holds")
        await asyncio.to_thread(sys.stdin.readline)
        return
    if VARIANT == "blocked-loop":
        say("blocked")
        sys.stdin.readline()
    else:
        await asyncio.to_thread(sys.stdin.readline)
    await effect(job, "notify", fence)
    say("tried")


async def effect(job: object, step: str, fence: object) -> None:
    headers = {WORKER_FIELD: NAME}
    if fence is not None:
        headers |= {"Idempotency-Key": f"{step}-{job}", "X-Execution-Fence": str(fence)}
    answer = await _HTTP.post(f"/effects/{SUBJECT}/{step}", headers=headers, json={"amount": 1200})
    say("answered", step=step, status=answer.status_code)
    if answer.status_code == 412:
        await asyncio.to_thread(sys.stdin.readline)  # a worker that stops, and fails nothing
