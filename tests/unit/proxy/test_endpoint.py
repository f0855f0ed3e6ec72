"""The end of a drain cuts a caller off at any moment: what it hears is never false."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.model import Response
from gateway.proxy.answer import Answer, relay
from gateway.proxy.call import Call
from gateway.proxy.endpoint import Endpoint
from gateway.proxy.intake import Admissible, Identity
from gateway.proxy.shares import Flights
from gateway.upstream import Request
from tests.kit.commands import attempt, command, rules

APPLIED = relay(Response(201, (), b"{}"), "applied")


class Silent:
    """Takes every note and says nothing."""

    def __getattr__(self, _: str) -> Any:
        return lambda *args: None


class Cut:
    """One request whose work ends at will, and whose server task is cancelled at will."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.sent: list[Any] = []
        room = SimpleNamespace(closing=False, count=0)
        executor: Any = SimpleNamespace(room=room, clock=lambda: 0.0, run=self._run)
        intake: Any = SimpleNamespace(take=self._take)
        audit: Any = None
        self.endpoint = Endpoint(intake, executor, Silent(), audit, Flights(9), {})

    async def _run(self, *_: object) -> Answer:
        await self.ended.wait()
        return APPLIED

    async def _take(self, *_: object) -> Admissible:
        client: Any = None
        made = Call(
            *(command("k", by=attempt(0)), rules(), client, Request(b"POST", b"/", ())),
            wait_s=0,
            tenant_name="t",
            barred=lambda: None,
        )
        return Admissible(Identity("r-1"), made)

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def _receive(self) -> Any:
        await asyncio.Event().wait()

    def start(self) -> asyncio.Task[None]:
        scope = {"headers": [], "method": "POST"}
        return asyncio.ensure_future(self.endpoint(scope, self._receive, self._send))

    def heard(self) -> tuple[int, bytes]:
        (start,) = [message for message in self.sent if message["type"] == "http.response.start"]
        return start["status"], dict(start["headers"])[b"gateway-outcome"]


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("turns", range(6))
def test_work_that_ended_as_its_caller_is_cut_off_gives_its_own_answer(turns: int) -> None:
    async def play() -> tuple[int, bytes]:
        cut = Cut()
        task = cut.start()
        await _turns(5)
        cut.ended.set()
        await _turns(turns)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return cut.heard()

    assert asyncio.run(play()) == (201, b"applied")


@pytest.mark.parametrize("turns", range(3))
def test_work_that_is_cut_off_too_leaves_its_outcome_unknown(turns: int) -> None:
    async def play() -> tuple[int, bytes]:
        cut = Cut()
        task = cut.start()
        await _turns(5)
        cut.ended.set()
        task.cancel()
        await _turns(turns)
        await cut.endpoint.running.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return cut.heard()

    assert asyncio.run(play()) in ((504, b"unknown"), (201, b"applied"))
