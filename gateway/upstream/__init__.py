"""The product's own HTTP/1.1 client. It exists for the *stage*: how far an attempt got decides
whether its command may be repeated, and only whoever makes the write call knows that exactly.

Start at :class:`Client`. ``origin`` and ``messages`` are its inputs, ``pool`` and ``dialing`` get a
connection, ``connection`` carries one exchange, ``reading`` judges the response, ``turns`` keeps
streams from filling the loop.
"""

from __future__ import annotations

from gateway.upstream.client import BodyCutShort, Client, Transfer
from gateway.upstream.clock import now_s
from gateway.upstream.connection import reset
from gateway.upstream.messages import Deadlines, Request, Streamed
from gateway.upstream.origin import Origin
from gateway.upstream.turns import Turns

__all__ = [
    "BodyCutShort",
    "Client",
    "Deadlines",
    "Origin",
    "Request",
    "Streamed",
    "Transfer",
    "Turns",
    "now_s",
    "reset",
]
