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
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NoReturn, assert_never
from uuid import uuid4

import httpx

from gateway.core.leases import DRIFT, REQUEST_TIMEOUT_S
from gateway.worker.actions import Act, Settled, Strange, read_answer
from gateway.worker.client import connect
from gateway.worker.clock import now_mono_s
from gateway.worker.errors import (
    Executed,
    LeaseLost,
    NoAnswer,
    NotSent,
    OutcomeUnknown,
    OwnershipUnknown,
    Refused,
)
from gateway.worker.keeper import Keeper, Tended

__all__ = ["AsyncHttp", "Caller", "Lane", "SyncHttp"]

TIMEOUT_S = 30.0
"""Of one try, as a total. As the usual ``timeout_s`` of a command."""

_STEP = re.compile(r"[A-Za-z0-9._-]{1,64}")

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

_OURS = frozenset(
    {
        "authorization",
        "idempotency-key",
        "x-execution-fence",
        "x-execution-entity",
        "x-request-id",
    }
)

_KEYWORDS = frozenset({"json", "data", "files", "content", "params", "headers"})

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
    """No answer that says anything. ``left``: part of the request may have got through."""

    why: str
    left: bool


@dataclass(frozen=True, slots=True)
class _Reply:
    response: httpx.Response
    meaning: Act


