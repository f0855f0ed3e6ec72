"""What becomes of the lease when its handler is out: one table.

Pure. ``docs/worker.md`` shows the same table, and a test compares the two.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import httpx

from gateway.core.jobs import DELAY_LIMIT_MS, ERROR_LIMIT, PAYLOAD_LIMIT
from gateway.worker.errors import (
    Executed,
    LeaseLost,
    Misuse,
    NoAnswer,
    NotSent,
    OutcomeUnknown,
    OwnershipUnknown,
    Refused,
    RetryLater,
    Unretryable,
)
from gateway.worker.trust import Reason

__all__ = [
    "BY_ERROR",
    "FINAL",
    "Completed",
    "End",
    "Failed",
    "Gone",
    "HandedBack",
    "How",
    "Next",
    "NotJson",
    "Outcome",
    "Raised",
    "Returned",
    "body_of",
    "deciding",
    "encoded",
    "ending",
    "how_of",
    "why_of",
]

How = Literal["nothing", "handed back", "failed for good", "failed"]

FINAL = "fencegate.final"
"""The extension of a response of ``job.http`` that is the final answer to a command."""

_UNKNOWN_S = 60.0
"""Until a job whose command has an unknown outcome is claimed again: a person, or late bytes,
decide it, and each claim only asks whether they have."""

_GONE_S = 60.0
"""Until a job that nothing could run is claimed again, by another worker or a new process."""


class NotJson(ValueError):
    """A result that cannot be kept; the text says why."""


@dataclass(frozen=True, slots=True)
class Next:
    """What ``job.next(…)`` makes: this stage is done, and another follows."""

    name: str
    entity: str | None
    wait: bool
    result: Any


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler returned."""

    value: object


@dataclass(frozen=True, slots=True)
class Raised:
    """The handler raised."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Gone:
    """What ran the handler has ended, or never began: ``why``."""

    why: str


Outcome = Returned | Raised | Gone


@dataclass(frozen=True, slots=True)
class Completed:
    """``result``: a JSON document."""

    result: str
    next: Next | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """``retry`` false: no attempt can help. ``delay_s``: the next attempt not before that."""

    error: str
    retry: bool = True
    delay_s: float = 0


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The attempt does not count. ``delay_s``: the next one not before that."""

    delay_s: float = 0


End = Completed | Failed | HandedBack

BY_ERROR: Mapping[type[BaseException], How] = {
    LeaseLost: "nothing",
    Unretryable: "failed for good",
    Refused: "failed for good",
    Executed: "failed for good",
    Misuse: "failed for good",
    OutcomeUnknown: "handed back",
    RetryLater: "failed",
}
"""What follows from what a handler raised. Everything else: failed, and another attempt."""

_ORDER: tuple[How, ...] = ("nothing", "handed back", "failed for good", "failed")
"""Of a group of errors, which one decides: no attempt may end as failed while another's command may
still have happened, or while the lease is another's."""

_OWN_WORDS = frozenset(
    {Executed, LeaseLost, Misuse, NoAnswer, NotSent, OutcomeUnknown, OwnershipUnknown, Refused}
)
"""Errors whose text the library itself made. Of these classes only: what somebody derives from
them, or hands to ``Unretryable``, may hold a payload."""


def ending(outcome: Outcome, *, lost: Reason | None, drained: bool) -> End | None:
    """The end that is sent, ``None`` for none. ``lost``: the lease is over, and why. ``drained``:
    the handler was cancelled because the worker stops."""
    match outcome:
        case Returned(value):
            # Also where the lease is lost: the gateway refuses it, and records that it came.
            return _completed(value)
        case Raised() | Gone() if lost is not None:
            return None
        case Gone():
            return HandedBack(_GONE_S)
        case Raised(asyncio.CancelledError()) if drained:
            return HandedBack()
        case Raised(error):
            return _of_error(error)
        case _:
            assert_never(outcome)


