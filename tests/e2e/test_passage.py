"""Safe requests that no command lists: they stream through, unrecorded and unpromised."""

from __future__ import annotations

import http.client
import signal
from collections.abc import Iterator

import pytest

from tests.kit.client import Reply, assert_problem
from tests.kit.db import Server
from tests.kit.gateway import Scene, Stack, policy, rows, stack
from tests.kit.upstream import Gate, cut, drip, hang, raw, respond

CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
"""

HEAD = """
[upstream_headers]
Authorization = "Bearer ${UPSTREAM_TOKEN}"
"""


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    def policies(url: str) -> list[str]:
        return [
            policy(url, CHARGE),
            policy(url + "/base", CHARGE, name="sub", mount="/sub", head=HEAD),
        ]

    with stack(postgres, policies, env={"UPSTREAM_TOKEN": "t0p"}) as made:
        yield made


@pytest.fixture
def scene(served: Stack) -> Iterator[Scene]:
    made = served.scene()
    yield made
    counted = "select (select count(*) from gateway.commands) + (select count(*) from"
    counted += " gateway.entities) + (select count(*) from gateway.audit) as n"
    assert rows(made.stack.database, counted) == [{"n": 0}]


def get(scene: Scene, target: str = "/pay/v1/accounts", method: str = "GET") -> Reply:
    return scene.caller.call(method, target)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_a_safe_request_passes_and_is_marked_unguarded(scene: Scene, method: str) -> None:
    scene.upstream.next(respond(200, b"hello", [("X-A", "1"), ("Set-Cookie", "s=1")]))
    reply = get(scene, method=method)
    assert (reply.status, reply.outcome, reply.replayed) == (200, "unguarded", False)
    assert reply.body == (b"" if method == "HEAD" else b"hello")
    assert (reply.one("X-A"), reply.one("Set-Cookie")) == ("1", "s=1")
    assert reply.one("Content-Length") == "5"
    (request,) = scene.upstream.requests
    assert (request.method, request.target) == (method.encode(), b"/v1/accounts")


@pytest.mark.parametrize("status", [200, 204, 206, 301, 304, 401, 404, 429, 500, 503])
def test_every_status_passes_as_it_is(scene: Scene, status: int) -> None:
    body = b"" if status in (204, 304) else b"text"
    scene.upstream.next(respond(status, body, [("ETag", '"v1"')]))
    reply = get(scene)
    assert (reply.status, reply.body, reply.outcome) == (status, body, "unguarded")
    assert reply.one("ETag") == '"v1"'


def test_a_not_modified_that_says_a_length_passes(scene: Scene) -> None:
    scene.upstream.next(raw(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"))
    assert get(scene).status == 304
    assert [line for line in scene.stack.gateway.log if line.get("exception")] == []


def test_it_is_asked_each_time_and_never_recorded(scene: Scene) -> None:
    fields = [("Idempotency-Key", "k"), ("X-Execution-Fence", "1")]
    bodies = [scene.caller.call("GET", "/pay/v1/accounts", fields).body for _ in range(2)]
    assert bodies == [b'{"effect": 1}', b'{"effect": 2}']


def test_the_gateways_fields_end_here_and_the_upstreams_are_set(scene: Scene) -> None:
    fields = [
        ("Authorization", "Bearer fg_1_secret"),
        ("Idempotency-Key", "k"),
        ("X-Execution-Fence", "1"),
        ("X-Execution-Entity", "e"),
        ("Connection", "X-Hop"),
        ("X-Hop", "1"),
        ("Range", "bytes=0-1"),
    ]
    scene.caller.call("GET", "/sub/v1/a%2Db?q=%41", fields)
    (request,) = scene.upstream.requests
    assert request.target == b"/base/v1/a%2Db?q=%41"
    assert request.one("Authorization") == b"Bearer t0p"
    names = sorted(name.lower() for name, _ in request.headers)
    assert names == [b"authorization", b"host", b"range", b"via"]


def test_a_large_body_streams_as_it_comes(scene: Scene) -> None:
    gate = Gate()
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n"
    scene.upstream.next(drip([head + b"a" * 1_000_000, b"b" * 1_000_000], gate=gate))
    gate.step()
    exchange = scene.caller.open("GET", "/pay/v1/export")
    heard = exchange.read()
    while heard.count(b"a") < 1_000_000:
        heard += exchange.read()
    gate.step()
    while heard.count(b"b") < 1_000_000:
        heard += exchange.read()
    exchange.hang_up()


@pytest.mark.parametrize("framing", [b"Content-Length: 300000", b"Transfer-Encoding: chunked"])
def test_a_body_that_breaks_off_is_not_completed(scene: Scene, framing: bytes) -> None:
    start = b"a" * 100_000
    if b"chunked" in framing:
        start = b"186a0\r\n" + start + b"\r\n"
    scene.upstream.next(raw(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n" + start, then="close"))
    with pytest.raises(http.client.IncompleteRead):
        get(scene)


def test_an_upstream_that_cannot_be_reached_is_said(scene: Scene) -> None:
    scene.upstream.refuse()
    scene.upstream.drop_connections()
    try:
        assert_problem(get(scene), "not-sent", outcome="unguarded", waits=True)
    finally:
        scene.upstream.accept()


@pytest.mark.parametrize("then", ["close", "reset"])
def test_an_upstream_that_does_not_answer_is_said(scene: Scene, then: str) -> None:
    scene.upstream.next(cut(then))  # type: ignore[arg-type]
    reply = get(scene)
    assert (reply.status, reply.outcome, reply.json()["sent"]) == (504, "unguarded", "yes")


def test_the_fixed_paths_are_the_gateways_own(scene: Scene) -> None:
    assert get(scene, "/healthz").json() == {"status": "ok"}
    assert get(scene, "/readyz").json() == {"status": "ready"}
    assert b"fencegate_requests_total" in get(scene, "/metrics").body
    assert scene.upstream.count == 0


def test_what_streams_through_takes_no_connection_from_commands_and_ends_with_its_caller(
    postgres: Server,
) -> None:
    def policies(url: str) -> list[str]:
        return [policy(url, CHARGE, head="max_connections = 1")]

    with stack(postgres, policies) as made:
        scene = made.scene()
        scene.upstream.script = lambda r: hang() if r.method == b"GET" else None
        first = scene.caller.open("GET", "/pay/v1/hangs", [], b"")
        scene.upstream.wait_for_requests(1)
        assert scene.send().status == 201
        first.hang_up()
        scene.upstream.wait_for_disconnects(1)
        second = scene.caller.open("GET", "/pay/v1/hangs", [], b"")
        scene.upstream.wait_for_requests(3)
        second.hang_up()


def test_the_end_of_the_drain_is_told_as_such(postgres: Server) -> None:
    with stack(postgres, lambda url: [policy(url, CHARGE)], env={"FENCEGATE_DRAIN_S": "0.3"}) as m:
        m.upstream.next(hang())
        sent = m.caller().open("GET", "/pay/v1/hangs", [], b"")
        m.upstream.wait_for_requests(1)
        m.gateway.signal(signal.SIGTERM)
        reply = sent.reply()
        assert (reply.status, reply.outcome) == (504, "unguarded")
        assert (reply.json()["sent"], reply.json()["retry"]) == ("unknown", "same-key")
