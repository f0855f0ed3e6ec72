"""What operators see of a running gateway: metrics and logs. Only the core is imported here."""

from __future__ import annotations

from gateway.observe.log import Decided, configure, decision, event
from gateway.observe.metrics import Metrics
from gateway.observe.text import one_line

__all__ = ["Decided", "Metrics", "configure", "decision", "event", "one_line"]
