"""The drill's two workers, written with `gateway.worker` as anybody's would be.

Run by `fencegate worker run gateway.drill.worker:worker`. Environment: DRILL_NAME (W1, who loses
its lease, or W2, who takes over), DRILL_RUN. On standard output it says what it comes to, one JSON
object a line; on standard input it hears `{"job": ID}`: go on with that job.

W1 is a bad worker on purpose. It goes on although it was cancelled, and when its library refuses,
it sends by itself what it had prepared: to ask for its lease, for its second effect (under the
step's own key, and under another), and its result. Only the gateway is left to refuse that.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

import httpx

from gateway.drill.policy import MOUNT, TOOL, late_ids
from gateway.drill.upstream import WORKER_FIELD
from gateway.errors import FencegateError
from gateway.worker import Job, LeaseLost, OwnershipUnknown, Unretryable, Worker

__all__ = ["BODY", "worker"]

BODY = {"amount": 1200, "currency": "EUR"}

_NAME = os.environ.get("DRILL_NAME", "W1")
_RUN = os.environ.get("DRILL_RUN", "")
_URL = os.environ.get("FENCEGATE_URL", "http://127.0.0.1:8080")
_KEY = os.environ.get("FENCEGATE_KEY")

_REQUEST_S = 2.0
"""For a request through the library: inside the trust window of a lease of 6.5 s."""

_LATE_S = 60.0
"""For a request past the library: it may be held in the network for as long as a lease."""

_POLL_S = 0.05

worker = Worker()
_words: dict[str, threading.Event] = {}
_speaking = threading.Lock()


@worker.tool(TOOL)
async def effects(job: Job) -> object:
    if job.payload["run"] != _RUN:
        raise Unretryable("left over from another drill")
    _say(job, "claimed", fence=job.fence, attempt=job.attempt)
    return await (_take_over(job) if _NAME == "W2" else _lose(job))


async def _take_over(job: Job) -> object:
    """W2: both effects, then hold the lease until W1 has tried everything."""
    done = [await _effect(job, step) for step in ("capture", "notify")]
    ids = [answer.json()["id"] for answer in done]
    _say(
        job,
        "holds",
        replayed=[answer.headers["Idempotent-Replayed"] for answer in done],
        effects=ids,
    )
    while not _word(job.id).is_set():
        job.progress()
        await asyncio.sleep(_POLL_S)
    return {"by": _NAME, "effects": ids}


async def _lose(job: Job) -> object:
    """W1. It goes on in a task of its own, which nobody cancels; and it never returns, since
    whoever is free claims, and the next claim is to be W2's."""
    going_on = asyncio.create_task(_go_on(job))
    while True:
        try:
            await asyncio.wait([going_on])
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            _say(job, "cancelled")


async def _go_on(job: Job) -> None:
    """The first effect, then nothing until it is told to go on, then all that it can try."""
    late = _Late(job)
    word = _word(job.id)
    first = asyncio.create_task(_first_effect(job))
    if job.payload["variant"] != "killed":  # there all that it sends is on its way at once
        await first
    if job.payload["variant"] == "blocked-loop":
        _say(job, "blocked")
        word.wait()
    await asyncio.to_thread(word.wait)
    late.start()
    await _ask_the_library(job)
    await asyncio.to_thread(late.ended.wait)
    _say(job, "tried")


async def _first_effect(job: Job) -> None:
    try:
        answer = await _effect(job, "capture")
    except FencegateError as error:  # whatever its library makes of it, it goes on
        _say(job, "no-answer", error=type(error).__name__)
    else:
        _say(job, "captured", status=answer.status_code)


async def _ask_the_library(job: Job) -> None:
    try:
        answer = await _effect(job, "notify")
    except (LeaseLost, OwnershipUnknown) as error:
        _say(job, "library", refused=type(error).__name__)
    else:
        _say(job, "library", refused=None, status=answer.status_code)


async def _effect(job: Job, step: str) -> httpx.Response:
    answer: httpx.Response = await job.http.post(
        _path(job, step),
        step=step,
        json=BODY,
        timeout_s=_REQUEST_S,
        headers={WORKER_FIELD: _NAME},
    )
    return answer


class _Late:
    """What W1 sends past its library, each in a thread and over a connection of its own."""

    def __init__(self, job: Job) -> None:
        self.ended = threading.Event()
        self._job = job
        # Now, while the lease is good: the library need not help a worker that has lost it.
        self._headers = dict(job.headers("notify"))
        self._ids = late_ids(_RUN, job.payload["variant"])
        self._left = len(self._ids)
        self._counting = threading.Lock()

    def start(self) -> None:
        for what in self._ids:
            threading.Thread(target=self._send, args=(what,), daemon=True).start()

    def _send(self, what: str) -> None:
        path, headers, body = self._request(what)
        headers = {**headers, "X-Request-Id": self._ids[what]}
        if _KEY:
            headers["Authorization"] = f"Bearer {_KEY}"
        try:
            answer = httpx.post(
                _URL + path, headers=headers, json=body, timeout=_LATE_S, trust_env=False
            )
            _say(self._job, "answer", to=what, status=answer.status_code, body=answer.text)
        except httpx.HTTPError as error:
            _say(self._job, "answer", to=what, status=0, body=type(error).__name__)
        with self._counting:
            self._left -= 1
            if self._left == 0:
                self.ended.set()

    def _request(self, what: str) -> tuple[str, Mapping[str, str], Mapping[str, Any]]:
        job = self._job
        lease = {
            "job": job.id,
            "entity": job.entity,
            "fence": job.fence,
            "tool": job.tool,
            "attempt": job.attempt,
            "model": job.model,
            "provider": job.provider,
        }
        effect = {**self._headers, WORKER_FIELD: f"{_NAME} late"}
        match what:
            case "renewal":
                return "/v1/jobs/heartbeat", {}, {"worker": _NAME, "leases": [lease]}
            case "result":
                end = {"lease": lease, "how": "completed", "result": {"by": _NAME}}
                return "/v1/jobs/end", {}, {"worker": _NAME, "ends": [end]}
            case "effect":
                return _path(job, "notify"), effect, BODY
            case _:
                own = {"Idempotency-Key": self._ids[what]}
                return _path(job, "notify"), {**effect, **own}, BODY


def _path(job: Job, step: str) -> str:
    return f"{MOUNT}/effects/{job.entity.partition(':')[2]}/{step}"


def _say(job: Job, what: str, **more: object) -> None:
    line = {"job": job.id, "say": what, **more}
    with _speaking:  # several threads speak, and print writes a line in two parts
        print(json.dumps(line), flush=True)


def _listen() -> None:
    for line in sys.stdin:
        _word(json.loads(line)["job"]).set()


def _word(job: str) -> threading.Event:
    return _words.setdefault(job, threading.Event())


threading.Thread(target=_listen, name="words", daemon=True).start()
