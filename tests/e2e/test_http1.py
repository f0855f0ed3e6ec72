"""The server's own boundary: one request at a time on a connection, limits to what is no body, and
heads that everybody on the way reads alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.core.framing import LINES_LIMIT, TOO_MANY
from gateway.http1 import HEAD_LIMIT, IGNORED_LIMIT
from tests.kit.client import Exchange, assert_problem
from tests.kit.db import Server
from tests.kit.gateway import Scene, Stack, policy, stack
from tests.kit.upstream import Gate, Then, drip, gated, raw, respond

CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 60
"""

CODED = "Transfer-Encoding: chunked"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
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
        "Host: localhost",
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


@pytest.mark.parametrize("framing", ["length", "none", "chunks", "chunks and a trailer"])
@pytest.mark.parametrize(
    ("between", "status"), [(b"\r\n", 201), (b"\r\n\r\n", 201), (b"\n", 400), (b"\r\n\n", 400)]
)
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_only_whole_line_ends_stand_behind_a_message(
    scene: Scene, framing: str, between: bytes, status: int, cut: int
) -> None:
    """The parser passes over them with the message in front, so the next head does not show them;
    ``cut``: so many bytes of that message come in a read of their own, with them."""
    first = {
        "length": charge(scene, "one", body=b'"\n\r\n"\n\r\n'),
        "none": PASSAGE + b"\r\n",
        "chunks": charge(scene, "one", CODED, body=b"2\r\n{}\r\n0\r\n\r\n"),
        "chunks and a trailer": charge(scene, "one", CODED, body=b"2\r\n{}\r\n0\r\nX-T:\r\n\r\n"),
    }[framing]
    pieces = [first[:-cut], first[-cut:]] if cut else [b"", first]
    exchange = scene.caller.raw(pieces[0])
    let_it_read(scene)
    exchange.send(pieces[1] + between)
    assert exchange.next().status == 201
    exchange.send(charge(scene, "two"))
    assert exchange.next().status == status
    assert (scene.row("two") is None) == (status == 400)


@pytest.mark.parametrize(("between", "status"), [(b"", 201), (b"\r\n", 201), (b"\n", 400)])
@pytest.mark.parametrize("body", [b"", b"{}", b"x" * 3 * HEAD_LIMIT])
def test_half_a_head_behind_a_message_is_read_from_where_that_ends(
    scene: Scene, body: bytes, between: bytes, status: int
) -> None:
    second = charge(scene, "two")
    first = charge(scene, "one", body=body) if body else PASSAGE + b"\r\n"
    exchange = scene.caller.raw(first + between + second[:40])
    assert exchange.next().status == 201
    exchange.send(second[40:])
    assert exchange.next().status == status
    assert (scene.row("two") is None) == (status == 400)


@pytest.mark.parametrize("between", [b"", b"\r\n", b"\n"])
def test_a_head_that_begins_in_one_with_a_last_chunk_is_never_read(
    scene: Scene, between: bytes
) -> None:
    """What stands between the two cannot be told from chunks, and it was sent before the answer."""
    first = charge(scene, "one", CODED, body=b"2\r\n{}\r\n0\r\n\r\n")
    second = charge(scene, "two")
    exchange = scene.caller.raw(first + between + second[:40])
    reply = exchange.next()
    assert (reply.status, reply.one("Connection")) == (201, "close")
    is_alive(scene)
    assert (scene.row("two"), scene.upstream.count) == (None, 2)


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


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_head_of_so_many_lines_passes_and_one_more_is_refused(scene: Scene, pieces: int) -> None:
    for more, status in ((LINES_LIMIT - 1, 200), (LINES_LIMIT, 400)):
        head = b"GET /healthz HTTP/1.1\r\nHost: g\r\n%b\r\n" % (b"a:\r\n" * more)
        step = len(head) // pieces
        exchange = scene.caller.raw(head[:step], method="GET")
        if pieces > 1:
            let_it_read(scene)
            exchange.send(head[step:])
        reply = exchange.next()
        assert reply.status == status
        if status == 400:
            assert_problem(reply, "request-invalid")
            assert reply.json()["detail"] == TOO_MANY
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