def encoded(value: object, what: str) -> str:
    """``value`` as JSON, or ``NotJson`` with the mend."""
    try:
        text = json.dumps(value, allow_nan=False)
    except BaseException as error:  # noqa: BLE001 - code of a class of theirs may run, and sys.exit()
        raise NotJson(
            f"{what} of type {type(value).__name__} is not JSON: {_text(error)}"
        ) from None
    if len(text) > PAYLOAD_LIMIT:
        raise NotJson(
            f"{what} is {len(text)} bytes of JSON, more than {PAYLOAD_LIMIT}; keep it elsewhere "
            "and return a reference"
        )
    return text


def body_of(reference: Mapping[str, object], end: End) -> bytes:
    """One of the ``ends`` of ``POST /v1/jobs/end``; made once, and sent again as it is."""
    members: dict[str, object] = {"lease": dict(reference)}
    result = ""
    match end:
        case Completed(result=document, next=following):
            members["how"] = "completed"
            if following is not None:
                stage = {"name": following.name, "entity": following.entity, "wait": following.wait}
                members["next"] = {name: v for name, v in stage.items() if v is not None}
            result = f', "result": {document}'
        case Failed(error, retry, delay_s):
            members |= {"how": "failed", "error": error, "retry": retry}
            members |= {"delay_s": delay_s} if delay_s else {}
        case HandedBack(delay_s):
            members["how"] = "handed-back"
            members |= {"delay_s": delay_s} if delay_s else {}
        case _:
            assert_never(end)
    return f"{json.dumps(members)[:-1]}{result}}}".encode()


def _completed(value: object) -> Completed | Failed:
    following = value if isinstance(value, Next) else None
    try:
        return Completed(encoded(following.result if following else value, "a result"), following)
    except NotJson as error:
        # Another attempt would make the same thing of it.
        return Failed(f"the handler returned what cannot be kept: {error}", retry=False)


def deciding(error: BaseException) -> BaseException:
    """The error that decides: itself, or of a group one of those in it."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [deciding(each) for each in error.exceptions]
    return min(leaves, key=lambda each: _ORDER.index(how_of(each)))


def how_of(error: BaseException) -> How:
    """What follows from one error that is no group."""
    if isinstance(error, NotSent) and error.unresolved:
        return "handed back"
    if _final_status(error) is not None:
        return "failed for good"
    return next((how for kind, how in BY_ERROR.items() if isinstance(error, kind)), "failed")


def why_of(error: BaseException) -> str | None:
    """What may be logged of it: the library's own sentence, never somebody else's text."""
    if (status := _final_status(error)) is not None:
        return (
            f"the upstream's answer {status} is final for this key: every repeat gets it again. "
            "A corrected wish is a new job, with a new key"
        )
    return str(error) if type(error) in _OWN_WORDS else None


def _final_status(error: BaseException) -> int | None:
    """Of ``raise_for_status``, where no repeat of the command can bring another answer."""
    if isinstance(error, httpx.HTTPStatusError) and FINAL in error.response.extensions:
        return error.response.status_code
    return None


def _of_error(error: BaseException) -> Failed | HandedBack | None:
    decides = deciding(error)
    match how_of(decides):
        case "nothing":
            return None
        case "handed back":
            asked = decides.retry_after_s if isinstance(decides, OutcomeUnknown | NotSent) else 0
            return HandedBack(min(max(asked, _UNKNOWN_S), DELAY_LIMIT_MS / 1000))
        case "failed for good":
            final = why_of(decides) if _final_status(decides) is not None else None
            return Failed(_told(error, final), retry=False)
        case "failed":
            wanted = decides.delay_s if isinstance(decides, RetryLater) else 0
            return Failed(_told(error), delay_s=min(max(wanted, 0), DELAY_LIMIT_MS / 1000))


def _told(error: BaseException, more: str | None = None) -> str:
    """The end of the traceback, and what the worker says of it."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - an error whose text cannot be made is told by its type
        text = type(error).__name__
    text = f"{text}\n{more}" if more else text
    return text[-ERROR_LIMIT:].encode(errors="replace").decode()


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except BaseException:  # noqa: BLE001 - as above
        return type(error).__name__
