"""A command as it is admitted, and the ends that an attempt can put to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from gateway.core.headers import encode_lines, recordable
from gateway.core.model import Response
from gateway.core.value import value

__all__ = ["Command", "Hold", "Release", "Settle", "SettleResult"]


@value(frozen=True, slots=True)
class Command:
    """One intended side effect, with everything that admit records of it.

    ``key_digest`` 16 bytes, ``fingerprint`` 32, ``rules`` 8 (the fingerprint's rule version),
    ``upstream_digest`` 16, ``outline`` at most 256 (see ``core.outline``). ``deadline_ms`` counts
    from the admit, on the database's clock.
    """

    tenant: int
    key_digest: bytes
    key: str
    policy: str
    entity: str
    fingerprint: bytes
    rules: bytes
    fence: int | None
    attempt: UUID
    principal: str
    request_id: str
    serial: bool
    unknown: str
    upstream_key: str | None
    upstream_digest: bytes
    deadline_ms: int
    settle_delay_s: int
    response_days: int
    key_days: int
    outline: bytes
    issuer_here: bool
    """Whether the policy takes only fences that are issued here."""
    probe_target: bytes | None = None
    """The target of the policy's status query, made of this request."""
    resend_within_ms: int | None = None
    """How long after its first sending the command may be admitted again, by its policy now."""

    @property
    def has_entity_row(self) -> bool:
        """Whether admitting it locks its entity: it has a fence to compare or a slot to take."""
        return self.serial or self.fence is not None


@dataclass(frozen=True, slots=True)
class Settle:
    """Record the final response; ``keep_body`` false records all but the body. ``head``: the fields
    to replay, as they are recorded."""

    command: Command
    response: Response
    keep_body: bool
    head: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "head", encode_lines(recordable(self.response.headers)))


@value(frozen=True, slots=True)
class Release:
    """Give the key back; ``reason`` names the proof that the upstream did not execute. ``heard``:
    bytes of the attempt may have reached it, so it may know the key that was sent."""

    command: Command
    reason: str
    heard: bool = True


@value(frozen=True, slots=True)
class Hold:
    """Record that the outcome is unknown, with what an ambiguous response said."""

    command: Command
    reason: str
    evidence: Response | None


SettleResult = Literal[
    "settled",  # in time
    "late",  # recorded, after the command had become unknown
    "contradicts",  # recorded, though its key had been given back as not executed: an alarm
    "already",  # an earlier try of this settle had committed
    "resolved",  # a person, probe or report had settled it; the response went to the audit
    "duplicate",  # a newer attempt holds the key: two effects are to be suspected
]
