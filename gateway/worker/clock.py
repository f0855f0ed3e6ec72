"""The worker's clock: it never steps, and it goes on while the machine is suspended."""

from __future__ import annotations

import time

__all__ = ["now_mono_s"]

# CLOCK_MONOTONIC stands still during suspend on Linux: a laptop that slept through its lease would
# go on trusting it. On macOS CLOCK_MONOTONIC is the one that goes on.
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def now_mono_s() -> float:
    """Seconds since some fixed point of this boot; only differences mean anything."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
