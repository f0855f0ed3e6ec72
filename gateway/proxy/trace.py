"""What one call went through."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.command import Command, SettleResult
from gateway.core.decide import Decision
from gateway.core.model import Exchange
from gateway.observe.metrics import Found

__all__ = ["Trace"]


@dataclass(slots=True)
class Trace:
    """For its one log line and the metrics; seconds."""

    command: Command | None = None
    decision: Decision | None = None
    total_s: float = 0.0
    admit_s: float = 0.0
    wait_s: float | None = None
    exchange: Exchange | None = None
    send_s: float = 0.0
    result: SettleResult | None = None
    settle_s: float = 0.0
    cache: Found | None = None
    issued_here: bool = False
    """Whether fences of the entity are, as the admit found it."""
