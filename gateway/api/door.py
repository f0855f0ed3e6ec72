"""What the gateway's own routes share: who asks, the body, and answers.

The checks come in this order: keys not known (503) or no valid key (401), method (405), scope
(403), stopping (503), size (413), then the body itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Any

from gateway.core.answers import rows_lost
from gateway.core.auth import Principal
from gateway.core.forwarded import NOBODY, Trusted
from gateway.core.model import Headers
from gateway.core.problems import Problem
from gateway.core.scopes import Work, forbidden
from gateway.errors import AnswerLost, RowsLost, StoreUnavailable
from gateway.limits import BODY_S
from gateway.observe import log
from gateway.observe.metrics import Metrics
from gateway.proxy.answer import of_problem
from gateway.proxy.body import Gone, TooLarge, TooSlow, declared_length, read_body
from gateway.proxy.endpoint import STOPPING, respond_unread
from gateway.proxy.intake import (
    Identity,
    Keys,
    Refused,
    allowed,
    head_of,
    identity_of,
    principal_of,
    request_id_of,
)
from gateway.proxy.respond import Message, Receive, Send, respond
from gateway.proxy.shares import Held, Memory

__all__ = ["Door", "Question", "Route", "overloaded", "reply", "unavailable"]


@dataclass(frozen=True, slots=True)
class Route:
    """One operation. ``path``: as it is written in documents. ``scope``: what a key needs for it.
    ``limit``: bytes of its body, and ``holds`` what fits into them. ``begins``: it begins
    something, so not while stopping."""

    name: str
    method: str
    path: str
    scope: Work
    does: str
    limit: int
    holds: str
    begins: bool = True


@dataclass(frozen=True, slots=True)
class Question:
    """One request that may be answered, its body read whole. ``held``: the memory of that."""

    identity: Identity
    principal: Principal
    headers: Headers
    body: bytes
    held: Held


class Door:
    """The way in and out of every route."""

    def __init__(
        self,
        keys: Keys,
        metrics: Metrics,
        stopping: Callable[[], bool],
        memory: Memory,
        trusted: Trusted = NOBODY,
    ) -> None:
        self._keys = keys
        self._metrics = metrics
        self._stopping = stopping
        self._trusted = trusted
        self._memory = memory

    async def take(
        self, route: Route, scope: Mapping[str, Any], receive: Receive
    ) -> Question | Refused | Gone:
        """The question, or why it is not answered."""
        headers = head_of(scope)
        identity = identity_of(scope, headers, self._trusted)
        principal = principal_of(self._keys.current(), headers)
        if isinstance(principal, Problem):
            return Refused(identity, principal, unread=True)
        identity = replace(identity, principal=principal)
        if scope["method"] != route.method:
            return Refused(identity, _method(route), unread=True)
        barred = forbidden(principal, route.scope)
        if barred is not None:
            return Refused(identity, barred, unread=True)
        if route.begins and self._stopping():
            return Refused(identity, STOPPING, unread=True)
        if declared_length(headers) > route.limit:
            return Refused(identity, _too_large(route), unread=True)
        self._memory.account(scope, principal.tenant)
        full = self._memory.full(principal.tenant, declared_length(headers))
        if full is not None:
            return Refused(identity, full, unread=True)
        held = self._memory.hold(principal.tenant)
        body = await read_body(receive, route.limit, held)
        taken = self._read(route, identity, headers, body, held)
        if not isinstance(taken, Question):
            held.close()
        return taken

    def _read(
        self,
        route: Route,
        identity: Identity,
        headers: Headers,
        body: bytes | TooLarge | TooSlow | Gone | Problem,
        held: Held,
    ) -> Question | Refused | Gone:
        match body:
            case Gone():
                return body
            case TooLarge():
                return Refused(identity, _too_large(route), unread=True, asked=True)
            case TooSlow():
                return Refused(identity, _TOO_SLOW, unread=True, asked=True)
            case Problem():
                return Refused(identity, body, unread=True, asked=True)
            case bytes():
                # Reading took its time: the key may have been revoked, the process be stopping.
                principal = allowed(self._keys, headers, route.scope)
                if isinstance(principal, Problem):
                    return Refused(identity, principal)
                if route.begins and self._stopping():
                    return Refused(identity, STOPPING)
                return Question(identity, principal, headers, body, held)

    async def refuse(
        self,
        route: Route,
        refused: Refused,
        scope: Mapping[str, Any],
        receive: Receive,
        send: Send,
        *,
        event: str,
        **about: log.Value,
    ) -> None:
        """Answer with a problem, and say so in the log under ``event``."""
        problem, identity = refused.problem, refused.identity
        if (problem.retry or problem.kind.retry) == "same-key":
            problem = replace(problem, retry="wait")  # the question has no key
        principal = identity.principal
        self._metrics.problem(problem.type)
        log.event(
            event,
            request_id=identity.request_id,
            caller=identity.caller,
            tenant=principal.tenant_name if principal else None,
            principal=principal.name if principal else None,
            problem=problem.type,
            **about,  # type: ignore[arg-type]  # none of them is called level
        )
        answer = of_problem(problem, "rejected", identity.request_id)
        more = [(b"cache-control", b"no-store")]
        if problem.type == "method-not-allowed":
            more.append((b"allow", route.method.encode("ascii")))
        answer = replace(answer, headers=(*answer.headers, *more))
        if refused.unread:
            await respond_unread(answer, scope, receive, send, asked=refused.asked)
        else:
            await respond(answer, send)

    async def refuse_method(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """At a fixed path that is only read."""
        path = scope["path"]
        route = Route("fixed", "GET", path, "work", "is only read", 0, "nothing")
        identity = identity_of(scope, head_of(scope), self._trusted)
        refused = Refused(identity, _method(route), unread=True)
        await self.refuse(route, refused, scope, receive, send, event="path_refused", path=path)

    async def serve(
        self, scope: Mapping[str, Any], send: Send, work: Callable[[Send], Awaitable[None]]
    ) -> None:
        """Do ``work``; where the end of the drain cuts it off, its caller still hears a problem in
        place of the server's bare 500, which reads as "failed"."""
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await work(noted)
        except asyncio.CancelledError:
            if not begun:
                request_id = request_id_of(tuple(scope["headers"]))
                cut_off = replace(STOPPING, retry="wait")
                await respond(of_problem(cut_off, "rejected", request_id), send)
            raise


