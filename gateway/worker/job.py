"""``Job``: what a handler gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.worker.endings import Next
from gateway.worker.errors import Misuse
from gateway.worker.http import AsyncHttp, Caller, SyncHttp

__all__ = ["Job"]


class Job:
    """One attempt at one stage of a job. ``payload``, ``previous`` (the result of the stage before)
    are JSON, read; ``fence`` is this lease's. ``http``: await it in an async handler."""

    def __init__(
        self,
        caller: Caller,
        http: AsyncHttp | SyncHttp,
        stopping: Callable[[], bool],
    ) -> None:
        leased = caller.tended.leased
        self._caller = caller
        self._tended = caller.tended
        self._stopping = stopping
        self.http: Any = http
        self.id: str = leased.job
        self.key: str = leased.key
        self.tool: str = leased.tool
        self.stage: str | None = leased.stage
        self.stage_no: int = leased.stage_no
        self.entity: str = leased.entity
        self.fence: int = leased.fence
        self.attempt: int = leased.attempt
        self.max_attempts: int = leased.max_attempts
        self.session: str | None = leased.session
        self.on_behalf: str | None = leased.on_behalf
        self.model: str | None = leased.model
        self.provider: str | None = leased.provider
        self.payload: Any = leased.payload
        self.previous: Any = leased.previous
        self.last_error: str | None = leased.last_error

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.tool}/{self.stage or '-'} attempt {self.attempt}>"

    @property
    def stopping(self) -> bool:
        """The worker is asked to stop: come to an end soon."""
        return self._stopping()

    @property
    def request_timeout_s(self) -> float:
        """For how long the lease is trusted from now on; 0 where it is not, and once the handler is
        out. What is sent with ``headers`` must end inside it."""
        return self._tended.left_s if self._tended.over is None else 0.0

    def next(
        self, name: str, *, entity: str | None = None, wait: bool = False, result: Any = None
    ) -> Next:
        """Return it: this stage is done, and stage ``name`` follows, on ``entity`` (else the job's
        own), and with ``wait`` only once somebody approves it."""
        for what, value in (("name", name), ("entity", entity)):
            if not isinstance(value, str) and (what == "name" or value is not None):
                raise Misuse(f"job.next takes a text as {what}, not a {type(value).__name__}")
        return Next(name, entity, bool(wait), result)

    def progress(self) -> None:
        """A sign of life. A handler that gives none for ``stage_limit_s`` loses its lease."""
        self._tended.sign_of_life()

    def check(self, needed_s: float = 0) -> None:
        """Raise ``LeaseLost``, also once the handler is out; or ``OwnershipUnknown`` where the
        lease is not certain to be held for ``needed_s`` seconds more."""
        self._tended.check(needed_s)

    def headers(self, step: str) -> dict[str, str]:
        """The control fields of one command, for another HTTP client. Check the lease right before
        you send: ``job.check(timeout_s)``; and give that client the gateway's address and key."""
        self.check()
        return self._caller.fields(step)
