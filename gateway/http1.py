"""What the server's parser lets through and must not, and answers of our own to what is no HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.core.framing import (
    HEAD_LIMIT,
    NO_UPGRADE,
    TOO_LONG,
    UNREADABLE,
    check_head,
    check_request_line,
    expects_continue,
    has_body,
)
from gateway.core.problems import Problem
from gateway.core.settle import Sent
from gateway.observe import log
from gateway.proxy.answer import of_problem
from gateway.proxy.respond import Message, Receive, Send, fields
from gateway.upstream import reset

__all__ = ["HEAD_LIMIT", "IGNORED_LIMIT", "TAKE_S", "Http1Protocol"]

IGNORED_LIMIT = 1024 * 1024
"""Bytes that are read and thrown away behind a request that came too early."""

TAKE_S = 120.0
"""Seconds in which a caller takes what has been written for it. Here and in the kernel that may be
1 MiB, for a line of 70 kbit/s. One that has stopped reading would keep its connection, and what
streams through also one to the upstream, for ever."""

_App = Callable[[Any, Any, Any], Awaitable[None]]


class Http1Protocol(HttpToolsProtocol):
    """uvicorn's, with one request at a time on a connection, stricter heads, limits to all that is
    no body and to a caller's patience, an answer of our own to what cannot be read, and ends that
    cannot be taken for the end of a body."""

    _mend = UNREADABLE
    _head_open = False
    _in_body = False  # behind a head, and before the end of its message
    _read = b""
    _lead: bytearray | None = None  # what was read of a head so far, and of blank lines before it
    _behind = False  # whether the head began behind the end of a message, in one read with it
    _line_bytes = 0  # of the head's lines so far, or of the trailers'
    _got_on = False  # whether this read ended a head or a message, or held bytes of a body
    _idle_bytes = 0  # of reads since one that got on
    _ignoring = False
    _ignored_bytes = 0
    _taking: asyncio.TimerHandle | None = None

    # -- from the connection

    def connection_lost(self, exc: Exception | None) -> None:
        self._taken()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._taking is None:
            # Not ``close``: that waits for the caller to take what is left.
            self._taking = self.loop.call_later(TAKE_S, reset, self.transport)

    def resume_writing(self) -> None:
        self._taken()
        super().resume_writing()

    def _taken(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def data_received(self, data: bytes) -> None:
        if self._ignoring:
            self._throw_away(data)
            return
        self._got_on = False
        self._read = data
        if not self._in_body:
            self._lead = self._lead or bytearray()
            self._lead += data
        super().data_received(data)
        self._read = b""
        # The parser does not say where in a read a head begins, so the rest of a read that got on
        # is not counted. What it held is bounded by the size of a read.
        self._idle_bytes = 0 if self._got_on else self._idle_bytes + len(data)
        if self._idle_bytes > HEAD_LIMIT and not self.transport.is_closing():
            self._refuse(TOO_LONG)

    # -- from the parser; nothing that it finds has an effect once further requests are ignored

    def on_message_begin(self) -> None:
        if self._ignoring:
            return
        self._head_open, self._line_bytes = True, 0
        self._behind = self._lead is None
        if self._lead is None:
            self._lead = bytearray(self._read)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._ignoring:
            return
        self._count_line(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._ignoring:
            return
        self._count_line(len(name) + len(value) + len(": \r\n"))
        # A trailer is no header (RFC 9110 §6.5.1): it must not name a key or a fence.
        if self._head_open:
            # The parser leaves the blanks behind a value, which are no part of it (RFC 9112 §5.1).
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        if self._ignoring:
            return
        self._got_on = True
        if not _answered(self.cycle):
            self._ignore_further()
            return
        self._count_line(len(self.parser.get_method()) + len("  HTTP/1.1\r\n\r\n"))
        self._head_open, self._line_bytes = False, 0
        self._in_body = True
        self._check_head()
        self._see_expectation()
        super().on_headers_complete()
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # the parser reads no further request either

    def on_body(self, body: bytes) -> None:
        if self._ignoring:
            return
        self._got_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._ignoring:
            return
        self._got_on = True
        self._in_body = False
        super().on_message_complete()

    def _see_expectation(self) -> None:
        """Leave ``Expect`` only where its caller waits, so that nobody else looks for that."""
        if not any(name == b"expect" for name, _ in self.headers):
            return
        version = self.parser.get_http_version()
        self.expect_100_continue = expects_continue(version, tuple(self.headers))
        if not self.expect_100_continue:
            self.headers[:] = [line for line in self.headers if line[0] != b"expect"]

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        super()._start_asgi_task(cycle, _Exchange(cycle, app))  # type: ignore[arg-type]

    # -- one request at a time

    def _ignore_further(self) -> None:
        """A further request came before the answer to the present one. uvicorn would stop reading
        and queue it: the present caller could then hang up unseen, and be admitted all the same.
        So it is never executed, the connection closes behind the answer that is due, and its
        caller repeats what was not answered (RFC 9112 §9.3.2). Until then we read on: an end of
        the stream must reach the present request."""
        self._ignoring = True
        self.cycle.keep_alive = False

    def _throw_away(self, data: bytes) -> None:
        self._ignored_bytes += len(data)
        if self._ignored_bytes > IGNORED_LIMIT:
            self.transport.close()

    # -- what is refused

    def _check_head(self) -> None:
        headers, version = tuple(self.headers), self.parser.get_http_version()
        read, self._lead = bytes(self._lead or b""), None
        line = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, version.encode())
        wrong = check_request_line(line, read, behind=self._behind)
        wrong = wrong or check_head(version, headers, self.url)
        if wrong is None and self.parser.should_upgrade() and has_body(headers):
            # The parser takes what follows for the new protocol: the command would lose its body.
            wrong = NO_UPGRADE
        if wrong is not None:
            self._stop(wrong)

    def _count_line(self, size: int) -> None:
        """Count bytes of a head or of trailers, which may have come whole in one read."""
        self._line_bytes += size
        if self._line_bytes > HEAD_LIMIT:
            self._stop(TOO_LONG)

    def _stop(self, detail: str) -> None:
        """Make the parser fail where it stands; the server then asks for ``send_400_response``."""
        self._mend = detail
        raise ValueError(detail)

    def send_400_response(self, msg: str) -> None:
        if not self._ignoring:
            self._refuse(self._mend)

    def _refuse(self, detail: str) -> None:
        """Answer what could not be read, and close. Where a request of this connection that was
        read whole has no answer yet, its caller would take this for it, though the command may be
        on its way to the upstream: so what came behind it is passed over, as any further request
        is, and the connection closes behind the answer that is due."""
        if _answer_due(self.cycle):
            self._ignore_further()
            return
        if not _begun(self.cycle):
            self.transport.write(_unreadable(detail, _sent(self.cycle), self.client))
        self.transport.close()


class _Exchange:
    """The application for one request: what it begins and does not finish must not look whole."""

    def __init__(self, cycle: RequestResponseCycle, app: _App) -> None:
        self._cycle = cycle
        self._app = app
        self._delimited = False  # the body is, by the end of the connection

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        cycle = self._cycle
        if cycle.more_body and cycle.transport.is_closing():
            cycle.disconnected = True  # what came behind the head could not be read
            return
        try:
            await self._app(
                scope, receive, self._in_1_0 if scope["http_version"] == "1.0" else send
            )
        except asyncio.CancelledError:
            # By the server at the end of its drain. It would log each as an error of its own.
            if not cycle.response_started:
                raise
        finally:
            if cycle.response_started and not cycle.response_complete and not cycle.disconnected:
                self._cut()

    async def _in_1_0(self, message: Message) -> None:
        """Send without a transfer coding, which HTTP/1.0 does not know (RFC 9112 §6.1). The server
        chunks whatever has no length."""
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message["headers"]}
            self._delimited = b"content-length" not in names
            if self._delimited:
                self._cycle.chunked_encoding = False
        elif self._delimited:
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._cycle.send(message)  # type: ignore[arg-type]

    def _cut(self) -> None:
        self._cycle.disconnected = True  # by us; the application has told why
        if self._delimited:
            reset(self._cycle.transport)  # an orderly close would complete the body
        else:
            self._cycle.transport.close()


def _answered(cycle: RequestResponseCycle | None) -> bool:
    return cycle is None or cycle.response_complete


def _answer_due(cycle: RequestResponseCycle | None) -> bool:
    """Whether a request was read whole and is not answered to its end."""
    return cycle is not None and not cycle.response_complete and not cycle.more_body


def _begun(cycle: RequestResponseCycle | None) -> bool:
    """Whether an answer is under way, so that no other may stand behind its beginning."""
    return cycle is not None and not cycle.response_complete and cycle.response_started


def _sent(cycle: RequestResponseCycle | None) -> Sent:
    """What streams through may have reached the upstream in part."""
    streams = (
        cycle is not None and not cycle.response_complete and cycle.scope["state"].get("streams")
    )
    return "unknown" if streams else "no"


def _unreadable(detail: str, sent: Sent, client: tuple[str, int] | None) -> bytes:
    request_id = uuid4().hex
    problem = Problem("request-invalid", detail, sent=sent)
    answer = of_problem(problem, "rejected", request_id)
    log.decision(
        log.Decided(
            request_id=request_id,
            status=answer.status,
            outcome=answer.outcome,
            caller=client[0] if client else None,
            problem=answer.problem,
        )
    )
    lines = [b"HTTP/1.1 400 Bad Request", b"connection: close"]
    lines += [b"%b: %b" % line for line in fields(answer)]
    return b"\r\n".join([*lines, b"", answer.body])
