"""``job.http``: commands through the gateway, under the job's lease.

Each request is judged by the trust window immediately before it is sent, and again as its first
byte is about to leave, since connecting takes time and a process may be stopped in between. What
gets no answer, or one that asks for it, is repeated with the same key and the same bytes, as long
as the lease is held and no longer than one lease lasts.

There is one way of sending, on an event loop. A synchronous handler runs in a thread, and waits for
a loop that is not the handlers'.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from dataclasses import dataclass, field
from typing import Any, assert_never
from uuid import uuid4

import httpx

from gateway.core.leases import DRIFT, REQUEST_TIMEOUT_S
from gateway.errors import FencegateError
from gateway.observe.log import Value
from gateway.worker.actions import Act, Settled, Strange, read_answer
from gateway.worker.client import connect
from gateway.worker.clock import now_mono_s
from gateway.worker.endings import FINAL
from gateway.worker.errors import (
    Executed,
    LeaseLost,
    Misuse,
    NoAnswer,
    NotSent,
    OutcomeUnknown,
    OwnershipUnknown,
    Refused,
)
from gateway.worker.keeper import Keeper, Tended
from gateway.worker.preparing import Prepared, check_step, prepare

__all__ = ["AsyncHttp", "Caller", "Lane", "SyncHttp"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0
"""Between two tries, where the answer does not say how long."""

_LEAVES = "http11.send_request_headers.started"
"""httpcore's name of the moment before the first byte of a request is written."""


