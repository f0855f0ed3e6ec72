"""The decision table: what the database committed, named.

The admit statement applies the rules under its locks and returns facts; ``decide`` only gives
those facts their name. No gateway clock enters, and nothing is sent on any decision but
``Forward``, which exists only where the returned row carries this call's own attempt.

The order of the checks below is the order of the table in ``docs/architecture.md``; first match
wins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from gateway.core.model import Response, UnknownMode
from gateway.core.value import value

__all__ = [
    "Decision",
    "Facts",
    "Forward",
    "Hindrance",
    "Known",
    "Lapsed",
    "Open",
    "Probe",
    "RejectExpired",
    "RejectNotHeld",
    "RejectNotRetained",
    "RejectReused",
    "RejectStale",
    "RejectUnknown",
    "RejectUnresolved",
    "Repeat",
    "Replay",
    "SettledBy",
    "State",
    "TakeOver",
    "WaitForEntity",
    "WaitForKey",
    "decide",
    "hindrance",
]

State = Literal["in-flight", "unknown", "settled"]
"""Derived, never stored: settled, else past its deadline (unknown), else in flight."""

SettledBy = Literal["answer", "late", "resolved", "probe", "report"]
"""By its own response, in time or late; by a person; by a status query; by what was reported."""


@value(frozen=True, slots=True)
class Known:
    """The command row that already stands under this key.

    ``same``: its fingerprint equals this request's; ``None`` where the two are of one policy and
    entity but were made by different rule versions, and so cannot be compared. ``response`` is kept
    only while ``state`` is settled and the body was recorded; ``status`` outlives the body.
    ``remaining_ms``: to the deadline. ``evidence_status``: the upstream's status, where an
    ambiguous one made the outcome unknown. ``unknown``: its policy's rule when it was admitted.
    ``age_ms``: since it was first admitted; ``upstream_key``: the key it was sent with;
    ``account_same``: what this request would be sent to is the same upstream and account, with the
    key in the same field.
    """

    attempt: UUID
    state: State
    same: bool | None
    remaining_ms: int
    status: int | None = None
    response: Response | None = None
    settled_by: SettledBy | None = None
    evidence_status: int | None = None
    unknown: UnknownMode = "hold"
    age_ms: int = 0
    upstream_key: str | None = None
    account_same: bool = False


@dataclass(frozen=True, slots=True)
class Open:
    """Another command that holds the entity's open slot."""

    key: str
    state: Literal["in-flight", "unknown"]
    remaining_ms: int


@value(frozen=True, slots=True)
class Facts:
    """What one admit committed for one command.

    ``attempt`` and ``fence`` are the call's own; ``mark`` is the entity's high-water mark after
    it (``None`` where the command has neither a fence nor an entity slot). ``held``: ``None``
    while the entity's fences are issued outside, else the fence now held, 0 for nobody's.
    ``issuer_here``: the policy takes only fences that are issued here. ``resend_within_ms``,
    ``probes``: what the policy says today of unknown commands.
    """

    attempt: UUID
    fence: int | None
    mark: int | None
    known: Known | None
    open: Open | None
    held: int | None
    issuer_here: bool
    resend_within_ms: int | None = None
    probes: bool = False
    expired: bool = False
    """The key is not known, and its own time is older than the memory of keys."""


@dataclass(frozen=True, slots=True)
class RejectStale:
    """Row 1: the fence is below the high-water mark."""

    fence: int
    mark: int


@dataclass(frozen=True, slots=True)
class RejectNotHeld:
    """Row 2: fences of this entity are issued here, and this is not the one now held. ``held``:
    0 is nobody's, ``None`` that none has been issued yet."""

    fence: int
    mark: int
    held: int | None


@dataclass(frozen=True, slots=True)
class RejectReused:
    """Row 3: the key already names another command."""

    first: Known


@dataclass(frozen=True, slots=True)
class Replay:
    """Row 4. ``compared`` is false where the fingerprints had different rule versions.
    ``age_ms``: since the command was first admitted, so at least since it was settled."""

    response: Response
    settled_by: SettledBy
    compared: bool
    age_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class RejectNotRetained:
    """Row 5: executed, but the response is not kept. ``status`` is ``None`` where a person
    resolved the command as executed."""

    status: int | None
    settled_by: SettledBy
    compared: bool


