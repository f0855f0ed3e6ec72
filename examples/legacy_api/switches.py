"""Switches for misbehaviour, all in one small grammar: `name; seconds=2; times=3; status=503`.

    ok           answer as usual (after `seconds`)
    slow         the effect, then a pause of `seconds` (default 1), then the answer
    lose-answer  the effect, then the connection is closed without a byte of an answer
    act-later    the connection is closed at once, the effect follows after `seconds`
    fail-after   the effect, then `status` (default 500)
    refuse       no effect, `status` (default 429)

`times` (default 1) is for how many requests it holds; switches that are set take turns in order.
"""

import threading
from collections import deque
from dataclasses import dataclass, replace

__all__ = ["OK", "BadSwitch", "Behaviour", "Switches", "parse"]

_NAMES = ("ok", "slow", "lose-answer", "act-later", "fail-after", "refuse")
_MOST_SECONDS = 600.0
_MOST_TIMES = 1_000_000
_MOST_WAITING = 100


class BadSwitch(Exception):
    """What was set is none of the grammar; the text says how to write it."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one request is treated. `status` counts for `fail-after` and `refuse` alone."""

    name: str = "ok"
    seconds: float = 0.0
    times: int = 1
    status: int = 0


OK = Behaviour()


def parse(text: str) -> Behaviour:
    """Raises `BadSwitch`."""
    name, *rest = (part.strip() for part in text.split(";"))
    if name not in _NAMES:
        raise BadSwitch(f"unknown behaviour {name!r}: use one of {', '.join(_NAMES)}")
    given = dict(part.partition("=")[::2] for part in rest)
    if unknown := set(given) - {"seconds", "times", "status"}:
        raise BadSwitch(f"unknown parameter {min(unknown)!r}: use seconds, times, status")
    try:
        seconds = float(given.get("seconds", "1" if name == "slow" else "0"))
        times = int(given.get("times", "1"))
        status = int(given.get("status", "429" if name == "refuse" else "500"))
    except ValueError:
        raise BadSwitch("seconds, times and status are numbers, e.g. slow; seconds=2") from None
    if not (0 <= seconds <= _MOST_SECONDS and 1 <= times <= _MOST_TIMES and 200 <= status <= 599):
        raise BadSwitch("seconds is 0 to 600, times at least 1, status 200 to 599")
    return Behaviour(name, seconds, times, status)


class Switches:
    """What is set, used up request by request. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Behaviour] = deque()

    def set(self, behaviour: Behaviour) -> None:
        """Raises `BadSwitch` when too many wait already."""
        with self._lock:
            if len(self._waiting) >= _MOST_WAITING:
                raise BadSwitch("too many switches are waiting: clear them first")
            self._waiting.append(behaviour)

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()

    def waiting(self) -> list[Behaviour]:
        with self._lock:
            return list(self._waiting)

    def take(self) -> Behaviour:
        """The treatment of the next request."""
        with self._lock:
            if not self._waiting:
                return OK
            first = self._waiting[0]
            if first.times > 1:
                self._waiting[0] = replace(first, times=first.times - 1)
            else:
                self._waiting.popleft()
            return first
