"""A gateway that is shot at, and what must hold whatever hits it.

After each volley, of one connection for each input:

- nothing hangs: each connection ends as soon as its caller has said all
- none ends without an answer before that
- every answer can be read to its last byte, and none is a 500
- each refusal that was heard has one line in the log, and none there tells of an exception
- what reached the upstream are whole, well-formed requests, each of them one that stands whole and
  well-formed in an input: never bytes of another, and never one that a strict reader would not take

``finish`` looks at the whole: one request at the upstream for each command that was admitted.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.raw import Input
from tests.fuzz.reader import Message, Unreadable, answers, head_of, methods, requests
from tests.kit.db import Server
from tests.kit.gateway import Stack, policy, rows, stack
from tests.kit.upstream import Recorded

__all__ = ["COMMANDS", "Range", "open_range"]

HANG_S = 20.0
"""Nothing that is sent here may wait for so long: its upstream answers at once. Far above what a
busy machine needs, and below every deadline of the gateway but its own 10 s for waiters."""

_SAFE = (b"GET", b"HEAD", b"OPTIONS")

COMMANDS = (
    """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
send_key = "Idempotency-Key"
send_fence = "X-Execution-Fence"
""",
    """
name = "case"
match = "POST /v1/cases"
entity = "case:{body./id}"
""",
    """
name = "form"
match = "POST /v1/forms"
entity = "form:{body./id}"
[commands.fingerprint]
body = "form"
""",
    """
name = "parts"
match = "PUT /v1/parts"
entity = "parts:{body./id}"
[commands.fingerprint]
body = "multipart"
""",
    """
