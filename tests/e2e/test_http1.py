"""The server's own boundary: one request at a time on a connection, limits to what is no body, and
heads that everybody on the way reads alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.http1 import HEAD_LIMIT, IGNORED_LIMIT
from tests.kit.client import Exchange, assert_problem
from tests.kit.db import Server
from tests.kit.gateway import Scene, Stack, policy, stack
from tests.kit.upstream import Gate, gated

CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 60
"""

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: g\r\n\r\n"
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    with stack(postgres, lambda url: [policy(url, CHARGE)]) as made:
        yield made


@pytest.fixture
def scene(served: Stack) -> Scene:
    return served.scene()


def charge(scene: Scene, key: str = "k", *fields: str, body: bytes = b"{}") -> bytes:
    """One command as it goes over the wire; ``fields`` frame it where they are given."""
    framing = fields or (f"Content-Length: {len(body)}",)
    lines = [
        f"POST /pay/v1/accounts/{scene.account}/charges HTTP/1.1",
        "Host: gateway.test",
        f"Idempotency-Key: {scene.key(key)}",
        "X-Execution-Fence: 5",
        "Prefer: wait=20",
        *framing,
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


def held(scene: Scene) -> tuple[Exchange, Gate]:
    """A command that is at the upstream and stays there until the gate opens."""
    gate = Gate()
    scene.upstream.next(gated(gate))
    exchange = scene.caller.raw(charge(scene, "first"))
    scene.upstream.wait_for_requests(1)
    return exchange, gate


def let_it_read(scene: Scene) -> None:
    """What was sent before is read before this is answered."""
    assert scene.caller.call("GET", "/healthz").status == 200


def is_alive(scene: Scene) -> None:
    """The process lives and nobody's slot is taken: another command goes through."""
    assert scene.send("after", 9).status == 201


def sent_until_cut_off(exchange: Exchange, piece: bytes) -> int:
    """How many bytes left before the gateway closed the connection; 8 MiB where it did not."""
    sent = 0
    while sent < 8 * MIB:
        try:
            exchange.send(piece)
        except OSError:
            break
        sent += len(piece)
    exchange.hang_up()
    return sent


# -- one request at a time (RFC 9112 §9.3.2)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("second", ["GET", "POST", "half a head"])
def test_a_waiter_that_sent_a_second_request_and_hung_up_is_never_admitted(
    scene: Scene, second: str, reset: bool
) -> None:
    first, gate = held(scene)
    waiter = scene.waiter("k2", 5)
    behind = {"GET": HEALTH, "POST": charge(scene, "k3"), "half a head": HEALTH[:-10]}[second]
    waiter.send(behind)
    let_it_read(scene)
    waiter.hang_up(reset=reset)
    scene.stack.wait_for_waiters(0)
    scene.stack.gateway.wait_for_log(status=499, entity=scene.entity)
    gate.release()
    assert first.reply().status == 201
    is_alive(scene)
    assert (scene.row("k2"), scene.row("k3"), scene.upstream.count) == (None, None, 2)


@pytest.mark.parametrize("how", ["in one piece", "one after the other"])
@pytest.mark.parametrize(
    "behind",
    [b"", b"garbage\r\n\r\n", HEALTH * 3, b"x" * (IGNORED_LIMIT // 2)],
    ids=["nothing", "garbage", "more requests", "a lot"],
)
def test_a_second_command_is_not_executed_and_the_first_is_answered_whole(
    scene: Scene, how: str, behind: bytes
) -> None:
    gate = Gate()
    scene.upstream.next(gated(gate))
    second = charge(scene, "second") + behind
    if how == "in one piece":
        exchange = scene.caller.raw(charge(scene, "first") + second)
        scene.upstream.wait_for_requests(1)
    else:
        exchange = scene.caller.raw(charge(scene, "first"))
        scene.upstream.wait_for_requests(1)
        exchange.send(second)
    let_it_read(scene)
    gate.release()
    head, _, body = exchange.read_all().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 201 ")
    assert b"\r\nconnection: close" in head.lower()
    assert body == b'{"effect": 1}'
    is_alive(scene)
    assert (scene.row("second"), scene.upstream.count) == (None, 2)


@pytest.mark.parametrize("framing", ["Content-Length: 300000", "Transfer-Encoding: chunked"])
def test_the_body_of_a_second_command_never_becomes_the_firsts(scene: Scene, framing: str) -> None:
    exchange, gate = held(scene)
    body = b"x" * 300_000 if "Length" in framing else b"3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n"
    exchange.send(charge(scene, "second", framing, body=body))
    let_it_read(scene)
    gate.release()
    reply = exchange.next()
    assert (reply.status, reply.one("Connection")) == (201, "close")
    assert (scene.upstream.requests[0].body, scene.row("second")) == (b"{}", None)


def test_what_is_thrown_away_is_bounded_and_the_command_goes_on(scene: Scene) -> None:
    exchange, gate = held(scene)
    assert IGNORED_LIMIT < sent_until_cut_off(exchange, HEALTH * 100) < 8 * MIB
    gate.release()
    scene.wait_for_state("settled", "first")
    assert scene.upstream.count == 1


def test_a_waiter_that_sends_on_without_end_is_cut_off_and_never_admitted(scene: Scene) -> None:
    first, gate = held(scene)
    waiter = scene.waiter("k2", 5)
    assert IGNORED_LIMIT < sent_until_cut_off(waiter, HEALTH * 100) < 8 * MIB
    scene.stack.wait_for_waiters(0)
    gate.release()
    assert first.reply().status == 201
    is_alive(scene)
    assert (scene.row("k2"), scene.upstream.count) == (None, 2)


def test_a_request_behind_an_answer_is_served_on_the_same_connection(scene: Scene) -> None:
    exchange = scene.caller.raw(charge(scene, "one"))
    for key in ("two", "three"):
        reply = exchange.next()
        assert (reply.status, reply.one("Connection")) == (201, None)
        exchange.send(charge(scene, key))
    assert exchange.reply().json() == {"effect": 3}


def test_a_head_that_ends_behind_the_answer_is_served_too(scene: Scene) -> None:
    exchange, gate = held(scene)
    second = charge(scene, "second")
    exchange.send(second[:40])
    let_it_read(scene)
    gate.release()
    assert exchange.next().one("Connection") is None
    exchange.send(second[40:])
    assert exchange.reply().json() == {"effect": 2}


# -- what is no body (RFC 9112 §7.1.1, §7.1.2)


def peak_memory(scene: Scene) -> int:
    """KiB, by the kernel's high-water mark."""
    process = scene.stack.gateway.process
    assert process is not None
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


ENDLESS = {
    "a trailer line": (b"2\r\n{}\r\n0\r\nX-Trailer: ", b"a"),
    "a trailer's name": (b"2\r\n{}\r\n0\r\n", b"a"),
    "trailer lines": (b"2\r\n{}\r\n0\r\n", b"X-Trailer: 1\r\n"),
    "a chunk extension": (b"2\r\n{}\r\n2;a=", b"a"),
    "chunk extensions": (b"2\r\n{}\r\n2", b";a=b"),
    "an extension of the last chunk": (b"2\r\n{}\r\n0;a=", b"a"),
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(("start", "more"), ENDLESS.values(), ids=ENDLESS)
def test_trailers_and_extensions_without_end_are_cut_off(
    scene: Scene, start: bytes, more: bytes
) -> None:
    before = peak_memory(scene)
    exchange = scene.caller.raw(charge(scene, "k", "Transfer-Encoding: chunked", body=start))
    assert sent_until_cut_off(exchange, more * (65536 // len(more))) < 8 * MIB
    assert peak_memory(scene) - before < 2 * 1024
    is_alive(scene)
    assert (scene.row("k"), scene.upstream.count) == (None, 1)


@pytest.mark.parametrize(("start", "more"), ENDLESS.values(), ids=ENDLESS)
def test_trailers_and_extensions_over_the_limit_are_a_problem(
    scene: Scene, start: bytes, more: bytes
) -> None:
    exchange = scene.caller.raw(charge(scene, "k", "Transfer-Encoding: chunked", body=start))
    let_it_read(scene)
    exchange.send(more * (HEAD_LIMIT // len(more) + 1))
    assert_problem(exchange.next(), "request-invalid")
    assert exchange.read_all() == b""
    assert (scene.row("k"), scene.upstream.count) == (None, 0)


def test_trailers_over_the_limit_are_refused_in_one_read_too(scene: Scene) -> None:
    trailers = b"X-Trailer: 1\r\n" * (HEAD_LIMIT // 14 + 1)
    body = b"2\r\n{}\r\n0\r\n" + trailers + b"\r\n"
    exchange = scene.caller.raw(charge(scene, "k", "Transfer-Encoding: chunked", body=body))
    assert_problem(exchange.next(), "request-invalid")
    assert (scene.row("k"), scene.upstream.count) == (None, 0)


def test_many_short_extensions_and_trailers_pass(scene: Scene) -> None:
    """The limit is one between bytes of the body, not one for all of them together."""
    chunks = (b"1;x=" + b"a" * 900 + b"\r\n1\r\n") * 300
    body = chunks + b"0\r\nX-Trailer: " + b"a" * 30_000 + b"\r\n\r\n"
    exchange = scene.caller.raw(charge(scene, "k", "Transfer-Encoding: chunked", body=body))
    assert exchange.reply().status == 201
    assert scene.upstream.requests[0].body == b"1" * 300


# -- the limit of a head


def health(size: int) -> bytes:
    """A request whose head has exactly so many bytes."""
    head = b"GET /healthz HTTP/1.1\r\nHost: g\r\nX-A: %b\r\n\r\n"
    return head % (b"a" * (size - len(head % b"")))


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_a_head_of_the_limit_passes_and_one_byte_more_is_refused(scene: Scene, pieces: int) -> None:
    for size, status in ((HEAD_LIMIT, 200), (HEAD_LIMIT + 1, 400)):
        head = health(size)
        step = size // pieces + 1
        exchange = scene.caller.raw(head[:step], method="GET")
        for start in range(step, size, step):
            let_it_read(scene)
            exchange.send(head[start : start + step])
        reply = exchange.next()
        assert reply.status == status
        if status == 400:
            assert_problem(reply, "request-invalid")
            assert exchange.read_all() == b""


@pytest.mark.parametrize(
    "head",
    [
        b"GET /%b HTTP/1.1\r\nHost: g\r\n\r\n" % (b"a" * HEAD_LIMIT),
        b"GET /healthz HTTP/1.1\r\nHost: g\r\n%b: 1\r\n\r\n" % (b"a" * HEAD_LIMIT),
        b"GET /healthz HTTP/1.1\r\nHost: g\r\n%b\r\n" % (b"a:\r\n" * 20_000),
        b"\r\n" * HEAD_LIMIT,
    ],
    ids=["target", "name", "lines", "blank lines"],
)
def test_whatever_makes_a_head_too_large_is_refused(scene: Scene, head: bytes) -> None:
    assert_problem(scene.caller.raw(head).reply(), "request-invalid")


def test_a_large_body_is_not_counted_as_the_next_head(scene: Scene) -> None:
    body = b"x" * 3 * HEAD_LIMIT
    exchange = scene.caller.raw(charge(scene, body=body) + HEALTH[:10])
    assert exchange.next().status == 201
    exchange.send(HEALTH[10:])
    assert exchange.reply().status == 200
    assert scene.upstream.requests[0].body == body


# -- version, host, coding, target

REFUSED = {
    "no version": b"POST /pay/v1/cases\r\nHost: g\r\n\r\n",
    "version 0.9": b"POST /pay/v1/cases HTTP/0.9\r\nHost: g\r\n\r\n",
    "version 2.0": b"POST /pay/v1/cases HTTP/2.0\r\nHost: g\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "an empty host": b"GET /healthz HTTP/1.1\r\nHost: \r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: g\r\nHost: g\r\n\r\n",
    "two hosts in one": b"GET /healthz HTTP/1.1\r\nHost: g,h\r\n\r\n",
    "a host with a blank": b"GET /healthz HTTP/1.1\r\nHost: g h\r\n\r\n",
    "a host with a path": b"GET /healthz HTTP/1.1\r\nHost: g/h\r\n\r\n",
    "a host with a user": b"GET /healthz HTTP/1.1\r\nHost: u@g\r\n\r\n",
    "two hosts in 1.0": b"GET /healthz HTTP/1.0\r\nHost: g\r\nHost: h\r\n\r\n",
    "two codings": b"POST /healthz HTTP/1.1\r\nHost: g\r\n"
    b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "two codings in two lines": b"POST /healthz HTTP/1.1\r\nHost: g\r\n"
    b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "another coding": b"POST /healthz HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: gzip\r\n\r\n",
    "no coding": b"POST /healthz HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: identity\r\n\r\n",
    "a coding in 1.0": b"POST /healthz HTTP/1.0\r\nHost: g\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a coding before a length": b"POST /healthz HTTP/1.1\r\nHost: g\r\n"
    b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "a fragment": b"GET /healthz#a HTTP/1.1\r\nHost: g\r\n\r\n",
    "a fragment behind a query": b"GET /healthz?a#b HTTP/1.1\r\nHost: g\r\n\r\n",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_a_head_that_two_readers_may_read_in_two_ways_is_refused(scene: Scene, data: bytes) -> None:
    exchange = scene.caller.raw(data)
    reply = exchange.next()
    assert_problem(reply, "request-invalid")
    assert reply.one("Connection") == "close"
    assert exchange.read_all() == b""
    request_id = reply.json()["request_id"]
    scene.stack.gateway.wait_for_log(request_id=request_id, problem="request-invalid", status=400)


@pytest.mark.parametrize("host", [b"", b"Host: g\r\n"])
def test_http_1_0_may_go_without_a_host(scene: Scene, host: bytes) -> None:
    reply = scene.caller.raw(b"GET /healthz HTTP/1.0\r\n%b\r\n" % host, method="GET").reply()
    assert (reply.status, reply.one("Connection")) == (200, "close")


@pytest.mark.parametrize("host", ["gateway.test:8080", "[::1]:80", " g\t"])
def test_a_host_with_a_port_or_blanks_around_it_passes(scene: Scene, host: str) -> None:
    assert scene.caller.open("GET", "/healthz", host=host).reply().status == 200


def test_chunked_is_read_in_any_case(scene: Scene) -> None:
    body = b"2\r\n{}\r\n0\r\n\r\n"
    sent = charge(scene, "k", "Transfer-Encoding:  CHUNKED ", body=body)
    assert scene.caller.raw(sent).reply().status == 201
    assert scene.upstream.requests[0].body == b"{}"


def test_a_bare_question_mark_is_dropped(scene: Scene) -> None:
    assert scene.send(query="?").status == 201
    assert scene.upstream.requests[0].target.endswith(b"/charges")
