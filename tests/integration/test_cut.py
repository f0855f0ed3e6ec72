"""The fault proxy: what is cut hears nothing and loses nothing; what a rule breaks, breaks so."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

import pytest

from gateway.faultkit.proxy import FaultProxy
from gateway.faultkit.rules import Action, Rule
from tests.kit.faults import until


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        yield listening


@pytest.fixture
def proxy(server: socket.socket) -> Iterator[FaultProxy]:
    made = FaultProxy("127.0.0.1", server.getsockname()[1]).start()
    yield made
    made.stop()


def connect(proxy: FaultProxy) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", proxy.port), 10)
    made.settimeout(10)
    return made


def accept(server: socket.socket) -> socket.socket:
    made, _ = server.accept()
    made.settimeout(10)
    return made


def silent(sock: socket.socket) -> bool:
    """Whether nothing has come, not even an end."""
    sock.setblocking(False)
    try:
        sock.recv(1)
    except BlockingIOError:
        return True
    finally:
        sock.settimeout(10)
    return False


def exactly(sock: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        piece = sock.recv(count - len(got))
        assert piece, f"it ended after {got!r}"
        got += piece
    return got


def test_it_passes_both_ways_and_ends_too(server: socket.socket, proxy: FaultProxy) -> None:
    with connect(proxy) as client, accept(server) as served:
        client.sendall(b"ask")
        assert exactly(served, 3) == b"ask"
        served.sendall(b"answer")
        assert exactly(client, 6) == b"answer"
        assert proxy.answer_to(b"ask") == b"answer"
        client.close()
        assert served.recv(1) == b""


def test_what_is_sent_while_it_is_cut_arrives_when_it_is_restored(
    server: socket.socket, proxy: FaultProxy
) -> None:
    with connect(proxy) as client, accept(server) as served:
        client.sendall(b"0")
        assert exactly(served, 1) == b"0"
        proxy.cut()
        client.sendall(b"up")
        served.sendall(b"down")
        until(lambda: proxy.holds(b"0up"), "the proxy has it")
        until(lambda: proxy.answer_to(b"0") == b"down", "the proxy has it")
        assert silent(client)
        assert silent(served)
        proxy.restore()
        assert exactly(served, 2) == b"up"
        assert exactly(client, 4) == b"down"


def test_a_new_connection_while_it_is_cut_hears_nothing_until_then(
    server: socket.socket, proxy: FaultProxy
) -> None:
    proxy.cut()
    with connect(proxy) as client:
        client.sendall(b"hello")
        until(lambda: proxy.holds(b"hello"), "the proxy has it")
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
        server.settimeout(10)
        assert silent(client)
        proxy.restore()
        with accept(server) as served:
            assert exactly(served, 5) == b"hello"


@pytest.mark.parametrize("reset", [False, True])
def test_what_a_dead_client_had_sent_arrives_and_its_answer_is_seen(
    server: socket.socket, proxy: FaultProxy, reset: bool
) -> None:
    client = connect(proxy)
    with accept(server) as served:
        proxy.cut()
        client.sendall(b"last words")
        until(lambda: proxy.holds(b"last words"), "the proxy has it")
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        proxy.restore()
        assert exactly(served, 10) == b"last words"
        served.sendall(b"too late")
        until(lambda: proxy.answer_to(b"last words") == b"too late", "the answer")


def test_a_target_that_is_away_ends_the_connection(
    proxy: FaultProxy, server: socket.socket
) -> None:
    server.close()
    with connect(proxy) as client, contextlib.suppress(ConnectionError):
        assert client.recv(1) == b""


def asked(proxy: FaultProxy, server: socket.socket) -> tuple[socket.socket, socket.socket]:
    """A client that has asked, and the server's end of it with the request read."""
    client = connect(proxy)
    client.sendall(b"POST /x")
    there = accept(server)
    assert exactly(there, 7) == b"POST /x"
    return client, there


def test_cut_behind_some_bytes_ends_orderly(proxy: FaultProxy, server: socket.socket) -> None:
    struck = proxy.add(Rule("cut", b"POST", after=3))
    client, there = asked(proxy, server)
    there.sendall(b"answer")
    assert (exactly(client, 3), client.recv(1)) == (b"ans", b"")
    struck.wait()
    assert there.recv(1) == b""


