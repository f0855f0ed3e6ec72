"""What is said once and not each time: a warning about the same thing comes back at a slow pace."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["AGAIN_S", "MOST", "Notices"]

AGAIN_S = 600.0
"""Until the same is said again: often enough for who reads the last minutes of a log."""

MOST = 1_000
"""Things that are remembered; so many policies and ways to fail are not met together. What is
beyond that is not said."""


class Notices:
    """``clock``: seconds that only grow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: dict[tuple[str, ...], float] = {}

    def due(self, *about: str) -> bool:
        """Whether to say it now; then it counts as said."""
        now = self._clock()
        if now < self._said.get(about, now):
            return False
        if len(self._said) >= MOST:
            self._said = {each: until for each, until in self._said.items() if now < until}
            if len(self._said) >= MOST:
                return False
        self._said[about] = now + AGAIN_S
        return True
