"""Failpoints: named places at which a process can be told to die, stop, dawdle or fail.

``reach`` is called at each place. Unarmed it is a function without a body, so that a place costs
one call of an empty function. ``arm`` puts another function into this module's attribute; so
callers write ``faults.reach("…")`` and never import the name. There is no way to arm a process
that is running already.

``POINTS`` is the only list of names. The failure matrix and the sweep are made from it, and a test
wants each of them placed once.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Literal, assert_never

from gateway.errors import AnswerLost, ConfigurationError, StoreUnavailable

__all__ = ["POINTS", "Armed", "Statement", "arm", "checked", "parse", "reach"]

Statement = Literal["before", "committed"]
"""A point beside a statement: what ``error`` means there. ``before``: it certainly did not take
effect; ``committed``: it did, and its answer is lost."""

_BEFORE: Statement = "before"
_COMMITTED: Statement = "committed"

POINTS: Mapping[str, Statement | None] = MappingProxyType(
    {
        # One command, in the order in which it passes them.
        "admit.before": _BEFORE,  # the request is read, nothing is remembered
        "admit.committed": _COMMITTED,  # remembered; nobody here knows of it
        "admit.abandoned": None,  # given up; an earlier try may still commit
        "wait.woken": None,  # a waiter was woken and has not admitted again
        "send.before": None,  # may be sent; no connection yet
        "send.connected": None,  # a connection; no write was called
        "send.part": None,  # the first part of a large body has been written
        "send.written": None,  # the sending is over, by its last byte or by an early answer
        "answer.part": None,  # the status, or some more of the answer, has come
        "answer.whole": None,  # the attempt's answer or its fault is there, nothing is recorded
        "answer.late": None,  # bytes that came after "unknown" prove the outcome
        "settle.before": _BEFORE,
        "settle.committed": _COMMITTED,
        "release.before": _BEFORE,
        "release.committed": _COMMITTED,
        "hold.before": _BEFORE,
        "hold.committed": _COMMITTED,
        "probe.before": _BEFORE,  # a status query was answered, nothing is recorded
        "probe.committed": _COMMITTED,
        "reply.before": None,  # recorded, and the caller has heard nothing
        "reply.after": None,  # the caller's answer has been written
        # Jobs and fences.
        "fence.committed": _COMMITTED,
        "enqueue.before": _BEFORE,
        "enqueue.committed": _COMMITTED,
        "claim.before": _BEFORE,
        "claim.committed": _COMMITTED,
        "renew.before": _BEFORE,
        "renew.committed": _COMMITTED,
        "end.before": _BEFORE,
        "end.committed": _COMMITTED,
        "reap.before": _BEFORE,  # leases that are over were found
        "reap.committed": _COMMITTED,
        "give-up.committed": _COMMITTED,
        # The end of a process.
        "drain.begun": None,  # nothing new is admitted
        "drain.ended": None,  # attempts and recordings have ended, or their time is up
    }
)

_ENTRY = re.compile(
    r"(?P<name>[a-z.-]+)=(?:(?P<word>kill|stop|error)|delay:(?P<ms>[0-9]{1,6}))"
    r"(?:(?P<when>[@%])(?P<hit>[1-9][0-9]{0,8}))?"
)


@dataclass(frozen=True, slots=True)
class Armed:
    """What to do at ``name``: at each hit, only at the ``hit``-th, or at each ``every``-th. ``ms``
    is for ``delay``, which holds the whole process up, as a collection of garbage would."""

    name: str
    action: Literal["kill", "stop", "delay", "error"]
    ms: int = 0
    hit: int | None = None
    every: int = 1


def parse(text: str) -> list[Armed]:
    """``name=action[;…]`` with the actions ``kill``, ``stop``, ``error`` and ``delay:MS``, each
    with ``@N`` for the N-th hit only or ``%N`` for each N-th. Raises ``ValueError`` that names the
    mend."""
    found = [_entry(part.strip()) for part in text.split(";") if part.strip()]
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is there twice; a failpoint takes one action")
    return found


def _entry(text: str) -> Armed:
    match = _ENTRY.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is no failpoint; write NAME=kill, stop, error or delay:MS, with @N for the "
            "N-th hit only or %N for each N-th"
        )
    name, word = match["name"], match["word"]
    if name not in POINTS:
        near = get_close_matches(name, POINTS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(POINTS)}"
        raise ValueError(f"there is no failpoint {name}; {hint}")
    if word == "error" and POINTS[name] is None:
        raise ValueError(
            f"{name} is beside no statement of the database, and error is for those; take kill, "
            "stop or delay:MS"
        )
    number = int(match["hit"] or 1)
    hit, every = (number, 1) if match["when"] == "@" else (None, number)
    match word:
        case "kill" | "stop" | "error":
            return Armed(name, word, 0, hit, every)
        case _:
            return Armed(name, "delay", int(match["ms"]), hit, every)


def _unarmed(name: str) -> None:
    """What a place costs: one call of this."""


reach: Callable[[str], None] = _unarmed
"""The place ``name`` has been reached."""


def arm(points: list[Armed]) -> None:
    """From now on the places of ``points`` act; none of them: nothing does."""
    global reach
    reach = _reacher(points) if points else _unarmed


def _reacher(points: list[Armed]) -> Callable[[str], None]:
    by_name = {each.name: each for each in points}
    hits = dict.fromkeys(by_name, 0)

    def reached(name: str) -> None:
        armed = by_name.get(name)
        if armed is None:
            return
        hits[name] += 1
        if hits[name] == armed.hit or (armed.hit is None and hits[name] % armed.every == 0):
            _act(armed)

    return reached


def _act(armed: Armed) -> None:
    match armed.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "delay":
            time.sleep(armed.ms / 1000)
        case "error":
            if POINTS[armed.name] == _COMMITTED:
                raise AnswerLost(f"failpoint {armed.name}")
            raise StoreUnavailable(f"failpoint {armed.name}")
        case _:
            assert_never(armed.action)


def checked(text: str | None, *, allowed: bool) -> list[Armed]:
    """What a start is to arm. Raises ``ConfigurationError`` where the variable is set and the start
    does not allow it: a variable alone may have been inherited."""
    points = parse(text) if text else []
    if points and not allowed:
        raise ConfigurationError(
            "FENCEGATE_FAILPOINTS is set, and would end or stop this process; unset it, or say "
            "--allow-failpoints if that is what you want"
        )
    return points
