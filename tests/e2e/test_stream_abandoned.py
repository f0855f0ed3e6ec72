"""A caller that hangs up while a large body is relayed: the upstream is not read to its end."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from tests.kit.gateway import CAPTURE, gateway, policy
from tests.kit.upstream import Gate, RecordingUpstream, drip

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"

_GUARDED = (
    b"POST /pay/v1/accounts/a/charges HTTP/1.1\r\nHost: gw\r\nIdempotency-Key: big\r\n"
    b"X-Execution-Fence: 1\r\nContent-Length: 0\r\n\r\n"
)
_UNGUARDED = b"GET /pay/v1/report HTTP/1.1\r\nHost: gw\r\n\r\n"


@pytest.mark.parametrize("request_bytes", [_GUARDED, _UNGUARDED], ids=["guarded", "unguarded"])
def test_the_upstream_connection_ends_with_the_caller(database: str, request_bytes: bytes) -> None:
    never = Gate()
    with (
        RecordingUpstream() as upstream,
        gateway(database, policy(upstream.url, CAPTURE + 'keep_limit = "1 KiB"\n')) as running,
    ):
        upstream.next(drip([_HEAD + b"x" * 5000, b"y" * 5000], gate=never))
        address = urlsplit(running.url)
        with socket.create_connection((address.hostname, address.port), timeout=10) as caller:
            caller.sendall(request_bytes)
            never.step()
            assert caller.recv(65536).startswith(b"HTTP/1.1 200")
        never.release()  # the body stays short of its length, so only the gateway ends this
        upstream.wait_for_disconnects(1)