@dataclass(frozen=True, slots=True)
class WaitForKey:
    """Row 6: an earlier attempt of the same command is in flight."""

    remaining_ms: int


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Row 7: the outcome of ``judged`` is unknown, and the upstream can take the command again
    under the same key. Where the store does not agree, under its locks, as ``otherwise``."""

    judged: UUID
    upstream_key: str
    otherwise: RejectUnknown


@dataclass(frozen=True, slots=True)
class Probe:
    """Row 8: the outcome of ``judged`` is unknown, and the upstream can be asked; then admit again.
    Where that proves nothing, as ``otherwise``."""

    judged: UUID
    otherwise: RejectUnknown


@dataclass(frozen=True, slots=True)
class RejectUnknown:
    """Row 9: the same command was admitted before and its outcome is unknown."""

    evidence_status: int | None
    compared: bool


@dataclass(frozen=True, slots=True)
class RejectExpired:
    """Row 10: the key says itself that it is older than the memory of keys, so it may have been
    executed and forgotten."""


@dataclass(frozen=True, slots=True)
class RejectUnresolved:
    """Row 11: another command of the entity is unknown, so none may overtake it."""

    open: Open


@dataclass(frozen=True, slots=True)
class WaitForEntity:
    """Row 12: another command of the entity is in flight."""

    open: Open


@value(frozen=True, slots=True)
class Forward:
    """Row 13: admitted under this call's own attempt; send it."""

    attempt: UUID


@dataclass(frozen=True, slots=True)
class Lapsed:
    """Admitted under this call's own attempt, but its deadline has passed before anything was
    sent: not sent, so it is released."""

    attempt: UUID


@dataclass(frozen=True, slots=True)
class Repeat:
    """Neither an existing row nor an insert came back (released in between): admit again."""


Decision = (
    RejectStale
    | RejectNotHeld
    | RejectReused
    | Replay
    | RejectNotRetained
    | WaitForKey
    | TakeOver
    | Probe
    | RejectUnknown
    | RejectExpired
    | RejectUnresolved
    | WaitForEntity
    | Forward
    | Lapsed
    | Repeat
)


def decide(facts: Facts) -> Decision:
    """Name what was committed; total over every combination of facts."""
    known = facts.known
    if known is not None and known.attempt == facts.attempt:
        return _own(known)
    if facts.fence is not None and facts.mark is not None:
        refused = _fence(facts.fence, facts.mark, facts)
        if refused is not None:
            return refused
    if known is not None:
        return _unknown(known, facts) if known.state == "unknown" else _existing(known)
    if facts.expired:
        return RejectExpired()
    if facts.open is None:
        return Repeat()
    if facts.open.state == "unknown":
        return RejectUnresolved(facts.open)
    return WaitForEntity(facts.open)


def _fence(fence: int, mark: int, facts: Facts) -> RejectStale | RejectNotHeld | None:
    if fence < mark:
        return RejectStale(fence, mark)
    issued_here = facts.issuer_here or facts.held is not None
    if issued_here and fence != facts.held:
        return RejectNotHeld(fence, mark, facts.held)
    return None


def _own(known: Known) -> Decision:
    """This attempt's row: inserted just now, or by a try whose commit answer was lost.

    It comes before the fence step: the row proves that the fence was good when the attempt was
    admitted, and an attempt that was admitted may be sent (G2). A row past its deadline is not
    sent: the database already calls it unknown, and others may act on that.
    """
    match known.state:
        case "in-flight":
            return Forward(known.attempt)
        case "unknown":
            return Lapsed(known.attempt)
        case "settled":
            return _existing(known)


def _unknown(known: Known, facts: Facts) -> Decision:
    """Rows 7 to 9, behind row 3. Its own slot does not stand in the way of the command."""
    rejected = _existing(known)
    if not isinstance(rejected, RejectUnknown) or hindrance(known, facts) is not None:
        return rejected
    if known.upstream_key is not None and known.unknown == "resend":
        return TakeOver(known.attempt, known.upstream_key, rejected)
    return Probe(known.attempt, rejected)


Hindrance = Literal[
    "held",  # it was admitted as "hold"
    "another-account",  # its policy leads to another upstream, account or key field today
    "no-key",  # it went up without a key of its own
    "not-offered",  # its policy no longer says how it is asked about, or that it may be sent again
    "not-compared",  # its fingerprint was made by other rules
    "window-over",  # its key was first sent too long ago
    "entity-open",  # another command of the entity is open
]


def hindrance(known: Known, facts: Facts) -> Hindrance | None:
    """Why an unknown command is neither sent again (row 7) nor asked about (row 8); ``None`` where
    one of them applies."""
    if known.unknown == "hold":
        return "held"
    if not known.account_same:
        return "another-account"
    if known.unknown == "probe":
        return None if facts.probes else "not-offered"
    if known.upstream_key is None:
        return "no-key"
    if facts.resend_within_ms is None:
        return "not-offered"
    if not known.same:
        return "not-compared"
    if known.age_ms >= facts.resend_within_ms:
        return "window-over"
    return None if facts.open is None else "entity-open"


def _existing(known: Known) -> Decision:
    if known.same is False:
        return RejectReused(known)
    compared = known.same is not None
    match known.state:
        case "settled":
            settled_by = known.settled_by or "answer"
            if known.response is None:
                return RejectNotRetained(known.status, settled_by, compared)
            return Replay(known.response, settled_by, compared, known.age_ms)
        case "in-flight":
            return WaitForKey(known.remaining_ms)
        case "unknown":
            return RejectUnknown(known.evidence_status, compared)
