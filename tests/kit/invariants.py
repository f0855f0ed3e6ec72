"""The guarantees as functions over what happened: sends seen upstream, and what the store says.

A ``History`` is put together by whoever tests: a state machine numbers its steps, an end-to-end
test takes times from the upstream's ledger and from ``read_store`` on the same host. Only the order
of ``at`` matters. Each check returns sentences, one per violation; ``assert_holds`` wants none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeVar
from uuid import UUID

import asyncpg

__all__ = [
    "CHECKS",
    "Admission",
    "End",
    "Evidence",
    "History",
    "How",
    "Observation",
    "Refusal",
    "Send",
    "assert_holds",
    "at_most_once_per_key",
    "fences_never_go_back",
    "given_back_only_on_proof",
    "no_overtaking",
    "nothing_stale_is_admitted",
    "read_store",
    "refusals_are_evidenced",
    "sends_follow_their_admission",
    "unknown_stays_until_resolved",
    "violations",
]

T = TypeVar("T")
How = Literal["settled", "released", "executed", "not-executed", "resent"]
"""How a command's attempt ended; the third and fourth: it was resolved so. ``resent``: its outcome
is unknown, and another took over, to an upstream that takes both for one."""

_GIVING_BACK: tuple[How, ...] = ("released", "not-executed")


@dataclass(frozen=True)
class Send:
    """A request reached the upstream. ``may_have_executed`` false: it proved that it did not, by a
    status that the policy lists as ``not_executed``. ``attempt``: where the test knows it; an
    upstream does not."""

    at: float
    tenant: int
    key: str
    entity: str
    fence: int | None
    serial: bool = True
    may_have_executed: bool = True
    attempt: UUID | None = None


@dataclass(frozen=True)
class Admission:
    """The store said ``Forward``."""

    at: float
    tenant: int
    key: str
    entity: str
    fence: int | None
    attempt: UUID
    serial: bool = True


@dataclass(frozen=True)
class End:
    """An attempt of this key came to its end."""

    at: float
    tenant: int
    key: str
    how: How
    attempt: UUID | None = None


@dataclass(frozen=True)
class Refusal:
    """Somebody was told ``fence-stale`` or ``fence-not-held``."""

    tenant: int
    key: str
    attempt: UUID | None = None


@dataclass(frozen=True)
class Evidence:
    """One audit row."""

    at: float
    tenant: int
    event: str
    key: str | None
    attempt: UUID | None


@dataclass(frozen=True)
class Observation:
    """What the store said of one attempt at one time; ``gone``: no row of it."""

    at: float
    tenant: int
    key: str
    attempt: UUID
    state: Literal["in-flight", "unknown", "settled", "gone"]


@dataclass
class History:
    """All that happened, in no particular order."""

    sends: list[Send] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)


def at_most_once_per_key(history: History) -> list[str]:
    """G1: between two requests of a key that may have executed lies the proof or the verdict that
    the first did not, or the take-over that the policy allows."""
    found = []
    sends = [send for send in history.sends if send.may_have_executed]
    for (tenant, key), of_key in _grouped(sends, lambda send: (send.tenant, send.key)):
        for first, second in pairwise(of_key):
            if not _ended(history, first, second.at, (*_GIVING_BACK, "resent")):
                found.append(f"G1: key {key} of tenant {tenant} was sent twice: {first}, {second}")
    return found


def given_back_only_on_proof(history: History) -> list[str]:
    """G1: what may have executed is never released."""
    found = []
    for end in history.ends:
        send = _sent_before(history, end) if end.how == "released" else None
        if send is not None and send.may_have_executed:
            found.append(f"G1: {send} may have executed, and its key was given back: {end}")
    return found


def fences_never_go_back(history: History) -> list[str]:
    """G2 at the upstream: fences of serial commands arrive in an order that never goes back."""
    sends = [send for send in history.sends if send.serial and send.fence is not None]
    return _going_back(sends, "G2: the upstream saw")


def nothing_stale_is_admitted(history: History) -> list[str]:
    """G2 at the store: whatever is admitted carries the highest fence so far, or none."""
    admissions = _first_of_attempt(history.admissions)
    return _going_back([each for each in admissions if each.fence is not None], "G2: admitted")


def refusals_are_evidenced(history: History) -> list[str]:
    """G2: whoever was told "stale" or "not held" is in the audit, by attempt where it is known,
    else by key."""
    rows = [row for row in history.evidence if row.event in ("fence_stale", "fence_refused")]
    attempts = {(row.tenant, row.attempt) for row in rows}
    keys = {(row.tenant, row.key) for row in rows}
    return [
        f"G2: no evidence of {refusal}"
        for refusal in history.refusals
        if (refusal.tenant, refusal.attempt) not in attempts
        and (refusal.attempt is not None or (refusal.tenant, refusal.key) not in keys)
    ]


def no_overtaking(history: History) -> list[str]:
    """G3: of an entity's serial commands each is sent only when the one before has ended."""
    found = []
    sends = [send for send in history.sends if send.serial]
    for (tenant, entity), of_entity in _grouped(sends, lambda send: (send.tenant, send.entity)):
        for first, second in pairwise(of_entity):
            if not _ended(history, first, second.at, None):
                found.append(f"G3: on {entity} of tenant {tenant} {second} overtook {first}")
    return found


