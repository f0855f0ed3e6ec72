"""One request on a connection, and its answer: ASGI on the one side, bytes on the other.

uvicorn's cycle writes a head and a body apart and looks each field through twice, and whoever wants
to know that a caller hung up needs a task for it. This one says it by itself, hands over a body
that is in already, and writes what is whole at once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from gateway.core.headers import by_names
from gateway.proxy.respond import BODY_FOLLOWS, Message
from gateway.upstream import reset

__all__ = ["Cycle"]

_App = Callable[[Any, Any, Any], Awaitable[None]]

_BAD_NAME = re.compile(rb'[\x00-\x1f\x7f()<>@,;:\[\]={} \t\\"]')
_BAD_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")

_BODILESS = (204, 304)
_FRAMING = (b"content-length", b"transfer-encoding", b"connection")


class Cycle(RequestResponseCycle):
    """``state`` of its scope says more than ASGI does: ``hang_up()`` gives a future that is done
    when the caller is gone, ``whole_body()`` the body if all of it is in.

    What an application begins and does not finish must not look whole."""

    _gone: asyncio.Future[None] | None = None
    _head: Message | None = None  # of an answer whose body comes with the next message
    _delimited = False  # the body of the answer is, by the end of the connection
    task: asyncio.Task[None] | None = None
    """In which it runs."""

    # As uvicorn's own begins, which sets each for each request.
    disconnected = False
    access_log = False
    response_started = False
    response_complete = False
    chunked_encoding: bool | None = None
    expected_content_length = 0

    def __init__(
        self,
        of: HttpToolsProtocol,
        *,
        keep_alive: bool,
        expects: bool = False,
        body: bytes | None = None,
    ) -> None:
        """``body``: all of it, where it is in."""
        self.scope = of.scope
        self.transport = of.transport
        self.flow = of.flow
        self.logger = of.logger
        self.message_event = asyncio.Event()
        self.on_response = of.on_response_complete
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = expects
        self.body = bytearray() if body is None else body  # type: ignore[assignment]
        self.more_body = body is None
        if body is not None:
            self.message_event.set()
        self._tasks = of.tasks
        self._loop = of.loop
        state: dict[str, Any] = of.scope["state"]
        state["hang_up"], state["whole_body"] = self._hang_up, self._whole_body

    async def run_asgi(self, app: _App) -> None:
        try:
            if self.more_body and self.transport.is_closing():
                self.disconnected = True  # what came behind the head could not be read
                return
            send = self._in_1_0 if self.scope["http_version"] == "1.0" else self.send
            try:
                await app(self.scope, self.receive, send)
            except asyncio.CancelledError:
                # By the server at the end of its drain. It would log each as an error of its own.
                if not self.response_started:
                    raise
            finally:
                if not self.response_complete:
                    self._see_whether_cut()
            if not self.response_started and not self.disconnected:
                self.logger.error("ASGI callable returned without starting response.")
                await self.send_500_response()
        except BaseException as error:
            self.logger.error("Exception in ASGI application\n", exc_info=error)
            if self.response_started:
                self.transport.close()
            else:
                await self.send_500_response()
        finally:
            self.on_response = _nothing
            if self.task is not None:
                self._tasks.discard(self.task)
                self.task = None

    def _see_whether_cut(self) -> None:
        if not self.response_started or self.disconnected:
            return
        self.disconnected = True  # by us; the application has told why
        if self._delimited:
            reset(self.transport)  # an orderly close would complete the body
        else:
            self.transport.close()

    async def _in_1_0(self, message: Message) -> None:
        """Send without a transfer coding, which HTTP/1.0 does not know (RFC 9112 §6.1). The server
        chunks whatever has no length."""
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message["headers"]}
            self._delimited = b"content-length" not in names
            if self._delimited:
                self.chunked_encoding = False
        elif self._delimited:
            self.expected_content_length = len(message.get("body", b""))
        await self.send(message)

    def lost(self) -> None:
        """The connection is."""
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def let_go(self) -> None:
        """Of what was read for a request that is answered: the connection may lie idle for long.
        Its state stays, which says how what waits for the caller counts."""
        state: dict[str, Any] = self.scope["state"]
        state.pop("hang_up", None)
        state.pop("whole_body", None)
        self.scope = {"state": state}  # type: ignore[typeddict-item]
        self.body = bytearray()

    def _hang_up(self) -> asyncio.Future[None]:
        if self.flow.read_paused:
            self.flow.resume_reading()  # the end of the stream must reach us
        self._gone = self._loop.create_future()
        if self.disconnected:
            self.lost()
        return self._gone

    def _whole_body(self) -> bytes | None:
        if self.more_body or self.disconnected or self.response_complete:
            return None
        if self.waiting_for_100_continue:
            return None
        if self.flow.read_paused:
            self.flow.resume_reading()
        body, self.body = bytes(self.body), bytearray()
        self.message_event.clear()
        return body

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self._begin(message)
        elif not self.response_complete:
            self._go_on(message)
        else:
            raise RuntimeError(f"{message['type']} behind the end of the answer")

    def _begin(self, message: Message) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError(f"{message['type']} before the head of the answer")
        self.response_started = True
        self.waiting_for_100_continue = False
        if message.get(BODY_FOLLOWS):
            self._head = message
        else:
            self.transport.write(self._encoded(message["status"], message.get("headers", ())))

    def _encoded(self, status: int, headers: Any) -> bytes:
        values = [value for _, value in headers]
        if _BAD_VALUE.search(b"".join(values)):
            raise RuntimeError("a field of the answer holds a control character")
        template, framing = _template(headers, None)
        more = b""
        if self._framed(framing, values):
            self.keep_alive = False
        elif not self.keep_alive:
            more = b"connection: close\r\n"
        bodiless = self.scope["method"] == "HEAD" or status in _BODILESS
        if self.chunked_encoding is None and not bodiless:
            self.chunked_encoding = True
            more += b"transfer-encoding: chunked\r\n"
        return b"%b%b%b\r\n" % (STATUS_LINE[status], template % tuple(values), more)

    def _framed(self, framing: tuple[tuple[bytes, int], ...], values: list[bytes]) -> bool:
        """Take from its fields how the answer is framed; whether they close the connection."""
        closes = False
        for name, at in framing:
            value = values[at]
            if name == b"content-length":
                if self.chunked_encoding is None:
                    self.expected_content_length = int(value)
                    self.chunked_encoding = False
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                self.expected_content_length = 0
                self.chunked_encoding = True
            elif name == b"connection":
                closes = closes or b"close" in [each.lower().strip() for each in value.split(b",")]
        return closes

    def _go_on(self, message: Message) -> None:
        if message["type"] != "http.response.body":
            raise RuntimeError(f"{message['type']} in the body of the answer")
        body: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        begun, self._head = self._head, None
        if begun is None:
            self.transport.write(self._piece(body, more=more))
        else:
            head = self._encoded(begun["status"], begun.get("headers", ()))
            piece = self._piece(body, more=more)
            if len(piece) <= _JOINED:
                self.transport.write(head + piece)
            else:
                self.transport.write(head)
                self.transport.write(piece)
        if more:
            return
        if self.expected_content_length != 0:
            raise RuntimeError("the body of the answer is shorter than its Content-Length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _piece(self, body: bytes, *, more: bool) -> bytes:
        """What goes over the wire for it."""
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
            return b""
        if self.chunked_encoding:
            piece = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return piece if more else piece + b"0\r\n\r\n"
        self.expected_content_length -= len(body)
        if self.expected_content_length < 0:
            raise RuntimeError("the body of the answer is longer than its Content-Length")
        return body


_JOINED = 64 * 1024
"""Bytes of a body that is written in one with its head; copying a larger one costs more."""


@by_names
def _template(sent: tuple[bytes, ...], _: None) -> tuple[bytes, tuple[tuple[bytes, int], ...]]:
    """The lines of fields of these names, with places for their values; and which of them say how
    the answer is framed."""
    if any(map(_BAD_NAME.search, sent)):
        raise RuntimeError("the name of a field of the answer holds what no name may")
    names = [name.lower() for name in sent]
    lines = b"".join(name.replace(b"%", b"%%") + b": %b\r\n" for name in names)
    return lines, tuple((name, at) for at, name in enumerate(names) if name in _FRAMING)


def _nothing() -> None:
    """Behind the end of an application there is nothing to tell."""
