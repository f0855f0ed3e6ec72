"""TLS: verified by default, and an end without a closure alert is no end of a body."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.core.model import Exchange, Stage
from gateway.upstream import Client, Origin
from tests.kit.upstream import RecordingUpstream, cut, raw, respond
from tests.unit.upstream.calls import LOOPBACK, LOOPS, request, run, within


@pytest.fixture(scope="module")
def shared() -> Iterator[RecordingUpstream]:
    with RecordingUpstream(tls=True) as server:
        yield server


@pytest.fixture
def upstream(shared: RecordingUpstream) -> RecordingUpstream:
    shared.clear()
    return shared


@pytest.fixture(params=sorted(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def exchange(loop: str, url: str, context: ssl.SSLContext | None, body: bytes = b"") -> Exchange:
    async def main() -> Exchange:
        client = Client(Origin.parse(url), ssl_context=context)
        seen = (await client.send(request(body=body), within(), keep_limit=1 << 26)).exchange
        await client.close()
        return seen

    return run(loop, main())


def test_trusted(loop: str, upstream: RecordingUpstream) -> None:
    body = bytes(range(256)) * 20_000
    upstream.script = lambda got: respond(200, got.body)
    seen = exchange(loop, upstream.url, upstream.client_context(), body)
    assert seen.stage is Stage.BODY_COMPLETE
    assert seen.response is not None
    assert seen.response.body == body


def test_connections_are_reused(loop: str, upstream: RecordingUpstream) -> None:
    async def main() -> None:
        client = Client(Origin.parse(upstream.url), ssl_context=upstream.client_context())
        for _ in range(3):
            # A session ticket that is still unread makes a connection look spoken on: let it in.
            seen = (await client.send(request(), within(), keep_limit=1000)).exchange
            assert seen.stage is Stage.BODY_COMPLETE
            await asyncio.sleep(0)
        await client.close()

    run(loop, main())
    assert len({one.connection for one in upstream.requests}) == 1


def test_unknown_authority(loop: str, upstream: RecordingUpstream) -> None:
    assert exchange(loop, upstream.url, None) == Exchange(Stage.CONNECTING, None, "tls")
    assert upstream.count == 0


def test_wrong_name(upstream: RecordingUpstream) -> None:
    context = upstream.client_context()

    async def main() -> Exchange:
        async def getaddrinfo(*_: Any, **__: Any) -> Any:
            return [(2, 1, 6, "", ("127.0.0.1", upstream.port))]

        asyncio.get_running_loop().getaddrinfo = getaddrinfo  # type: ignore[method-assign]
        client = Client(Origin.parse("https://other.test"), ssl_context=context, networks=LOOPBACK)
        return (await client.send(request(), within(), keep_limit=0)).exchange

    assert run("asyncio", main()) == Exchange(Stage.CONNECTING, None, "tls")
    assert upstream.count == 0


def test_dies_on_the_request(loop: str, upstream: RecordingUpstream) -> None:
    upstream.next(cut("reset"))
    seen = exchange(loop, upstream.url, upstream.client_context())
    assert (seen.stage, seen.response) == (Stage.SENT, None)
    assert seen.fault in ("closed", "reset")
    assert upstream.count == 1


@pytest.mark.parametrize("alert", [True, False])
def test_body_without_a_length_needs_the_closure_alert(
    loop: str, upstream: RecordingUpstream, alert: bool
) -> None:
    """RFC 9112 §9.8: otherwise anybody on the way could shorten it."""
    upstream.next(raw(b"HTTP/1.1 200 OK\r\n\r\nabc", then="close" if alert else "fin"))
    seen = exchange(loop, upstream.url, upstream.client_context())
    assert seen.response is not None
    assert seen.response.body == b"abc"
    expected = (Stage.BODY_COMPLETE, None) if alert else (Stage.STATUS_SEEN, "closed")
    assert (seen.stage, seen.fault) == expected
