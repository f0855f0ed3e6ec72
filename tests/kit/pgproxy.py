"""A TCP proxy before a real PostgreSQL that loses, holds or swallows the answer of one statement.

It runs in a thread of its own and understands just enough of the v3 protocol to know which text a
prepared statement was parsed with, when that statement is executed and when its answer is whole.
So the windows round a commit can be hit exactly, and again and again::

    with PgProxy(dsn) as proxy:
        held = proxy.hold_answer("gateway.admit_batch(")  # the next admit; connect to proxy.dsn
        ...
        held.wait_hit()                             # the server has committed, nobody knows it
        held.cut()                                  # or held.release()

What may happen to the next execution of a statement whose text contains the given one:

- ``cut_before``: the connection ends, the server never hears of it
- ``hold_statement``: it is kept from the server until ``release()`` (or ``cut()``)
- ``cut_while_running``: the connection ends once the server has the statement, which works on it;
  hit as soon as it is forwarded
- ``hold_answer``: the server has answered, so it has committed; the answer waits for ``release()``
  (or ``cut()``)
- ``cut_after``: the server has answered, so it has committed; the connection ends instead

Besides, ``refuse()`` ends and refuses connections until ``accept()``; ``black_hole()`` swallows
everything of old and new connections, ``stall()`` of the old ones, until ``restore()``. That then
delivers as a network does: also what a client had written before it closed, unless it reset.
Nothing here sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

__all__ = ["Fault", "PgProxy"]

Kind = Literal["cut_before", "hold_statement", "cut_while_running", "hold_answer", "cut_after"]

_SSL_REQUEST = 80877103
_GSS_REQUEST = 80877104
_CANCEL_REQUEST = 80877102

_BACKLOG = 1024


class Fault:
    """What is to happen to one execution. Usable from any thread."""

    def __init__(self, kind: Kind, text: bytes, loop: asyncio.AbstractEventLoop) -> None:
        self.kind = kind
        self.text = text
        self._loop = loop
        self._hit = threading.Event()
        self._answered = threading.Event()
        self._verdict: asyncio.Future[bool] = loop.create_future()

    @property
    def hit(self) -> bool:
        return self._hit.is_set()

    def wait_hit(self, timeout_s: float = 10.0) -> None:
        """Block until it has struck: for the ``_answer`` and ``_after`` kinds, until the server has
        committed."""
        if not self._hit.wait(timeout_s):
            raise TimeoutError(f"no {self.text!r} was {self.kind} within {timeout_s} s")

    def wait_answered(self, timeout_s: float = 10.0) -> None:
        """Block until the server has answered the statement, whoever is left to hear it."""
        if not self._answered.wait(timeout_s):
            raise TimeoutError(f"the server did not answer {self.text!r} within {timeout_s} s")

    def release(self) -> None:
        """Let what is held go on its way."""
        self._decide(True)

    def cut(self) -> None:
        """End the connection in place of that."""
        self._decide(False)

    def _decide(self, go_on: bool) -> None:
        def decide() -> None:
            if not self._verdict.done():
                self._verdict.set_result(go_on)

        self._loop.call_soon_threadsafe(decide)

    # -- the proxy's side

    def strike(self) -> None:
        self._hit.set()

    def answered(self) -> None:
        self._answered.set()

    async def goes_on(self) -> bool:
        return await asyncio.shield(self._verdict)


@dataclass(eq=False)
class _Link:
    """One client's connection and the server's for it."""

    client_in: asyncio.StreamReader
    client_out: asyncio.StreamWriter
    server_in: asyncio.StreamReader
    server_out: asyncio.StreamWriter
    texts: dict[bytes, bytes] = field(default_factory=dict)
    """By the name of the prepared statement."""
    fault: Fault | None = None
    """Of the execution that is under way."""
    flowing: asyncio.Event = field(default_factory=asyncio.Event)
    abandoned: bool = False
    """The client was cut off; what the server still says is read and dropped."""

    def end(self) -> None:
        for writer in (self.client_out, self.server_out):
            writer.transport.abort()


class PgProxy:
    """See the module. A context manager; ``dsn`` is ``dsn`` through the proxy."""

    def __init__(self, dsn: str) -> None:
        self._server = urlsplit(dsn)
        self._faults: deque[Fault] = deque()
        self._executed: list[bytes] = []
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pgproxy", daemon=True)
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing: asyncio.Event
        self._listener: asyncio.Server | None = None
        self._port = 0

    def __enter__(self) -> PgProxy:
        self._thread.start()
        self._call(self._open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def dsn(self) -> str:
        userinfo = self._server.netloc.rpartition("@")[0]
        return urlunsplit(self._server._replace(netloc=f"{userinfo}@127.0.0.1:{self._port}"))

    def count(self, text: str) -> int:
        """How many executions of statements with this text came by, whatever became of them."""
        with self._lock:
            return sum(text.encode() in executed for executed in self._executed)

    # -- faults

    def cut_before(self, text: str) -> Fault:
        return self._add("cut_before", text)

    def hold_statement(self, text: str) -> Fault:
        return self._add("hold_statement", text)

    def cut_while_running(self, text: str) -> Fault:
        return self._add("cut_while_running", text)

    def hold_answer(self, text: str) -> Fault:
        return self._add("hold_answer", text)

    def cut_after(self, text: str) -> Fault:
        return self._add("cut_after", text)

    def black_hole(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._call(self._stall(new=True))

    def stall(self) -> None:
        """From now on nothing passes on the connections that exist; new ones work."""
        self._call(self._stall(new=False))

    def restore(self) -> None:
        """End the silence; what it swallowed arrives."""
        self._call(self._restore())

    def refuse(self) -> None:
        """End every connection and refuse new ones, as a server that is down does."""
        self._call(self._refuse())

    def accept(self) -> None:
        """Take connections again, on the same port."""
        self._call(self._listen())

    def _add(self, kind: Kind, text: str) -> Fault:
        fault: Fault = self._call(self._made(kind, text.encode()))
        with self._lock:
            self._faults.append(fault)
        return fault

    # -- inside the proxy's thread

    async def _made(self, kind: Kind, text: bytes) -> Fault:
        return Fault(kind, text, asyncio.get_running_loop())

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _open(self) -> None:
        self._flowing = asyncio.Event()
        self._flowing.set()
        await self._listen()

    async def _stall(self, *, new: bool) -> None:
        if new:
            self._flowing.clear()
        for link in self._links:
            link.flowing.clear()

    async def _restore(self) -> None:
        self._flowing.set()
        for link in self._links:
            link.flowing.set()

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(
            self._serve, "127.0.0.1", self._port, backlog=_BACKLOG
        )
        self._port = self._listener.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for link in list(self._links):
            link.end()

    async def _shut(self) -> None:
        await self._refuse()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._relay(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start = await self._startup(reader, writer)
        server_in, server_out = await asyncio.open_connection(
            self._server.hostname, self._server.port
        )
        link = _Link(reader, writer, server_in, server_out)
        link.flowing.set()
        self._links.add(link)
        pumps = {
            asyncio.ensure_future(self._forwards(link, start)),
            asyncio.ensure_future(self._backwards(link)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if link.abandoned:
                await asyncio.wait(pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            link.end()
            self._links.discard(link)

    async def _startup(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """The first message that is meant for the server; encryption is refused."""
        while True:
            head = await reader.readexactly(8)
            await self._flowing.wait()
            length, code = int.from_bytes(head[:4]), int.from_bytes(head[4:])
            if code not in (_SSL_REQUEST, _GSS_REQUEST):
                return head + await reader.readexactly(length - 8)
            writer.write(b"N")

    async def _forwards(self, link: _Link, start: bytes) -> None:
        link.server_out.write(start)
        if int.from_bytes(start[4:8]) == _CANCEL_REQUEST:
            await link.server_out.drain()
            await link.client_in.read()
            return
        while not link.abandoned:
            kind, message = await _message(link.client_in)
            await link.flowing.wait()
            if link.client_in.exception() is not None:
                return  # reset: its kernel threw away what had not arrived
            fault = self._struck(link, kind, message[5:])
            if fault is not None:
                begun = await _begin(link, fault, message)
                if begun is None:
                    return
                message = begun
            link.server_out.write(message)
            await link.server_out.drain()
            if kind in b"SQ":  # Sync and Query are all that the server waits for
                _abandon(link)

    def _struck(self, link: _Link, kind: bytes, body: bytes) -> Fault | None:
        """The fault that this message of the client's meets, if it executes a statement."""
        match kind:
            case b"P":
                name, text, _ = body.split(b"\0", 2)
                link.texts[name] = text
                return None
            case b"B":
                _, name, _ = body.split(b"\0", 2)
                return self._take(link.texts.get(name, b""))
            case b"Q":
                return self._take(body)
            case _:
                return None

    def _take(self, text: bytes) -> Fault | None:
        with self._lock:
            self._executed.append(text)
            for fault in self._faults:
                if fault.text in text:
                    self._faults.remove(fault)
                    return fault
        return None

    async def _backwards(self, link: _Link) -> None:
        held: list[bytes] = []
        while True:
            try:
                kind, message = await _message(link.server_in)
            except (OSError, asyncio.IncompleteReadError):
                if link.fault is not None:
                    link.fault.answered()
                raise
            await link.flowing.wait()
            held.append(message)
            if link.fault is None or kind == b"Z":
                if link.fault is not None and not await _end(link, link.fault):
                    return
                link.fault = None
                link.client_out.write(b"".join(held))
                held.clear()
                await link.client_out.drain()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The type of the next message, and all of its bytes."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:]) - 4)