def test_reset_does_not_end_orderly(proxy: FaultProxy, server: socket.socket) -> None:
    proxy.add(Rule("reset", b"POST"))
    client, there = asked(proxy, server)
    there.sendall(b"answer")
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_half_close_leaves_the_way_to_the_server(proxy: FaultProxy, server: socket.socket) -> None:
    proxy.add(Rule("half-close", b"POST", after=2))
    client, there = asked(proxy, server)
    there.sendall(b"answer")
    assert (exactly(client, 2), client.recv(1)) == (b"an", b"")
    client.sendall(b"more")
    assert exactly(there, 4) == b"more"


def test_what_comes_behind_a_half_close_is_dropped_and_the_other_way_stays(
    proxy: FaultProxy, server: socket.socket
) -> None:
    proxy.add(Rule("half-close", b"POST", after=2))
    client, there = asked(proxy, server)
    there.sendall(b"an")
    there.sendall(b"swer")
    assert (exactly(client, 2), client.recv(1)) == (b"an", b"")
    until(lambda: proxy.answer_to(b"POST /x") == b"answer", "the rest has come")
    client.sendall(b"more")
    assert exactly(there, 4) == b"more"
    there.sendall(b"and its answer")
    until(lambda: proxy.answer_to(b"POST /x").endswith(b"its answer"), "that has come too")
    client.sendall(b"yet more")
    assert exactly(there, 8) == b"yet more"


@pytest.mark.parametrize("action", ["cut", "reset", "half-close", "swallow"])
def test_a_rule_whose_answer_was_shorter_ends_with_it(
    proxy: FaultProxy, server: socket.socket, action: Action
) -> None:
    struck = proxy.add(Rule(action, b"POST", after=10))
    client, there = asked(proxy, server)
    there.sendall(b"short")
    assert exactly(client, 5) == b"short"
    client.sendall(b"GET /y")
    assert exactly(there, 6) == b"GET /y"
    there.sendall(b"a longer answer")
    assert exactly(client, 15) == b"a longer answer"
    assert struck.hits == 0


def test_what_is_swallowed_is_one_answer(proxy: FaultProxy, server: socket.socket) -> None:
    struck = proxy.add(Rule("swallow", b"POST"))
    client, there = asked(proxy, server)
    there.sendall(b"answer")
    struck.wait()
    client.sendall(b"GET /y")
    assert exactly(there, 6) == b"GET /y"
    there.sendall(b"the next")
    assert exactly(client, 8) == b"the next"


def test_a_body_behind_its_head_is_the_same_request(
    proxy: FaultProxy, server: socket.socket
) -> None:
    proxy.add(Rule("cut", b"POST", after=2))
    client, there = asked(proxy, server)
    client.sendall(b"body")
    assert exactly(there, 4) == b"body"
    there.sendall(b"answer")
    assert (exactly(client, 2), client.recv(1)) == (b"an", b"")


def test_what_is_swallowed_nobody_hears_of(proxy: FaultProxy, server: socket.socket) -> None:
    struck = proxy.add(Rule("swallow", b"POST", after=2))
    client, there = asked(proxy, server)
    there.sendall(b"answer")
    assert exactly(client, 2) == b"an"
    struck.wait()
    assert silent(client)
    there.close()
    assert client.recv(1) == b""


def test_a_rule_is_for_its_requests_and_as_often_as_it_says(
    proxy: FaultProxy, server: socket.socket
) -> None:
    struck = proxy.add(Rule("cut", b"POST"))
    client = connect(proxy)
    client.sendall(b"GET  /y")
    there = accept(server)
    there.sendall(b"answer")
    assert exactly(client, 6) == b"answer"
    assert struck.hits == 0
    first, there = asked(proxy, server)
    there.sendall(b"answer")
    assert first.recv(1) == b""
    second, there = asked(proxy, server)
    there.sendall(b"answer")
    assert exactly(second, 6) == b"answer"
    assert struck.hits == 1


def test_a_refused_connection_and_one_after_it(proxy: FaultProxy, server: socket.socket) -> None:
    client, _ = asked(proxy, server)
    proxy.refuse()
    assert client.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.accept()
    again, there = asked(proxy, server)
    there.sendall(b"answer")
    assert exactly(again, 6) == b"answer"
