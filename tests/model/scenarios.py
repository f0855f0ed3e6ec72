"""The scenarios that are explored. Each is closed: requests may come, clocks tick and processes die
as often as anybody likes, and yet the states are finitely many."""

from __future__ import annotations

from tests.model.bounds import Bounds
from tests.model.state import Terms

__all__ = ["DEEP", "SCENARIOS"]


def _named(*all_of: Bounds) -> dict[str, Bounds]:
    return {bounds.name: bounds for bounds in all_of}


_LONGER = Terms(last=2, deadline=3, settle_delay=2)
_RESEND = Terms(within=2, memory=2, takeovers=1)
_RESENDS = Terms(within=3, memory=3, takeovers=2)

SCENARIOS = _named(
    Bounds("one key", asks=((0, 1), (0, 2)), lost=False),
    Bounds("one key, answers lost", asks=((0, 1),)),
    Bounds("two keys", entity_of=(0, 0), asks=((0, 1), (1, 2)), lost=False),
    Bounds("two keys, answers lost", entity_of=(0, 0), asks=((0, 1), (1, 2)), gateways=1),
    Bounds("leases", workers=2, gateways=0, beats=True),
    Bounds("leases and commands", workers=2, gateways=1, lost=False),
    Bounds("resend", asks=((0, 1),), mode="resend", lost=False, terms=_RESEND),
    Bounds("resend, answers lost", asks=((0, 1),), mode="resend", gateways=1, terms=_RESEND),
    Bounds("probe", asks=((0, 1),), mode="probe", looks=1, gateways=1, lost=False),
    Bounds("wrong verdict", asks=((0, 1),), wrong=True, lost=False),
)
"""Some seconds each."""

DEEP = _named(
    Bounds("one key, two fences, answers lost", asks=((0, 1), (0, 2))),
    Bounds(
        "two keys, more time", entity_of=(0, 0), asks=((0, 1), (1, 2)), lost=False, terms=_LONGER
    ),
    Bounds("two entities", entity_of=(0, 1), asks=((0, 1), (1, 1)), lost=False),
    Bounds("leases and commands, heartbeats", workers=2, gateways=1, beats=True, lost=False),
    Bounds("leases and commands, two gateways", workers=2, lost=False),
    Bounds("resend, twice", asks=((0, 1),), mode="resend", lost=False, terms=_RESENDS),
    Bounds("probe, two gateways", asks=((0, 1),), mode="probe", looks=1, lost=False),
    Bounds("probe, two looks", asks=((0, 1),), mode="probe", looks=2, gateways=1, lost=False),
)
"""Half a minute each at most, and up to a gigabyte of memory."""
