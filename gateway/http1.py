"""What the server's parser lets through and must not, and answers of our own to what is no HTTP."""

from __future__ import annotations

from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.core.framing import check_head, has_body
from gateway.core.problems import Problem
from gateway.observe import log
from gateway.proxy.answer import of_problem
from gateway.proxy.respond import fields

__all__ = ["HEAD_LIMIT", "IGNORED_LIMIT", "Http1Protocol"]

HEAD_LIMIT = 64 * 1024
"""Bytes of a request's head; nginx takes 32 KiB, Node 16 KiB, and keys are at most 255 bytes. Also
of what comes behind it and is no body: trailers, chunk extensions (RFC 9112 §7.1.1, §7.1.2)."""

IGNORED_LIMIT = 1024 * 1024
"""Bytes that are read and thrown away behind a request that came too early."""


class Http1Protocol(HttpToolsProtocol):
    """uvicorn's, with one request at a time on a connection, stricter heads, limits to all that is
    no body, and an answer of our own to what cannot be read."""

    _mend = "Send well-formed HTTP/1.1: this request cannot be read."
    _head_open = False
    _line_bytes = 0  # of the head's lines so far, or of the trailers'
    _got_on = False  # whether this read ended a head or a message, or held bytes of a body
    _idle_bytes = 0  # of reads since one that got on
    _ignoring = False
    _ignored_bytes = 0

    # -- from the connection

    def data_received(self, data: bytes) -> None:
        if self._ignoring:
            self._throw_away(data)
            return
        self._got_on = False
        super().data_received(data)
        # The parser does not say where in a read a head begins, so the rest of a read that got on
        # is not counted. What it held is bounded by the size of a read.
        self._idle_bytes = 0 if self._got_on else self._idle_bytes + len(data)
        if self._idle_bytes > HEAD_LIMIT and not self.transport.is_closing():
            self._refuse(_TOO_LONG)

    # -- from the parser; nothing that it finds has an effect once further requests are ignored

    def on_message_begin(self) -> None:
        if self._ignoring:
            return
        self._head_open, self._line_bytes = True, 0
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
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._ignoring:
            return
        self._got_on = True
        if not _answered(self.cycle):
            self._ignore_further()
            return
        self._count_line(len(self.parser.get_method()) + len("  HTTP/1.1\r\n\r\n"))
        self._head_open, self._line_bytes = False, 0
        self._check_head()
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
        super().on_message_complete()

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
        headers = tuple(self.headers)
        wrong = check_head(self.parser.get_http_version(), headers, self.url)
        if wrong is None and self.parser.should_upgrade() and has_body(headers):
            # The parser takes what follows for the new protocol: the command would lose its body.
            wrong = "Send it without Upgrade: this gateway speaks HTTP/1.1 only."
        if wrong is not None:
            self._stop(wrong)

    def _count_line(self, size: int) -> None:
        """Count bytes of a head or of trailers, which may have come whole in one read."""
        self._line_bytes += size
        if self._line_bytes > HEAD_LIMIT:
            self._stop(_TOO_LONG)

    def _stop(self, detail: str) -> None:
        """Make the parser fail where it stands; the server then asks for ``send_400_response``."""
        self._mend = detail
        raise ValueError(detail)

    def send_400_response(self, msg: str) -> None:
        if not self._ignoring:
            self._refuse(self._mend)

    def _refuse(self, detail: str) -> None:
        """Answer what could not be read, and close. Where an earlier request of this connection
        has no answer yet, nothing is written: its caller would take this for its own answer,
        though the command may be on its way to the upstream."""
        if _no_answer_due(self.cycle):
            self.transport.write(_unreadable(detail))
        self.transport.close()


_TOO_LONG = (
    f"Send a head of at most {HEAD_LIMIT} bytes, and no more than that behind it in trailers or"
    " chunk extensions."
)


def _answered(cycle: RequestResponseCycle | None) -> bool:
    return cycle is None or cycle.response_complete


def _no_answer_due(cycle: RequestResponseCycle | None) -> bool:
    """Whether the connection carries no request that was read whole and is not answered."""
    if cycle is None or cycle.response_complete:
        return True
    return cycle.more_body and not cycle.response_started


def _unreadable(detail: str) -> bytes:
    request_id = uuid4().hex
    problem = Problem("request-invalid", detail)
    answer = of_problem(problem, "rejected", request_id)
    log.decision(
        log.Decided(
            request_id=request_id,
            status=answer.status,
            outcome=answer.outcome,
            problem=answer.problem,
        )
    )
    lines = [b"HTTP/1.1 400 Bad Request", b"connection: close"]
    lines += [b"%b: %b" % line for line in fields(answer)]
    return b"\r\n".join([*lines, b"", answer.body])
