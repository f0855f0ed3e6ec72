"""Reading one response: bytes in, what they mean out. No IO and no clock.

The framing rules are stricter than the parser's where two readers of the same bytes could disagree
about where a response ends (RFC 9112 §6.3): such a response is a fault, never relayed. What the
parser itself refuses (two lengths, a length beside a transfer coding, folded lines, control
characters, a bare LF) is a fault as well.

However the bytes are cut into segments, the verdict is the same.
"""

from __future__ import annotations

from collections import deque

import httptools

from gateway.core.headers import Head
from gateway.core.model import Exchange, Fault, Response, Stage

__all__ = ["DEFAULT_HEAD_LIMIT", "MAX_HEADER_LINES", "MAX_INTERIM", "ResponseReader"]

DEFAULT_HEAD_LIMIT = 64 * 1024
"""Bytes of status line and field lines, interim responses included. Common servers send up to 8 to
32 KiB; four times that is a mistake or an attack."""
MAX_HEADER_LINES = 256
MAX_INTERIM = 32
"""Interim (1xx) responses in front of a final one; a server that says 102 every ten seconds stays
below it for five minutes."""


class _Halt(Exception):
    """Leaves the parser from inside one of its callbacks."""


class ResponseReader:
    """The response to one request.

    ``settled`` turns true when there is something to act upon: ``done`` (complete), ``fault``, or
    ``oversize`` (the body outgrew ``keep_limit``; from then on its bytes pass through ``queue``).
    Without a ``keep_limit`` any body is oversize, and that from the end of the head on: whoever
    only passes it on need not wait for its first byte.
    ``status`` is 0 until the head of a final response is complete and accepted. ``extra``: bytes
    came that belong to no response, so the connection must not be used again.
    """

    __slots__ = (
        "_bodiless",
        "_head_limit",
        "_head_room",
        "_headers",
        "_interim",
        "_interims",
        "_keep_limit",
        "_kept",
        "_length_seen",
        "_overhead",
        "_parser",
        "_size",
        "_started",
        "_streams",
        "_transfer_coding",
        "close_delimited",
        "done",
        "extra",
        "fault",
        "keep_alive",
        "oversize",
        "queue",
        "queued",
        "settled",
        "status",
    )

    def __init__(self, *, method: bytes, keep_limit: int | None, head_limit: int) -> None:
        self.settled = self.done = self.oversize = False
        self.fault: Fault | None = None
        self.status = 0
        self.close_delimited = self.keep_alive = self.extra = False
        self.queue: deque[bytes] = deque()
        self.queued = 0
        """Bytes in ``queue``."""
        self._bodiless = method == b"HEAD"
        self._keep_limit = keep_limit or 0
        self._streams = keep_limit is None
        self._head_limit = self._head_room = head_limit
        self._headers: list[tuple[bytes, bytes]] = []
        self._kept: list[bytes] = []
        self._size = self._overhead = self._interims = 0
        self._started = self._interim = self._length_seen = False
        self._transfer_coding: bytes | None = None
        # One parser for each response: it costs 0.2 µs, and nothing of the last one can linger.
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    @property
    def has_news(self) -> bool:
        """Whether there is something for the consumer of the queue."""
        return bool(self.queue) or self.done or self.fault is not None

    # -- what the connection says

    def feed(self, data: bytes) -> None:
        """Take bytes that arrived. Never raises; see ``settled``."""
        parser = self._parser
        if parser is None:
            self.extra = True
            return
        if not self._started and not self._starts_well(data):
            return
        try:
            if self.status == 0:
                self._feed_head(parser, data)
            else:
                self._feed_body(parser, data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if self.done:
                self.extra = True
            elif self.fault is None:
                self.fail("protocol")

    def eof(self) -> None:
        """The peer ended the stream in an orderly way."""
        if self.done or self.fault is not None:
            return
        if self.status and self.close_delimited:
            self._finish()
        else:
            self.fail("closed")

    def fail(self, fault: Fault) -> None:
        """End here; the first fault stands, and a complete response has none."""
        if self.done or self.fault is not None:
            return
        self.fault = fault
        self.settled = True
        if fault != "timeout":
            self._parser = None

    def reopen(self) -> None:
        """Go on after the fault ``timeout``, for a response that comes late."""
        if self.fault == "timeout":
            self.fault = None
            self.settled = self.oversize

    def drop(self) -> None:
        """Let go of the parser, which refers back to this reader."""
        self._parser = None

    def exchange(self, sent: Stage) -> Exchange:
        """What has been seen; ``sent`` is the stage that the request reached."""
        if not self.status:
            return Exchange(sent, None, self.fault)
        body = self._kept[0] if len(self._kept) == 1 else b"".join(self._kept)
        # As a head, since it is asked some ten questions on its way.
        response = Response(self.status, Head(self._headers), body)
        if self.oversize:
            return Exchange(Stage.STATUS_SEEN, response, None, True, self.close_delimited)
        stage = Stage.BODY_COMPLETE if self.done else Stage.STATUS_SEEN
        return Exchange(stage, response, self.fault, False, self.close_delimited)

    # -- feeding the parser

    def _starts_well(self, data: bytes) -> bool:
        """The parser also reads RTSP and ICE, whose first letters differ."""
        lead = data.lstrip(b"\r\n")
        if lead:
            self._started = True
            if lead[0] != 0x48:
                self.fail("protocol")
                return False
        return True

    def _feed_head(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        room = self._head_room
        if len(data) <= room:
            self._head_room = room - len(data)
            parser.feed_data(data)
            return
        # Exactly the limit first, so that the verdict does not depend on the segments.
        self._head_room = 0
        parser.feed_data(data[:room])
        if self.status == 0:
            self.fail("headers-too-large")
        elif self._parser is None:
            self.extra = True
        else:
            parser.feed_data(data[room:])

    def _feed_body(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        before = self._size
        parser.feed_data(data)
        if self._size != before:
            self._overhead = 0
            return
        # Chunk extensions and trailers carry no body and the parser keeps a trailer whole.
        self._overhead += len(data)
        if self._overhead > self._head_limit:
            self.fail("headers-too-large")

    # -- the parser's callbacks

    def on_message_begin(self) -> None:
        if self.done:
            self.extra = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return  # a trailer (RFC 9110 §6.5.1: may be discarded), or what follows the response
        headers = self._headers
        if len(headers) >= MAX_HEADER_LINES:
            self._halt("headers-too-large")
        size = len(name)
        if size == 14 and name.lower() == b"content-length":
            self._length_seen = True
            value = value.lstrip(b"0") or b"0"  # any number of them may stand in front
        elif size == 17 and name.lower() == b"transfer-encoding":
            seen = self._transfer_coding
            self._transfer_coding = value if seen is None else seen + b"," + value
        headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser is None or self.status:
            self.extra = True
            return
        status = parser.get_status_code()
        version = parser.get_http_version()
        # An upgrade was never asked for, so a 101 takes the connection to an unknown place.
        if version not in ("1.1", "1.0") or not 100 <= status <= 599 or status == 101:
            self._halt("protocol")
        if status < 200:
            self._begin_interim()
            return
        coding = self._transfer_coding
        if coding is not None and (
            coding.strip(b" \t").lower() != b"chunked" or self._length_seen or version == "1.0"
        ):
            self._halt("protocol")  # RFC 9112 §6.1, §6.3
        self.status = status
        self.keep_alive = version == "1.1" and parser.should_keep_alive()
        if self._bodiless or status in (204, 304):
            self._finish()
        else:
            self.close_delimited = coding is None and not self._length_seen
            self.oversize = self.settled = self._streams

    def on_body(self, data: bytes) -> None:
        if self.done:
            self.extra = True
            return
        before = self._size
        size = self._size = before + len(data)
        if self.oversize:
            self._enqueue(data)
        elif size <= self._keep_limit:
            self._kept.append(data)
        else:
            room = self._keep_limit - before
            if room:
                self._kept.append(data[:room])
            self.oversize = self.settled = True
            self._enqueue(data[room:])

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif not self.done:
            self._finish()

    # -- steps

    def _begin_interim(self) -> None:
        self._interims += 1
        if self._interims > MAX_INTERIM:
            self._halt("protocol")
        self._interim = True
        self._headers.clear()
        self._length_seen = False
        self._transfer_coding = None

    def _enqueue(self, data: bytes) -> None:
        self.queue.append(data)
        self.queued += len(data)

    def _finish(self) -> None:
        self.done = self.settled = True
        if not self._size:
            self.oversize = False  # streamed, and empty: there is no rest
        self._parser = None

    def _halt(self, fault: Fault) -> None:
        self.fail(fault)
        raise _Halt
