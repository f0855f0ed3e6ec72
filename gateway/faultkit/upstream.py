"""A real upstream for trials: a TCP server that remembers what reached it and answers as scripted.

It runs in a thread of its own with its own event loop, so synchronous tests and tests with any
event loop use it alike::

    with RecordingUpstream() as upstream:
        upstream.next(respond(503), hang())        # for the next two requests, in order
        ...                                        # call upstream.url
        first, second = upstream.wait_for_requests(2)
        assert upstream.count == 2                 # complete requests
        assert len(upstream.effects) == 0          # what it "did"

What is not scripted gets the default answer: 201 and ``{"effect": N}`` with N counting the effects
from 1. A script may also be a function: ``RecordingUpstream(script=lambda request: respond(204))``;
it returns an answer or ``None`` for the default. Queued answers come before the function.

Answers:

- ``respond(status, body, headers, close=False)``: a whole response, effect first
- ``raw(data, then="keep" | "close" | "reset" | "fin")``: these bytes, whatever they are; ``fin``
  ends the stream without TLS's closure alert
- ``cut(then="close" | "reset")``: no byte of an answer, e.g. a crash after the effect
- ``hang()``: no answer, and the connection stays open
- ``drip([b"..", b".."], gate=None)``: raw pieces, one segment each; a gate lets one piece through
  for each ``gate.step()``
- ``gated(gate, answer)``: holds the answer until ``gate.release()``; the effect has happened
- ``early(answer, after=0)``: answers as soon as the head is in, and so many bytes of the body; what
  comes behind is thrown away

A request has an effect if it came complete and its answer says so: by default a ``respond`` below
400 and everything else but ``early``; ``effect=True`` or ``False`` decides otherwise.

Nothing here sleeps. Wait with ``wait_for_requests``, ``wait_for_effects`` and
``wait_for_disconnects``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from gateway.faultkit.answers import (
    Answer,
    End,
    Gate,
    Then,
    cut,
    drip,
    early,
    gated,
    hang,
    raw,
    respond,
)

__all__ = [
    "Answer",
    "Gate",
    "Recorded",
    "RecordingUpstream",
    "Then",
    "cut",
    "drip",
    "early",
    "gated",
    "hang",
    "raw",
    "respond",
]
_HEAD_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as it arrived. ``complete``: its whole body came."""

    number: int
    """1, 2, … in the order in which the heads (or what came of them) were in."""
    connection: int
    """1, 2, … in the order in which connections were accepted."""
    method: bytes
    target: bytes
    head: bytes
    """Request line and field lines as sent, without the empty line; partial if that is all."""
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    complete: bool
    arrived_mono: float

    def all(self, name: str) -> list[bytes]:
        """The values of a field, in order."""
        wanted = name.lower().encode()
        return [value for key, value in self.headers if key.lower() == wanted]

    def one(self, name: str) -> bytes | None:
        """The value of a field that must not be repeated, ``None`` if it is missing."""
        values = self.all(name)
        assert len(values) < 2, f"{name} came {len(values)} times"
        return values[0] if values else None

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class _Ledger:
    """Everything that reached the upstream, guarded by one condition."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    requests: list[Recorded] = field(default_factory=list)
    partial: list[Recorded] = field(default_factory=list)
    effects: list[Recorded] = field(default_factory=list)
    accepted: int = 0
    ended: int = 0


class RecordingUpstream:
    """See the module. A context manager; ``start()`` and ``stop()`` do the same by hand.

    ``tls``: serve https with this context.
    """

    def __init__(
        self,
        *,
        script: Callable[[Recorded], Answer | None] | None = None,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.script = script
        self._host = host
        self._queue: deque[Answer] = deque()
        self._ledger = _Ledger()
        self._port = port
        self._listening = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: asyncio.Server | None = None
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = tls

    # -- life

    def __enter__(self) -> RecordingUpstream:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> RecordingUpstream:
        """Listen. Returns itself."""
        loop = asyncio.new_event_loop()
        self._loop = loop
        self._thread = threading.Thread(target=loop.run_forever, name="upstream", daemon=True)
        self._thread.start()
        self.accept()
        return self

    def stop(self) -> None:
        """Close everything; idempotent."""
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._shut(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(10)
        loop.close()

    def refuse(self) -> None:
        """Stop listening: new connections are refused, those that exist go on."""
        self._call(self._unlisten())

    def accept(self) -> None:
        """Listen, again on the same port after ``refuse()``."""
        self._call(self._listen())

    def drop_connections(self, then: End = "close") -> None:
        """End every open connection from this side, e.g. idle ones that a client wants to reuse."""
        self._call(self._drop(then))

    # -- the script

    def next(self, *answers: Answer) -> None:
        """Queue answers for the next requests, in order of arrival."""
        with self._ledger.changed:
            self._queue.extend(answers)

    # -- what reached it

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        """``http(s)://127.0.0.1:port``, without a trailing slash."""
        return f"{'https' if self._context else 'http'}://127.0.0.1:{self._port}"

    @property
    def requests(self) -> list[Recorded]:
        """Complete requests, in the order in which they became complete."""
        with self._ledger.changed:
            return list(self._ledger.requests)

    @property
    def partial(self) -> list[Recorded]:
        """Requests that ended early, and those that ``early`` answered."""
        with self._ledger.changed:
            return list(self._ledger.partial)

    @property
    def effects(self) -> list[Recorded]:
        """The requests that it carried out, in order."""
        with self._ledger.changed:
            return list(self._ledger.effects)

    @property
    def count(self) -> int:
        """Complete requests."""
        return len(self.requests)

    @property
    def connections(self) -> int:
        """Connections accepted so far."""
        with self._ledger.changed:
            return self._ledger.accepted

    def clear(self) -> None:
        """Forget requests, effects and queued answers (not the connections)."""
        with self._ledger.changed:
            self._queue.clear()
            self._ledger.requests.clear()
            self._ledger.partial.clear()
            self._ledger.effects.clear()

    def wait_for_requests(self, n: int, timeout_s: float = 10.0) -> list[Recorded]:
        """Block until ``n`` complete requests are in and return them, or raise ``TimeoutError``."""
        self._wait(lambda: len(self._ledger.requests) >= n, timeout_s, f"{n} requests")
        return self.requests

    def wait_for_partial(self, n: int, timeout_s: float = 10.0) -> list[Recorded]:
        """The same for requests that ended early."""
        self._wait(lambda: len(self._ledger.partial) >= n, timeout_s, f"{n} partial requests")
        return self.partial

    def wait_for_effects(self, n: int, timeout_s: float = 10.0) -> list[Recorded]:
        """The same for effects."""
        self._wait(lambda: len(self._ledger.effects) >= n, timeout_s, f"{n} effects")
        return self.effects

    def wait_for_connections(self, n: int, timeout_s: float = 10.0) -> None:
        """Block until ``n`` connections have been accepted."""
        self._wait(lambda: self._ledger.accepted >= n, timeout_s, f"{n} connections")

    def wait_for_disconnects(self, n: int, timeout_s: float = 10.0) -> None:
        """Block until ``n`` connections have ended."""
        self._wait(lambda: self._ledger.ended >= n, timeout_s, f"{n} disconnects")

    # -- inside the server's thread

    def _call(self, coroutine: Any) -> None:
        assert self._loop is not None, "start() it first"
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def _wait(self, reached: Callable[[], bool], timeout_s: float, what: str) -> None:
        with self._ledger.changed:
            if not self._ledger.changed.wait_for(reached, timeout_s):
                raise TimeoutError(
                    f"no {what} within {timeout_s} s: {len(self._ledger.requests)} complete, "
                    f"{len(self._ledger.partial)} partial, {self._ledger.accepted} connections"
                )

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, self._host, self._port, ssl=self._context, limit=_HEAD_LIMIT, backlog=1024
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def _unlisten(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _drop(self, then: End) -> None:
        for writer in list(self._writers.values()):
            _end(writer, then)

    async def _shut(self) -> None:
        await self._unlisten()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in list(self._writers.values()):
            writer.transport.abort()
        for _ in range(3):  # let the transports say goodbye
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with self._ledger.changed:
            self._ledger.accepted += 1
            connection = self._ledger.accepted
            self._ledger.changed.notify_all()
        self._writers[connection] = writer
        try:
            while await self._exchange(connection, reader, writer):
                pass
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.pop(connection, None)
            writer.close()
            with self._ledger.changed:
                self._ledger.ended += 1
                self._ledger.changed.notify_all()

    async def _exchange(
        self, connection: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """One request and its answer; whether the connection goes on."""
        try:
            block = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as ended:
            if ended.partial:
                self._record(connection, ended.partial, b"", complete=False)
            return False
        head = block[:-4]
        with self._ledger.changed:
            answer = self._queue.popleft() if self._queue else None
        if answer is not None and answer.before_body:
            start = await _read_start(reader, answer.after)
            recorded = self._record(connection, head, start, complete=False)
        else:
            body, complete = await _read_body(head, reader)
            recorded = self._record(connection, head, body, complete=complete)
            if not complete:
                return False
        if answer is None:
            answer = (self.script(recorded) if self.script else None) or Answer(None)
        return await self._answer(answer, recorded, reader, writer)

    async def _answer(
        self,
        answer: Answer,
        recorded: Recorded,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        number = self._do(recorded) if answer.effect and recorded.complete else 0
        if answer.gate is not None and not await _passed(answer.gate, reader):
            return False
        pieces = answer.pieces
        if pieces is None:
            text = json.dumps({"effect": number}).encode()
            pieces = respond(201, text, [("Content-Type", "application/json")]).pieces or ()
        for piece in pieces:
            if answer.step is not None:
                await answer.step.passed()
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if answer.then != "keep":
            _end(writer, answer.then)
            if answer.then == "fin":
                await _hung_up(reader)
            return False
        if answer.before_body:
            await _hung_up(reader)
            return False
        return True

    def _record(self, connection: int, head: bytes, body: bytes, *, complete: bool) -> Recorded:
        lines = head.split(b"\r\n")
        words = lines[0].split(b" ")
        pairs = [line.partition(b":") for line in lines[1:]]
        with self._ledger.changed:
            recorded = Recorded(
                number=len(self._ledger.requests) + len(self._ledger.partial) + 1,
                connection=connection,
                method=words[0],
                target=words[1] if len(words) > 1 else b"",
                head=head,
                headers=tuple((name, value.strip(b" \t")) for name, _, value in pairs),
                body=body,
                complete=complete,
                arrived_mono=time.monotonic(),
            )
            (self._ledger.requests if complete else self._ledger.partial).append(recorded)
            self._ledger.changed.notify_all()
        return recorded

    def _do(self, recorded: Recorded) -> int:
        with self._ledger.changed:
            self._ledger.effects.append(recorded)
            self._ledger.changed.notify_all()
            return len(self._ledger.effects)


async def _read_body(head: bytes, reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """The body and whether it is whole. Lengths and chunks; trailers are dropped."""
    fields = {
        name.strip().lower(): value.strip().lower()
        for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
    }
    if fields.get(b"transfer-encoding", b"").endswith(b"chunked"):
        return await _read_chunks(reader)
    length = int(fields.get(b"content-length", b"0"))
    body = bytearray()
    with contextlib.suppress(OSError):  # what came before a reset is recorded
        while len(body) < length:
            piece = await reader.read(min(length - len(body), 1 << 16))
            if not piece:
                break
            body += piece
    return bytes(body), len(body) == length


async def _read_start(reader: asyncio.StreamReader, size: int) -> bytes:
    """Raw bytes behind the head; fewer only where the peer sends no more."""
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as ended:
        return ended.partial


async def _read_chunks(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    body = bytearray()
    try:
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass
    except asyncio.IncompleteReadError as ended:
        return bytes(body) + ended.partial, False
    return bytes(body), True


async def _passed(gate: Gate, reader: asyncio.StreamReader) -> bool:
    """Wait at the gate; False if the peer hangs up first. What it sends meanwhile is ignored."""
    waiting = asyncio.ensure_future(gate.passed())
    gone = asyncio.ensure_future(_hung_up(reader))
    try:
        await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
        return waiting.done()
    finally:
        waiting.cancel()
        gone.cancel()


async def _hung_up(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 16):
            pass


def _end(writer: asyncio.StreamWriter, then: End) -> None:
    if then == "close":
        writer.close()
        return
    sock = writer.get_extra_info("socket")
    if then == "fin":
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
