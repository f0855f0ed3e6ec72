"""``POST /v1/evidence``: what a webhook or a person reports of an unknown command."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol, assert_never

from gateway.api.door import Door, Question, Route, overloaded, reply, unavailable
from gateway.core.fingerprint import key_digest
from gateway.core.keys import Refusal
from gateway.core.problems import Problem
from gateway.core.reporting import Evidence, evidence_in
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.observe import log
from gateway.proxy.body import Gone
from gateway.proxy.intake import Refused
from gateway.proxy.lanes import Lane
from gateway.proxy.respond import Receive, Send
from gateway.store.unknowns import Report, ReportResult

__all__ = ["BODY_LIMIT", "PATH", "Reports"]

PATH = "/v1/evidence"

BODY_LIMIT = 1024 * 1024
"""Bytes: an answer of the usual keep limit would be larger only where it is escaped."""

_TURN_S = 5.0
"""Longest wait for a turn at the database, as for fences."""

_ROUTE = Route(
    "evidence",
    "POST",
    PATH,
    "operate",
    "reports what became of a command",
    BODY_LIMIT,
    "one key, verdict and reason, and the upstream's answer if there was one",
)


class Deciding(Protocol):
    """``gateway.store.unknowns.UnknownStore``."""

    async def report(self, report: Report) -> tuple[ReportResult, int]: ...


class Reports:
    """The ASGI application of that one path. ``changed`` hears of each command that is decided;
    ``keep_limits``: bytes of an answer that are kept, by policy; ``at_once``: how many may ask the
    database together, one of them for each command."""

    def __init__(
        self,
        door: Door,
        store: Deciding,
        changed: Callable[[int, bytes, str | None], None],
        *,
        keep_limits: Mapping[str, int],
        at_once: int,
    ) -> None:
        self._door = door
        self._store = store
        self._changed = changed
        self._keep_limits = keep_limits
        self._lane = Lane(at_once, _TURN_S)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        async def work(send: Send) -> None:
            taken = await self._door.take(_ROUTE, scope, receive)
            match taken:
                case Gone():
                    return
                case Refused():
                    await self._refuse(taken, scope, receive, send)
                case Question():
                    try:
                        await self._answer(taken, scope, receive, send)
                    finally:
                        taken.held.close()

        await self._door.serve(scope, send, work)

    async def _answer(
        self, question: Question, scope: Mapping[str, Any], receive: Receive, send: Send
    ) -> None:
        found = evidence_in(question.body, question.headers)
        if isinstance(found, Refusal):
            refused = Refused(question.identity, Problem(found.type, found.detail))
            await self._refuse(refused, scope, receive, send)
            return
        report = _report(question, found, self._keep_limits)
        result = await self._decide(report)
        if isinstance(result, Problem):
            refused = Refused(question.identity, result)
            await self._refuse(refused, scope, receive, send, report=report)
            return
        log.event(
            "evidence_taken",
            request_id=report.request_id,
            tenant=question.principal.tenant_name,
            principal=report.principal,
            key_digest=report.key_digest.hex(),
            verdict=_verdict(report),
            result=result,
        )
        document = {"key": report.key, "verdict": _verdict(report), "result": result}
        await reply(200, json.dumps(document).encode("ascii"), send)

    async def _decide(self, report: Report) -> Problem | str:
        """What became of the command, or why this does not decide it."""
        try:
            done = await self._lane.run(
                lambda: self._store.report(report),
                report.tenant,
                frozenset({report.key_digest}),
            )
        except (StoreUnavailable, AnswerLost) as error:
            return unavailable(error, "nothing was decided", "the command may have been decided")
        if done is None:
            return overloaded("report evidence to this gateway process")
        result, remaining_s = done
        if result == "resolved":
            self._changed(report.tenant, report.key_digest, None)
        elif result in ("contradicts", "orphan"):
            log.event(
                "late_evidence",
                level="error",
                request_id=report.request_id,
                key_digest=report.key_digest.hex(),
                attempt=str(report.attempt) if report.attempt else None,
                result=result,
            )
        return _said(result, remaining_s)

    async def _refuse(
        self,
        refused: Refused,
        scope: Mapping[str, Any],
        receive: Receive,
        send: Send,
        *,
        report: Report | None = None,
    ) -> None:
        about = {} if report is None else {"key_digest": report.key_digest.hex()}
        await self._door.refuse(
            _ROUTE, refused, scope, receive, send, event="evidence_not_taken", **about
        )


def _report(question: Question, found: Evidence, keep_limits: Mapping[str, int]) -> Report:
    who = question.principal
    return Report(
        tenant=who.tenant,
        key_digest=key_digest(who.salt, found.key),
        key=found.key,
        attempt=found.attempt,
        executed=found.executed,
        reason=found.reason,
        principal=who.name,
        request_id=question.identity.request_id,
        response=found.response,
        keep_limits=keep_limits,
    )


def _verdict(report: Report) -> str:
    return "executed" if report.executed else "not-executed"


def _said(result: ReportResult, remaining_s: int) -> Problem | str:
    match result:
        case "resolved" | "settled":
            return result
        case "missing" | "orphan":
            return Problem(
                "no-command",
                "Check the key: no command has it; it was never admitted, its key was given back, "
                "or it is forgotten.",
            )
        case "in-flight":
            detail = "Send it again later: the command's attempt may still be answered."
        case "too-early":
            detail = (
                "Send it again later: the upstream may still act on the command, so that it was "
                "not executed cannot be known yet (settle_delay_s of its policy)."
            )
        case "changed":
            detail = "Look at the command again: another attempt holds its key now."
        case "contradicts":
            detail = (
                "Look at the command: it is recorded as executed, so this contradicts the record; "
                "the audit has it."
            )
        case _:
            assert_never(result)
    waits = result in ("in-flight", "too-early")
    return Problem(
        "evidence-refused",
        detail,
        retry="wait" if waits else None,
        retry_after_s=max(1, remaining_s) if waits else None,
        members={"because": result},
    )
