"""A caller of the gateway, as raw as a test needs it.

Every request is one connection and is written by hand, so that doubled, malformed and missing
fields, broken framing and hang-ups are as easy as an ordinary call. ``open`` sends and does not
read: two hundred callers at once need no threads.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gateway.core.problems import PREFIX, TYPES, ProblemType

__all__ = ["Caller", "Exchange", "Fields", "Reply", "assert_problem"]

Fields = Iterable[tuple[str, str]]

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What the gateway answered; ``headers`` in order, repeats kept."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def one(self, name: str) -> str | None:
        """A field that must not be repeated; ``None`` where it is missing."""
        values = self.all(name)
        assert len(values) < 2, f"{name} came {len(values)} times"
        return values[0] if values else None

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def outcome(self) -> str | None:
        return self.one("Gateway-Outcome")

    @property
    def replayed(self) -> bool:
        value = self.one("Idempotent-Replayed")
        assert value in ("true", "false"), f"Idempotent-Replayed is {value!r}"
        return value == "true"

    @property
    def problem(self) -> str | None:
        """The problem's short type, ``None`` where this is no problem document of the gateway."""
        if self.all("Content-Type") != ["application/problem+json"]:
            return None
        kind = str(self.json().get("type"))
        return kind.removeprefix(PREFIX) if kind.startswith(PREFIX) else None


class Exchange:
    """One request that was sent, and its answer to come."""

    def __init__(self, sock: socket.socket, method: str) -> None:
        self._sock = sock
        self._method = method

    def send(self, data: bytes) -> None:
        """More bytes of the request."""
        self._sock.sendall(data)

    def reply(self, timeout_s: float = _TIMEOUT_S) -> Reply:
        """The whole answer. Raises ``http.client.HTTPException`` or ``OSError`` where it is cut."""
        reply = self.next(timeout_s)
        self._sock.close()
        return reply

    def next(self, timeout_s: float = _TIMEOUT_S) -> Reply:
        """The next final answer on this connection, which stays open."""
        self._sock.settimeout(timeout_s)
        response = http.client.HTTPResponse(self._sock, method=self._method)
        try:
            response.begin()
            body = response.read()
        except BaseException:
            self._sock.close()
            raise
        finally:
            response.close()
        return Reply(response.status, tuple(response.getheaders()), body)

    def interim(self, timeout_s: float = _TIMEOUT_S) -> int | None:
        """Wait for the next answer: the status of an interim one, which is taken off the
        connection; ``None`` where it is final, and left for ``reply`` or ``next``."""
        self._sock.settimeout(timeout_s)
        until = time.monotonic() + timeout_s
        while b"\r\n\r\n" not in (seen := self._sock.recv(65536, socket.MSG_PEEK)):
            assert seen, "the connection ended in place of an answer"
            assert time.monotonic() < until, f"no whole head within {timeout_s} s: {seen!r}"
        head = seen.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        status = int(head.split(b" ", 2)[1])
        if status >= 200:
            return None
        self._sock.recv(len(head))
        return status

    def peek_status(self, timeout_s: float = _TIMEOUT_S) -> int:
        """The status of the next answer, of which nothing is taken off the connection."""
        self._sock.settimeout(timeout_s)
        seen = self._sock.recv(12, socket.MSG_PEEK | socket.MSG_WAITALL)
        return int(seen.split(b" ")[1])

    def readable(self) -> bool:
        """Whether anything has come that was not read yet."""
        return bool(select.select([self._sock], [], [], 0)[0])

    def read(self, timeout_s: float = _TIMEOUT_S) -> bytes:
        """The next raw bytes, empty at the end of the stream."""
        self._sock.settimeout(timeout_s)
        return self._sock.recv(65536)

    def read_all(self, timeout_s: float = _TIMEOUT_S) -> bytes:
        """Every byte until the gateway closes."""
        pieces = []
        while piece := self.read(timeout_s):
            pieces.append(piece)
        self._sock.close()
        return b"".join(pieces)

    def hang_up(self, *, reset: bool = False) -> None:
        """Close without reading; ``reset`` as a caller that was killed."""
        if reset:
            linger = struct.pack("ii", 1, 0)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._sock.close()


class Caller:
    """Calls one gateway. ``token``: its gateway key, if callers need one."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._address = (parts.hostname, parts.port)
        self._token = token

    def open(
        self,
        method: str,
        target: str,
        fields: Fields = (),
        body: bytes | None = b"",
        *,
        host: str | None = None,
        on: Exchange | None = None,
    ) -> Exchange:
        """Send one request. ``body`` ``None`` says nothing of a body; the test writes on. ``on``:
        send it on the connection of an exchange that was answered."""
        own: list[tuple[str, str]] = [("Host", host or "localhost")]
        if self._token is not None:
            own.append(("Authorization", f"Bearer {self._token}"))
        if body is not None and (body or method not in ("GET", "HEAD", "OPTIONS")):
            own.append(("Content-Length", str(len(body))))
        lines = [f"{method} {target} HTTP/1.1", *(f"{n}: {v}" for n, v in [*own, *fields])]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        if on is not None:
            on.send(head + (body or b""))
            return on
        return self.raw(head + (body or b""), method=method)

    def raw(self, data: bytes, *, method: str = "POST", buffer: int | None = None) -> Exchange:
        """Send exactly these bytes. ``buffer``: bytes that the kernel may take of the answer."""
        sock = socket.socket(socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET)
        sock.settimeout(_TIMEOUT_S)
        if buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.connect(self._address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        exchange = Exchange(sock, method)
        exchange.send(data)
        return exchange

    def call(self, method: str, target: str, fields: Fields = (), body: bytes = b"") -> Reply:
        return self.open(method, target, fields, body).reply()


def assert_problem(
    reply: Reply,
    kind: ProblemType,
    *,
    outcome: str = "rejected",
    sent: str | None = None,
    retry: str | None = None,
    waits: bool = False,
    **members: object,
) -> Mapping[str, Any]:
    """The reply is this problem in every detail of the wire contract; its document is returned.

    ``sent`` and ``retry``: the type's own where not given. ``waits``: Retry-After is due.
    """
    assert reply.problem == kind, (reply.status, reply.headers, reply.body)
    row = TYPES[kind]
    document: dict[str, Any] = reply.json()
    assert (reply.status, document["status"]) == (row.status, row.status)
    assert document["title"] == row.title
    assert document["detail"].endswith(".")
    assert document["sent"] == (sent or row.sent)
    assert document["retry"] == (retry or row.retry)
    assert document["request_id"]
    assert (reply.one("Proxy-Status") or "").startswith("fencegate")
    assert (reply.outcome, reply.replayed) == (outcome, False)
    assert int(reply.one("Content-Length") or -1) == len(reply.body)
    after = reply.one("Retry-After")
    assert (after is not None and int(after) >= 1) if waits else after is None
    for name, value in members.items():
        assert document[name] == value, (name, document)
    return document
