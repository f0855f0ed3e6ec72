"""The gateway's job routes, asked over HTTP.

``Client`` is for whoever enqueues, and for the worker itself. It is bound to the event loop in
which it is first used. Every question may be asked again: enqueueing by its id, claiming by its
uuid, ends by their lease and digest.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from http.cookiejar import DefaultCookiePolicy
from types import TracebackType
from typing import Any, TypeVar
from uuid import uuid4

import httpx

from gateway import __version__
from gateway.core.jobs import PAYLOAD_LIMIT
from gateway.core.leases import REQUEST_TIMEOUT_S
from gateway.core.problems import PREFIX
from gateway.errors import ConfigurationError
from gateway.worker.errors import KeyReused, NoAnswer, Refused
from gateway.worker.wire import (
    Beat,
    Ended,
    Enqueued,
    Leased,
    Malformed,
    beats,
    ends,
    enqueued,
    leases,
    read,
    read_leases,
)

__all__ = ["Client", "connect", "where"]

T = TypeVar("T")

_URL = "http://127.0.0.1:8080"

_ASK_S = 10.0
"""Longest wait for one answer: a statement takes 2 s at most, a batch that is repeated one by one
several of them."""

_TRIES = 4
"""Of a question that somebody waits for, 0.25, 0.5 and 1 s apart: as long as a restart takes."""

_PAUSE_S = 0.25

_MEND_URL = "is FENCEGATE_URL right, and does the gateway run?"

_MEND_TLS = "does FENCEGATE_URL say https where nothing speaks TLS, or name another host?"

_NO_ROUTE = "is FENCEGATE_URL the gateway's address alone, without a path such as /v1?"

# What a route of ours refuses by a setting of the caller's.
_MENDS = {
    "unauthenticated": "set FENCEGATE_KEY to a token of `fencegate keys add`",
    "forbidden": "FENCEGATE_KEY is the key that may not",
    "no-policy": _NO_ROUTE,
    "method-not-allowed": _NO_ROUTE,
}


def where(url: str | None, key: str | None) -> tuple[httpx.URL, str | None]:
    """Address and token, from the environment where they are not given; raises
    ``ConfigurationError``."""
    text = url or os.environ.get("FENCEGATE_URL") or _URL
    try:
        found = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ConfigurationError(f"FENCEGATE_URL {text!r} cannot be read: {error}") from None
    port = 1 if found.port is None else found.port
    odd = found.query or found.userinfo or not 0 < port < 65_536
    if found.scheme not in ("http", "https") or not found.host or odd:
        raise ConfigurationError(
            f"FENCEGATE_URL {text!r} is not the gateway's address; write it as {_URL}"
        )
    token = key or os.environ.get("FENCEGATE_KEY") or None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigurationError("FENCEGATE_KEY is no token of `fencegate keys add`; correct it")
    return found, token


def connect(url: httpx.URL, key: str | None, *, connections: int) -> httpx.AsyncClient:
    """A client without automatisms: nothing of the environment, no redirects, no cookies. Timeouts
    are the caller's, as totals."""
    client = httpx.AsyncClient(
        base_url=url,
        headers={
            "User-Agent": f"fencegate-worker/{__version__}",
            **({"Authorization": f"Bearer {key}"} if key else {}),
        },
        trust_env=False,
        follow_redirects=False,
        timeout=None,
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
    )
    # What one job's upstream sets must not reach another's.
    client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    return client


