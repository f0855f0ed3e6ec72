"""Answers of the server's own: to what is no request, and to connections that are too many."""

from __future__ import annotations

import math
import time
from typing import Any
from uuid import uuid4

from gateway.core.problems import Problem
from gateway.core.settle import Sent
from gateway.observe import log
from gateway.proxy.answer import of_problem
from gateway.proxy.endpoint import respond_unread
from gateway.proxy.intake import request_id_of
from gateway.proxy.respond import Receive, Send, fields

__all__ = ["Refusals", "crowded_out", "unreadable"]

_CROWDED = Problem(
    "overloaded",
    "Repeat the same request later: too many connections are open in this gateway process.",
    retry_after_s=1,
)


class Refusals:
    """Connections that were reset without an answer are told of once a second, with how many: who
    floods must not fill the log too."""

    def __init__(self) -> None:
        self._at = -math.inf
        self._count = 0

    def tell(self, **about: log.Value) -> None:
        self._count += 1
        now = time.monotonic()
        if now >= self._at + 1:
            about["count"] = self._count
            log.event("connections_refused", level="warning", **about)
            self._at, self._count = now, 0


async def crowded_out(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """The application of a connection over the limit of all."""
    request_id = request_id_of(tuple(scope["headers"]))
    answer = of_problem(_CROWDED, "rejected", request_id)
    log.decision(
        log.Decided(
            request_id=request_id,
            status=answer.status,
            outcome=answer.outcome,
            problem=answer.problem,
        )
    )
    await respond_unread(answer, scope, receive, send, asked=False)


def unreadable(detail: str, sent: Sent, client: tuple[str, int] | None) -> bytes:
    """The whole answer to bytes that are no request, or to an end of one that cannot be read."""
    request_id = uuid4().hex
    problem = Problem("request-invalid", detail, sent=sent)
    answer = of_problem(problem, "rejected", request_id)
    log.decision(
        log.Decided(
            request_id=request_id,
            status=answer.status,
            outcome=answer.outcome,
            caller=client[0] if client else None,
            problem=answer.problem,
        )
    )
    lines = [b"HTTP/1.1 400 Bad Request", b"connection: close"]
    lines += [b"%b: %b" % line for line in fields(answer)]
    return b"\r\n".join([*lines, b"", answer.body])
