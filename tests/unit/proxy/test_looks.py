"""Who asks whether the process is ready: one look for all, and never an old one."""

from __future__ import annotations

import asyncio

from gateway.proxy.looks import KEPT_S, Looks


class Ground:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.begun = 0
        self.answers: asyncio.Queue[str | None] = asyncio.Queue()
        self.looks = Looks(self.look, lambda: self.now_s)

    async def look(self) -> str | None:
        self.begun += 1
        return await self.answers.get()


def test_those_who_ask_together_share_a_look_and_it_is_kept_for_a_second() -> None:
    async def main() -> None:
        ground = Ground()
        asking = [asyncio.ensure_future(ground.looks.reason()) for _ in range(50)]
        await asyncio.sleep(0)
        asking[0].cancel()  # a caller that hangs up ends it for nobody
        ground.answers.put_nowait("away")
        told = await asyncio.gather(*asking[1:])
        assert (set(told), ground.begun) == ({"away"}, 1)
        ground.now_s += KEPT_S - 0.01
        assert (await ground.looks.reason(), ground.begun) == ("away", 1)
        ground.now_s += 0.01
        ground.answers.put_nowait(None)
        assert (await ground.looks.reason(), ground.begun) == (None, 2)

    asyncio.run(main())


def test_a_look_that_is_on_its_way_when_the_process_stops_says_so() -> None:
    async def main() -> None:
        ground = Ground()
        asking = asyncio.ensure_future(ground.looks.reason())
        await asyncio.sleep(0)
        await ground.looks.stop()
        assert await asking == "the process is stopping"

    asyncio.run(main())
