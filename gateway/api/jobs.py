"""``/v1/jobs…``: enqueue, claim, heartbeat, end, and what operators do, over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never
from uuid import UUID, uuid4

from gateway.api import jobs_in, jobs_out
from gateway.api.door import Door, Question, Route, overloaded, reply, unavailable
from gateway.api.jobs_in import BATCH, BEATS
from gateway.core.budget import Shares
from gateway.core.keys import Refusal
from gateway.core.problems import Problem
from gateway.core.scopes import Work
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.jobs.service import Service
from gateway.jobs.values import Asker, NoSuchJob, NowIn, UnknownTool, WrongState
from gateway.proxy.body import Gone
from gateway.proxy.intake import Refused
from gateway.proxy.lanes import Lane, Reading
from gateway.proxy.respond import Receive, Send

__all__ = ["PATH", "ROUTES", "Jobs", "Lanes"]

PATH = "/v1/jobs"

_DOCUMENTS = 8 * 1024 * 1024
"""Bytes: as a command's body by default; 32 of the largest payloads, or 100 of 80 KiB."""

_LEASES = 2 * 1024 * 1024
"""Bytes: 1,000 leases with the longest names of plain text are 1.1 MB; what escapes make longer is
two heartbeats."""

_WORDS = 32 * 1024
"""Bytes: a reason of 4,000 characters, each escaped, is 24,000; 100 tools are 7,000."""

_TURN_S = 5.0
"""Longest wait for a turn, as for a fence."""

_BEAT_TURN_S = 2.0
"""Of a heartbeat: with a statement's 2.5 s it is below what its worker waits (5 s)."""


def _route(
    name: str, tail: str, scope: Work, does: str, limit: int, holds: str, **more: Any
) -> Route:
    method = more.pop("method", "POST")
    return Route(name, method, PATH + tail, scope, does, limit, holds, **more)


_REASON = "a reason of at most 4,000 characters"

ENQUEUE = _route(
    "enqueue",
    "",
    "enqueue",
    "enqueues jobs",
    _DOCUMENTS,
    f"at most {BATCH} jobs; send fewer at once",
)
CLAIM = _route("claim", "/claim", "work", "claims jobs", _WORDS, f"at most {BATCH} tools")
HEARTBEAT = _route(
    "heartbeat",
    "/heartbeat",
    "work",
    "renews leases",
    _LEASES,
    f"at most {BEATS} leases; send fewer at once",
    begins=False,
)
END = _route(
    "end",
    "/end",
    "work",
    "ends leases",
    _DOCUMENTS,
    f"at most {BATCH} ends; send fewer at once",
    begins=False,
)
SESSION = _route(
    "cancel-session", "/cancel", "operate", "cancels a session's jobs", _WORDS, _REASON
)
SHOW = _route(
    "show", "/{id}", "enqueue", "shows a job", _WORDS, "nothing", method="GET", begins=False
)
CANCEL = _route("cancel", "/{id}/cancel", "operate", "cancels a job", _WORDS, _REASON)
RETRY = _route(
    "retry",
    "/{id}/retry",
    "operate",
    "queues a failed or cancelled job again",
    _WORDS,
    _REASON,
)
APPROVE = _route("approve", "/{id}/approve", "operate", "lets a waiting stage run", _WORDS, _REASON)

ROUTES = (ENQUEUE, SHOW, CLAIM, HEARTBEAT, END, CANCEL, RETRY, APPROVE, SESSION)

_PLAIN = {route.path.encode("ascii"): route for route in (ENQUEUE, CLAIM, HEARTBEAT, END, SESSION)}
_OF_JOB = {b"": SHOW, b"/cancel": CANCEL, b"/retry": RETRY, b"/approve": APPROVE}

# Any plain word is taken for an id, so that a misspelt one is told so; what is percent-encoded is
# no path of ours.
_JOB = re.compile(rb"/v1/jobs/([0-9A-Za-z._-]{1,64})(/cancel|/retry|/approve|)")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


