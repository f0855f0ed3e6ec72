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

from gateway.core.jobs import DELAY_LIMIT_MS, ERROR_LIMIT, PAYLOAD_LIMIT
from gateway.worker.errors import Executed, LeaseLost, Refused, RetryLater, Unretryable
from gateway.worker.trust import Reason

__all__ = [
    "BY_ERROR",
    "Completed",
    "End",
    "Failed",
    "HandedBack",
    "How",
    "Next",
    "NotJson",
    "Outcome",
    "Raised",
    "Returned",
    "body_of",
    "encoded",
    "ending",
]

How = Literal["nothing", "handed-back", "failed for good", "failed"]


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


Outcome = Returned | Raised


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
    RetryLater: "failed",
}
"""What follows from what a handler raised. Everything else: failed, and another attempt."""


def ending(outcome: Outcome, *, lost: Reason | None, drained: bool) -> End | None:
    """The end that is sent, ``None`` for none. ``lost``: the lease is over, and why. ``drained``:
    the handler was cancelled because the worker stops."""
    match outcome:
        case Returned(value):
            # Also where the lease is lost: the gateway refuses it, and records that it came.
            return _completed(value)
        case Raised() if lost is not None:
            return None
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
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJson(f"{what} of type {type(value).__name__} is not JSON: {error}") from None
    if len(text) > PAYLOAD_LIMIT:
        raise NotJson(
            f"{what} is {len(text)} bytes of JSON, more than {PAYLOAD_LIMIT}; keep it elsewhere "
            "and return a reference"
        )
    return text


def body_of(reference: Mapping[str, object], worker: str, end: End) -> bytes:
    """The body of ``POST /v1/jobs/end`` for one end; made once, and sent again as it is."""
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
    head = json.dumps({"worker": worker})[:-1]
    return f'{head}, "ends": [{json.dumps(members)[:-1]}{result}}}]}}'.encode()


def _completed(value: object) -> Completed | Failed:
    following = value if isinstance(value, Next) else None
    try:
        return Completed(encoded(following.result if following else value, "a result"), following)
    except NotJson as error:
        # Another attempt would make the same thing of it.
        return Failed(f"the handler returned what cannot be kept: {error}", retry=False)


def _of_error(error: BaseException) -> Failed | None:
    how = next((how for kind, how in BY_ERROR.items() if isinstance(error, kind)), "failed")
    match how:
        case "nothing":
            return None
        case "failed for good":
            return Failed(_told(error), retry=False)
        case "failed":
            wanted = error.delay_s if isinstance(error, RetryLater) else 0
            return Failed(_told(error), delay_s=min(max(wanted, 0), DELAY_LIMIT_MS / 1000))
        case _:
            raise AssertionError(how)


def _told(error: BaseException) -> str:
    """The end of the traceback. What the worker's own errors say needs no stack."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - an error whose text cannot be made is told by its type
        text = type(error).__name__
    return text[-ERROR_LIMIT:].encode(errors="replace").decode()
