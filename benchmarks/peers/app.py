"""``uvicorn benchmarks.peers.app:app``: an endpoint that calls the upstream, in a middleware."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

UPSTREAM = os.environ["PEER_UPSTREAM"]
PEER = os.environ["PEER_NAME"]


def middleware() -> Middleware:
    if PEER == "asgi-idempotency-header":
        from idempotency_header_middleware import IdempotencyHeaderMiddleware
        from idempotency_header_middleware.backends import MemoryBackend

        return Middleware(IdempotencyHeaderMiddleware, backend=MemoryBackend())
    from fastapi_idempotency import IdempotencyMiddleware

    return Middleware(IdempotencyMiddleware)


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    connector = aiohttp.TCPConnector(limit=256)
    async with aiohttp.ClientSession(connector=connector) as app.state.session:
        yield


async def charge(request: Request) -> Response:
    session: Any = request.app.state.session
    kind = {"Content-Type": "application/json"}
    body = await request.body()
    async with session.post(UPSTREAM + request.url.path, data=body, headers=kind) as answer:
        return Response(await answer.read(), answer.status, media_type="application/json")


async def ready(_: Request) -> Response:
    return Response()


app = Starlette(
    routes=[
        Route("/v1/customers/{customer}/charges", charge, methods=["POST"]),
        Route("/ready", ready),
    ],
    middleware=[middleware()],
    lifespan=lifespan,
)
