"""One connection to an upstream, and the stage that the request on it has reached.

The rules of the sending side:

- The stage is raised *before* the call that could let a byte out, since ``transport.write`` tries
  the socket at once. Below ``SENDING_HEADERS`` no write has been called.
- The clock is read before every write. Timers alone would not do: they stand still while the
  machine is suspended, and the first thing to run after a pause may be the write.
- Whatever a response already says ends the sending; a request cut short is never finished later.
- Of a streamed body one piece is held, and the next is asked for when the one before has left. The
  same holds in the other direction: of a body that is passed on, one read is held.
- Nothing is ever sent twice. A reused connection that dies as the request is written is reported
  as what it is: sent, and closed or reset.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import cast

from gateway import faults
from gateway.core.model import Stage
from gateway.upstream.messages import PIECE, Deadlines, Streamed, body_parts
from gateway.upstream.reading import ResponseReader

try:
    import fcntl
    import termios
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Connection", "reset"]

_RESET = struct.pack("ii", 1, 0)
"""``SO_LINGER`` on, for 0 s: closing throws the send queue away."""


class Connection(asyncio.Protocol):
    """Carries one exchange at a time; between two of them it lies idle in the pool.

    ``stage`` is how far the present request got. After :meth:`perform` the reader tells the rest.
    """

    __slots__ = (
        "_clock",
        "_due",
        "_heard_late",
        "_late_room",
        "_loop",
        "_lost",
        "_on_end",
        "_poll",
        "_quiet",
        "_reader",
        "_reading_paused",
        "_spoiled",
        "_timer",
        "_timer_due",
        "_transport",
        "_waiter",
        "_writing_paused",
        "idle_since",
        "stage",
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._poll: select.poll | None = None
        self._reader: ResponseReader | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._timer_due = 0.0
        self._writing_paused = self._reading_paused = False
        self._lost = self._spoiled = False
        self._quiet: Deadlines | None = None
        self._heard_late: list[bytes] = []
        self._late_room: int | None = None
        self._on_end: Callable[[], None] | None = None
        self.idle_since = 0.0
        self.stage = Stage.CONNECTED

    # -- the transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._spoiled:
            self._abort()
            return
        if transport.get_extra_info("sslcontext") is None:
            # A full socket pauses us at once, so no byte waits in a buffer that is flushed after
            # a deadline. (Over TLS a limit of 0 makes asyncio pause and resume on every write.)
            self._transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None or reader.done:
            self._spoil()
            return
        if reader.fault is None and self._clock() >= self._due:
            self._expire(reader)
        if reader.fault is not None:
            self._keep_for_late(data)
            return
        if self._late_room is not None:
            self._late_room -= len(data)
            if self._late_room < 0:
                reader.fail("timeout")
                self._wake()
                return
        reader.feed(data)
        faults.reach("answer.part")
        if reader.settled:
            if reader.queued:
                self._pause_reading()  # one read at a time: the next is for ``flow`` to ask for
                if self._quiet is not None:
                    self._arm(self._quiet.last)  # from here on it is the consumer who pauses
            self._wake()
        elif reader.status and self.stage < Stage.SENT:
            self._wake()

    def eof_received(self) -> None:
        reader = self._reader
        if reader is None:
            self._spoiled = True
        elif not reader.done and reader.fault is None and self._ended_orderly():
            if self._clock() >= self._due:
                self._expire(reader)
                self._keep_for_late(b"")
            else:
                reader.eof()
                self._wake()

    def _ended_orderly(self) -> bool:
        """Over TLS the end of the stream counts only with a closure alert: without it anybody on
        the way could have cut a body that has no length (RFC 9112 §9.8). The loops do not tell
        the two apart; the TLS object does."""
        tls = self._transport.get_extra_info("ssl_object")
        if tls is None:
            return True
        try:
            return bool(tls.read(1) == b"")
        except ssl.SSLZeroReturnError:
            return True
        except ssl.SSLError:
            return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reader is not None:
            self._reader.fail("closed" if exc is None else "reset")
        self._wake()
        self._end()

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._wake()

    # -- one exchange

    async def perform(
        self, reader: ResponseReader, head: bytes, body: bytes | Streamed, deadlines: Deadlines
    ) -> None:
        """Write the request and read until ``reader`` is settled. Raises only on cancellation, or
        what pulling a streamed body raises."""
        self._reader = reader
        self.stage = Stage.CONNECTED
        faults.reach("send.connected")
        self._arm(deadlines.last)
        if not self._may_write(reader, min(deadlines.first_byte, deadlines.last)):
            return
        self.stage = Stage.SENDING_HEADERS
        if isinstance(body, Streamed):
            self._transport.write(head)
            await self._send_stream(reader, body, deadlines)
        elif len(body) <= PIECE:
            self._transport.write(head + body)
            self.stage = Stage.SENT
        else:
            self._transport.write(head)
            if await self._send_parts(reader, body_parts(body, chunked=False), deadlines):
                self.stage = Stage.SENT
        faults.reach("send.written")
        if deadlines.quiet_s is not None and not reader.settled:
            self._arm(self._until_quiet(deadlines))
        while not reader.settled:
            self._waiter = self._loop.create_future()  # as ``_wait``, which costs a coroutine
            await self._waiter
        if deadlines.quiet_s is not None and not (reader.done or reader.fault):
            self._arm(deadlines.last)  # the body may pause for as long as it likes
            if self.stage < Stage.SENT:
                # But nothing more is sent, so an upstream that answers as it reads waits in vain.
                self._quiet = deadlines

    async def _send_parts(
        self, reader: ResponseReader, parts: Iterable[bytes | memoryview], deadlines: Deadlines
    ) -> bool:
        """Write parts of the body, each once there is room; false where the sending is over."""
        for part in parts:
            # One turn of the loop for each part, so that an early answer is seen.
            await asyncio.sleep(0)
            full = self._writing_paused
            if full:
                self._arm(self._until_quiet(deadlines))
            while self._writing_paused and not (reader.settled or reader.status):
                await self._wait()
            if reader.settled or reader.status or not self._may_write(reader, self._due):
                return False
            self.stage = Stage.SENDING_BODY
            self._transport.write(part)
            faults.reach("send.part")
        return True

    async def _send_stream(
        self, reader: ResponseReader, body: Streamed, deadlines: Deadlines
    ) -> None:
        """Send a body piece by piece. No byte more than announced leaves, since it would be read as
        the next request."""
        left = body.length
        while True:
            self._arm(deadlines.last)  # how long the next piece may take is for the source to say
            piece = await self._pulled(reader, body)
            if piece is None:
                return
            if left is not None:
                left -= len(piece)
                if left < 0 or (left > 0 and not piece):
                    reader.fail("closed")
                    return
            parts = body_parts(piece, chunked=left is None)
            if not await self._send_parts(reader, parts, deadlines):
                return
            if not piece or left == 0:
                break
        self.stage = Stage.SENT

    async def _pulled(self, reader: ResponseReader, body: Streamed) -> bytes | None:
        """The next piece; ``None`` where the sending is over."""
        pulling = asyncio.ensure_future(body.pull())
        pulling.add_done_callback(lambda _: self._wake())
        try:
            while not (pulling.done() or reader.settled or reader.status):
                await self._wait()
        finally:
            pulling.cancel()
        if reader.settled or reader.status:
            return None
        piece = pulling.result()
        if piece is None:
            reader.fail("closed")
        return piece

    def _until_quiet(self, deadlines: Deadlines) -> float:
        quiet_s = deadlines.quiet_s
        return deadlines.last if quiet_s is None else min(deadlines.last, self._clock() + quiet_s)

    def _may_write(self, reader: ResponseReader, limit: float) -> bool:
        if self._lost or self._spoiled or self._transport.is_closing():
            reader.fail("closed")
        elif self._clock() >= limit:
            reader.fail("paused")
        return reader.fault is None

    # -- the body of a response that is passed on

    def flow(self) -> None:
        """Read once more; the consumer of the queue has caught up."""
        if self._quiet is not None:
            self._arm(self._until_quiet(self._quiet))
        self._resume_reading()

    def when_over(self, hook: Callable[[], None]) -> None:
        """Call ``hook`` once when an oversize exchange ends by itself: the connection is lost or
        its last deadline passes, whether or not anybody reads on. It gives the slot back."""
        self._on_end = hook
        if self._lost or self._reader is None or self._reader.fault is not None:
            self._end()

    async def wait(self) -> None:
        """Until something has changed: data, an end, a deadline."""
        await self._wait()

    # -- a response that comes late

    @property
    def may_linger(self) -> bool:
        """Whether a late response has come or may still come, while nothing of the request is left
        that would leave by itself."""
        if self.stage <= Stage.CONNECTED:
            return False
        if self._heard_late:
            return True
        return (
            not self._lost
            and not self._transport.is_closing()
            and self._transport.get_write_buffer_size() == 0
            and not _unsent(self._transport)
        )

    async def perform_late(self, reader: ResponseReader, until: float, byte_limit: int) -> None:
        """Read on after a timeout until ``reader`` is settled again."""
        reader.reopen()
        self._late_room = byte_limit
        self._arm(until)
        heard, self._heard_late = self._heard_late, []
        for data in heard:
            self._late_room -= len(data)
            if not data:
                reader.eof()
            elif self._late_room >= 0 and not reader.settled:
                reader.feed(data)
        if self._lost:
            reader.fail("closed")
        if self._late_room < 0 or self._clock() >= until:
            reader.fail("timeout")
        self._resume_reading()
        while not reader.settled:
            await self._wait()

    def _keep_for_late(self, data: bytes) -> None:
        # Heard after the deadline: not part of this exchange, but not forgotten either. Empty: the
        # orderly end.
        if self._reader is not None and self._reader.fault == "timeout":
            self._heard_late.append(data)
            self._pause_reading()

    # -- reuse

    @property
    def reusable(self) -> bool:
        """Whether the exchange left the connection in a state that the next one can rely on."""
        reader = self._reader
        return (
            reader is not None
            and reader.done
            and reader.keep_alive
            and not reader.extra
            and self.stage == Stage.SENT
            and not self._spoiled
            and not self._lost
            and not self._transport.is_closing()
            and self._transport.get_write_buffer_size() == 0
        )

    def rest(self) -> None:
        """Become idle: from here on anything that arrives makes the connection unusable."""
        if self._reader is not None:
            self._reader.drop()
            self._reader = None
        self._on_end = None
        if self._reading_paused:
            self._resume_reading()

    def alive(self) -> bool:
        """The liveness check before reuse: nothing came and nothing ended, as far as this loop
        knows and as far as the kernel knows."""
        if self._lost or self._spoiled or self._transport.is_closing():
            return False
        return self._poll is None or not self._poll.poll(0)

    def close(self) -> None:
        """Close; idempotent. Orderly only if nothing is under way: otherwise what waits in a write
        buffer must be thrown away, not flushed after the deadline."""
        orderly = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reader is not None:
            orderly = self._reader.done
            self._reader.fail("closed")
            self._reader.drop()
            self._reader = None
        self._heard_late.clear()
        self._on_end = None
        self._wake()
        if self._lost or self._transport.is_closing():
            return
        if orderly and self._transport.get_write_buffer_size() == 0:
            self._transport.close()
        else:
            self._abort()

    def discard(self) -> None:
        """Nobody waits for this connection any more. A handshake given up in its very first turn
        of the loop goes on in both loops, so its success may still come."""
        self._spoiled = True
        if hasattr(self, "_transport"):
            self._abort()

    # -- steps

    def _spoil(self) -> None:
        self._spoiled = True
        if self._reader is None:
            self._abort()

    def _abort(self) -> None:
        """Close by a reset: a request that was given up could arrive whole, minutes later."""
        reset(self._transport)

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self._lost and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._lost and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        await self._waiter

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _arm(self, due: float) -> None:
        # The timer of an earlier exchange is left to fire and look again: one timer in many
        # exchanges instead of one each.
        self._due = due
        if self._timer is None or self._timer_due > due:
            if self._timer is not None:
                self._timer.cancel()
            self._schedule()

    def _schedule(self) -> None:
        self._timer_due = self._due
        delay_s = max(0.0, self._due - self._clock())
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        reader = self._reader
        if reader is None or reader.fault is not None:
            return
        if self._clock() < self._due:
            self._schedule()
        else:
            self._expire(reader)

    def _expire(self, reader: ResponseReader) -> None:
        reader.fail("timeout")
        self._pause_reading()
        self._wake()
        self._end()

    def _end(self) -> None:
        hook, self._on_end = self._on_end, None
        if hook is not None:
            hook()


def reset(transport: asyncio.Transport) -> None:
    """Close by a reset, and throw away what waits here and in the kernel. After an orderly close,
    and also after ``transport.abort()`` alone, the kernel goes on delivering what it was handed."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError, ValueError):  # uvloop: a closed socket's number is -1
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()


def _unsent(transport: asyncio.Transport) -> bool:
    """Whether the kernel still holds bytes that the peer has not acknowledged; they would leave by
    themselves while the connection is kept. Where that cannot be asked: no."""
    sock = transport.get_extra_info("socket")
    if sock is None or fcntl is None:
        return False
    try:
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):
        return False
    return answer != bytes(4)
