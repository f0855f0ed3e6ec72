"""The clock of an attempt: it never steps, and it goes on while the machine is suspended."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

__all__ = ["now_s"]

# CLOCK_MONOTONIC stands still during suspend on Linux, so an attempt that slept through its
# deadline would believe that it is early. On macOS CLOCK_MONOTONIC is the one that goes on.
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


now_s: Callable[[], float] = (
    time.monotonic if _CLOCK is None else partial(time.clock_gettime, _CLOCK)
)
"""Seconds since some fixed point of this boot; only differences mean anything."""
