"""Bodies too large to hold: an upstream and patterns for what streams through.

The upstream is one thread for each connection over a plain socket, so that what it can write and
read is what the kernel lets it::

    with FlowUpstream(lambda peer: peer.write(head, Pattern(1 << 30))) as upstream:
        ...

A ``Pattern`` is made piece by piece and never as a whole; both ends compare its length and
checksum.
"""

from __future__ import annotations

import random
import select
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

__all__ = ["MIB", "FlowUpstream", "Pattern", "Peer", "Tally", "peak_mib", "resident_mib"]

MIB = 1 << 20
_TIMEOUT_S = 30.0
_STALL_S = 0.5
"""A socket that takes nothing for so long counts as blocked. Too short an answer on a busy machine
only lets the test go on earlier."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """``size`` bytes (a multiple of 1 MiB) in which no two pieces are the same."""

    size: int

    def __iter__(self) -> Iterator[bytes]:
        filler = random.Random(7).randbytes(MIB - 8)
        for number in range(self.size // MIB):
            yield number.to_bytes(8, "big") + filler

    def tally(self) -> Tally:
        """What whoever received all of it must have."""
        made = Tally()
        for piece in self:
            made.add(piece)
        return made


@dataclass(slots=True)
class Tally:
    """Length and checksum of what has gone by."""

    size: int = 0
    crc: int = 0

    def add(self, piece: bytes | memoryview) -> None:
        self.size += len(piece)
        self.crc = zlib.crc32(piece, self.crc)


class Peer:
    """One end of a connection. ``stalled`` is set once the other end has taken nothing for a while;
    ``sent`` counts what the kernel took. ``head`` is what was read up to the empty line."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._ahead = b""
        self.head = b""
        self.sent = 0
        self.stalled = threading.Event()

    def read_head(self) -> bytes:
        """Read up to the empty line behind a head, and keep what came behind it."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self._recv()
            assert piece, f"ended within a head: {data!r}"
            data += piece
        self.head, _, self._ahead = data.partition(b"\r\n\r\n")
        return self.head

    def write(self, head: bytes, pattern: Pattern | None = None, *, chunked: bool = False) -> None:
        """Write a head and the pattern behind it; a socket that is full is waited for."""
        self._write(head)
        for piece in pattern or ():
            self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            self._write(b"0\r\n\r\n")

    def read(self, size: int) -> Tally:
        """Read so many bytes, or what there is until the end."""
        seen = Tally()
        while seen.size < size:
            piece = self._ahead or self._recv(min(MIB, size - seen.size))
            self._ahead = b""
            if not piece:
                break
            seen.add(piece)
        return seen

    def read_chunks(self) -> Tally:
        """Read a chunked body."""
        seen, size = Tally(), -1
        while size:
            size = int(self._line(), 16)
            left = size
            while left:
                piece = self._take(left)
                seen.add(piece)
                left -= len(piece)
            assert self._line() == b""
        return seen

    def _line(self) -> bytes:
        while b"\r\n" not in self._ahead:
            self._ahead += self._more()
        line, _, self._ahead = self._ahead.partition(b"\r\n")
        return line

    def _take(self, most: int) -> bytes:
        data = self._ahead or self._more()
        self._ahead = data[most:]
        return data[:most]

    def _more(self) -> bytes:
        piece = self._recv()
        assert piece, "ended within a chunk"
        return piece

    def _recv(self, most: int = MIB) -> bytes:
        self._sock.settimeout(_TIMEOUT_S)
        return self._sock.recv(most)

    def _write(self, data: bytes) -> None:
        self._sock.setblocking(False)
        view = memoryview(data)
        while view:
            try:
                taken = self._sock.send(view)
            except BlockingIOError:
                self._wait_for_room()
                continue
            self.sent += taken
            view = view[taken:]

    def _wait_for_room(self) -> None:
        if not select.select([], [self._sock], [], _STALL_S)[1]:
            self.stalled.set()
            assert select.select([], [self._sock], [], _TIMEOUT_S)[1], "nobody reads"

    def close(self) -> None:
        self._sock.close()


class FlowUpstream:
    """Runs ``serve`` for each connection, in a thread of its own, and closes it behind that.

    ``failed`` holds what went wrong in one; leaving the block raises the first of it.
    """

    def __init__(self, serve: Callable[[Peer], None]) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._arrived = threading.Condition()
        self._threads: list[threading.Thread] = []
        self.peers: list[Peer] = []
        self.failed: list[BaseException] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> FlowUpstream:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(_TIMEOUT_S)
        if error is None and self.failed:
            raise self.failed[0]

    def peer(self, number: int) -> Peer:
        """The connection of that number, from 0, once it is there."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.peers) > number, _TIMEOUT_S)
            return self.peers[number]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            peer = Peer(sock)
            thread = threading.Thread(target=self._run, args=(peer,), daemon=True)
            with self._arrived:
                self._threads.append(thread)
                self.peers.append(peer)
                self._arrived.notify_all()
            thread.start()

    def _run(self, peer: Peer) -> None:
        try:
            self._serve(peer)
        except (AssertionError, OSError, ValueError) as error:
            self.failed.append(error)
        finally:
            peer.close()


def resident_mib(pid: int) -> float:
    """What the process has in memory now."""
    return _status(pid, "VmRSS") / 1024


def peak_mib(pid: int) -> float:
    """The most that it ever had."""
    return _status(pid, "VmHWM") / 1024


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))
