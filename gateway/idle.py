"""Connections that lie idle behind an answer. Where there is no room for a new one, the one that
has lain longest gives way: else whoever asks once on each would keep everybody out."""

from __future__ import annotations

import asyncio
import selectors

__all__ = ["Idle"]

_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)  # needs no file of its own

_TRIES = 16
"""Of one newcomer: so that looking for room costs the same however many there are."""


class Idle:
    """The idle connections of one server, the longest first."""

    def __init__(self) -> None:
        self._lying: dict[asyncio.Transport, None] = {}

    def lies(self, transport: asyncio.Transport) -> None:
        """It keeps its place, where it has one."""
        self._lying.setdefault(transport)

    def left(self, transport: asyncio.Transport) -> None:
        self._lying.pop(transport, None)

    def give_way(self) -> bool:
        """Close the one that has lain longest; false where there is none. One to which something
        came that is still to be read, or whose caller has not taken all, is not idle: its turn
        comes again behind the others."""
        for _ in range(min(_TRIES, len(self._lying))):
            transport = next(iter(self._lying))
            del self._lying[transport]
            if transport.is_closing():
                continue
            if transport.get_write_buffer_size() or _unread(transport):
                self._lying[transport] = None
                continue
            transport.close()
            return True
        return False


def _unread(transport: asyncio.Transport) -> bool:
    """Whether the kernel holds bytes that the loop has not fetched yet, or an end: a request may be
    among them, and nobody would answer it."""
    with _Selector() as selector:
        selector.register(transport.get_extra_info("socket"), selectors.EVENT_READ)
        return bool(selector.select(0))