class Lane:
    """Connections to the gateway, of one event loop. ``connections``: as many as calls at once."""

    def __init__(self, url: httpx.URL, key: str | None, connections: int) -> None:
        self.url = url
        self._key = key
        self._connections = connections
        self._client: httpx.AsyncClient | None = None

    def client(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = connect(self.url, self._key, connections=self._connections)
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


@dataclass(frozen=True, slots=True)
class _NoReply:
    """No answer that says anything."""

    why: str
    error: str


@dataclass(frozen=True, slots=True)
class _Reply:
    response: httpx.Response
    meaning: Settled | Act


_Result = _Reply | _NoReply


@dataclass(slots=True)
class _Step:
    """What this attempt knows of one command, over all its calls. ``doubts``: tries that left, and
    of which nobody said that they did nothing. ``undone``: the gateway has said that nothing
    happened under the key."""

    digest: bytes
    doubts: int = 0
    undone: bool = False


@dataclass(slots=True)
class Caller:
    """The calls of one attempt at a job."""

    lane: Lane
    tended: Tended
    keeper: Keeper
    worker: str
    _steps: dict[str, _Step] = field(default_factory=dict)

    def fields(self, step: str) -> dict[str, str]:
        """The control fields of a command."""
        check_step(step)
        leased = self.tended.leased
        return {
            "Idempotency-Key": f'"tool-job:{leased.job}:{step}"',
            "X-Execution-Fence": str(leased.fence),
            "X-Execution-Entity": leased.entity,
            "X-Request-Id": uuid4().hex,
        }

    async def send(
        self,
        method: str,
        path: str,
        *,
        step: str | None = None,
        timeout_s: float | None = None,
        **content: Any,
    ) -> httpx.Response:
        """See ``docs/worker.md``. Raises ``Misuse`` for a call that could not be right."""
        client = self.lane.client()
        prepared = prepare(
            client,
            method,
            path,
            step=step,
            timeout_s=timeout_s,
            control=self.fields(step) if step is not None else {"X-Request-Id": uuid4().hex},
            content=content,
            terms=self.tended.leased.terms,
        )
        known = self._known(prepared)
        began, number = now_mono_s(), 0
        while True:
            number += 1
            result = await self._one(client, prepared, known, number)
            self.tended.sign_of_life()
            wait_s = 0.0
            if isinstance(result, _Reply):
                wait_s = _retry_after(result.response)
                if isinstance(result.meaning, Settled):
                    return result.response
                self._act(result.meaning, step, wait_s)
            longest = min(_FIRST_PAUSE_S * 2.0 ** min(number - 1, 10), _LONGEST_PAUSE_S)
            pause_s = wait_s or longest * (1 - random.random() / 2)
            if now_mono_s() + pause_s > began + self.tended.leased.terms.lease_s:
                raise _given_up(prepared, known, result, number, wait_s)
            await asyncio.sleep(pause_s)

    def _known(self, prepared: Prepared) -> _Step:
        made = _Step(prepared.digest)
        if prepared.step is None:
            return made
        known = self._steps.setdefault(prepared.step, made)
        if known.digest != made.digest:
            raise Misuse(
                f"step {prepared.step!r} was sent before with another method, path or body; give "
                "each command of a job a step of its own"
            )
        return known

    async def _one(
        self, client: httpx.AsyncClient, prepared: Prepared, known: _Step, number: int
    ) -> _Result:
        """One try, if it may be."""
        try:
            await self._permit(prepared)
            return await self._told(client, prepared, known, number)
        except OwnershipUnknown as error:
            if not known.doubts:
                raise
            raise OutcomeUnknown(
                "an earlier try of this command had no answer, and cannot be repeated now: "
                f"{error}",
                step=prepared.step,
            ) from error

    async def _permit(self, prepared: Prepared) -> None:
        """Raise unless the request may be sent now. A safe one may while the lease is not lost."""
        self.tended.sign_of_life()
        if prepared.step is not None and self._worth_asking(prepared.timeout_s):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await asyncio.wrap_future(self.keeper.ask(self.tended))
        self._judge(prepared, prepared.timeout_s)

    def _worth_asking(self, needed_s: float) -> bool:
        """Whether a heartbeat could make room that is not there now, as before one that is due."""
        lease_s = self.tended.leased.terms.lease_s
        return self.tended.left_s <= needed_s < lease_s * (1 - DRIFT) and self.tended.over is None

    def _judge(self, prepared: Prepared, needed_s: float) -> None:
        if prepared.step is not None:
            self.tended.check(needed_s)
        elif (reason := self.tended.over) is not None:
            raise LeaseLost(reason)

    async def _told(
        self, client: httpx.AsyncClient, prepared: Prepared, known: _Step, number: int
    ) -> _Result:
        """One try, with its two lines in the log."""
        about: dict[str, Value] = {
            "step": prepared.step,
            "number": number,
            "external_request_id": prepared.request.headers["X-Request-Id"],
            "worker": self.worker,
        }
        self.tended.tell("tool_request_started", "info", **about)
        began = now_mono_s()
        ended: dict[str, Value] = {"status": None, "outcome": None, "error": None}
        try:
            result = await self._try(client, prepared, known)
            if isinstance(result, _Reply):
                ended["status"] = result.response.status_code
                ended["outcome"] = result.response.headers.get("Gateway-Outcome")
            else:
                ended["error"] = result.error
            return result
        except BaseException as error:
            ended["error"] = type(error).__name__
            raise
        finally:
            ended["ms"] = round((now_mono_s() - began) * 1000)
            self.tended.tell("tool_request_ended", "info", **about, **ended)

    async def _try(self, client: httpx.AsyncClient, prepared: Prepared, known: _Step) -> _Result:
        until = now_mono_s() + prepared.timeout_s
        left = False

        async def trace(name: str, _: object) -> None:
            nonlocal left
            if name == _LEAVES and not left:
                self._judge(prepared, until - now_mono_s())
                left = True
                known.doubts += 1  # until somebody answers, also where the handler is cancelled

        try:
            async with asyncio.timeout(prepared.timeout_s):
                response, readable = await _received(client, prepared.fresh(trace))
        except TimeoutError:
            return _NoReply(f"no answer within {prepared.timeout_s:g} s", "TimeoutError")
        except (httpx.HTTPError, OSError) as error:
            kind = type(error).__name__
            return _NoReply(f"{kind}: {error}; FENCEGATE_URL is {self.lane.url}", kind)
        outcome = response.headers.get("Gateway-Outcome")
        if not readable and outcome in ("applied", "replayed", "unguarded"):
            meaning: Settled | Act | Strange = _UNREADABLE
        else:
            document = _problem(response) if readable else None
            meaning = read_answer(outcome, response.status_code, document)
        if isinstance(meaning, Strange):
            why = f"status {response.status_code} without a Gateway-Outcome"
            return _NoReply(f"{why}; is FENCEGATE_URL the gateway?", why)
        if isinstance(meaning, Settled) or not meaning.maybe:
            known.doubts -= left
        if isinstance(meaning, Act) and meaning.undone:
            known.undone = True
        if prepared.step is not None and outcome in ("applied", "replayed"):
            response.extensions[FINAL] = prepared.step
        return _Reply(response, meaning)

    def _act(self, meaning: Act, step: str | None, wait_s: float) -> None:
        """Raise what the answer means, unless it is to be repeated."""
        match meaning.action:
            case "retry" | "wait":
                return
            case "stop":
                # A fence that is refused proves more than a heartbeat that was confirmed before.
                if not self.tended.ending:
                    self.keeper.lose(self.tended, "taken")
                raise LeaseLost(f"{meaning.type}: {meaning.detail}")
            case "unknown":
                raise OutcomeUnknown(meaning.detail, step=step, retry_after_s=wait_s)
            case "executed":
                raise Executed(f"{meaning.type}: {meaning.detail}")
            case "refused":
                raise Refused(meaning.type, meaning.detail)
            case _:
                assert_never(meaning.action)


_UNREADABLE = Act(
    "executed",
    "response-unreadable",
    "the upstream has answered, and its Content-Encoding cannot be decoded",
)


async def _received(
    client: httpx.AsyncClient, request: httpx.Request
) -> tuple[httpx.Response, bool]:
    """The whole answer, and whether its body could be decoded: an answer it is all the same."""
    response = await client.send(request, stream=True, follow_redirects=False)
    try:
        await response.aread()
    except httpx.DecodingError:
        return response, False
    finally:
        await response.aclose()
    return response, True


def _problem(response: httpx.Response) -> object:
    if not response.headers.get("Content-Type", "").startswith("application/problem+json"):
        return None
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError):
        return None