async def reply(status: int, body: bytes, send: Send) -> None:
    """Answer with a JSON document."""
    headers = [
        (b"content-type", b"application/json"),
        (b"cache-control", b"no-store"),
        (b"date", formatdate(usegmt=True).encode("ascii")),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def unavailable(error: StoreUnavailable | AnswerLost, nothing: str, perhaps: str) -> Problem:
    """``nothing``: what certainly did not happen; ``perhaps``: what may have."""
    if isinstance(error, RowsLost):
        return rows_lost(str(error))
    lost = isinstance(error, AnswerLost)
    why = f"{perhaps} and its answer was lost ({error})" if lost else f"{nothing}, because {error}"
    return Problem("store-unavailable", f"Ask again later: {why}.", retry_after_s=1)


def overloaded(what: str) -> Problem:
    """Too many do ``what``."""
    return Problem(
        "overloaded",
        f"Ask again later: too many {what}.",
        retry_after_s=1,
    )


def _method(route: Route) -> Problem:
    return Problem("method-not-allowed", f"Send {route.method}: {route.path} {route.does}.")


def _too_large(route: Route) -> Problem:
    return Problem(
        "body-too-large",
        f"Send at most {route.limit} bytes: {route.holds}.",
        members={"limit": route.limit},
    )


_TOO_SLOW = Problem("request-invalid", f"Send the whole body within {BODY_S:.0f} s of the head.")