class Client:
    """See the module. ``url``, ``key``: else ``FENCEGATE_URL`` and ``FENCEGATE_KEY``."""

    def __init__(self, url: str | None = None, key: str | None = None) -> None:
        self._url, self._key = where(url, key)
        self._http: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    # For whoever enqueues. These repeat a question that got no answer, and raise NoAnswer in the
    # end, or Refused.

    async def enqueue(
        self,
        tool: str,
        payload: Any,
        *,
        key: str | None = None,
        entity: str | None = None,
        session: str | None = None,
        on_behalf: str | None = None,
        model: str | None = None,
        provider: str | None = None,
        stage: str | None = None,
        priority: int = 5,
        run_at: datetime | None = None,
        give_up_at: datetime | None = None,
    ) -> Enqueued:
        """Enqueue one job. With a ``key`` that is known, the first job under it comes back; raises
        ``KeyReused`` where that one has another tool or payload. Times carry their zone."""
        document = json.dumps(payload, allow_nan=False)
        if len(document) > PAYLOAD_LIMIT:
            raise ValueError(
                f"the payload is {len(document)} bytes of JSON, more than {PAYLOAD_LIMIT}; "
                "send a reference"
            )
        wish = {
            "id": str(uuid4()),
            "tool": tool,
            "key": key,
            "entity": entity,
            "session": session,
            "on_behalf": on_behalf,
            "model": model,
            "provider": provider,
            "stage": stage,
            "priority": priority,
            "run_at": _moment("run_at", run_at),
            "give_up_at": _moment("give_up_at", give_up_at),
        }
        members = {name: value for name, value in wish.items() if value is not None}
        raw = json.dumps(members)[:-1] + f', "payload": {document}}}'
        body = f'{{"jobs": [{raw}]}}'.encode()
        made = _read(enqueued, await self._insist("POST", "/v1/jobs", body))
        if not made.same:
            raise KeyReused(key or made.job, made.job)
        return made

    async def show(self, job: str) -> Mapping[str, Any]:
        """One job, finished or not, with its payload and result."""
        document = await self._insist("GET", f"/v1/jobs/{job}")
        found = document.get("job") if isinstance(document, dict) else None
        if not isinstance(found, dict):
            raise NoAnswer("the answer holds no job; is FENCEGATE_URL the gateway?")
        return found

    async def cancel(self, job: str, reason: str) -> str:
        """Cancel an unfinished job; its state."""
        body = json.dumps({"reason": reason}).encode()
        document = await self._insist("POST", f"/v1/jobs/{job}/cancel", body)
        return str(document.get("state")) if isinstance(document, dict) else ""

    # For the worker. These ask once: it knows itself when to ask again, and for how long.

    async def claim(
        self, worker: str, claim: str, limit: int, tools: Sequence[str]
    ) -> list[Leased]:
        """Leases of up to ``limit`` jobs. Asked again with the same ``claim``, the same leases."""
        wish = {"worker": worker, "claim": claim, "limit": limit, "tools": list(tools)}
        body = json.dumps(wish).encode()
        answer = await self._ask("POST", "/v1/jobs/claim", body, reader=read_leases)
        return _read(leases, answer)

    async def heartbeat(self, worker: str, held: Sequence[Leased]) -> list[Beat]:
        """One answer for each lease, in order."""
        wish = {"worker": worker, "leases": [each.reference for each in held]}
        body = json.dumps(wish).encode()
        document = await self._ask("POST", "/v1/jobs/heartbeat", body, within_s=REQUEST_TIMEOUT_S)
        return _read(lambda found: beats(found, [each.job for each in held]), document)

    async def end(
        self, worker: str, batch: Sequence[tuple[str, bytes]], *, within_s: float = _ASK_S
    ) -> list[Ended]:
        """End leases: jobs, and their ends as ``gateway.worker.endings`` makes them."""
        head = json.dumps({"worker": worker})[:-1].encode()
        body = b'%s, "ends": [%s]}' % (head, b", ".join(end for _, end in batch))
        document = await self._ask("POST", "/v1/jobs/end", body, within_s=within_s)
        return _read(lambda found: ends(found, [job for job, _ in batch]), document)

    async def _insist(self, method: str, path: str, body: bytes | None = None) -> object:
        for number in range(_TRIES - 1):
            with contextlib.suppress(NoAnswer):
                return await self._ask(method, path, body)
            await asyncio.sleep(_PAUSE_S * 2**number)
        return await self._ask(method, path, body)

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        within_s: float = _ASK_S,
        reader: Callable[[bytes], object] = read,
    ) -> object:
        """The document of a 2xx. Raises ``Refused`` for what no repeat mends, else ``NoAnswer``."""
        if self._http is None:
            # One for what is asked, and room for the ends of several jobs at once.
            self._http = connect(self._url, self._key, connections=16)
        try:
            async with asyncio.timeout(within_s):
                answer = await self._http.request(
                    method, path, content=body, headers={"Content-Type": "application/json"}
                )
        except TimeoutError:
            raise NoAnswer(
                f"no answer from {self._url} within {within_s:g} s; {_MEND_URL}"
            ) from None
        except (httpx.HTTPError, OSError) as error:
            mend = _MEND_TLS if "SSL" in str(error) else _MEND_URL
            raise NoAnswer(
                f"no answer from {self._url} ({type(error).__name__}: {error}); {mend}"
            ) from None
        return _document(answer, reader)


def _document(answer: httpx.Response, reader: Callable[[bytes], object]) -> object:
    try:
        document = reader(answer.content)
    except Malformed as error:
        raise NoAnswer(
            f"status {answer.status_code}, and {error}; is FENCEGATE_URL the gateway?"
        ) from None
    if answer.is_success:
        return document
    members = document if isinstance(document, dict) else {}
    name = str(members.get("type", ""))
    if not name.startswith(PREFIX) or answer.status_code >= 500:
        raise NoAnswer(
            f"status {answer.status_code}: {members.get('detail', 'no reason is given')}"
        )
    kind = name.removeprefix(PREFIX)
    detail, mend = str(members.get("detail", "")), _MENDS.get(kind)
    raise Refused(kind, detail if mend is None else f"{detail.rstrip('.')}; {mend}")


def _read(reader: Callable[[object], T], document: object) -> T:
    try:
        return reader(document)
    except Malformed as error:
        raise NoAnswer(f"{error}; do worker and gateway have the same release?") from None


def _moment(name: str, at: datetime | None) -> str | None:
    if at is not None and at.tzinfo is None:
        raise ValueError(f"{name} has no time zone; write e.g. datetime.now(UTC) + …")
    return None if at is None else at.isoformat()
