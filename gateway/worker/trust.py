"""The trust window: how long a worker may believe in a lease without asking.

Pure: readings of the worker's clock come in as arguments. There are three answers to a heartbeat.
*Confirmed* moves the window on. *Refused* closes it for good. *No answer* changes nothing: the
window ends by itself, and whether the lease went on is unknown until somebody answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gateway.core.jobs import LostReason
from gateway.core.leases import DRIFT, LeaseClass, fits, trusted_until

__all__ = [
    "Reason",
    "Standing",
    "Trust",
    "confirmed",
    "granted",
    "refused",
    "retry_in",
    "standing",
    "usual_timeout_s",
]

Reason = LostReason | Literal["stage-limit"]
"""Why a lease is lost. ``stage-limit``: its handler gave no sign of life, so it is not renewed."""

Standing = Literal["held", "unknown", "lost"]

_FIRST_RETRY_S = 0.25
"""After a heartbeat without an answer: a connection that a restarting gateway closed is replaced at
once, and a gateway that is down is not asked more often than the heartbeats of 60 workers would."""

_TIMEOUT_S = 30.0
"""Of one try of a request, as a total, where the lease is long enough: as the usual ``timeout_s``
of a command."""

_MARGIN_S = 1.0
"""Of a lease, for the answer to a heartbeat that is late, and for the clocks."""


@dataclass(frozen=True, slots=True)
class Trust:
    """What is known of one lease, in readings of the worker's clock (seconds).

    ``confirmed_mono_s``: when the request left that was answered last. ``until_mono_s``: until then
    the lease is certainly held, unless somebody ends it. ``over_mono_s``: from then on it is
    certainly over, whatever renewal nobody heard of.
    """

    confirmed_mono_s: float
    until_mono_s: float
    over_mono_s: float
    lost: Reason | None = None


def granted(
    asked_mono_s: float, heard_mono_s: float, remaining_ms: int, total_remaining_ms: int
) -> Trust:
    """From an answer. ``asked_mono_s``: before the request left, since the database counted from
    some moment after that; ``heard_mono_s``: after the answer came, for the same reason."""
    return Trust(
        asked_mono_s,
        trusted_until(asked_mono_s, remaining_ms),
        heard_mono_s + total_remaining_ms / 1000 / (1 - DRIFT),
    )


def confirmed(trust: Trust, answer: Trust) -> Trust:
    """A renewal was confirmed. An answer that was asked for earlier than what is known says nothing
    new, and a lease that is lost stays so."""
    if trust.lost is not None or answer.confirmed_mono_s < trust.confirmed_mono_s:
        return trust
    return answer


def refused(trust: Trust, reason: Reason) -> Trust:
    """The lease is over. The first reason stays."""
    return trust if trust.lost is not None else replace(trust, lost=reason)


def standing(trust: Trust, now_mono_s: float, needed_s: float = 0) -> Standing:
    """How the lease stands for something that begins now and takes at most ``needed_s``."""
    if trust.lost is not None or now_mono_s >= trust.over_mono_s:
        return "lost"
    return "held" if fits(now_mono_s, trust.until_mono_s, needed_s) else "unknown"


def retry_in(failures: int, heartbeat_s: float) -> float:
    """Seconds until the next heartbeat, after so many (from 1) in a row had no answer."""
    return min(_FIRST_RETRY_S * 2.0 ** min(failures - 1, 30), heartbeat_s)


def usual_timeout_s(terms: LeaseClass) -> float:
    """What one try of a command may take where nobody says: so much is always left of the window
    while heartbeats are answered. ``core.leases.mistakes`` sees to it that it is above 4 s."""
    left = terms.lease_s - terms.heartbeat_s - terms.jitter_s - _MARGIN_S
    return min(_TIMEOUT_S, max(left, _MARGIN_S))