async def _begin(link: _Link, fault: Fault, message: bytes) -> bytes | None:
    """What the server is to hear, once it may; ``None`` ends the connection."""
    if fault.kind == "cut_before":
        fault.strike()
        return None
    if fault.kind == "hold_statement":
        kind = b""
        while kind not in (b"S", b"Q"):
            kind, more = await _message(link.client_in)
            message += more
        fault.strike()
        return message if await _goes_on(link, fault) else None
    link.fault = fault
    return message


def _abandon(link: _Link) -> None:
    if link.fault is not None and link.fault.kind == "cut_while_running":
        link.abandoned = True
        link.client_out.transport.abort()
        link.fault.strike()


async def _end(link: _Link, fault: Fault) -> bool:
    """What happens once the server has answered; false ends the connection."""
    fault.answered()
    if fault.kind == "hold_answer":
        fault.strike()
        return await fault.goes_on()
    fault.strike()
    return False


async def _goes_on(link: _Link, fault: Fault) -> bool:
    """The verdict; false if the client hangs up before it. It has nothing else to say."""
    verdict = asyncio.ensure_future(fault.goes_on())
    gone = asyncio.ensure_future(link.client_in.read(1))
    try:
        await asyncio.wait({verdict, gone}, return_when=asyncio.FIRST_COMPLETED)
        return verdict.done() and verdict.result()
    finally:
        verdict.cancel()
        gone.cancel()
