"""The documents of the job routes, as values. Pure: what was received is read as strictly as the
worker depends on it, and members that a later release adds are passed over."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast, get_args

from gateway.core.jobs import JobState, KeyState, LostReason
from gateway.core.leases import LeaseClass
from gateway.worker.apart import Unreadable, read_claim

__all__ = [
    "Beat",
    "Ended",
    "Enqueued",
    "Leased",
    "Malformed",
    "Renewed",
    "beats",
    "ends",
    "enqueued",
    "leases",
    "read",
    "read_leases",
]

Document = Mapping[str, Any]


class Malformed(ValueError):
    """An answer that is not what the route answers."""


@dataclass(frozen=True, slots=True)
class Leased:
    """One lease as a claim returns it. ``reference``: goes back as it came. ``payload``,
    ``previous``: the JSON documents, read, or ``Unreadable``."""

    reference: Document
    job: str
    entity: str
    fence: int
    tool: str
    attempt: int
    max_attempts: int
    model: str | None
    provider: str | None
    remaining_ms: int
    total_remaining_ms: int
    key: str
    session: str | None
    on_behalf: str | None
    stage: str | None
    stage_no: int
    payload: Any
    previous: Any
    last_error: str | None
    terms: LeaseClass

    @property
    def unreadable(self) -> str | None:
        """What of it cannot be read, and why, if so."""
        for what, found in (("payload", self.payload), ("previous result", self.previous)):
            if isinstance(found, Unreadable):
                return f"the {what} cannot be read here: {found.why}"
        return None


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease goes on. Milliseconds, counted from when the database answered."""

    remaining_ms: int
    total_remaining_ms: int


Beat = Renewed | LostReason
"""What a heartbeat says of one lease."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end is recorded, by this or (``again``) an earlier try. ``state``: what the job became;
    ``None`` where it was ``rejected``, the lease being over."""

    state: JobState | None
    again: bool = False
    rejected: LostReason | None = None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The job under a key. ``created``: by this call; else it is the first one, with what became of
    it. ``same``: it has the tool and the payload that were sent."""

    job: str
    created: bool
    same: bool
    state: KeyState
    result: Any
    error: str | None


def leases(document: object) -> list[Leased]:
    """What a claim answers."""
    return [_leased(each) for each in _list(document, "leases")]


def beats(document: object, asked: Sequence[str]) -> list[Beat]:
    """What a heartbeat answers, in the order in which the jobs were asked for."""
    listed = _list(document, "leases")
    if [each.get("job") for each in listed] != list(asked):
        raise Malformed("the heartbeat's answer is about other jobs")
    return [_beat(each) for each in listed]


def ends(document: object, asked: Sequence[str]) -> list[Ended]:
    """What ends answer, in the order in which they were sent."""
    listed = _list(document, "ends")
    if [each.get("job") for each in listed] != list(asked):
        raise Malformed("the answer to an end is about other jobs")
    return [_ended(each) for each in listed]


def _ended(each: Document) -> Ended:
    if "rejected" in each:
        return Ended(None, rejected=_reason(each["rejected"]))
    return Ended(_state(each.get("state")), again=bool(each.get("again")))


def enqueued(document: object) -> Enqueued:
    """What enqueueing one job answers."""
    (each,) = _one(_list(document, "jobs"))
    return Enqueued(
        job=_text(each, "job"),
        created=bool(each.get("created")),
        same=bool(each.get("same")),
        state="forgotten" if each.get("state") == "forgotten" else _state(each.get("state")),
        result=each.get("result"),
        error=_text_or_none(each, "error"),
    )


def read(body: bytes) -> object:
    """A JSON document, or ``Malformed``."""
    return _read(json.loads, body)


def read_leases(body: bytes) -> object:
    """What a claim answers, each payload read apart; or ``Malformed``."""
    return _read(read_claim, body)


def _read(reader: Callable[[bytes], object], body: bytes) -> object:
    try:
        return reader(body)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the answer is not JSON that can be read here ({error})") from None


def _leased(each: Document) -> Leased:
    reference, terms = each.get("lease"), each.get("terms")
    if not isinstance(reference, dict) or not isinstance(terms, dict):
        raise Malformed("a lease comes without its reference or its terms")
    return Leased(
        reference=reference,
        job=_text(reference, "job"),
        entity=_text(reference, "entity"),
        fence=_whole(reference, "fence"),
        tool=_text(reference, "tool"),
        attempt=_whole(reference, "attempt"),
        max_attempts=_whole(each, "max_attempts"),
        model=_text_or_none(reference, "model"),
        provider=_text_or_none(reference, "provider"),
        remaining_ms=_whole(each, "remaining_ms"),
        total_remaining_ms=_whole(each, "total_remaining_ms"),
        key=_text(each, "key"),
        session=_text_or_none(each, "session"),
        on_behalf=_text_or_none(each, "on_behalf"),
        stage=_text_or_none(each, "stage"),
        stage_no=_whole(each, "stage_no"),
        payload=each.get("payload"),
        previous=each.get("previous"),
        last_error=_text_or_none(each, "last_error"),
        terms=_terms(
            _seconds(terms, "lease_s"),
            _seconds(terms, "heartbeat_s"),
            _seconds(terms, "jitter_s"),
            _whole(terms, "misses"),
            _seconds(terms, "stage_limit_s"),
        ),
    )


@lru_cache(64)
def _terms(
    lease_s: float, heartbeat_s: float, jitter_s: float, misses: int, stage_limit_s: float
) -> LeaseClass:
    return LeaseClass(lease_s, heartbeat_s, jitter_s, misses, stage_limit_s)


def _beat(each: Document) -> Beat:
    if "lost" in each:
        return _reason(each["lost"])
    return Renewed(_whole(each, "remaining_ms"), _whole(each, "total_remaining_ms"))


def _list(document: object, name: str) -> list[Document]:
    found = document.get(name) if isinstance(document, dict) else None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise Malformed(f"the answer has no list {name!r}")
    return found


def _one(found: list[Document]) -> list[Document]:
    if len(found) != 1:
        raise Malformed(f"the answer is about {len(found)} jobs, not one")
    return found


def _text(each: Document, name: str) -> str:
    value = each.get(name)
    if not isinstance(value, str):
        raise Malformed(f"{name} is not a text")
    return value


def _text_or_none(each: Document, name: str) -> str | None:
    return None if each.get(name) is None else _text(each, name)


def _whole(each: Document, name: str) -> int:
    value = each.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Malformed(f"{name} is not a whole number")
    return value


def _seconds(each: Document, name: str) -> float:
    value = each.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Malformed(f"{name} is not a number")
    return float(value)


def _reason(value: object) -> LostReason:
    if value in get_args(LostReason):
        return cast(LostReason, value)
    return "ended"  # a reason that a later release added is a loss all the same


def _state(value: object) -> JobState:
    if value not in get_args(JobState):
        raise Malformed(f"{value!r} is no state of a job")
    return cast(JobState, value)
