"""Making a connection, phase by phase, so that each failure has its own name.

Addresses are raced as in RFC 8305 (a new one every 250 ms or as soon as one fails). The event
loops differ here (one of them knows no racing), so the race is ours.

Every address is judged here, between the resolver's answer and the connect, and the connect goes to
what was judged: a name that answers something else the next time is judged again. All that leaves
for an upstream comes through this door.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any

from gateway.core.egress import Egress
from gateway.core.model import Fault
from gateway.observe import log
from gateway.upstream.connection import Connection
from gateway.upstream.origin import Origin

__all__ = ["dial"]

_STAGGER_S = 0.25  # RFC 8305 §5, the recommended connection attempt delay

_SHUTDOWN_S = 2.0
"""How long a closed connection waits for the peer's closure alert; only a file descriptor waits."""

_Address = tuple[int, tuple[Any, ...]]
"""Address family and socket address."""


async def dial(
    origin: Origin,
    *,
    egress: Egress,
    context: ssl.SSLContext | None,
    clock: Callable[[], float],
    timeout_s: float,
) -> Connection | Fault:
    """A connection that is ready for its first byte, or why there is none. ``egress``: where it may
    lead. Raises only on cancellation, and leaves no socket behind."""
    if timeout_s <= 0:
        return "connect-timeout"
    try:
        async with asyncio.timeout(timeout_s):
            addresses = await _resolve(origin)
            if not addresses:
                return "dns"
            refused = egress.refused(str(where[0]) for _, where in addresses)
            if refused is not None:
                # Not for the caller: what our network looks like inside is none of its business.
                log.event("egress_refused", level="warning", upstream=origin.host, address=refused)
                return "prohibited"
            sock = await _race(addresses)
            if not isinstance(sock, socket.socket):
                return sock
            return await _upgrade(origin, sock, context, clock, timeout_s)
    except TimeoutError:
        return "connect-timeout"


async def _resolve(origin: Origin) -> list[_Address]:
    with contextlib.suppress(ValueError):
        version = ipaddress.ip_address(origin.host).version
        if version == 4:
            return [(socket.AF_INET, (origin.host, origin.port))]
        return [(socket.AF_INET6, (origin.host, origin.port, 0, 0))]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            origin.host, origin.port, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError):
        return []
    return _interleaved((family, address) for family, _, _, _, address in found)


def _interleaved(addresses: Iterable[_Address]) -> list[_Address]:
    """Alternate the families and keep the resolver's order inside each (RFC 8305 §4)."""
    families: dict[int, list[_Address]] = {}
    for address in dict.fromkeys(addresses):
        families.setdefault(address[0], []).append(address)
    rounds = itertools.zip_longest(*families.values())
    return [address for row in rounds for address in row if address is not None]


async def _race(addresses: list[_Address]) -> socket.socket | Fault:
    if len(addresses) == 1:
        return await _connect(addresses[0])
    waiting = list(addresses)
    running: set[asyncio.Task[socket.socket | Fault]] = set()
    last: Fault = "refused"
    winner: socket.socket | None = None
    try:
        while winner is None and (waiting or running):
            if waiting:
                running.add(asyncio.create_task(_connect(waiting.pop(0))))
            done, _ = await asyncio.wait(
                running,
                timeout=_STAGGER_S if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in done:
                result = task.result()
                if not isinstance(result, socket.socket):
                    last = result
                    running.discard(task)
                elif winner is None:
                    winner = result
                    running.discard(task)
    finally:
        for task in running:
            _abandon(task)
    return last if winner is None else winner


def _abandon(task: asyncio.Task[socket.socket | Fault]) -> None:
    """A task that lost the race: it closes its own socket when cancelled, not when done."""
    if not task.done():
        task.cancel()
    elif not task.cancelled():
        result = task.result()
        if isinstance(result, socket.socket):
            result.close()


async def _connect(address: _Address) -> socket.socket | Fault:
    family, where = address
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return "refused"
    try:
        sock.setblocking(False)
        # Small writes leave at once; the event loops differ in what they set on their own.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, where)
    except OSError as error:
        sock.close()
        return "connect-timeout" if isinstance(error, TimeoutError) else "refused"
    except BaseException:
        sock.close()
        raise
    return sock


async def _upgrade(
    origin: Origin,
    sock: socket.socket,
    context: ssl.SSLContext | None,
    clock: Callable[[], float],
    timeout_s: float,
) -> Connection | Fault:
    """Put the protocol, and TLS where the origin asks for it, on a connected socket."""
    loop = asyncio.get_running_loop()
    connection = Connection(clock)
    try:
        if context is None:
            await loop.create_connection(lambda: connection, sock=sock)
        else:
            await loop.create_connection(
                lambda: connection,
                sock=sock,
                ssl=context,
                server_hostname=origin.host,
                ssl_handshake_timeout=timeout_s + 1.0,  # ours is the one that decides
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
    # From here on the socket is the event loop's. Closing it as well would free a descriptor that
    # the loop still watches, and the next connection would get the same number.
    except OSError:  # ssl.SSLError and a peer that hangs up are among them
        connection.discard()
        return "refused" if context is None else "tls"
    except BaseException:
        connection.discard()
        raise
    return connection
