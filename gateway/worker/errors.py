"""What a handler may raise, and what ``job`` raises in it. ``docs/worker.md`` says what follows."""

from __future__ import annotations

from gateway.errors import FencegateError

__all__ = [
    "Executed",
    "KeyReused",
    "LeaseLost",
    "Misuse",
    "NoAnswer",
    "NotSent",
    "OutcomeUnknown",
    "OwnershipUnknown",
    "Refused",
    "RetryLater",
    "Unretryable",
]


class Unretryable(FencegateError):
    """For handlers: no further attempt can help, so the job fails at once."""


class Misuse(FencegateError, ValueError):
    """A call that could not be right, whatever the lease and the gateway: correct the handler.
    Nothing was sent."""


class RetryLater(FencegateError):
    """For handlers: try again, and not before ``delay_s`` seconds have passed. Raises ``Misuse``
    for what is no number."""

    def __init__(self, reason: str, delay_s: float) -> None:
        super().__init__(reason)
        if (wrong := _no_number(delay_s)) is not None:
            raise Misuse(f"RetryLater takes seconds as a number, not a {wrong}")
        self.delay_s = delay_s


class LeaseLost(FencegateError):
    """Somebody else may have the work now: stop, and leave everything as it is. ``reason``: why the
    lease is over."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the lease is lost ({reason}); stop, another worker may have the job")
        self.reason = reason


class OwnershipUnknown(FencegateError):
    """Nobody has confirmed the lease for long enough. Nothing was sent by the call that raised
    it."""


class OutcomeUnknown(FencegateError):
    """The command may or may not have happened: nobody said that it did not. The next attempt asks
    again, with the same key. ``step``: the command's; ``retry_after_s``: as the gateway said."""

    def __init__(self, detail: str, *, step: str | None = None, retry_after_s: float = 0) -> None:
        super().__init__(detail)
        self.step = step
        self.retry_after_s = retry_after_s


class NotSent(FencegateError):
    """The command was not carried out, in this attempt or before: the gateway said so of its key.
    The next attempt sends it, with the same key. ``unresolved``: an earlier command of the entity
    has an unknown outcome, and this one waits for it."""

    def __init__(
        self,
        detail: str,
        *,
        step: str | None = None,
        retry_after_s: float = 0,
        unresolved: bool = False,
    ) -> None:
        super().__init__(detail)
        self.step = step
        self.retry_after_s = retry_after_s
        self.unresolved = unresolved


class Refused(FencegateError):
    """The gateway refuses the request, and would refuse its repeat. ``type``: of the problem."""

    def __init__(self, type: str, detail: str) -> None:
        super().__init__(f"{type}: {detail}")
        self.type = type


class Executed(FencegateError):
    """The command was carried out, and its response is not there: read the result from the
    upstream."""


class KeyReused(FencegateError):
    """The job's key names a job with another tool or payload. ``job``: that one's id."""

    def __init__(self, key: str, job: str) -> None:
        super().__init__(
            f"the key {key!r} names job {job}, with another tool or payload; take a key of its own "
            "for another wish"
        )
        self.job = job


class NoAnswer(FencegateError):
    """The gateway did not answer, or could not. What was asked may have happened; asking it again
    does no harm."""


def _no_number(value: object) -> str | None:
    """What it is instead, if so."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return type(value).__name__
    return "NaN" if value != value else None
