"""Bodies of requests that stream through: when each byte moves, and what an early end does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.kit.client import Exchange, assert_problem
from tests.kit.db import Server
from tests.kit.flow import FlowUpstream, Peer, Tally
from tests.kit.gateway import CAPTURE, Scene, Stack, gateway, policy, stack
from tests.kit.upstream import Gate, drip, early, hang, raw, respond

OK = b"HTTP/1.1 200 OK\r\n"
REPORT = "/pay/v1/report"


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    with stack(postgres, lambda url: [policy(url, CAPTURE, head="max_connections = 1")]) as made:
        yield made


@pytest.fixture
def scene(served: Stack) -> Iterator[Scene]:
    """Over one connection to the upstream: what a test leaves taken, the next one misses."""
    made = served.scene()
    yield made
    made.upstream.clear()
    assert made.caller.call("GET", REPORT).status == 201


def head_of(exchange: Exchange) -> bytes:
    """Read up to the empty line; no byte of a body may have come."""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        data += exchange.read()
    assert data.count(b"\r\n\r\n") == 1
    return data


# -- responses


@pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked", b"Content-Length: 5", b"A: b"])
def test_the_head_is_relayed_before_there_is_a_body(scene: Scene, framing: bytes) -> None:
    """An event stream may say nothing for a minute."""
    gate, chunked = Gate(), framing.startswith(b"T")
    body = b"5\r\nhello\r\n0\r\n\r\n" if chunked else b"hello"
    end = "close" if framing == b"A: b" else "keep"
    scene.upstream.next(drip([OK + framing + b"\r\n\r\n", body], gate=gate, then=end))
    gate.step()
    sent = scene.caller.open("GET", REPORT)
    head = head_of(sent).lower()
    assert head.startswith(b"http/1.1 200 ")
    assert b"gateway-outcome: unguarded\r\n" in head
    gate.step()
    heard = b""
    while b"hello" not in heard:
        heard += sent.read()
    sent.hang_up()


@pytest.mark.parametrize(
    "payload", [b"Content-Length: 0\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]
)
def test_an_empty_body_stays_empty(scene: Scene, payload: bytes) -> None:
    scene.upstream.next(raw(OK + payload))
    reply = scene.caller.call("GET", REPORT)
    assert (reply.status, reply.body) == (200, b"")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_interim_responses_end_at_the_gateway(scene: Scene, method: str) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    scene.upstream.next(raw(interim + OK + b"Content-Length: 2\r\n\r\nok"))
    sent = scene.caller.open("GET", REPORT) if method == "GET" else scene.open()
    heard = b""
    while not heard.endswith(b"ok"):
        heard += sent.read()
    assert heard.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"103" not in heard
    assert b"link" not in heard.lower()
    sent.hang_up()


def test_a_body_without_a_length_that_is_reset_is_not_completed(scene: Scene) -> None:
    """Where the close alone ends it, a clean close cannot be told from a complete body."""
    gate = Gate()
    scene.upstream.next(drip([OK + b"\r\nabc", b"def"], gate=gate, then="reset"))
    gate.step()
    sent = scene.caller.open("GET", REPORT)
    heard = b""
    while b"abc" not in heard:
        heard += sent.read()
    gate.step()
    heard += sent.read_all()
    assert not heard.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_status_without_a_body_has_none(scene: Scene, method: str, status: int) -> None:
    scene.upstream.next(raw(b"HTTP/1.1 %d X\r\nContent-Length: 5\r\nETag: 1\r\n\r\n" % status))
    reply = scene.caller.call("GET", REPORT) if method == "GET" else scene.send()
    assert (reply.status, reply.body, reply.one("ETag")) == (status, b"", "1")
    assert reply.one("Content-Length") is None


# -- requests


def test_a_body_goes_up_piece_by_piece_with_its_length(database: str) -> None:
    begun = threading.Event()
    seen: list[Tally] = []

    def serve(peer: Peer) -> None:
        peer.read_head()
        seen.append(peer.read(5))
        begun.set()
        seen.append(peer.read(5))
        peer.write(OK + b"Content-Length: 0\r\n\r\n")

    with FlowUpstream(serve) as upstream, gateway(database, policy(upstream.url)) as running:
        sent = (
            Stack(running, None, database)
            .caller()
            .open(  # type: ignore[arg-type]
                "GET", REPORT, [("Content-Length", "10")], None
            )
        )
        sent.send(b"hello")
        assert begun.wait(10)
        sent.send(b"world")
        assert sent.reply().status == 200
        head = upstream.peer(0).head.lower()
    assert [each.size for each in seen] == [5, 5]
    assert b"\r\ncontent-length: 10" in head
    assert b"transfer-encoding" not in head


def test_a_chunked_body_goes_up_in_chunks_of_our_own_without_its_trailers(scene: Scene) -> None:
    sent = scene.caller.open("OPTIONS", REPORT, [("Transfer-Encoding", "chunked")], None)
    sent.send(b"5;x=y\r\nhello\r\n5\r\nworld\r\n0\r\nX-Trailer: t\r\n\r\n")
    assert sent.reply().status == 201
    (request,) = scene.upstream.requests
    assert request.body == b"helloworld"
    assert request.all("Transfer-Encoding") == [b"chunked"]
    assert request.all("Content-Length") == request.all("X-Trailer") == []


@pytest.mark.parametrize("fields", [[("Content-Length", "0")], []])
def test_without_a_body_no_length_goes_up(scene: Scene, fields: list[tuple[str, str]]) -> None:
    assert scene.caller.open("GET", REPORT, fields, None).reply().status == 201
    (request,) = scene.upstream.requests
    assert request.all("Content-Length") == request.all("Transfer-Encoding") == []


def test_a_body_is_asked_for_once_the_upstream_is_there(scene: Scene) -> None:
    scene.upstream.next(hang())
    first = scene.caller.open("GET", REPORT)
    scene.upstream.wait_for_requests(1)  # it has the one connection
    fields = [("Content-Length", "5"), ("Expect", "100-continue")]
    second = scene.caller.open("GET", REPORT, fields, None)
    assert scene.caller.call("GET", "/healthz").status == 200  # it is taken in by now
    assert not second.readable()
    first.hang_up()
    assert head_of(second) == b"HTTP/1.1 100 Continue\r\n\r\n"
    second.send(b"hello")
    assert second.reply().status == 201
    request = scene.upstream.requests[-1]
    assert (request.body, request.one("Expect")) == (b"hello", None)


def test_a_body_is_not_asked_for_where_the_upstream_cannot_be_reached(scene: Scene) -> None:
    scene.upstream.refuse()
    scene.upstream.drop_connections()
    fields = [("Content-Length", "5"), ("Expect", "100-continue")]
    try:
        reply = scene.caller.open("GET", REPORT, fields, None).reply()
        assert_problem(reply, "not-sent", outcome="unguarded", waits=True)
        assert reply.one("Connection") == "close"
    finally:
        scene.upstream.accept()


@pytest.mark.parametrize("target", [REPORT, "/pay/v1/cases"])
def test_a_refused_request_is_not_asked_for_its_body(scene: Scene, target: str) -> None:
    method = "GET" if target == REPORT else "POST"
    fields = [
        ("Content-Length", "99999999"),
        ("Expect", "100-continue"),
        ("X-HTTP-Method-Override", "DELETE"),
    ]
    reply = scene.caller.open(method, target, fields, None).reply()
    assert reply.status in (400, 404)
    assert reply.one("Connection") == "close"
    assert (scene.upstream.requests, scene.upstream.partial) == ([], [])


def test_a_command_that_grows_too_large_after_it_was_asked_for_hears_so(scene: Scene) -> None:
    fields = [("Transfer-Encoding", "chunked"), ("Expect", "100-continue")]
    fields += [("Idempotency-Key", scene.key()), ("X-Execution-Fence", "1")]
    target = f"/pay/v1/accounts/{scene.account}/charges"
    sent = scene.caller.open("POST", target, fields, None)
    assert head_of(sent) == b"HTTP/1.1 100 Continue\r\n\r\n"
    sent.send(b"1000000\r\n" + bytes(16 << 20) + b"\r\n0\r\n\r\n")  # all of it before it reads
    assert_problem(sent.reply(), "body-too-large")
    assert scene.upstream.requests == []


@pytest.mark.parametrize("answer", [b"too large", b"x" * 300_000])
def test_an_early_answer_is_relayed_and_ends_the_sending(scene: Scene, answer: bytes) -> None:
    before = scene.upstream.connections
    scene.upstream.next(early(respond(413, answer)))
    body = bytes(32 << 20)
    sent = scene.caller.open("GET", REPORT, [("Content-Length", str(len(body)))], None)
    sent.send(body)
    reply = sent.reply()
    assert (reply.status, reply.outcome, reply.body) == (413, "unguarded", answer)
    assert reply.one("Connection") == "close"
    assert scene.upstream.requests == []
    assert scene.caller.call("GET", REPORT).status == 201
    assert scene.upstream.connections - before <= 2
    assert scene.upstream.requests[0].connection == scene.upstream.connections


# -- callers that vanish: the one connection to the upstream comes back each time


def test_a_caller_that_hangs_up_within_its_body_ends_the_request(database: str) -> None:
    begun, ended = threading.Event(), threading.Event()
    ends: list[int | type[OSError]] = []

    def serve(peer: Peer) -> None:
        peer.read_head()
        peer.read(5)
        begun.set()
        try:
            ends.append(peer.read(5).size)
        except ConnectionResetError:
            ends.append(ConnectionResetError)
        ended.set()

    with FlowUpstream(serve) as upstream, gateway(database, policy(upstream.url)) as running:
        address = urlsplit(running.url)
        with socket.create_connection((address.hostname, address.port), 10) as caller:
            caller.sendall(
                b"GET /pay/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhello"
            )
            assert begun.wait(10)
        assert ended.wait(10)
    assert ends == [ConnectionResetError]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("moment", ["waiting", "head", "body", "upload", "chunk"])
def test_a_caller_that_vanishes_gives_the_connection_back(
    scene: Scene, moment: str, reset: bool
) -> None:
    gate = Gate()
    if moment == "waiting":
        scene.upstream.next(hang())
    elif moment in ("head", "body"):
        pieces = [OK + b"Content-Length: 9\r\n\r\n", b"abc", b"never"]
        scene.upstream.next(drip(pieces, gate=gate))
    framing = {"upload": ("Content-Length", "10"), "chunk": ("Transfer-Encoding", "chunked")}
    fields = [framing[moment]] if moment in framing else []
    sent = scene.caller.open("GET", REPORT, fields, None)
    if moment in framing:
        sent.send(b"5\r\nhel" if moment == "chunk" else b"hel")
        assert scene.caller.call("GET", "/healthz").status == 200
    else:
        scene.upstream.wait_for_requests(1)
    if moment in ("head", "body"):
        gate.step()
        head_of(sent)
    if moment == "body":
        gate.step()
        assert sent.read() == b"abc"
    sent.hang_up(reset=reset)
    gate.release()  # the body stays short of its length, so only the gateway ends this
    scene.upstream.wait_for_disconnects(max(scene.upstream.connections, 1))


def test_a_body_that_cannot_be_read_on_ends_the_request(scene: Scene) -> None:
    sent = scene.caller.open("GET", REPORT, [("Transfer-Encoding", "chunked")], None)
    sent.send(b"5\r\nhello\r\n")
    assert scene.caller.call("GET", "/healthz").status == 200  # it streams by now
    sent.send(b"nonsense\r\n")
    assert_problem(sent.reply(), "request-invalid", sent="unknown")
    scene.upstream.wait_for_disconnects(scene.upstream.connections)
    assert scene.upstream.requests == []
