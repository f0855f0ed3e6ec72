"""Places for what streams through to one upstream: shared between tenants, and waited for, since a
place comes free with the end of any stream."""

from __future__ import annotations

import asyncio

from gateway.proxy.shares import Several, Share, alone

__all__ = ["Place", "Places"]


class Places:
    """As many as connections, ``limit``. All methods belong to one event loop."""

    def __init__(self, limit: int, several: Several = alone) -> None:
        self._share = Share(limit, several)
        self._waiting: dict[asyncio.Future[None], int] = {}  # in order, with the tenant

    @property
    def used(self) -> int:
        return self._share.used

    async def take(self, tenant: int, wait_s: float) -> bool:
        """A place, to be given back; false where none came in time."""
        if tenant not in self._waiting.values() and self._share.take(tenant):
            return True
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[place] = tenant
        try:
            async with asyncio.timeout(wait_s):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self.give_back(tenant)  # it came together with the end
            if isinstance(error, TimeoutError):
                return False
            raise
        finally:
            self._waiting.pop(place, None)
        return True

    def give_back(self, tenant: int) -> None:
        self._share.give_back(tenant)
        for place, waits in list(self._waiting.items()):
            # One whose future is done has been cancelled, and is about to leave.
            if not place.done() and self._share.take(waits):
                del self._waiting[place]
                place.set_result(None)


class Place:
    """One stream's."""

    def __init__(self, places: Places, tenant: int) -> None:
        self._places = places
        self._tenant = tenant
        self._taken = False

    async def take(self, wait_s: float) -> bool:
        """False where none came free in time."""
        self._taken = await self._places.take(self._tenant, wait_s)
        return self._taken

    def close(self) -> None:
        """The stream is over, or never began. May be repeated."""
        if self._taken:
            self._taken = False
            self._places.give_back(self._tenant)