def _retry_after(response: httpx.Response) -> float:
    """Seconds, 0 for none; a date, which the gateway does not send, is passed over."""
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0.0


def _given_up(
    prepared: Prepared, known: _Step, last: _Result, tries: int, wait_s: float
) -> FencegateError:
    """What is known when the time is over. That it did not happen may be said only where the
    gateway said so of this key: an attempt before this one may have sent it, also where this is the
    first that counts."""
    problem = last.meaning if isinstance(last, _Reply) and isinstance(last.meaning, Act) else None
    if isinstance(last, _NoReply):
        why = last.why
    else:
        why = f"{problem.type}: {problem.detail}" if problem is not None else "it was answered"
    told = f"after {tries} tries, the last one: {why}"
    if problem is not None and problem.type == "unauthenticated":
        told += " FENCEGATE_KEY is the worker's key."
    step = prepared.step
    if step is None:
        return NoAnswer(told)
    if known.doubts:
        told = f"it may have happened, {told}"
        return OutcomeUnknown(told, step=step, retry_after_s=wait_s)
    if known.undone:
        unresolved = problem is not None and problem.type == "entity-unresolved"
        told = f"it did not happen, {told}"
        return NotSent(told, step=step, retry_after_s=wait_s, unresolved=unresolved)
    return OutcomeUnknown(
        "nothing of this call was carried out, but no gateway has said whether an earlier attempt "
        f"was, {told}",
        step=step,
        retry_after_s=wait_s,
    )


class _Methods:
    """The methods by name, for either kind of handler."""

    def request(self, method: str, path: str, **more: Any) -> Any:
        raise NotImplementedError

    def get(self, path: str, **more: Any) -> Any:
        return self.request("GET", path, **more)

    def post(self, path: str, **more: Any) -> Any:
        return self.request("POST", path, **more)

    def put(self, path: str, **more: Any) -> Any:
        return self.request("PUT", path, **more)

    def patch(self, path: str, **more: Any) -> Any:
        return self.request("PATCH", path, **more)

    def delete(self, path: str, **more: Any) -> Any:
        return self.request("DELETE", path, **more)


class AsyncHttp(_Methods):
    """``job.http`` of an async handler: await it."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        return await self._caller.send(method, path, **more)


class SyncHttp(_Methods):
    """``job.http`` of a handler in a thread. ``loop``: where it is sent from."""

    def __init__(self, caller: Caller, loop: asyncio.AbstractEventLoop) -> None:
        self._caller = caller
        self._loop = loop

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        sent = self._caller.send(method, path, **more)
        try:
            answered = asyncio.run_coroutine_threadsafe(sent, self._loop)
        except RuntimeError:  # the worker is gone, and its loop with it
            sent.close()
            raise LeaseLost("ended") from None
        return answered.result()
