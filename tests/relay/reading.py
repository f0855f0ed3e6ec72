"""What a caller hears, read from the socket: every byte is accounted for."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from gateway.core.model import Headers

__all__ = ["Heard", "exchange"]

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Heard:
    """A final response. ``body``: without its framing. ``interims``: statuses in front."""

    status: int
    headers: Headers
    body: bytes
    interims: tuple[int, ...]

    def all(self, name: str) -> list[bytes]:
        wanted = name.lower().encode("ascii")
        return [value for key, value in self.headers if key.lower() == wanted]


class _Bytes:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._held = bytearray()

    def more(self) -> bool:
        piece = self._sock.recv(1 << 18)
        self._held += piece
        return bool(piece)

    def until(self, mark: bytes) -> bytes:
        while (at := self._held.find(mark)) < 0:
            assert self.more(), f"the connection ended before {mark!r}: {bytes(self._held[:200])!r}"
        taken = bytes(self._held[:at])
        del self._held[: at + len(mark)]
        return taken

    def exactly(self, size: int) -> bytes:
        while len(self._held) < size:
            assert self.more(), f"the connection ended {size - len(self._held)} bytes early"
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken

    def rest(self) -> bytes:
        while self.more():
            pass
        return bytes(self._held)


def exchange(address: tuple[str, int], method: str, request: bytes) -> Heard:
    """Send one request on a connection of its own and read its answer to the end."""
    with socket.create_connection(address, _TIMEOUT_S) as sock:
        sock.sendall(request)
        taken = _Bytes(sock)
        interims = []
        while True:
            status, headers = _head(taken.until(b"\r\n\r\n"))
            if status >= 200:
                break
            interims.append(status)
        return Heard(status, headers, _body(taken, method, status, headers), tuple(interims))


def _head(block: bytes) -> tuple[int, Headers]:
    first, *lines = block.split(b"\r\n")
    version, status = first.split(b" ", 2)[:2]
    assert version == b"HTTP/1.1"
    pairs = (line.partition(b":") for line in lines)
    return int(status), tuple((name, value.strip(b" \t")) for name, _, value in pairs)


def _body(taken: _Bytes, method: str, status: int, headers: Headers) -> bytes:
    fields = {name.lower(): value for name, value in headers}
    if method == "HEAD" or status in (204, 304):
        return b""
    if b"transfer-encoding" in fields:
        assert fields[b"transfer-encoding"] == b"chunked"
        assert b"content-length" not in fields
        return _unchunked(taken)
    if b"content-length" in fields:
        return taken.exactly(int(fields[b"content-length"]))
    return taken.rest()


def _unchunked(taken: _Bytes) -> bytes:
    pieces = []
    while size := int(taken.until(b"\r\n").partition(b";")[0], 16):
        pieces.append(taken.exactly(size))
        assert taken.exactly(2) == b"\r\n"
    while taken.until(b"\r\n"):
        pass
    return b"".join(pieces)