@dataclass(frozen=True, slots=True)
class Lanes:
    """Turns at the database: heartbeats wait for no end, neither of them for claims, and none of
    these for what makes and changes jobs."""

    beats: Lane
    ends: Lane
    claims: Lane
    others: Lane

    @classmethod
    def of_shares(cls, shares: Shares) -> Lanes:
        return cls(
            beats=Lane(shares.beats, _BEAT_TURN_S),
            ends=Lane(shares.ends, _TURN_S),
            claims=Lane(shares.claims, _TURN_S),
            others=Lane(shares.others, _TURN_S),
        )

    def of(self, route: Route) -> Lane:
        if route is HEARTBEAT:
            return self.beats
        if route is END:
            return self.ends
        return self.claims if route is CLAIM else self.others


@dataclass(frozen=True, slots=True)
class _Good:
    status: int
    body: jobs_out.Out


_Answer: TypeAlias = _Good | Problem


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be done in a turn. ``own``: the keys, ids and entities that it is about (see
    ``Lane``), so that enqueues or ends that wait for one lock take one turn, whatever else they
    name."""

    run: Callable[[], Awaitable[_Answer]]
    own: frozenset[Hashable] = frozenset()


class Jobs:
    """The ASGI application of these paths; ``route_of`` says whether a path is one."""

    def __init__(self, door: Door, service: Service, lanes: Lanes, reading: Reading) -> None:
        self._door = door
        self._service = service
        self._lanes = lanes
        self._reading = reading

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        await self._door.serve(scope, send, lambda noted: self._serve(scope, receive, noted))

    @staticmethod
    def serves(raw_path: bytes) -> bool:
        """Whether a path, as it came, is one of these."""
        return raw_path.startswith(b"/v1/") and _found(raw_path) is not None

    async def _serve(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        found = _found(scope["raw_path"])
        assert found is not None
        route, job = found
        taken = await self._door.take(route, scope, receive)
        if isinstance(taken, Question):
            try:
                answer = await self._answer(route, job, taken)
            finally:
                taken.held.close()
            if isinstance(answer, _Good):
                await reply(answer.status, jobs_out.document(answer.body), send)
                return
            taken = Refused(taken.identity, answer)
        if not isinstance(taken, Gone):
            await self._door.refuse(
                route, taken, scope, receive, send, event="jobs_refused", asked=route.name
            )

    async def _answer(self, route: Route, job: str, asked: Question) -> _Answer:
        """What it comes to, or the problem."""
        lane, tenant = self._lanes.of(route), asked.principal.tenant
        until = asyncio.get_running_loop().time() + lane.wait_s  # for both turns
        size = len(asked.body)
        work = await self._reading.run(size, tenant, lambda: self._work(route, job, asked), until)
        if work is None:
            return _FULL
        if isinstance(work, Problem):
            return work
        try:
            return await lane.run(work.run, tenant, work.own, until) or _FULL
        except (StoreUnavailable, AnswerLost) as error:
            return unavailable(error, "nothing was done", "it may have been done")

    def _work(self, route: Route, job: str, asked: Question) -> _Work | Problem:
        """What is to be done at the database, once the body is read."""
        if route is ENQUEUE:
            return self._enqueue(asked)
        if route is CLAIM:
            return self._claim(asked)
        if route is HEARTBEAT:
            return self._heartbeat(asked)
        if route is END:
            return self._end(asked)
        if route is SESSION:
            return self._cancel_session(asked)
        if not _UUID.fullmatch(job):
            return _NOT_AN_ID
        if route is SHOW:
            return self._show(asked, UUID(job))
        return self._operate(route, asked, UUID(job))

    def _enqueue(self, asked: Question) -> _Work | Problem:
        jobs = jobs_in.read_jobs(asked.body, asked.headers, uuid4)
        if isinstance(jobs, Refusal):
            return _problem(jobs)

        async def work() -> _Answer:
            try:
                found = await self._service.enqueue(_asker(asked), jobs)
            except ValueError as error:
                return Problem("request-invalid", f"Correct the body: {error}.")
            if isinstance(found, UnknownTool):
                return Problem("tool-unknown", found.detail)
            created = any(each.created for each in found)
            return _Good(201 if created else 200, jobs_out.enqueued(found))

        return _Work(work, frozenset(name for each in jobs for name in (each.key, each.id)))

    def _claim(self, asked: Question) -> _Work | Problem:
        wish = jobs_in.read_claim(asked.body, asked.headers)
        if isinstance(wish, Refusal):
            return _problem(wish)

        async def work() -> _Answer:
            asker = _asker(asked, wish.worker)
            found = await self._service.claim(asker, wish.limit, wish.claim, wish.tools)
            if isinstance(found, UnknownTool):
                return Problem("tool-unknown", found.detail)
            return _Good(200, jobs_out.leases(found))

        return _Work(work)

    def _heartbeat(self, asked: Question) -> _Work | Problem:
        beat = jobs_in.read_beat(asked.body, asked.headers)
        if isinstance(beat, Refusal):
            return _problem(beat)

        async def work() -> _Answer:
            found = await self._service.heartbeat(_asker(asked, beat.worker), beat.leases)
            return _Good(200, jobs_out.beats(beat.leases, found))

        return _Work(work)

    def _end(self, asked: Question) -> _Work | Problem:
        batch = jobs_in.read_ends(asked.body, asked.headers)
        if isinstance(batch, Refusal):
            return _problem(batch)

        async def work() -> _Answer:
            found = await self._service.end(_asker(asked, batch.worker), batch.ends)
            return _Good(200, jobs_out.ended(batch.ends, found))

        held = [each.reference.held for each in batch.ends]
        return _Work(work, frozenset(name for each in held for name in (each.entity, each.job)))

    def _cancel_session(self, asked: Question) -> _Work | Problem:
        wish = jobs_in.read_session(asked.body, asked.headers)
        if isinstance(wish, Refusal):
            return _problem(wish)

        async def work() -> _Answer:
            found = await self._service.cancel_session(_asker(asked), wish.session, wish.reason)
            return _Good(200, {"cancelled": found.cancelled, "left": found.left})

        return _Work(work)

    def _show(self, asked: Question, job: UUID) -> _Work:
        async def work() -> _Answer:
            found = await self._service.show(_asker(asked), job)
            return _missing(job) if found is None else _Good(200, jobs_out.shown(found))

        return _Work(work)

    def _operate(self, route: Route, asked: Question, job: UUID) -> _Work | Problem:
        reason = jobs_in.read_reason(asked.body, asked.headers)
        if isinstance(reason, Refusal):
            return _problem(reason)
        if route is CANCEL:
            does = self._service.cancel
        else:
            does = self._service.retry if route is RETRY else self._service.approve

        async def work() -> _Answer:
            found = await does(_asker(asked), job, reason)
            match found:
                case NowIn(state):
                    return _Good(200, {"job": job, "state": state})
                case WrongState(state):
                    return _wrong_state(route, state)
                case NoSuchJob():
                    return _missing(job)
                case _:
                    assert_never(found)

        return _Work(work, frozenset({job}))


def _found(raw_path: bytes) -> tuple[Route, str] | None:
    route = _PLAIN.get(raw_path)
    if route is not None:
        return route, ""
    match = _JOB.fullmatch(raw_path)
    return None if match is None else (_OF_JOB[match[2]], match[1].decode("ascii"))


def _asker(asked: Question, worker: str | None = None) -> Asker:
    principal = asked.principal
    return Asker(
        principal.tenant,
        principal.tenant_name,
        principal.name,
        asked.identity.request_id,
        worker,
    )


def _problem(refusal: Refusal) -> Problem:
    return Problem(refusal.type, refusal.detail)


def _missing(job: UUID) -> Problem:
    return Problem("job-unknown", f"Look at the id: this gateway key's tenant has no job {job}.")


def _wrong_state(route: Route, state: str) -> Problem:
    return Problem(
        "job-state",
        f"{_FITS[route.name]} This one is {state}.",
        members={"state": state},
    )


_FITS = {
    "cancel": "Only an unfinished job can be cancelled.",
    "retry": "Only a failed or cancelled job can be queued again.",
    "approve": "Only a waiting stage can be approved.",
}
_NOT_AN_ID = Problem("job-unknown", "Send the id that enqueuing gave: ids of jobs are uuids.")
_FULL = overloaded("ask this gateway process about jobs at once")