# -- values, lengths, expectations (RFC 9112 §5.1, RFC 9110 §10.1.1)

PASSAGE = b"GET /pay/v1/report HTTP/1.1\r\nHost: localhost\r\n"
OLD = b"GET /pay/v1/report HTTP/1.0\r\nHost: localhost\r\n"


@pytest.mark.parametrize("blanks", [" ", "\t", " \t "])
def test_blanks_behind_a_value_are_no_part_of_it(scene: Scene, blanks: str) -> None:
    length = f"Content-Length: 5{blanks}\r\nX-A: b{blanks}\r\n\r\n".encode()
    assert scene.caller.raw(PASSAGE + length + b"hello", method="GET").reply().status == 201
    sent = charge(scene, "k", f"Content-Length: 2{blanks}", f"X-A: b{blanks}")
    assert scene.caller.raw(sent).reply().status == 201
    passage, command = scene.upstream.requests
    assert (passage.body, command.body) == (b"hello", b"{}")
    for request in (passage, command):
        lines = request.head.lower().split(b"\r\n")
        assert [line for line in lines if line.startswith(b"x-a")] == [b"x-a: b"]


@pytest.mark.parametrize("value", ["100-continue ", "100-Continue\t", "x, 100-continue"])
def test_a_body_is_asked_for_however_the_expectation_is_written(scene: Scene, value: str) -> None:
    exchange = scene.caller.raw(
        charge(scene, "k", "Content-Length: 2", f"Expect: {value}", body=b"")
    )
    assert exchange.interim() == 100
    exchange.send(b"{}")
    assert exchange.reply().status == 201


