"""What the server's parser lets through and must not, and how long a caller may take."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.core.framing import (
    HEAD_LIMIT,
    LINES_LIMIT,
    NO_UPGRADE,
    TOO_LONG,
    TOO_MANY,
    UNREADABLE,
    check_head,
    check_request_line,
    expects_continue,
    has_body,
)
from gateway.core.headers import Head, values
from gateway.core.ordinary import OrdinaryRequest, read_request
from gateway.core.settle import Sent
from gateway.cycle import Cycle
from gateway.idle import Idle
from gateway.limits import CROWDED_HEAD_S, FRESH_S, HEAD_S, ROOM_TO_REFUSE, TAKE_S
from gateway.policy.fields import FIXED_PATHS
from gateway.proxy.shares import Untaken
from gateway.refused import Refusals, crowded_out, unreadable
from gateway.upstream import reset
from gateway.upstream.target import split_target

__all__ = ["HEAD_LIMIT", "IGNORED_LIMIT", "TAKE_S", "Http1Protocol"]

IGNORED_LIMIT = 1024 * 1024
"""Bytes that are read and thrown away behind a request that came too early."""

_END = b"\r\n\r\n"
"""Of a head, of trailers, and of a last chunk without any."""

_ASGI = {"version": "3.0", "spec_version": "2.3"}
_FIXED = frozenset(path.encode("ascii") for path in FIXED_PATHS)
_TOO_SLOW = f"Send the whole head within {HEAD_S:.0f} s."
_REFUSALS = Refusals()


class Http1Protocol(HttpToolsProtocol):
    """uvicorn's, with one request at a time on a connection, stricter heads, limits to all that is
    no body and to a caller's patience, an answer of our own to what cannot be read, and ends that
    cannot be taken for the end of a body."""

    _mend = UNREADABLE
    _head_open = False
    _in_body = False  # behind a head, and before the end of its message
    _read = b""
    _lead: bytes | bytearray | None = None  # what was read of a head so far, or of blank lines
    _last = b""  # the end of what was read before, as long as that of a head
    _body_at = 0  # where in this read a body begins
    _body_bytes = 0  # of a body, in this read
    _coded = False  # whether the present message comes in chunks
    _line_bytes = 0  # of the head's lines so far, or of the trailers'
    _headed = False  # whether this read ended a head
    _got_on = False  # whether this read ended a head or a message, or held bytes of a body
    _idle_bytes = 0  # of reads since one that got on
    _ignoring = False
    _ignored_bytes = 0
    _taking: asyncio.TimerHandle | None = None
    _leaving: asyncio.TimerHandle | None = None
    _untaken: Untaken | None = None
    _resting: asyncio.TimerHandle | None = None
    _rests_since: float | None = None  # on the loop's clock
    _awaited: asyncio.TimerHandle | None = None  # the end of a head, or its first byte
    _fresh = True  # no byte has come yet
    _lost = False
    _crowded = False  # over the limit of all connections: here to be refused
    connection_limit: float = math.inf
    """Of all connections of the process; set on the class that serves."""
    _idle = Idle()

    def __init_subclass__(cls) -> None:
        cls._idle = Idle()

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._pieces: list[bytes] = []  # of a body, in this read

    # -- from the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._crowded = len(self.connections) > self.connection_limit
        if self._over_limit() > ROOM_TO_REFUSE:
            _REFUSALS.tell(open=len(self.connections))
            reset(transport)
            return
        self._await(FRESH_S)

    def _over_limit(self) -> float:
        """How many there are too many, if this one came as one of them. It is let in once others
        have left, or an idle one gives way; and one that was let in stays so."""
        if self._crowded:
            over = len(self.connections) - self.connection_limit
            self._crowded = over > 0 and not self._idle.give_way()
            return over if self._crowded else 0
        return 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._idle.left(self.transport)
        self._taken()
        self._came()
        for timer in (self._leaving, self._resting):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        if isinstance(self.cycle, Cycle):
            self.cycle.lost()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._taking is None:
            # Not ``close``: that waits for the caller to take what is left.
            self._taking = self.loop.call_later(TAKE_S, reset, self.transport)
            self._charge()

    def _charge(self) -> None:
        """Let what waits for the caller count, unless it streams: then that is little."""
        state = _state(self.cycle)
        if not state.get("streams") and "untaken" in state:
            self._untaken = state["untaken"]
            self._untaken.waits(self.transport.get_write_buffer_size())

    def _await(self, seconds: float) -> None:
        """Reset the connection in so many seconds, unless what is due has come by then. Nobody is
        answered: no request was begun, or of one that was nothing but a part of its head."""
        self._came()
        if self._crowded:
            seconds = min(seconds, CROWDED_HEAD_S)
        self._awaited = self.loop.call_later(seconds, self._did_not_come)

    def _came(self) -> None:
        if self._awaited is not None:
            self._awaited.cancel()
            self._awaited = None

    def _did_not_come(self) -> None:
        self._awaited = None
        if self.transport.is_closing():
            return
        if self._head_open and _answered(self.cycle):
            self._refuse(_TOO_SLOW)
        else:
            self._close()

    def _close(self) -> None:
        """Close once the caller has taken what is left, and by force if it does not."""
        self.transport.close()
        self._see_it_leave()

    def _see_it_leave(self) -> None:
        if self._leaving is None and not self._lost:
            self._leaving = self.loop.call_later(TAKE_S, reset, self.transport)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self._let_go()
        if self.transport.is_closing():
            self._idle.left(self.transport)
            self._see_it_leave()
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        self._rest()
        if not self._head_open:
            self._idle.lies(self.transport)
        elif self._awaited is None:
            self._await(HEAD_S)  # of a head that began in one read with the request before

    def _let_go(self) -> None:
        """Of what was read for the request that is answered: the connection may lie idle for long.
        Its state stays, which says how what waits for the caller counts."""
        cycle: Cycle = self.cycle  # type: ignore[assignment]
        cycle.let_go()
        if not self._head_open:
            self.scope, self.headers, self.url = cycle.scope, [], b""

    def _see_whether_idle(self) -> None:
        """It is behind an answer, until a head begins. Blank lines do not begin one, nor does what
        still comes of a body that was answered: nobody waits for it."""
        asked = isinstance(self.cycle, RequestResponseCycle)
        rests = asked and _answered(self.cycle) and not self._head_open
        if rests and not self.transport.is_closing():
            self._idle.lies(self.transport)
        else:
            self._idle.left(self.transport)

    def _rest(self) -> None:
        """Lie idle, for as long as that is allowed. One timer looks again and again: another for
        each answer would cost more than all that it tells."""
        self._rests_since = self.loop.time()
        if self._resting is None:
            self._resting = self.loop.call_later(self.timeout_keep_alive, self._rested)

    def _rested(self) -> None:
        self._resting = None
        if self._rests_since is None or self.transport.is_closing():
            return
        left = self._rests_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._resting = self.loop.call_later(left, self._rested)
        else:
            self._close()

    def resume_writing(self) -> None:
        self._taken()
        super().resume_writing()

    def _taken(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None
        if self._untaken is not None:
            self._untaken.waits(0)
            self._untaken = None

    def data_received(self, data: bytes) -> None:
        if self._ignoring:
            self._throw_away(data)
            return
        if not (self._lead or self._in_body) and _answered(self.cycle):
            read = None if self.transport.is_closing() else read_request(data)
            if read is not None:
                self._last = data[-len(_END) :]
                self._take(read)
                return
        self._got_on = self._headed = False
        self._read = data
        self._body_at = self._body_bytes = 0
        if not self._in_body:
            self._gather(data)
        begins = self._fresh or (self._awaited is None and _answered(self.cycle))
        self._rests_since = None
        super().data_received(data)
        if begins and not self._headed and not self._lost:
            # Also for blank lines in front, of which the parser says nothing.
            self._await(HEAD_S)
        self._fresh = False
        self._hand_on()
        if self._lead is None and not self._in_body and not self._ignoring:
            self._lead = self._left_over(data)
        self._last = (self._last + data[-len(_END) :])[-len(_END) :]
        self._read = b""
        # The parser does not say where in a read a head begins, so the rest of a read that got on
        # is not counted. What it held is bounded by the size of a read.
        self._idle_bytes = 0 if self._got_on else self._idle_bytes + len(data)
        if self._idle_bytes > HEAD_LIMIT and not self.transport.is_closing():
            self._refuse(TOO_LONG)
        self._see_whether_idle()

    def _gather(self, data: bytes) -> None:
        """Nearly always a head comes in one read; where it drips, none is copied for each."""
        if not self._lead:
            self._lead = data
            return
        if not isinstance(self._lead, bytearray):
            self._lead = bytearray(self._lead)
        self._lead += data

    def _left_over(self, data: bytes) -> bytes:
        """What stands behind the end of a message in one read with it. The parser passes over line
        ends there, and a bare one would not be seen by who checks the next head."""
        if not self._coded:
            return data[self._body_at + self._body_bytes :]
        read = self._last + data
        ends = read[len(read.rstrip(b"\r\n")) :]
        return ends[len(_END) :]

    # -- from the parser; nothing that it finds has an effect once further requests are ignored

    def on_message_begin(self) -> None:
        if self._ignoring:
            return
        if self._lead is None and self._coded:
            # Where the last chunk ended in this read is not known; and it was sent too early.
            self._ignore_further()
            return
        if self._lead is None:
            self._lead = self._left_over(self._read)
        self._head_open, self._line_bytes = True, 0
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_url(self, url: bytes) -> None:
        if self._ignoring:
            return
        self._count_line(len(url))
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._ignoring:
            return
        size = self._line_bytes = self._line_bytes + len(name) + len(value) + 4  # ": \r\n"
        if size > HEAD_LIMIT:
            self._stop(TOO_LONG)
        # A trailer is no header (RFC 9110 §6.5.1): it must not name a key or a fence.
        if self._head_open:
            if len(self.headers) == LINES_LIMIT:
                self._stop(TOO_MANY)
            # The parser leaves the blanks behind a value, which are no part of it (RFC 9112 §5.1).
            self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        if self._ignoring:
            return
        self._got_on = self._headed = True
        self._came()
        if not _answered(self.cycle):
            self._ignore_further()
            return
        method, version = self.parser.get_method(), self.parser.get_http_version()
        self._count_line(len(method) + len("  HTTP/1.1\r\n\r\n"))
        self._head_open, self._line_bytes = False, 0
        self._in_body = True
        headers = Head(self.headers)
        self._check_head(method, version, headers)
        self._begin(method, version, self._see_expectation(version, headers))

    def _begin(self, method: bytes, version: str, headers: Head) -> None:
        """Start the application on a request whose head is good."""
        raw_path, query = split_target(self.url)
        upgrades = self.parser.should_upgrade()  # the parser then reads no further request
        stays = version != "1.0" and not upgrades and self.parser.should_keep_alive()
        self.scope = self._scope(version, method.decode("ascii"), raw_path, query, headers)
        expects = self.expect_100_continue
        self.cycle = Cycle(self, keep_alive=stays, expects=expects)
        self._start_asgi_task(self.cycle, self.app)

    def _take(self, read: OrdinaryRequest) -> None:
        """Start the application on a request that is whole, and that the parser need not see."""
        if self._awaited is not None:
            self._came()
        self._rests_since = None
        self._fresh = self._coded = False
        self._lead = b""
        self._idle_bytes = 0
        self.scope = self._scope("1.1", read.method, read.path, read.query, read.headers)
        self.cycle = cycle = Cycle(self, keep_alive=True, body=read.body)
        self._start_asgi_task(cycle, self.app)
        self._idle.left(self.transport)

    def _scope(
        self, version: str, method: str, raw_path: bytes, query: bytes, headers: Head
    ) -> Any:
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
            "method": method,
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": headers,
            "state": self.app_state.copy(),
        }

    def on_body(self, body: bytes) -> None:
        if self._ignoring:
            return
        self._got_on = True
        self._body_bytes += len(body)
        self._pieces.append(body)

    def _hand_on(self) -> None:
        """The body's pieces of this read, in one: chunks may have one byte each."""
        if self._pieces:
            body = b"".join(self._pieces)
            self._pieces.clear()
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._ignoring:
            return
        self._got_on = True
        self._in_body = False
        self._hand_on()
        super().on_message_complete()

    def _see_expectation(self, version: str, headers: Head) -> Head:
        """Leave ``Expect`` only where its caller waits, so that nobody else looks for that."""
        if not values(headers, b"expect"):
            return headers
        self.expect_100_continue = expects_continue(version, headers)
        if self.expect_100_continue:
            return headers
        return Head(line for line in headers if line[0] != b"expect")

    def _start_asgi_task(self, cycle: Cycle, app: Any) -> None:  # type: ignore[override]
        if self._over_limit() > 0:
            cycle.keep_alive = False
            if cycle.scope["raw_path"] not in _FIXED:  # who looks after the process is let in
                app = crowded_out
        cycle.task = self.loop.create_task(cycle.run_asgi(app))  # ends with itself taken off
        self.tasks.add(cycle.task)

    # -- one request at a time

    def _ignore_further(self) -> None:
        """A further request came before the answer to the present one, or began in one read with
        its last chunk. uvicorn would stop reading
        and queue it: the present caller could then hang up unseen, and be admitted all the same.
        So it is never executed, the connection closes behind the answer that is due, and its
        caller repeats what was not answered (RFC 9112 §9.3.2). Until then we read on: an end of
        the stream must reach the present request."""
        self._ignoring = True
        self.cycle.keep_alive = False
        if _answered(self.cycle):
            self.transport.close()  # nothing is due that would close it

    def _throw_away(self, data: bytes) -> None:
        self._ignored_bytes += len(data)
        if self._ignored_bytes > IGNORED_LIMIT:
            self._close()

    # -- what is refused

    def _check_head(self, method: bytes, version: str, headers: Head) -> None:
        read, self._lead = bytes(self._lead or b""), None
        line = b"%b %b HTTP/%b\r\n" % (method, self.url, version.encode())
        self._body_at = read.find(_END, read.find(line)) + len(_END) - len(read) + len(self._read)
        self._coded = bool(values(headers, b"transfer-encoding"))
        wrong = check_request_line(line, read)
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
            self.transport.write(unreadable(detail, _sent(self.cycle), self.client))
        self._close()


def _answered(cycle: RequestResponseCycle | None) -> bool:
    return cycle is None or cycle.response_complete


def _answer_due(cycle: RequestResponseCycle | None) -> bool:
    """Whether a request was read whole and is not answered to its end."""
    return cycle is not None and not cycle.response_complete and not cycle.more_body


def _begun(cycle: RequestResponseCycle | None) -> bool:
    """Whether an answer is under way, so that no other may stand behind its beginning."""
    return cycle is not None and not cycle.response_complete and cycle.response_started


def _state(cycle: RequestResponseCycle | None) -> Mapping[str, Any]:
    return {} if cycle is None else cycle.scope.get("state", {})


def _sent(cycle: RequestResponseCycle | None) -> Sent:
    """What streams through may have reached the upstream in part."""
    streams = cycle is not None and not cycle.response_complete and _state(cycle).get("streams")
    return "unknown" if streams else "no"
