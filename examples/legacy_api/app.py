"""The endpoints. Nothing here looks at an idempotency key or a fence: that is the point. Only where
it is told to deduplicate, it does so by ``Client-Reference``."""

import asyncio
import hmac
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .ledger import SHOWN, Ledger, Used
from .switches import BadSwitch, Behaviour, Switches, parse

__all__ = ["HANG_UP", "build"]

HANG_UP = "legacy_api.hang_up"
"""In the ASGI scope: a function that closes the connection, put there by the server."""

_MOST_BYTES = 64 * 1024
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CURRENCY = re.compile(r"[A-Z]{3}")
_MOST_AMOUNT = 10**12

Endpoint = Callable[[Request], Awaitable[Response]]


class _Refused(Exception):
    """The request is not understood; nothing was done."""


class _NoAnswer(Response):
    """Ends the connection without a byte, as a crashed process or a cut cable would."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[HANG_UP]()
        while (await receive())["type"] != "http.disconnect":
            pass  # the server must have seen the end, or it would send a 500 of its own


def build(
    ledger: Ledger, switches: Switches, token: str, *, deduplicates: bool = False
) -> Starlette:
    """The application. It closes the ledger when it is shut down."""
    api = _Api(ledger, switches, deduplicates)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        ledger.close()

    def route(path: str, endpoint: Endpoint, method: str) -> Route:
        return Route(path, _guarded(endpoint, token), methods=[method])

    return Starlette(
        routes=[
            route("/v1/invoices/{invoice_id}/capture", api.capture, "POST"),
            route("/v1/cases", api.open_case, "POST"),
            route("/v1/invoices/{invoice_id}", api.invoice, "GET"),
            route("/v1/effects", api.find, "GET"),
            route("/v1/ledger", api.whole_ledger, "GET"),
            route("/_switches", api.set_switch, "POST"),
            route("/_switches", api.show_switches, "GET"),
            route("/_switches", api.clear_switches, "DELETE"),
        ],
        lifespan=lifespan,
    )


class _Api:
    def __init__(self, ledger: Ledger, switches: Switches, deduplicates: bool) -> None:
        self._ledger = ledger
        self._switches = switches
        self._once = deduplicates
        self._working: set[asyncio.Task[None]] = set()  # asyncio itself holds tasks only weakly

    async def capture(self, request: Request) -> Response:
        """Charge the invoice's customer, once more with every call."""
        invoice_id = _identifier(request.path_params["invoice_id"], "invoice_id")
        body = await _json(request, {"amount", "currency"})
        amount, currency = body["amount"], body["currency"]
        if type(amount) is not int or not 0 < amount <= _MOST_AMOUNT:
            raise _Refused("amount is a whole number of cents above 0")
        if not isinstance(currency, str) or not _CURRENCY.fullmatch(currency):
            raise _Refused("currency is three capital letters, e.g. EUR")
        return await self._effect(request, "capture", f"invoice:{invoice_id}", body)

    async def open_case(self, request: Request) -> Response:
        """Open a support case, once more with every call."""
        body = await _json(request, {"customer_id", "title"})
        customer_id = _identifier(body["customer_id"], "customer_id")
        title = body["title"]
        if not isinstance(title, str) or not 0 < len(title) <= 200:
            raise _Refused("title is text of 1 to 200 characters")
        return await self._effect(request, "case", f"customer:{customer_id}", body)

    async def _effect(
        self, request: Request, kind: str, subject: str, body: Mapping[str, Any]
    ) -> Response:
        caller = request.headers.get("User-Agent", "")
        reference = _reference(request.headers.get("Client-Reference"))
        behaviour = self._behaviour(request)
        asked = f"{request.method} {request.url.path}"
        await run_in_threadpool(self._ledger.note_request, asked, caller)
        if behaviour.name == "refuse":
            return JSONResponse(
                {"error": "not now, nothing was done"}, behaviour.status, {"Retry-After": "1"}
            )
        effect = (kind, subject, body, caller, reference)
        if behaviour.name == "act-later":
            self._act_later(behaviour.seconds, effect)
            return _NoAnswer()
        try:
            number = await run_in_threadpool(self._ledger.append, *effect, once=self._once)
        except Used:
            return JSONResponse({"error": "this reference names something else"}, 422)
        await asyncio.sleep(behaviour.seconds)
        if behaviour.name == "lose-answer":
            return _NoAnswer()
        if behaviour.name == "fail-after":
            return JSONResponse({"error": "something went wrong"}, behaviour.status)
        made = {"id": f"{kind}_{number}", "subject": subject, **body}
        return JSONResponse(made, 201)

    def _act_later(self, seconds: float, effect: tuple[Any, ...]) -> None:
        """The connection is gone, the work goes on: that is why a "not found" is no proof."""

        async def act() -> None:
            await asyncio.sleep(seconds)
            with suppress(Used):
                await run_in_threadpool(self._ledger.append, *effect, once=self._once)

        task = asyncio.create_task(act())
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def find(self, request: Request) -> Response:
        """The effects of one reference: how to ask whether a lost request was carried out."""
        behaviour = parse(request.headers.get("Legacy-Behaviour", "ok"))
        if behaviour.name == "refuse":
            return JSONResponse({"error": "not now"}, behaviour.status)
        reference = _reference(request.query_params.get("reference"))
        if reference is None:
            raise _Refused("reference is the Client-Reference of the request you ask about")
        effects = await run_in_threadpool(self._ledger.effects, reference=reference)
        found = [{"id": f"{each['kind']}_{each['id']}", **each["body"]} for each in effects]
        return JSONResponse({"reference": reference, "effects": found})

    def _behaviour(self, request: Request) -> Behaviour:
        asked = request.headers.get("Legacy-Behaviour")
        return self._switches.take() if asked is None else parse(asked)

    async def invoice(self, request: Request) -> Response:
        invoice_id = _identifier(request.path_params["invoice_id"], "invoice_id")
        effects = await run_in_threadpool(self._ledger.effects, f"invoice:{invoice_id}")
        total = sum(effect["body"]["amount"] for effect in effects)
        return JSONResponse(
            {
                "invoice_id": invoice_id,
                "captured": total,
                "captures": [
                    {"id": f"capture_{effect['id']}", "at": effect["at"], **effect["body"]}
                    for effect in effects
                ],
            }
        )

    async def whole_ledger(self, _: Request) -> Response:
        effects = await run_in_threadpool(self._ledger.effects)
        return JSONResponse(
            {
                "counts": await run_in_threadpool(self._ledger.counts),
                "requests": await run_in_threadpool(self._ledger.requests),
                "shown": f"the latest {SHOWN}",
                "effects": effects,
            }
        )

    async def set_switch(self, request: Request) -> Response:
        body = await _json(request, {"behaviour"})
        self._switches.set(parse(str(body["behaviour"])))
        return await self.show_switches(request)

    async def show_switches(self, _: Request) -> Response:
        return JSONResponse({"waiting": [asdict(each) for each in self._switches.waiting()]})

    async def clear_switches(self, request: Request) -> Response:
        self._switches.clear()
        return await self.show_switches(request)


def _guarded(endpoint: Endpoint, token: str) -> Endpoint:
    """Ask for the token first; turn what is not understood into a 400."""
    expected = f"Bearer {token}".encode()

    async def answer(request: Request) -> Response:
        given = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, expected):
            return JSONResponse({"error": "token missing or wrong"}, 401)
        try:
            return await endpoint(request)
        except (_Refused, BadSwitch) as error:
            return JSONResponse({"error": str(error)}, 400)

    return answer


async def _json(request: Request, members: set[str]) -> dict[str, Any]:
    """The body: an object with exactly these members."""
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > _MOST_BYTES:
            raise _Refused(f"the body is larger than {_MOST_BYTES} bytes")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise _Refused("the body is not JSON") from None
    if not isinstance(body, dict) or set(body) != members:
        raise _Refused(f"the body is an object with the members {', '.join(sorted(members))}")
    return body


def _reference(value: str | None) -> str | None:
    if value is not None and not _ID.fullmatch(value):
        raise _Refused("Client-Reference is 1 to 64 letters, digits, dots, dashes or underscores")
    return value


def _identifier(value: object, name: str) -> str:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise _Refused(f"{name} is 1 to 64 letters, digits, dots, dashes or underscores")
    return value