@pytest.mark.parametrize(
    "head",
    [
        PASSAGE + b"Expect: 100-continue\r\n\r\n",
        PASSAGE + b"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n",
        OLD + b"Expect: 100-continue\r\n\r\n",
        OLD + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_nobody_is_asked_for_a_body_that_has_none_or_speaks_http_1_0(
    scene: Scene, head: bytes
) -> None:
    exchange = scene.caller.raw(head, method="GET")
    assert exchange.interim() is None
    assert exchange.reply().status == 201
    assert scene.upstream.requests[0].body == head.partition(b"\r\n\r\n")[2]


def test_a_command_in_http_1_0_is_not_asked_for_its_body(scene: Scene) -> None:
    sent = charge(scene, "k", "Content-Length: 2", "Expect: 100-continue", body=b"")
    exchange = scene.caller.raw(sent.replace(b"HTTP/1.1", b"HTTP/1.0"))
    let_it_read(scene)
    assert not exchange.readable()
    exchange.send(b"{}")
    assert exchange.interim() is None
    assert exchange.reply().status == 201


@pytest.mark.parametrize("expect", [(), ("Expect: 100-continue",)])
def test_an_expectation_without_a_body_changes_nothing(
    scene: Scene, expect: tuple[str, ...]
) -> None:
    """What its head lacks is told behind what its body lacks, as ever, and it stays connected."""
    framing = ("Content-Length: 0", "Content-Type: application/json", *expect)
    sent = charge(scene, "k", *framing, body=b"").replace(b"X-Execution-Fence: 5\r\n", b"")
    exchange = scene.caller.raw(sent)
    reply = exchange.next()
    assert (reply.problem, reply.one("Connection")) == ("fence-required", None)
    exchange.send(HEALTH)
    assert exchange.reply().status == 200


@pytest.mark.parametrize("zeros", [1, 5000])
@pytest.mark.parametrize("what", ["passage", "command"])
def test_a_length_with_zeros_in_front_is_read_or_refused(
    scene: Scene, what: str, zeros: int
) -> None:
    """Python refuses to read more than 4,300 digits."""
    line = f"Content-Length: {'0' * zeros}2"
    if what == "command":
        sent = charge(scene, "k", line)
    else:
        sent = PASSAGE + line.encode() + b"\r\n\r\n{}"
    reply = scene.caller.raw(sent).reply()
    if zeros == 1:
        assert reply.status == 201
        (request,) = scene.upstream.requests
        assert (request.one("Content-Length"), request.body) == (b"2", b"{}")
    else:
        assert_problem(reply, "request-invalid")
        assert (scene.row("k"), scene.upstream.requests) == (None, [])


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_an_upstreams_length_is_written_anew(scene: Scene, method: str) -> None:
    body = b"" if method == "HEAD" else b"abc"
    length = b"Content-Length: " + b"0" * 5000 + b"3"
    scene.upstream.next(raw(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n\r\n" + body))
    reply = scene.send() if method == "POST" else scene.caller.call(method, "/pay/v1/report")
    assert (reply.status, reply.body, reply.one("Content-Length")) == (200, body, "3")


# -- HTTP/1.0 knows no transfer coding (RFC 9112 §6.1)

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def whole_or_cut(exchange: Exchange) -> tuple[bytes, bool]:
    """All that came, and whether its end may be taken for the end of a body."""
    heard = b""
    try:
        while piece := exchange.read():
            heard += piece
    except ConnectionResetError:
        return heard, False
    return heard, True


@pytest.mark.parametrize("size", [3, 300_000])
def test_a_caller_in_http_1_0_gets_its_body_up_to_the_close(scene: Scene, size: int) -> None:
    chunk = b"%x\r\n%b\r\n" % (size, b"a" * size)
    scene.upstream.next(raw(CHUNKED + chunk + chunk + b"0\r\n\r\n"))
    heard, whole = whole_or_cut(scene.caller.raw(OLD + b"\r\n", method="GET"))
    head, _, body = heard.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"\r\nconnection: close" in head.lower()
    assert (body, whole) == (b"a" * 2 * size, True)


@pytest.mark.parametrize("then", ["close", "reset"])
def test_a_body_that_breaks_off_does_not_end_like_a_whole_one(scene: Scene, then: Then) -> None:
    step = Gate()
    scene.upstream.next(drip([CHUNKED + b"3\r\nabc\r\n", b"3\r\n"], gate=step, then=then))
    step.step()
    exchange = scene.caller.raw(OLD + b"\r\n", method="GET")
    heard = b""
    while not heard.endswith(b"abc"):
        heard += exchange.read()
    step.step()
    assert whole_or_cut(exchange) == (b"", False)


def test_a_length_stays_a_length_in_http_1_0(scene: Scene) -> None:
    body = b"a" * 2_000_000
    scene.upstream.next(respond(200, body), respond(200, body))
    old = charge(scene, "k").replace(b"HTTP/1.1", b"HTTP/1.0")
    for sent, method in ((OLD + b"\r\n", "GET"), (old, "POST")):
        reply = scene.caller.raw(sent, method=method).reply()
        assert (reply.one("Content-Length"), reply.body) == (str(len(body)), body)


def test_an_oversize_answer_to_a_command_in_http_1_0_has_no_coding_either(scene: Scene) -> None:
    size = 2_000_000
    scene.upstream.next(raw(CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (size, b"a" * size)))
    sent = charge(scene, "k").replace(b"HTTP/1.1", b"HTTP/1.0")
    heard, whole = whole_or_cut(scene.caller.raw(sent))
    head, _, body = heard.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert (len(body), whole) == (size, True)


# -- what streams through and cannot be read on


def test_a_passage_whose_body_cannot_be_read_is_not_begun(scene: Scene) -> None:
    sent = PASSAGE + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"
    reply = scene.caller.raw(sent).reply()
    assert_problem(reply, "request-invalid")
    assert scene.caller.call("GET", "/pay/v1/report").status == 201
    assert (len(scene.upstream.requests), scene.upstream.partial) == (1, [])


def test_a_passage_that_was_begun_may_have_reached_the_upstream(scene: Scene) -> None:
    exchange = scene.caller.raw(PASSAGE + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    let_it_read(scene)
    exchange.send(b"nonsense\r\n")
    assert_problem(exchange.next(), "request-invalid", sent="unknown")


def test_a_command_that_cannot_be_read_behind_a_passage_was_not_sent(scene: Scene) -> None:
    exchange = scene.caller.raw(PASSAGE + b"\r\n", method="GET")
    assert exchange.next().status == 201
    exchange.send(charge(scene, "k", "Transfer-Encoding: chunked", body=b"nonsense\r\n"))
    assert_problem(exchange.next(), "request-invalid", sent="no")
