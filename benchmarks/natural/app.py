"""``uvicorn benchmarks.natural.app:app``; client, upstream and database from the environment."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Send = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]

UPSTREAM = os.environ["NATURAL_UPSTREAM"]
DATABASE = os.environ["NATURAL_DATABASE"]
CLIENT = os.environ["NATURAL_CLIENT"]
CONNECTIONS = 256
JSON = {"Content-Type": "application/json"}


@contextlib.asynccontextmanager
async def with_httpx() -> AsyncIterator[Send]:
    import httpx

    limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    async with httpx.AsyncClient(limits=limits, timeout=30) as client:

        async def send(path: str, body: bytes) -> tuple[int, bytes]:
            answer = await client.post(UPSTREAM + path, content=body, headers=JSON)
            return answer.status_code, answer.content

        yield send


@contextlib.asynccontextmanager
async def with_aiohttp() -> AsyncIterator[Send]:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def send(path: str, body: bytes) -> tuple[int, bytes]:
            async with session.post(UPSTREAM + path, data=body, headers=JSON) as answer:
                return answer.status, await answer.read()

        yield send


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    client = {"httpx": with_httpx, "aiohttp": with_aiohttp}[CLIENT]
    async with client() as app.state.send, asyncpg.create_pool(DATABASE, max_size=20) as pool:
        app.state.pool = pool
        yield


async def charge(request: Request) -> Response:
    key = request.headers["idempotency-key"]
    fence = int(request.headers["x-execution-fence"])
    entity = f"customer:{request.path_params['customer']}"
    body = await request.body()
    digest = hashlib.sha256(request.url.path.encode() + b"\n" + body).digest()

    async with request.app.state.pool.acquire() as connection, connection.transaction():
        refused = await admit(connection, key, entity, fence, digest)
    if refused is not None:
        return refused

    status, answer = await request.app.state.send(request.url.path, body)

    async with request.app.state.pool.acquire() as connection, connection.transaction():
        await connection.execute(
            "update commands set settled_at = now(), status = $2, body = $3 where key = $1",
            key,
            status,
            answer,
        )
    return Response(answer, status, media_type="application/json")


async def admit(
    connection: asyncpg.Connection, key: str, entity: str, fence: int, digest: bytes
) -> Response | None:
    """What to answer in place of sending."""
    good = await connection.fetchval(
        "insert into entities (entity, fence) values ($1, $2) on conflict (entity)"
        " do update set fence = excluded.fence where entities.fence <= excluded.fence returning 1",
        entity,
        fence,
    )
    if good is None:
        return JSONResponse({"error": "stale"}, 412)
    new = await connection.fetchval(
        "insert into commands (key, entity, fence, digest) values ($1, $2, $3, $4)"
        " on conflict (key) do nothing returning 1",
        key,
        entity,
        fence,
        digest,
    )
    if new is not None:
        return None
    row = await connection.fetchrow("select * from commands where key = $1", key)
    if row["digest"] != digest:
        return JSONResponse({"error": "key reused"}, 422)
    if row["settled_at"] is None:
        return JSONResponse({"error": "in flight"}, 409)
    return Response(row["body"], row["status"], media_type="application/json")


async def ready(_: Request) -> Response:
    return Response()


app = Starlette(
    routes=[
        Route("/v1/customers/{customer}/charges", charge, methods=["POST"]),
        Route("/ready", ready),
    ],
    lifespan=lifespan,
)
