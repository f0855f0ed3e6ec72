"""The shipped scriptable upstream (``gateway.faultkit.upstream``, which says what it can do), and
what only tests need: https with a certificate of a throw-away authority."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Any

from gateway.faultkit import upstream as shipped
from gateway.faultkit.upstream import (
    Answer,
    Gate,
    Recorded,
    Then,
    cut,
    drip,
    early,
    gated,
    hang,
    raw,
    respond,
)

__all__ = [
    "Answer",
    "Gate",
    "Recorded",
    "RecordingUpstream",
    "Then",
    "closed_port",
    "cut",
    "drip",
    "early",
    "gated",
    "hang",
    "raw",
    "respond",
]


def closed_port() -> int:
    """A port on loopback that nothing listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class RecordingUpstream(shipped.RecordingUpstream):
    """``tls=True`` serves https for 127.0.0.1 and localhost; ``client_context()`` trusts it. A
    context of the test's own takes its place."""

    def __init__(
        self,
        *,
        script: Callable[[Recorded], Answer | None] | None = None,
        tls: bool | ssl.SSLContext = False,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._ca: Any = None
        context = tls if isinstance(tls, ssl.SSLContext) else self._certified() if tls else None
        super().__init__(script=script, tls=context, host=host, port=port)

    def client_context(self) -> ssl.SSLContext:
        """A context that verifies, and trusts the authority of ``tls=True``."""
        context = ssl.create_default_context()
        self._ca.configure_trust(context)
        return context

    def ca_pem(self) -> bytes:
        """The authority's certificate, for a trust file."""
        pem: bytes = self._ca.cert_pem.bytes()
        return pem

    def _certified(self) -> ssl.SSLContext:
        import trustme

        self._ca = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert("127.0.0.1", "localhost").configure_cert(context)
        return context
