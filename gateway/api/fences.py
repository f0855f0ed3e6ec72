"""``POST /v1/fences``: a fence for somebody else's queue or lock, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol, assert_never

from gateway.api.door import Door, Question, Route, overloaded, reply, unavailable
from gateway.core.answers import entity_leased
from gateway.core.issuing import EntityLeased, Issued, entity_asked_for
from gateway.core.keys import Refusal
from gateway.core.problems import Problem
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.observe import log
from gateway.observe.metrics import Metrics
from gateway.proxy.body import Gone
from gateway.proxy.intake import Refused
from gateway.proxy.lanes import Lane
from gateway.proxy.respond import Receive, Send

__all__ = ["BODY_LIMIT", "PATH", "Fences"]

PATH = "/v1/fences"

BODY_LIMIT = 4096
"""Bytes. An entity of 255 characters is 1,530 where each is escaped; the rest is room."""

_TURN_S = 5.0
"""Longest wait for one of the database connections that may issue; as long as for any connection
to an upstream."""

_ROUTE = Route(
    "fences",
    "POST",
    PATH,
    "work",
    "issues a fence",
    BODY_LIMIT,
    "one entity of at most 255 characters",
)


class Issues(Protocol):
    """``gateway.store.fences.FenceStore``."""

    async def issue(self, tenant: int, entity: str) -> Issued | EntityLeased: ...


class Fences:
    """The ASGI application of that one path.

    ``at_once``: how many may ask the database together. Below the size of the pool, so that
    entities that somebody's long transaction has locked do not keep every connection from admits.
    One of them for each entity: the row's lock lets one through at a time anyway, and those who ask
    for one locked entity leave the rest to others.
    """

    def __init__(self, door: Door, store: Issues, metrics: Metrics, *, at_once: int) -> None:
        self._door = door
        self._store = store
        self._metrics = metrics
        self._lane = Lane(at_once, _TURN_S)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        await self._door.serve(scope, send, lambda noted: self._serve(scope, receive, noted))

    async def _serve(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        entity: str | None = None
        taken = await self._door.take(_ROUTE, scope, receive)
        if isinstance(taken, Question):
            taken.held.close()  # 4 KiB are not worth the wait
            asked = entity_asked_for(taken.body, taken.headers)
            if isinstance(asked, Refusal):
                taken = Refused(taken.identity, Problem(asked.type, asked.detail))
            else:
                entity = asked
                result = await self._issue(taken, entity)
                if isinstance(result, Issued):
                    await self._grant(taken, entity, result, send)
                    return
                taken = Refused(taken.identity, result)
        if not isinstance(taken, Gone):
            await self._door.refuse(
                _ROUTE, taken, scope, receive, send, event="fence_not_issued", entity=entity
            )

    async def _issue(self, asked: Question, entity: str) -> Issued | Problem:
        tenant = asked.principal.tenant
        own = frozenset({entity})
        return await self._lane.run(lambda: self._ask(tenant, entity), tenant, own) or _FULL

    async def _ask(self, tenant: int, entity: str) -> Issued | Problem:
        try:
            result = await self._store.issue(tenant, entity)
        except (StoreUnavailable, AnswerLost) as error:
            # A fence that nobody heard of does no harm: the next one is higher, and the only one
            # that is held.
            return unavailable(error, "no fence was issued", "a fence may have been issued")
        match result:
            case Issued():
                return result
            case EntityLeased():
                return entity_leased(result)
            case _:
                assert_never(result)

    async def _grant(self, asked: Question, entity: str, issued: Issued, send: Send) -> None:
        self._metrics.fence_issued()
        log.event(
            "fence_issued",
            request_id=asked.identity.request_id,
            tenant=asked.principal.tenant_name,
            principal=asked.principal.name,
            entity=entity,
            fence=issued.fence,
        )
        body = json.dumps({"entity": entity, "fence": issued.fence}, separators=(",", ":"))
        await reply(201, body.encode("ascii"), send)


_FULL = overloaded("ask this gateway process for fences, or for one of this entity")
