"""What becomes of each input: at nginx, and at the gateway as a passage and as a command."""

from __future__ import annotations

import contextlib
import re
import select
import socket
from collections.abc import Mapping, Sequence
from typing import Literal

from tests.kit.gateway import Stack
from tests.kit.upstream import Recorded, RecordingUpstream
from tests.reference.inputs import BODY, INPUTS, Raw

__all__ = ["COMMAND", "Shape", "at_gateway", "at_nginx"]

Shape = Literal["passage", "command"]

COMMAND = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
"""

_LONGEST_S = 30.0
# In HTTP/0.9 an answer has no head, and nginx's own says its status in the title.
_STATUS = re.compile(rb"^(?:HTTP/1\.[01] |<head><title>)([2-5][0-9]{2}) ", re.MULTILINE)

_ORDINARY = frozenset(
    {
        *("host", "connection", "x-token", "content-type", "content-length", "transfer-encoding"),
        *("idempotency-key", "x-execution-fence", "via"),
    }
)
"""What each of the inputs has, or each of the proxies adds."""


def at_nginx(port: int, upstream: RecordingUpstream, shape: Shape) -> Mapping[str, str]:
    """By the input's name. What does not end for nginx it closes by itself."""
    upstream.clear()
    with contextlib.ExitStack() as held:
        socks = _sent(held, port, shape)
        heard = [_all(sock) for sock in socks]
    return _told(heard, upstream)


def at_gateway(made: Stack, token: str, shape: Shape) -> Mapping[str, str]:
    """The same. The gateway waits longer, so it hears the end of the stream once all that was whole
    is answered."""
    upstream = made.upstream
    upstream.clear()
    with contextlib.ExitStack() as held:
        own = b"Authorization: Bearer " + token.encode("ascii")
        socks = _sent(held, made.gateway.port, shape, own)
        # Read behind all the others, and answered by the same upstream.
        made.caller(token).call("GET", "/pay/v1/settled")
        made.wait_for_gauge("attempts_in_flight", 0)
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
        heard = [_all(sock) for sock in socks]
    return _told(heard, upstream)


def _token(number: int) -> bytes:
    return b"a%02d" % number


def _sent(
    held: contextlib.ExitStack, port: int, shape: Shape, *fields: bytes
) -> list[socket.socket]:
    socks = []
    for number, each in enumerate(INPUTS):
        sock = held.enter_context(socket.create_connection(("127.0.0.1", port), _LONGEST_S))
        sock.sendall(each.filled(shape, _token(number), *fields))
        socks.append(sock)
    return socks


def _all(sock: socket.socket) -> bytes:
    pieces = []
    with contextlib.suppress(ConnectionResetError):
        while select.select([sock], [], [], _LONGEST_S)[0] and (piece := sock.recv(1 << 16)):
            pieces.append(piece)
    return b"".join(pieces)


def _told(heard: Sequence[bytes], upstream: RecordingUpstream) -> Mapping[str, str]:
    requests = [*upstream.requests, *upstream.partial]
    return {
        each.name: _class(each, heard[number], [r for r in requests if _is_of(r, _token(number))])
        for number, each in enumerate(INPUTS)
    }


def _is_of(request: Recorded, token: bytes) -> bool:
    return token in request.all("X-Token") or token in request.target.split(b"/")


def _class(tried: Raw, heard: bytes, reached: list[Recorded]) -> str:
    """As the table has it."""
    found = _STATUS.search(heard)
    if not reached:
        assert found or not heard, (tried, heard)
        return found[1].decode("ascii") if found else "waits for more"
    if len(reached) > 1:
        return f"{len(reached)} passed on"
    (request,) = reached
    names = [name.decode("latin-1").lower() for name, _ in request.headers]
    own = [f"`{name}`" for name in names if name not in _ORDINARY]
    body = "" if request.body == BODY else f", body of {len(request.body)} bytes"
    return f"passed on{body}{', with ' if own else ''}{', '.join(own)}"
