"""The shipped fault proxy in front of an HTTP server, with a test's words for what it loses.

``drop_answer("POST /v1/jobs/end")``: the next request with that start goes through, and its answer
does not: the connection ends instead. ``mute(start)``: so it is with every such request, until
``unmute``. ``refuse`` and ``accept``: the server is down, and up again. ``silence`` and ``speak``:
bytes of both directions are held, and nobody is told.
"""

from __future__ import annotations

from types import TracebackType
from urllib.parse import urlsplit

from gateway.faultkit.proxy import FaultProxy
from gateway.faultkit.rules import Rule, Struck

__all__ = ["CuttingProxy"]


class CuttingProxy(FaultProxy):
    """See the module. A context manager; ``url`` is ``url`` through the proxy."""

    def __init__(self, url: str) -> None:
        found = urlsplit(url)
        super().__init__(found.hostname or "", found.port or 80)

    def __enter__(self) -> CuttingProxy:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def drop_answer(self, start: str) -> Struck:
        return self.add(Rule("cut", start.encode()))

    def mute(self, start: str) -> None:
        self.add(Rule("cut", start.encode(), times=None))

    def unmute(self) -> None:
        self.remove()

    def silence(self) -> None:
        self.cut()

    def speak(self) -> None:
        self.restore()
