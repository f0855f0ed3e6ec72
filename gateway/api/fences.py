"""``POST /v1/fences``: a fence for somebody else's queue or lock, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Any, Protocol, assert_never
from weakref import WeakValueDictionary

from starlette.responses import JSONResponse

from gateway.core.answers import entity_leased
from gateway.core.auth import Principal
from gateway.core.issuing import EntityLeased, Issued, entity_asked_for
from gateway.core.keys import Refusal
from gateway.core.model import Headers
from gateway.core.problems import Problem
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.observe import log
from gateway.observe.metrics import Metrics
from gateway.proxy.answer import of_problem
from gateway.proxy.body import BODY_S, Gone, TooLarge, TooSlow, declared_length, read_body
from gateway.proxy.endpoint import STOPPING, respond_unread
from gateway.proxy.intake import Identity, Keys, Refused, principal_of, request_id_of
from gateway.proxy.respond import Receive, Send, respond

__all__ = ["BODY_LIMIT", "PATH", "Fences"]

PATH = "/v1/fences"

BODY_LIMIT = 4096
"""Bytes. An entity of 255 characters is 1,530 where each is escaped; the rest is room."""

_TURN_S = 5.0
"""Longest wait for one of the database connections that may issue; as long as for any connection
to an upstream."""


class Issues(Protocol):
    """``gateway.store.fences.FenceStore``."""

    async def issue(self, tenant: int, entity: str) -> Issued | EntityLeased: ...


@dataclass(frozen=True, slots=True)
class _Asked:
    identity: Identity
    principal: Principal
    entity: str


class Fences:
    """The ASGI application of that one path.

    ``at_once``: how many may ask the database together. Below the size of the pool, so that
    entities that somebody's long transaction has locked do not keep every connection from admits.
    One of them for each entity: the row's lock lets one through at a time anyway, and those who ask
    for one locked entity leave the rest to others.
    """

    def __init__(
        self,
        keys: Keys,
        store: Issues,
        metrics: Metrics,
        stopping: Callable[[], bool],
        *,
        at_once: int,
    ) -> None:
        self._keys = keys
        self._store = store
        self._metrics = metrics
        self._stopping = stopping
        self._turns = asyncio.Semaphore(at_once)
        self._of_entity = WeakValueDictionary[tuple[int, str], asyncio.Lock]()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        taken = await self._take(scope, receive)
        match taken:
            case Gone():
                return
            case Refused():
                await self._refuse(taken, scope, receive, send)
            case _Asked():
                result = await self._issue(taken)
                if isinstance(result, Problem):
                    refused = Refused(taken.identity, result)
                    await self._refuse(refused, scope, receive, send, entity=taken.entity)
                else:
                    await self._grant(taken, result, scope, receive, send)

    async def _take(self, scope: Mapping[str, Any], receive: Receive) -> _Asked | Refused | Gone:
        headers: Headers = tuple(scope["headers"])
        identity = Identity(request_id_of(headers))
        principal = principal_of(self._keys, headers)
        if isinstance(principal, Problem):
            return Refused(identity, principal, unread=True)
        identity = replace(identity, principal=principal)
        if scope["method"] != "POST":
            return Refused(identity, _METHOD, unread=True)
        if self._stopping():
            return Refused(identity, STOPPING, unread=True)
        if declared_length(headers) > BODY_LIMIT:
            return Refused(identity, _TOO_LARGE, unread=True)
        body = await read_body(receive, BODY_LIMIT)
        match body:
            case Gone():
                return body
            case TooLarge():
                return Refused(identity, _TOO_LARGE, unread=True, asked=True)
            case TooSlow():
                return Refused(identity, _TOO_SLOW, unread=True, asked=True)
            case bytes():
                return self._read(body, headers, identity)

    def _read(self, body: bytes, headers: Headers, identity: Identity) -> _Asked | Refused:
        principal = principal_of(self._keys, headers)  # the key may have been revoked meanwhile
        if isinstance(principal, Problem):
            return Refused(identity, principal)
        entity = entity_asked_for(body, headers)
        if isinstance(entity, Refusal):
            return Refused(identity, Problem(entity.type, entity.detail))
        return _Asked(identity, principal, entity)

    async def _issue(self, asked: _Asked) -> Issued | Problem:
        wanted = (asked.principal.tenant, asked.entity)
        own = self._of_entity.setdefault(wanted, asyncio.Lock())
        try:
            async with asyncio.timeout(_TURN_S) as limit, own, self._turns:
                limit.reschedule(None)
                return await self._ask(asked)
        except TimeoutError:
            return _FULL

    async def _ask(self, asked: _Asked) -> Issued | Problem:
        try:
            result = await self._store.issue(asked.principal.tenant, asked.entity)
        except StoreUnavailable as error:
            return _unavailable(f"no fence was issued, because {error}")
        except AnswerLost as error:
            return _unavailable(f"a fence may have been issued and its answer was lost ({error})")
        match result:
            case Issued():
                return result
            case EntityLeased():
                return entity_leased(result)
            case _:
                assert_never(result)

    async def _grant(
        self,
        asked: _Asked,
        issued: Issued,
        scope: Mapping[str, Any],
        receive: Receive,
        send: Send,
    ) -> None:
        self._metrics.fence_issued()
        log.event(
            "fence_issued",
            request_id=asked.identity.request_id,
            tenant=asked.principal.tenant_name,
            principal=asked.principal.name,
            entity=asked.entity,
            fence=issued.fence,
        )
        answer = JSONResponse(
            {"entity": asked.entity, "fence": issued.fence},
            status_code=201,
            headers={"cache-control": "no-store", "date": formatdate(usegmt=True)},
        )
        await answer(scope, receive, send)  # type: ignore[arg-type]

    async def _refuse(
        self,
        refused: Refused,
        scope: Mapping[str, Any],
        receive: Receive,
        send: Send,
        *,
        entity: str | None = None,
    ) -> None:
        problem, identity = refused.problem, refused.identity
        if (problem.retry or problem.kind.retry) == "same-key":
            problem = replace(problem, retry="wait")  # the question has no key
        principal = identity.principal
        self._metrics.problem(problem.type)
        log.event(
            "fence_not_issued",
            request_id=identity.request_id,
            tenant=principal.tenant_name if principal else None,
            principal=principal.name if principal else None,
            entity=entity,
            problem=problem.type,
        )
        answer = of_problem(problem, "rejected", identity.request_id)
        more = [(b"cache-control", b"no-store")]
        if problem.type == "method-not-allowed":
            more.append((b"allow", b"POST"))
        answer = replace(answer, headers=(*answer.headers, *more))
        if refused.unread:
            await respond_unread(answer, scope, receive, send, asked=refused.asked)
        else:
            await respond(answer, send)


def _unavailable(why: str) -> Problem:
    # A fence that nobody heard of does no harm: the next one is higher, and the only one held.
    return Problem("store-unavailable", f"Ask again later: {why}.", retry_after_s=1)


_METHOD = Problem("method-not-allowed", f"Send POST: {PATH} issues a fence.")
_TOO_SLOW = Problem("request-invalid", f"Send the whole body within {BODY_S:.0f} s of the head.")
_TOO_LARGE = Problem(
    "body-too-large",
    f"Send at most {BODY_LIMIT} bytes: one entity of at most 255 characters.",
    members={"limit": BODY_LIMIT},
)
_FULL = Problem(
    "overloaded",
    "Ask again later: too many ask this gateway process for fences, or for one of this entity.",
    retry_after_s=1,
)