name = "thing"
match = "DELETE /v1/things"
entity = "thing:{query.id}"
fence = "optional"
""",
)


@dataclass
class Range:
    """``statuses``: of all answers that were heard; ``refusals``: by problem type, of them."""

    stack: Stack
    statuses: Counter[int] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    inputs: int = 0
    unanswered: int = 0
    commands: int = 0
    passages: int = 0
    _read: int = 0
    _admitted: int = 0

    def __post_init__(self) -> None:
        self._admitted = self._rows()
        self._read = self.stack.gateway.lines

    def fire(self, inputs: Sequence[Input]) -> None:
        """One volley, and everything that must hold behind it."""
        upstream = self.stack.upstream
        upstream.clear()
        heard = self._shoot(inputs)
        refused: Counter[tuple[str, str]] = Counter()
        wordless = 0
        for shot, data in zip(inputs, heard, strict=True):
            try:
                found = answers(data, methods(shot.whole))
            except Unreadable as error:
                raise AssertionError(f"{error}, for {shot}") from error
            self.unanswered += not found
            for answer in found:
                kind = self._answer(shot, answer)
                wordless += kind == ("", "")
                refused[kind] += kind not in (None, ("", ""))
        refused = +refused
        self.inputs += len(inputs)
        self._logged(refused, wordless)
        self._reached(inputs)

    def finish(self) -> None:
        """Every command that was admitted was sent, once."""
        assert self._rows() - self._admitted == self.commands
        assert self.stack.caller().call("GET", "/readyz").status == 200

    # -- the volley

    def _shoot(self, inputs: Sequence[Input]) -> list[bytes]:
        with contextlib.ExitStack() as held:
            socks = [held.enter_context(self._connect()) for _ in inputs]
            heard = [bytearray() for _ in inputs]
            closed: set[int] = set()
            for number in range(max(len(each.pieces) for each in inputs)):
                for sock, shot in zip(socks, inputs, strict=True):
                    if number < len(shot.pieces):
                        with contextlib.suppress(OSError):  # it was answered and closed before
                            sock.sendall(shot.pieces[number])
                self._settled()
            for at, sock in enumerate(socks):
                if _take(sock, heard[at]):
                    closed.add(at)
                    assert heard[at], f"closed without an answer: {inputs[at]}"
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_WR)
            for at, sock in enumerate(socks):
                while at not in closed:
                    assert select.select([sock], [], [], HANG_S)[0], f"hangs: {inputs[at]}"
                    if _take(sock, heard[at]):
                        closed.add(at)
            return [bytes(each) for each in heard]

    def _connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.stack.gateway.port), HANG_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _settled(self) -> None:
        """Until everything that was sent was read, and what was admitted is done. A request that
        comes behind the others is read behind them."""
        assert self.stack.caller().call("GET", "/pay/v1/settled").status == 201
        self.stack.wait_for_gauge("attempts_in_flight", 0, HANG_S)

    # -- what must hold

    def _answer(self, shot: Input, answer: Message) -> tuple[str, str] | None:
        """The id and the type of a refusal, both empty where it has no body."""
        status = int(answer.first)
        self.statuses[status] += 1
        assert status != 500, shot
        media = answer.all(b"content-type")
        if media != [b"application/problem+json"]:
            assert status < 400, (shot, answer)
            return None
        if not answer.body:
            return "", ""
        problem = json.loads(answer.body)
        kind = problem["type"].rpartition(":")[2]
        # Of what streams through something may have gone up before the rest could not be read.
        streams = kind == "request-invalid" and any(each in shot.whole for each in _SAFE)
        assert problem["sent"] in (("no", "unknown") if streams else ("no",)), (shot, problem)
        assert problem["status"] == status, (shot, problem)
        self.refusals[kind] += 1
        return problem["request_id"], kind

    def _logged(self, refused: Counter[tuple[str, str]], wordless: int) -> None:
        told: Counter[tuple[str, str]] = Counter()
        lines: list[dict[str, Any]] = []

        def enough() -> bool:
            fresh, self._read = self.stack.gateway.lines_from(self._read)
            for line in map(json.loads, fresh):
                lines.append(line)
                if "problem" in line:
                    told[(line["request_id"], line["problem"])] += 1
            return refused <= told and sum(told.values()) >= sum(refused.values()) + wordless

        assert self.stack.gateway.wait_until(enough, HANG_S), (refused - told, wordless)
        twice = {each: told[each] for each in refused if told[each] != refused[each]}
        assert not twice
        assert not [line for line in lines if "exception" in line]

    def _reached(self, inputs: Sequence[Input]) -> None:
        upstream = self.stack.upstream
        got = [each for each in upstream.requests if each.target != b"/v1/settled"]
        cut = [each for each in upstream.partial if each.method not in _SAFE]
        assert not cut
        stood: Counter[tuple[bytes, bytes, bytes, tuple[bytes, ...]]] = Counter()
        for shot in inputs:
            for each in requests(shot.whole):
                kept = tuple(each.all(b"x-token"))
                if _names(each, b"x-token"):
                    kept = ()
                stood[(each.first, _below(each.second), each.body, kept)] += 1
        for request in got:
            head = _well_formed(request, self.stack.upstream.port)
            known = (request.method, request.target, request.body, tuple(head.all(b"x-token")))
            assert stood[known] > 0, (request, _about(request, inputs))
            stood[known] -= 1
            if request.method in _SAFE:
                self.passages += 1
            else:
                self.commands += 1

    def _rows(self) -> int:
        (found,) = rows(self.stack.database, "select count(*) as n from gateway.commands")
        return int(found["n"])


def _about(request: Recorded, inputs: Sequence[Input]) -> list[Input]:
    """The inputs that have a token of it."""
    said = re.findall(rb"[a-z][0-9a-f]{6}z", request.target + request.head + request.body)
    return [each for each in inputs if any(token in each.whole for token in said)]


def _take(sock: socket.socket, into: bytearray) -> bool:
    """Everything that is there; whether that was the end."""
    while select.select([sock], [], [], 0)[0]:
        try:
            piece = sock.recv(1 << 18)
        except ConnectionResetError:  # it closed with bytes of ours unread, behind its answer
            return True
        if not piece:
            return True
        into += piece
    return False


def _names(message: Message, name: bytes) -> bool:
    """Whether ``Connection`` takes this field away."""
    members = b",".join(message.all(b"connection")).lower().split(b",")
    return name in [member.strip(b" \t") for member in members]


def _below(target: bytes) -> bytes:
    """As the upstream gets it (docs/wire.md)."""
    path = re.sub(rb"^https?://[^/?]*", b"", target, flags=re.IGNORECASE)
    return (
        path.removeprefix(b"/pay").removesuffix(b"?")
        if path.count(b"?") == 1
        else path.removeprefix(b"/pay")
    )


def _well_formed(request: Recorded, port: int) -> Message:
    """One Host, of the upstream; one framing; and of the caller's key and fence nothing."""
    try:
        head = head_of(request.head + b"\r\n\r\n")
    except Unreadable as error:
        raise AssertionError(f"{error}: {request}") from error
    assert head.all(b"host") == [b"127.0.0.1:%d" % port], request
    lengths, codings = head.all(b"content-length"), head.all(b"transfer-encoding")
    if request.method in _SAFE:
        assert len(lengths) + len(codings) <= 1, request
    else:
        framed = [b"%d" % len(request.body)]
        assert codings == [], request
        assert lengths == framed or not (lengths or request.body), request
    assert head.all(b"via")[-1].partition(b" ")[2].startswith(b"fencegate-"), request
    assert not {b"upgrade", b"connection", b"te", b"expect"} & {name for name, _ in head.fields}
    return head


@contextlib.contextmanager
def open_range(postgres: Server) -> Iterator[Range]:
    with stack(postgres, lambda url: [policy(url, *COMMANDS)]) as made:
        yield Range(made)


def volleys(inputs: Iterable[Input], size: int) -> Iterator[list[Input]]:
    """``size`` at a time."""
    volley: list[Input] = []
    for each in inputs:
        volley.append(each)
        if len(volley) == size:
            yield volley
            volley = []
    if volley:
        yield volley
