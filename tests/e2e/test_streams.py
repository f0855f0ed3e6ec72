"""What streams through is not held: memory stays flat, and whoever is slow slows the other end."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from tests.kit.flow import MIB, FlowUpstream, Pattern, Peer, Tally, peak_mib, resident_mib
from tests.kit.gateway import GatewayProcess, gateway, policy

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

_BOUND_MIB = 64
_OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"


@contextmanager
def served(database: str, serve: Callable[[Peer], None]) -> Iterator[tuple[GatewayProcess, int]]:
    """A gateway before such an upstream, warm, and its memory bounded while the block runs."""

    def each(peer: Peer) -> None:
        if peer.read_head().startswith(b"GET /warm "):
            peer.write(_OK + b"Content-Length: %d\r\n\r\n" % (4 * MIB), Pattern(4 * MIB))
        else:
            serve(peer)

    with FlowUpstream(each) as upstream, gateway(database, policy(upstream.url)) as running:
        warm = call(running, b"GET /pay/warm HTTP/1.1\r\nHost: localhost\r\n\r\n")
        warm.read_head()
        assert warm.read(4 * MIB).size == 4 * MIB
        warm.close()
        assert running.process is not None
        pid = running.process.pid
        idle_mib = resident_mib(pid)
        yield running, pid
        grown_mib = peak_mib(pid) - idle_mib
        assert grown_mib <= _BOUND_MIB, f"{grown_mib:.0f} MiB above idle"


def call(running: GatewayProcess, head: bytes) -> Peer:
    """A caller that has sent this head."""
    address = urlsplit(running.url)
    peer = Peer(socket.create_connection((address.hostname, address.port), timeout=30))
    peer.write(head)
    return peer


def get(size: int | None = None, *, chunked: bool = False) -> bytes:
    lines = [b"GET /pay/v1/report HTTP/1.1", b"Host: localhost"]
    if size is not None:
        lines.append(b"Content-Length: %d" % size)
    if chunked:
        lines.append(b"Transfer-Encoding: chunked")
    return b"\r\n".join([*lines, b"", b""])


def test_a_gibibyte_comes_down_whole_and_is_never_held(database: str) -> None:
    pattern = Pattern(1024 * MIB)

    def serve(peer: Peer) -> None:
        peer.write(_OK + b"Content-Length: %d\r\n\r\n" % pattern.size, pattern)

    with served(database, serve) as (running, _):
        caller = call(running, get())
        assert caller.read_head().startswith(b"HTTP/1.1 200 OK")
        assert caller.read(pattern.size) == pattern.tally()
        caller.close()


def test_a_caller_that_does_not_read_stops_the_upstream(database: str) -> None:
    pattern = Pattern(96 * MIB)
    written = threading.Event()
    peers: list[Peer] = []

    def serve(peer: Peer) -> None:
        peers.append(peer)
        peer.write(_OK + b"Content-Length: %d\r\n\r\n" % pattern.size, pattern)
        written.set()

    with served(database, serve) as (running, pid):
        before_mib = resident_mib(pid)
        caller = call(running, get())
        caller.read_head()
        assert peers[0].stalled.wait(30)
        assert not written.is_set()
        assert peers[0].sent < pattern.size
        # What is gone is in two kernels' socket buffers, not here.
        assert resident_mib(pid) - before_mib < 8
        assert caller.read(pattern.size) == pattern.tally()
        assert written.wait(30)
        caller.close()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_quarter_gibibyte_goes_up_whole_and_is_never_held(database: str, chunked: bool) -> None:
    pattern = Pattern((64 if chunked else 256) * MIB)
    seen: list[Tally] = []
    heads: list[bytes] = []

    def serve(peer: Peer) -> None:
        heads.append(peer.head.lower())
        seen.append(peer.read_chunks() if chunked else peer.read(pattern.size))
        peer.write(_OK + b"Content-Length: 0\r\n\r\n")

    with served(database, serve) as (running, _):
        caller = call(running, b"")
        caller.write(
            get(None if chunked else pattern.size, chunked=chunked), pattern, chunked=chunked
        )
        assert caller.read_head().startswith(b"HTTP/1.1 200 OK")
        caller.close()
    assert seen == [pattern.tally()]
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % pattern.size
    assert [framing in head for head in heads] == [True]
    assert (b"content-length" in heads[0]) is not chunked


def test_an_upstream_that_does_not_read_stops_the_caller(database: str) -> None:
    pattern = Pattern(96 * MIB)
    go_on = threading.Event()
    seen: list[Tally] = []

    def serve(peer: Peer) -> None:
        assert go_on.wait(30)
        seen.append(peer.read(pattern.size))
        peer.write(_OK + b"Content-Length: 0\r\n\r\n")

    with served(database, serve) as (running, pid):
        before_mib = resident_mib(pid)
        caller = call(running, b"")
        writing = threading.Thread(target=caller.write, args=(get(pattern.size), pattern))
        writing.start()
        assert caller.stalled.wait(30)
        assert caller.sent < pattern.size
        assert resident_mib(pid) - before_mib < 8
        go_on.set()
        writing.join(30)
        assert caller.read_head().startswith(b"HTTP/1.1 200 OK")
        caller.close()
    assert seen == [pattern.tally()]