@dataclass(slots=True)
class Caller:
    """The calls of one attempt at a job."""

    lane: Lane
    tended: Tended
    keeper: Keeper
    worker: str
    _steps: dict[str, bytes] = field(default_factory=dict)

    def fields(self, step: str) -> dict[str, str]:
        """The control fields of a command."""
        if not _STEP.fullmatch(step):
            raise ValueError(f"step {step!r} is not 1 to 64 of A-Z a-z 0-9 . _ -")
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
        timeout_s: float = TIMEOUT_S,
        **content: Any,
    ) -> httpx.Response:
        """See ``docs/worker.md``. Raises ``ValueError`` for a call that could not be right."""
        client = self.lane.client()
        prepared = self._prepare(client, method.upper(), path, step, timeout_s, content)
        began = now_mono_s()
        number, maybe = 0, False
        while True:
            number += 1
            await self._permit(prepared, maybe)
            self._tell(prepared, step, number)
            result = await self._try(client, prepared)
            self.tended.sign_of_life()
            if isinstance(result, httpx.Response):
                return result
            if isinstance(result, _Reply):
                maybe = maybe or result.meaning.maybe
                self._act(result.meaning)
                pause_s = _retry_after(result.response)
            else:
                maybe = maybe or result.left
                pause_s = None
            if pause_s is None:
                longest = min(_FIRST_PAUSE_S * 2.0 ** (number - 1), _LONGEST_PAUSE_S)
                pause_s = longest * (1 - random.random() / 2)
            if now_mono_s() + pause_s > began + self.tended.leased.terms.lease_s:
                _give_up(prepared, result, number, maybe)
            await asyncio.sleep(pause_s)

    def _prepare(
        self,
        client: httpx.AsyncClient,
        method: str,
        path: str,
        step: str | None,
        timeout_s: float,
        content: Mapping[str, Any],
    ) -> _Prepared:
        if unknown := sorted(content.keys() - _KEYWORDS):
            raise TypeError(f"job.http takes no {unknown[0]!r}; it takes {', '.join(_KEYWORDS)}")
        if step is None and method not in _SAFE:
            raise ValueError(f'{method} changes something, so it needs a name: step="…"')
        if not 0 < timeout_s <= 86_400:
            raise ValueError(f"timeout_s={timeout_s!r} is not within 0 to 86400")
        if not isinstance(content.get("content") or b"", bytes | str):
            raise TypeError("content= is kept whole to be repeated; give bytes or str")
        self._check_target(path)
        headers = httpx.Headers(content.get("headers"))
        if taken := sorted(set(headers) & _OURS):
            raise ValueError(f"{taken[0]!r} is set by job.http; leave it out")
        headers.update(self.fields(step) if step is not None else {"X-Request-Id": uuid4().hex})
        request = client.build_request(method, path, **{**content, "headers": headers})
        prepared = _Prepared(request, request.read(), step is not None, timeout_s)
        if step is not None and self._steps.setdefault(step, prepared.digest) != prepared.digest:
            raise ValueError(
                f"step {step!r} was sent before with another method, path or body; give each "
                "command of a job a step of its own"
            )
        return prepared

    def _check_target(self, path: str) -> None:
        target, base = httpx.URL(path), self.lane.url
        elsewhere = (target.scheme, target.host, target.port) != (base.scheme, base.host, base.port)
        if target.userinfo or ((target.host or target.scheme) and elsewhere):
            raise ValueError(
                f"job.http sends to the gateway at {base} only; give a path such as "
                "/payments/v1/charges"
            )
        if not target.host and not path.startswith("/"):
            raise ValueError(f"{path!r} is no path; begin it with / and the upstream's mount")

    async def _permit(self, prepared: _Prepared, maybe: bool) -> None:
        """Raise unless the request may be sent now. A safe one may while the lease is not lost."""
        self.tended.sign_of_life()
        if prepared.command and self._worth_asking(prepared.timeout_s):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await asyncio.wrap_future(self.keeper.ask(self.tended))
        try:
            self._judge(prepared, prepared.timeout_s)
        except OwnershipUnknown as error:
            if not maybe:
                raise
            raise OutcomeUnknown(
                f"an earlier try of this call had no answer, and cannot be repeated now: {error}"
            ) from error

    def _worth_asking(self, needed_s: float) -> bool:
        """Whether a heartbeat could make room that is not there now, as before one that is due."""
        lease_s = self.tended.leased.terms.lease_s
        return self.tended.left_s <= needed_s < lease_s * (1 - DRIFT) and self.tended.lost is None

    def _judge(self, prepared: _Prepared, needed_s: float) -> None:
        if prepared.command:
            self.tended.check(needed_s)
        elif (reason := self.tended.lost) is not None:
            raise LeaseLost(reason)

    def _tell(self, prepared: _Prepared, step: str | None, number: int) -> None:
        self.tended.tell(
            "tool_request_started",
            step=step,
            number=number,
            external_request_id=prepared.request.headers["X-Request-Id"],
            worker=self.worker,
        )

    async def _try(
        self, client: httpx.AsyncClient, prepared: _Prepared
    ) -> httpx.Response | _Reply | _NoReply:
        until = now_mono_s() + prepared.timeout_s
        left = False

        async def trace(name: str, _: object) -> None:
            nonlocal left
            if name == _LEAVES:
                self._judge(prepared, until - now_mono_s())
                left = True

        try:
            async with asyncio.timeout(prepared.timeout_s):
                response = await client.send(prepared.fresh(trace), follow_redirects=False)
        except TimeoutError:
            return _NoReply(f"no answer within {prepared.timeout_s:g} s", left)
        except (httpx.HTTPError, OSError) as error:
            return _NoReply(f"{type(error).__name__}: {error}", left)
        meaning = read_answer(
            response.headers.get("Gateway-Outcome"), response.status_code, _problem(response)
        )
        match meaning:
            case Settled():
                return response
            case Act():
                return _Reply(response, meaning)
            case Strange():
                why = f"status {response.status_code} without a Gateway-Outcome"
                return _NoReply(f"{why}; is FENCEGATE_URL the gateway?", left=True)
            case _:
                assert_never(meaning)

    def _act(self, meaning: Act) -> None:
        """Raise what the answer means, unless it is to be repeated."""
        match meaning.action:
            case "retry" | "wait":
                return
            case "stop":
                # A fence that is refused proves more than a heartbeat that was confirmed before.
                self.keeper.lose(self.tended, "taken")
                raise LeaseLost(f"{meaning.type}: {meaning.detail}")
            case "unknown":
                raise OutcomeUnknown(meaning.detail)
            case "executed":
                raise Executed(f"{meaning.type}: {meaning.detail}")
            case "refused":
                raise Refused(meaning.type, meaning.detail)
            case _:
                assert_never(meaning.action)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A request with its bytes. ``command``: it carries a key and the fence."""

    request: httpx.Request
    body: bytes
    command: bool
    timeout_s: float

    @property
    def digest(self) -> bytes:
        """Of what makes it the same command. A multipart body is cut by a boundary that is drawn
        anew each time; the gateway compares its parts."""
        kind = self.request.headers.get("Content-Type", "")
        multipart = kind.startswith("multipart/")
        digest = sha256(f"{self.request.method} {self.request.url}\n".encode())
        digest.update(b"" if multipart else self.body)
        return digest.digest()

    def fresh(self, trace: Callable[[str, object], object]) -> httpx.Request:
        """The same request, for one try."""
        return httpx.Request(
            self.request.method,
            self.request.url,
            headers=self.request.headers,
            content=self.body,
            extensions={"trace": trace},
        )


def _problem(response: httpx.Response) -> object:
    if not response.headers.get("Content-Type", "").startswith("application/problem+json"):
        return None
    try:
        return json.loads(response.content)
    except ValueError:
        return None


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds; a date, which the gateway does not send, is passed over."""
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def _give_up(prepared: _Prepared, last: _Reply | _NoReply, tries: int, maybe: bool) -> NoReturn:
    why = last.why if isinstance(last, _NoReply) else f"{last.meaning.type}: {last.meaning.detail}"
    told = f"after {tries} tries, the last one: {why}"
    if not prepared.command:
        raise NoAnswer(told)
    if maybe:
        raise OutcomeUnknown(f"it may have happened, {told}")
    raise NotSent(f"it did not happen, {told}")


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
        return asyncio.run_coroutine_threadsafe(sent, self._loop).result()
