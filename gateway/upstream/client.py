"""The client of one upstream: one request, one attempt, and how far it got.

It has no automatisms: no retries, redirects, cookies, decoding, proxies or credentials from the
environment. Whatever the network or the peer does comes back as a value; exceptions are
cancellation, and ``ValueError`` for a request that cannot be written down.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable

from gateway.core.egress import Egress, Network
from gateway.core.model import Exchange, Fault, Stage
from gateway.policy.tlsfiles import verifying
from gateway.upstream.clock import now_s
from gateway.upstream.connection import Connection
from gateway.upstream.dialing import dial
from gateway.upstream.messages import Deadlines, Request, Streamed, encode_head
from gateway.upstream.origin import Origin
from gateway.upstream.pool import Pool
from gateway.upstream.reading import DEFAULT_HEAD_LIMIT, ResponseReader
from gateway.upstream.turns import Turns

__all__ = ["BodyCutShort", "Client", "Transfer"]


class BodyCutShort(Exception):
    """The rest of an oversize body did not come whole; ``fault`` says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"the response body was cut short: {fault}")
        self.fault: Fault = fault


class Transfer:
    """One exchange, and what may still come of it.

    ``exchange`` is what was seen when :meth:`Client.send` returned. If it is ``oversize`` or ended
    with the fault ``timeout``, the socket is still open: finish with :meth:`rest` or :meth:`late`,
    or :meth:`close`. An oversize one that nobody finishes gives its slot back at its deadline.
    """

    __slots__ = ("_connection", "_lingers", "_pool", "_reader", "_turns", "exchange")

    def __init__(
        self,
        exchange: Exchange,
        pool: Pool,
        turns: Turns,
        connection: Connection | None = None,
        reader: ResponseReader | None = None,
    ) -> None:
        self.exchange = exchange
        self._pool = pool
        self._turns = turns
        self._connection = connection
        self._reader = reader
        self._lingers = not exchange.oversize

    async def rest(self) -> AsyncIterator[bytes]:
        """The body after ``exchange.response.body``, in pieces as they arrive.

        One read is held, and the next waits for its turn. Empty unless the exchange is
        ``oversize``. Raises :class:`BodyCutShort` if the body ends early or ``deadlines.last``
        passes. Leaving the iteration closes the transfer.
        """
        reader = self._reader
        if reader is None or not self.exchange.oversize:
            return
        try:
            while True:
                while reader.queue:
                    piece = reader.queue.popleft()
                    reader.queued -= len(piece)
                    yield piece
                if reader.done:
                    break
                if reader.fault is not None:
                    raise BodyCutShort(reader.fault)
                await self._turns.take()
                if reader.has_news:
                    continue  # nobody wakes us for what came while we stood in line
                connection = self._connection
                if connection is None:
                    return  # closed while we waited
                connection.flow()
                await connection.wait()
        finally:
            self.close()

    async def late(self, *, until: float, byte_limit: int) -> Exchange | None:
        """Read on after the fault ``timeout``, at most ``byte_limit`` bytes and ``until`` then.

        ``until`` is a reading of the client's clock. Returns what came if it says more than
        ``exchange`` did: a final response where there was none, or the end of its body (complete,
        or past the keep limit). ``None`` otherwise, and for every other transfer. The transfer is
        closed afterwards.
        """
        connection, reader = self._connection, self._reader
        if connection is None or reader is None or not self._lingers:
            return None
        try:
            await connection.perform_late(reader, until, byte_limit)
            seen = reader.exchange(connection.stage)
        finally:
            self.close()
        return seen if seen.stage > self.exchange.stage or seen.oversize else None

    def close(self) -> None:
        """Let go of the socket: back to the pool after a complete response, closed otherwise."""
        self._reader = None
        self._release()

    def _release(self) -> None:
        """Give the connection up; what has been queued can still be read."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._lingers:
            self._pool.end_linger(connection)
        else:
            self._pool.put(connection)


class Client:
    """Sends requests to one origin. It belongs to the event loop that it first sends on.

    ``idle_s``: how long a connection may lie idle and still be used again, 0 for always a fresh
    one. ``ssl_context`` replaces the default, which verifies the certificate and the host name
    against the system's trust store. ``head_limit``: bytes of a response's head. After
    :meth:`close` it can still send, but keeps no connection. ``turns``: shared by all clients of
    one loop, so that their streams together leave it time for everything else. ``networks``: where
    the origin's name may lead beside public addresses.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        max_connections: int = 256,
        idle_s: float = 4.0,
        ssl_context: ssl.SSLContext | None = None,
        clock: Callable[[], float] = now_s,
        head_limit: int = DEFAULT_HEAD_LIMIT,
        turns: Turns | None = None,
        networks: tuple[Network, ...] = (),
    ) -> None:
        self.origin = origin
        self._egress = Egress(origin.host, networks)
        self._clock = clock
        self._head_limit = head_limit
        self._turns = turns or Turns()
        self._context = (ssl_context or verifying()) if origin.tls else None
        self._pool = Pool(self._dial, max_connections=max_connections, idle_s=idle_s, clock=clock)

    async def send(
        self, request: Request, deadlines: Deadlines, *, keep_limit: int | None
    ) -> Transfer:
        """Send once. Returns when the response is complete, when its body has grown past
        ``keep_limit`` bytes (``oversize``), or with the fault that ended it.

        Without a ``keep_limit`` it returns at the head of the response; a body is then ``oversize``
        whatever its length, and all of it comes by :meth:`Transfer.rest`.
        If the caller is cancelled the socket is closed: how far the request got is then unknown to
        it, so run this where nothing cancels.
        """
        head = request.head or encode_head(request)
        pool = self._pool
        connection: Connection | Fault | None = pool.take()
        if connection is None:
            connection = await pool.acquire(deadlines.connect)
        if not isinstance(connection, Connection):
            return Transfer(Exchange(Stage.CONNECTING, fault=connection), pool, self._turns)
        reader = ResponseReader(
            method=request.method, keep_limit=keep_limit, head_limit=self._head_limit
        )
        try:
            body = request.body
            if isinstance(body, Streamed):
                body = self._in_turn(body)
            await connection.perform(reader, head, body, deadlines)
        except BaseException:
            pool.drop(connection)
            raise
        exchange = reader.exchange(connection.stage)
        if exchange.oversize:
            transfer = Transfer(exchange, pool, self._turns, connection, reader)
            connection.when_over(transfer._release)
            return transfer
        if reader.done:
            pool.put(connection)
        elif exchange.fault != "timeout" or not connection.may_linger:
            pool.drop(connection)
        elif pool.linger(connection):
            return Transfer(exchange, pool, self._turns, connection, reader)
        return Transfer(exchange, pool, self._turns)

    async def close(self) -> None:
        """Close the idle connections. Those in use close when their exchange ends."""
        self._pool.close()

    def _in_turn(self, body: Streamed) -> Streamed:
        """A streamed body takes a turn for each piece, since that is one read of its source."""
        pull = body.pull

        async def pull_in_turn() -> bytes | None:
            await self._turns.take()
            return await pull()

        return Streamed(body.length, pull_in_turn)

    async def _dial(self, timeout_s: float) -> Connection | Fault:
        return await dial(
            self.origin,
            egress=self._egress,
            context=self._context,
            clock=self._clock,
            timeout_s=timeout_s,
        )
