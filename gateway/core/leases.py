"""Lease classes, and the arithmetic of time around a lease.

A lease lasts by the database's clock. Its worker believes in it by its own monotonic clock, and
only for as long as it must still be true: counted from *before* the request left that confirmed it,
since the database counted from some moment after that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "DRIFT",
    "REQUEST_TIMEOUT_S",
    "LeaseClass",
    "Mistake",
    "backoff_ms",
    "fits",
    "mistakes",
    "next_beat",
    "trusted_until",
]

REQUEST_TIMEOUT_S = 5.0
"""Longest that a worker waits for the answer to a heartbeat: the store works at most 2 s on a
statement, and a lost connection is noticed and replaced in the rest."""

DRIFT = 0.001
"""By how much the worker's clock may run slower than the database's, as a share: quartz is 20 times
better, a clock that is being slewed half as bad."""


@dataclass(frozen=True, slots=True)
class LeaseClass:
    """How jobs of one tool are leased; times in seconds.

    ``lease_s``: from one heartbeat. ``heartbeat_s``: between two, plus at most ``jitter_s``.
    ``misses``: heartbeats in a row that may fail. ``stage_limit_s``: longest that a handler may go
    on without a sign of life. ``total_s``: no heartbeat reaches beyond it. ``attempts``: leases of
    one stage, the first included. ``backoff_s``: before the second attempt, doubled for each
    further one up to ``backoff_max_s``.
    """

    lease_s: float = 60
    heartbeat_s: float = 15
    jitter_s: float = 2
    misses: int = 3
    stage_limit_s: float = 600
    total_s: float = 3_600
    attempts: int = 5
    backoff_s: float = 5
    backoff_max_s: float = 600


@dataclass(frozen=True, slots=True)
class Mistake:
    """``field`` and what is wrong with it beside the others, with the numbers and the mend."""

    field: str
    problem: str
    mend: str


def mistakes(terms: LeaseClass) -> Iterator[Mistake]:
    """What does not fit together in a class whose single fields are legal."""
    beat, jitter = terms.heartbeat_s, terms.jitter_s
    missed = terms.misses * beat + jitter
    if not terms.lease_s > missed:
        yield Mistake(
            "lease_s",
            f"{terms.lease_s:g} does not outlast {terms.misses} missed heartbeats: "
            f"{terms.misses} × {beat:g} + {jitter:g} = {missed:g}",
            f"raise lease_s above {missed:g}, or lower heartbeat_s or misses",
        )
    needed = 2 * beat + jitter + REQUEST_TIMEOUT_S
    if terms.lease_s < needed:
        yield Mistake(
            "lease_s",
            f"{terms.lease_s:g} leaves less than a heartbeat and a request at a renewal: "
            f"{beat:g} + {jitter:g} gone, {beat:g} + {REQUEST_TIMEOUT_S:g} to remain = {needed:g}",
            f"raise lease_s to {needed:g}, or lower heartbeat_s",
        )
    for field, least, why in (
        ("total_s", terms.lease_s, "lease_s"),
        ("backoff_max_s", terms.backoff_s, "backoff_s"),
    ):
        value: float = getattr(terms, field)
        if value < least:
            yield Mistake(
                field, f"{value:g} is less than {why} = {least:g}", f"raise it to {least:g}"
            )
    if terms.stage_limit_s > terms.total_s:
        yield Mistake(
            "stage_limit_s",
            f"{terms.stage_limit_s:g} is more than total_s = {terms.total_s:g}, when every lease "
            "is over",
            f"lower it to {terms.total_s:g}, or raise total_s",
        )


def backoff_ms(terms: LeaseClass, attempts: int, chance: float) -> int:
    """Milliseconds before the next attempt, after ``attempts`` (from 1) have failed. ``chance``: 0
    to below 1; it takes up to half off, so that jobs which failed together do not return so."""
    doubled = terms.backoff_s * 2.0 ** min(attempts - 1, 30)
    return int(min(doubled, terms.backoff_max_s) * (1 - chance / 2) * 1000)


def trusted_until(asked_mono_s: float, remaining_ms: int) -> float:
    """Until when, on the worker's monotonic clock, a lease is certainly its own. ``asked_mono_s``:
    the reading from before the request left."""
    return asked_mono_s + remaining_ms / 1000 * (1 - DRIFT)


def fits(now_mono_s: float, until_mono_s: float, needed_s: float) -> bool:
    """Whether something that begins now and takes at most ``needed_s`` ends inside the window."""
    return now_mono_s + needed_s < until_mono_s


def next_beat(asked_mono_s: float, terms: LeaseClass, chance: float) -> float:
    """When to ask again, counted from when the last request left; ``chance``: 0 to below 1."""
    return asked_mono_s + terms.heartbeat_s + terms.jitter_s * chance
