"""What the server's parser lets through and must not, and answers of our own to what is no HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.core.problems import Problem
from gateway.observe import log
from gateway.proxy.answer import of_problem
from gateway.proxy.respond import fields

__all__ = ["HEAD_LIMIT", "Http1Protocol"]

HEAD_LIMIT = 64 * 1024
"""Bytes of a request's head; nginx takes 32 KiB, Node 16 KiB, and keys are at most 255 bytes."""


class Http1Protocol(HttpToolsProtocol):
    """uvicorn's, with an answer of our own to what is no HTTP, and a limit to a request's head."""

    _head_open = False
    _head_bytes = 0
    _mend = "Send well-formed HTTP/1.1: this request cannot be read."

    def on_message_begin(self) -> None:
        self._head_open, self._head_bytes = True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer is no header (RFC 9110 §6.5.1): it must not name a key or a fence.
        if self._head_open:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_open = False
        upgrade = self.parser.should_upgrade()
        if upgrade and _has_body(self.headers):
            # The parser takes what follows for the new protocol: the command would lose its body.
            self._mend = "Send it without Upgrade: this gateway speaks HTTP/1.1 only."
            raise ValueError("a body behind an offer to upgrade")
        super().on_headers_complete()
        if upgrade:
            self.cycle.keep_alive = False  # it reads no further request either

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_open and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT:
                self._refuse(f"Send a head of at most {HEAD_LIMIT} bytes.")

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._mend)

    def _refuse(self, detail: str) -> None:
        """Answer what could not be read, and close. Where an earlier request of this connection
        has no answer yet, nothing is written: its caller would take this for its own answer,
        though the command may be on its way to the upstream."""
        if not self.pipeline and _no_answer_due(self.cycle):
            self.transport.write(_unreadable(detail))
        self.transport.close()


def _has_body(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
        for name, value in headers
    )


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