def unknown_stays_until_resolved(history: History) -> list[str]:
    """G5: what was unknown once is unknown, or ended by its own late response or by a person."""
    found = []
    by_attempt = _grouped(history.observations, lambda seen: (seen.tenant, seen.attempt))
    for _, of_attempt in by_attempt:
        for before, after in pairwise(of_attempt):
            if before.state != "unknown" or after.state == "unknown":
                continue
            if not _explained(history, before, after):
                found.append(f"G5: unknown became {after.state} by itself: {before}, {after}")
    for row in history.evidence:
        if row.event == "released" and _was_held(history, row):
            found.append(f"G5: an unknown outcome was given back: {row}")
    return found


def sends_follow_their_admission(history: History) -> list[str]:
    """G6: nothing is sent but what the store has answered "forward" to before."""
    admitted = {(each.tenant, each.attempt): each.at for each in reversed(history.admissions)}
    return [
        f"G6: sent without admission: {send}"
        for send in history.sends
        if send.attempt is not None
        and admitted.get((send.tenant, send.attempt), float("inf")) >= send.at
    ]


CHECKS: tuple[Callable[[History], list[str]], ...] = (
    at_most_once_per_key,
    given_back_only_on_proof,
    fences_never_go_back,
    nothing_stale_is_admitted,
    refusals_are_evidenced,
    no_overtaking,
    unknown_stays_until_resolved,
    sends_follow_their_admission,
)


def violations(history: History) -> list[str]:
    """Every violation of every check."""
    return [violation for check in CHECKS for violation in check(history)]


def assert_holds(history: History) -> None:
    """All guarantees hold of what happened."""
    found = violations(history)
    assert not found, "\n".join(found)


async def read_store(connection: asyncpg.Connection[asyncpg.Record]) -> History:
    """The ends and the evidence that a database holds; times are seconds of its clock.

    Ends come from settled rows and from the audit, so an attempt that was given back counts too.
    """
    history = History()
    for row in await connection.fetch(_SETTLED):
        told = row["settled_by"] in ("resolved", "probe", "report")
        how: How = "executed" if told else "settled"
        history.ends.append(End(row["at"], row["tenant"], row["key"], how, row["attempt"]))
    for row in await connection.fetch(_EVIDENCE):
        history.evidence.append(
            Evidence(row["at"], row["tenant"], row["event"], row["key"], row["attempt"])
        )
        how_given_back = _GIVEN_BACK.get((row["event"], row["not_executed"]))
        if how_given_back is not None:
            history.ends.append(
                End(row["at"], row["tenant"], row["key"], how_given_back, row["attempt"])
            )
    return history


_SETTLED = """
select extract(epoch from settled_at)::float8 as at, tenant, key, attempt, settled_by
  from gateway.commands where settled_at is not null
"""
_EVIDENCE = """
select extract(epoch from at)::float8 as at, tenant, event, key, attempt,
       coalesce(event = 'resolved' and reason like 'not executed: %', false) as not_executed
  from gateway.audit
"""
_GIVEN_BACK: dict[tuple[str, bool], How] = {
    ("released", False): "released",
    ("resolved", True): "not-executed",
}


def _grouped(items: Iterable[T], by: Callable[[T], object]) -> list[tuple[tuple, list[T]]]:
    """Groups of what belongs together, each in order of ``at``."""
    groups: dict = defaultdict(list)
    for item in items:
        groups[by(item)].append(item)
    return [
        (name, sorted(group, key=lambda item: item.at))  # type: ignore[attr-defined]
        for name, group in groups.items()
    ]


def _ended(history: History, first: Send, until: float, how: Sequence[How] | None) -> bool:
    """Whether the command of ``first`` ended before ``until``, in one of these ways."""
    return any(
        first.at <= end.at <= until
        for end in history.ends
        if (end.tenant, end.key) == (first.tenant, first.key)
        and (how is None or end.how in how)
        and (first.attempt is None or end.attempt in (None, first.attempt))
    )


def _going_back(items: Sequence[Send] | Sequence[Admission], what: str) -> list[str]:
    found = []
    for (tenant, entity), of_entity in _grouped(items, lambda each: (each.tenant, each.entity)):
        highest = -1
        for each in of_entity:
            assert each.fence is not None
            if each.fence < highest:
                found.append(
                    f"{what} fence {each.fence} after {highest} on {entity} of tenant {tenant}"
                )
            highest = max(highest, each.fence)
    return found


def _first_of_attempt(admissions: Sequence[Admission]) -> list[Admission]:
    """Without the repeats after lost answers: an admitted attempt stays admitted (G2)."""
    first: dict[UUID, Admission] = {}
    for each in sorted(admissions, key=lambda each: each.at):
        first.setdefault(each.attempt, each)
    return list(first.values())


def _explained(history: History, before: Observation, after: Observation) -> bool:
    """It was resolved, its own response came late, another attempt took over, or it was given back
    on proof (and may have been admitted again by a try of the same attempt whose answer was
    lost)."""
    gone = (*_GIVING_BACK, "resent")
    how: tuple[How, ...] = ("settled", "executed") if after.state == "settled" else gone
    return any(
        end.attempt == before.attempt and before.at <= end.at <= after.at and end.how in how
        for end in history.ends
    )


def _sent_before(history: History, end: End) -> Send | None:
    """The send that this end belongs to: of its attempt, or else the latest of its key."""
    sends = [
        send
        for send in history.sends
        if (send.tenant, send.key) == (end.tenant, end.key)
        and send.at <= end.at
        and (None in (send.attempt, end.attempt) or send.attempt == end.attempt)
    ]
    return max(sends, key=lambda send: send.at, default=None)


def _was_held(history: History, released: Evidence) -> bool:
    return any(
        row.event == "outcome_unknown"
        and (row.tenant, row.attempt) == (released.tenant, released.attempt)
        and row.at <= released.at
        for row in history.evidence
    )
