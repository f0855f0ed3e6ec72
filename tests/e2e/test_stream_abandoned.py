"""A large body that is relayed and does not come to its end, whoever ends it: the caller, the
upstream, or the process. The log says who, once, and nothing of it is an error of ours."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from tests.kit.db import Server
from tests.kit.gateway import CAPTURE, GatewayProcess, Stack, gateway, policy, stack
from tests.kit.upstream import Gate, RecordingUpstream, drip

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"

_GUARDED = (
    b"POST /pay/v1/accounts/a/charges HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: big\r\n"
    b"X-Execution-Fence: 1\r\nContent-Length: 0\r\n\r\n"
)
_UNGUARDED = b"GET /pay/v1/report HTTP/1.1\r\nHost: localhost\r\n\r\n"


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


CUTS = {"caller": "info", "upstream": "warning", "stop": "warning"}
BOTH = pytest.mark.parametrize(
    "request_bytes", [_GUARDED, _UNGUARDED], ids=["guarded", "unguarded"]
)


@contextmanager
def streaming(
    postgres: Server, request_bytes: bytes
) -> Iterator[tuple[Stack, socket.socket, Gate]]:
    """A caller within a body; the gate ends the upstream's connection."""
    gate = Gate()
    env = {"FENCEGATE_DRAIN_S": "0.3"}
    with stack(
        postgres, lambda url: [policy(url, CAPTURE + 'keep_limit = "1 KiB"\n')], env=env
    ) as made:
        made.upstream.next(drip([_HEAD + b"x" * 5000, b""], gate=gate, then="close"))
        gate.step()
        address = urlsplit(made.gateway.url)
        with socket.create_connection((address.hostname, address.port), timeout=10) as caller:
            caller.sendall(
                request_bytes.replace(b"Host: localhost", b"Host: localhost\r\nX-Request-Id: cut-1")
            )
            heard = b""
            while not heard.endswith(b"xxx"):
                heard += caller.recv(65536)
            yield made, caller, gate


@BOTH
@pytest.mark.parametrize("by", CUTS)
def test_the_log_says_who_cut_it_short(postgres: Server, request_bytes: bytes, by: str) -> None:
    with streaming(postgres, request_bytes) as (made, caller, gate):
        if by == "caller":
            caller.close()
        elif by == "upstream":
            gate.step()
        else:
            made.gateway.signal(signal.SIGTERM)
        line = made.gateway.wait_for_log(event="answer_cut_short", request_id="cut-1")
        made.gateway.stop()
        policy_name = "pay/charge" if request_bytes is _GUARDED else "pay"
        assert (line["by"], line["level"], line["policy"]) == (by, CUTS[by], policy_name)
        assert_nothing_else(made.gateway)


def assert_nothing_else(running: GatewayProcess) -> None:
    """One line says that it was cut short, and none that the application failed."""
    log = running.log
    assert [line["event"] for line in log].count("answer_cut_short") == 1
    assert [line for line in log if "exception" in line] == []
    assert [line for line in log if "ASGI" in line.get("message", "")] == []


def test_a_whole_answer_is_not_cut_short(database: str) -> None:
    with (
        RecordingUpstream() as upstream,
        gateway(database, policy(upstream.url, CAPTURE)) as running,
    ):
        body = b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + b"z" * 300000
        upstream.next(drip([body]))
        address = urlsplit(running.url)
        with socket.create_connection((address.hostname, address.port), timeout=10) as caller:
            caller.sendall(_UNGUARDED)
            heard = b""
            while heard.count(b"z") < 300000:
                heard += caller.recv(65536)
        running.stop()
        assert [line for line in running.log if line["event"] == "answer_cut_short"] == []
