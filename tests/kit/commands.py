"""Commands, rules and responses for tests, all legal, with one word per thing that matters."""

from __future__ import annotations

import hashlib
from uuid import UUID

from gateway.core.command import Command
from gateway.core.model import FenceMode, Response, Rules, UnknownMode

__all__ = ["OK", "attempt", "command", "digest", "response", "rules"]

DEADLINE_MS = 35_000
SETTLE_DELAY_S = 300


def digest(text: str, length: int = 16) -> bytes:
    """A stand-in for the keyed digests: equal texts, equal bytes."""
    return hashlib.sha256(text.encode()).digest()[:length]


def attempt(number: int) -> UUID:
    """A stable attempt uuid; never the nil one."""
    return UUID(int=number + 1)


def command(
    key: str = "k",
    *,
    by: UUID,
    entity: str = "invoice:1",
    fence: int | None = 1,
    body: str = "",
    policy: str = "pay/charge",
    rules: str = "v1",
    serial: bool = True,
    tenant: int = 1,
    deadline_ms: int = DEADLINE_MS,
    settle_delay_s: int = SETTLE_DELAY_S,
    issuer_here: bool = False,
    unknown: UnknownMode = "hold",
    upstream: str = "upstream",
    upstream_key: str | None = None,
    probe_target: bytes | None = None,
    resend_within_ms: int | None = None,
) -> Command:
    """One command under attempt ``by``; ``body`` and ``rules`` stand for what is fingerprinted."""
    return Command(
        tenant=tenant,
        key_digest=digest(key),
        key=key,
        policy=policy,
        entity=entity,
        fingerprint=digest(f"{rules}/{body}", 32),
        rules=digest(rules, 8),
        fence=fence,
        attempt=by,
        principal="worker-1",
        request_id=f"request-{by.int}",
        serial=serial,
        unknown=unknown,
        upstream_key=upstream_key,
        upstream_digest=digest(upstream),
        deadline_ms=deadline_ms,
        settle_delay_s=settle_delay_s,
        response_days=30,
        key_days=400,
        outline=digest(f"{rules}/{body}", 32),
        issuer_here=issuer_here,
        probe_target=probe_target,
        resend_within_ms=resend_within_ms,
    )


def response(status: int = 200, body: bytes = b'{"ok":true}') -> Response:
    """A response whose head loses ``Date`` when it is recorded."""
    return Response(
        status,
        ((b"Content-Type", b"application/json"), (b"Date", b"Thu, 01 Jan 2026 00:00:00 GMT")),
        body,
    )


OK = response()


def rules(
    *,
    fence: FenceMode = "required",
    serial: bool = True,
    timeout_s: float = 30,
    settle_delay_s: float = SETTLE_DELAY_S,
) -> Rules:
    """What a policy says when it says nothing."""
    return Rules(
        policy="pay/charge",
        fence=fence,
        serial=serial,
        unknown="hold",
        timeout_s=timeout_s,
        settle_delay_s=settle_delay_s,
        not_executed=frozenset({401, 407, 421, 425, 429}),
        ambiguous=frozenset({408, 500, 502, 503, 504}),
        request_limit=8 * 1024 * 1024,
        keep_limit=1024 * 1024,
        response_days=30,
        key_days=400,
        issuer="outside",
        version=digest("v1", 8),
    )
