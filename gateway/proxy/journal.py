"""Every answer becomes one log line and moves the metrics."""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.core.command import Command, SettleResult
from gateway.core.decide import Forward, RejectNotHeld, RejectStale
from gateway.core.fingerprint import key_digest
from gateway.core.model import Exchange
from gateway.observe import log
from gateway.observe.equals import EqualCommands
from gateway.observe.metrics import Metrics
from gateway.proxy.answer import Answer
from gateway.proxy.endpoint import CutBy
from gateway.proxy.intake import Admissible, Passage, Recalled, Refused
from gateway.proxy.trace import Trace

__all__ = ["Journal"]


class Journal:
    """What ``endpoint.Journal`` asks for, on the process's metrics and log."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._equals = EqualCommands()

    def refused(self, refused: Refused, answer: Answer) -> None:
        """Refused before anything was admitted."""
        self._count(None, answer)
        identity, mismatch = refused.identity, refused.mismatch
        principal = identity.principal
        digest = None
        if mismatch is not None and mismatch.key is not None and principal is not None:
            digest = key_digest(principal.salt, mismatch.key).hex()
        log.decision(
            log.Decided(
                request_id=identity.request_id,
                status=answer.status,
                outcome=answer.outcome,
                caller=identity.caller,
                tenant=principal.tenant_name if principal else None,
                principal=principal.name if principal else None,
                policy=mismatch.policy if mismatch else None,
                entity=mismatch.entity if mismatch else None,
                key_digest=digest,
                fence=mismatch.fence if mismatch else None,
                problem=answer.problem,
            )
        )

    def recalled(self, recalled: Recalled, answer: Answer) -> None:
        """Replayed from the process's own cache."""
        identity, wish = recalled.identity, recalled.recall.wish
        principal = identity.principal
        self._metrics.request(wish.policy, answer.outcome)
        log.decision(
            log.Decided(
                request_id=identity.request_id,
                status=answer.status,
                outcome=answer.outcome,
                caller=identity.caller,
                tenant=principal.tenant_name if principal else None,
                principal=principal.name if principal else None,
                policy=wish.policy,
                entity=wish.entity,
                key_digest=wish.key_digest.hex(),
                fence=wish.fence,
                decision="Replay",
                cache="local",
            )
        )

    def passed(self, passage: Passage, answer: Answer) -> None:
        """Streamed through; its body may still be on its way."""
        self._count(None, answer)
        principal = passage.identity.principal
        log.decision(
            log.Decided(
                request_id=passage.identity.request_id,
                status=answer.status,
                outcome=answer.outcome,
                caller=passage.identity.caller,
                tenant=principal.tenant_name if principal else None,
                principal=principal.name if principal else None,
                policy=passage.policy,
                problem=answer.problem,
            )
        )

    def executed(self, done: Admissible, trace: Trace, answer: Answer, delivered: bool) -> None:
        """A call came to its end, whether or not its caller is still there."""
        self._count(done.call.command.policy, answer)
        if trace.cache is None:
            self._measure(done.call.command.policy, trace)
        self._log(done, trace, answer.status, answer.outcome, answer.problem)
        if not delivered:
            log.event("answer_not_delivered", request_id=done.identity.request_id)
        if isinstance(trace.decision, Forward) and _may_have_acted(trace, answer):
            self._warn_of_equal(done)

    def abandoned(self, done: Admissible, trace: Trace) -> None:
        """The caller hung up while it waited for an earlier command; nothing was admitted."""
        self._measure(done.call.command.policy, trace)
        self._log(done, trace, 499, "rejected", None)

    def cut_short(self, request_id: str, policy: str, by: CutBy) -> None:
        """An answer that was being streamed ended before its end."""
        log.event(
            "answer_cut_short",
            level="info" if by == "caller" else "warning",
            request_id=request_id,
            policy=policy,
            by=by,
        )

    def settled(self, command: Command, result: SettleResult, settle_s: float) -> None:
        """A response was recorded, be it long after its caller was told "unknown"."""
        self._metrics.settled(command.policy, result, settle_s)
        if result in ("settled", "already"):
            return
        alarm = result in ("duplicate", "contradicts")
        log.event(
            "duplicate_effect_suspected" if result == "duplicate" else "late_evidence",
            level="error" if alarm else "warning",
            request_id=command.request_id,
            policy=command.policy,
            entity=command.entity,
            key_digest=command.key_digest.hex(),
            attempt=str(command.attempt),
            result=result,
        )

    def _warn_of_equal(self, done: Admissible) -> None:
        """Say so where an earlier command equals this one but for its key."""
        command = done.call.command
        earlier = self._equals.add(
            command.policy, command.fingerprint, command.key_digest, self._clock()
        )
        if earlier is None:
            return
        self._metrics.equal_command(command.policy)
        log.event(
            "equal_command",
            level="warning",
            request_id=command.request_id,
            tenant=done.call.tenant_name,
            principal=command.principal,
            policy=command.policy,
            entity=command.entity,
            key_digest=command.key_digest.hex(),
            earlier_key_digest=earlier.hex(),
        )

    def _count(self, policy: str | None, answer: Answer) -> None:
        self._metrics.request(policy, answer.outcome)
        if answer.problem is not None:
            self._metrics.problem(answer.problem)

    def _measure(self, policy: str, trace: Trace) -> None:
        if trace.decision is not None:
            self._metrics.decided(policy, trace.decision, trace.admit_s)
        if trace.exchange is not None:
            self._metrics.sent(policy, trace.send_s)

    def _log(
        self, done: Admissible, trace: Trace, status: int, outcome: str, problem: str | None
    ) -> None:
        command = trace.command or done.call.command
        upstream_status = _status(trace.exchange)
        answered = type(trace.decision) is Forward and trace.result is not None
        ordinary = answered and outcome == "applied" and problem is None and trace.wait_s is None
        if ordinary and upstream_status is not None:
            written = log.applied(
                *(command.request_id, status, done.identity.caller, done.call.tenant_name, command),
                *(upstream_status, (trace.total_s, trace.admit_s, trace.send_s, trace.settle_s)),
            )
            if written:
                return
        log.decision(
            log.Decided(
                request_id=command.request_id,
                status=status,
                outcome=outcome,
                caller=done.identity.caller,
                tenant=done.call.tenant_name,
                principal=command.principal,
                policy=command.policy,
                entity=command.entity,
                key_digest=command.key_digest.hex(),
                fence=command.fence,
                mark=trace.decision.mark
                if isinstance(trace.decision, (RejectStale, RejectNotHeld))
                else None,
                decision=type(trace.decision).__name__ if trace.decision else None,
                problem=problem,
                attempt=str(command.attempt) if trace.cache is None else None,
                upstream_status=upstream_status,
                duration_ms=_ms(trace.total_s),
                admit_ms=_ms(trace.admit_s) if trace.cache is None else None,
                wait_ms=_ms(trace.wait_s) if trace.wait_s is not None else None,
                send_ms=_ms(trace.send_s) if trace.exchange is not None else None,
                settle_ms=_ms(trace.settle_s) if trace.result is not None else None,
                cache=trace.cache,
            )
        )


def _status(exchange: Exchange | None) -> int | None:
    response = exchange.response if exchange is not None else None
    return response.status if response is not None else None


def _may_have_acted(trace: Trace, answer: Answer) -> bool:
    """Whether the upstream may have done what it was sent. What it declined may be wished again."""
    if answer.outcome == "applied":
        status = _status(trace.exchange)
        return status is None or status < 400
    return answer.outcome == "unknown"


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
