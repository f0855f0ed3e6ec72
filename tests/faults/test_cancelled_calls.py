"""Cancellation injected at every step of a call (SETTLE-03), and hang-ups at every receive.

In process, against a real database and a real upstream, on the loop that ships. Every task of a
call counts its steps together; at the n-th the victim is cancelled, for n = 1, 2, … until the call
ends by itself before that. Wrapper middleware that tears down what it awaits does just that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
import uvloop

from gateway.app import Gateway, open_gateway
from gateway.policy.loader import load
from gateway.policy.tools import Tools
from gateway.proxy.respond import Message
from gateway.settings import Settings
from tests.kit.faults import CHARGE
from tests.kit.gateway import policy
from tests.kit.upstream import RecordingUpstream

T = TypeVar("T")
Victim = Literal["endpoint", "work"]

BODY = [b'{"amo', b'unt"', b": 100}"]
ENOUGH_STEPS = 300
"""No call takes as many; a test that reaches them does not end."""


class Steps:
    """Counts the steps of all tasks made by its factory; cancels the victim at the n-th."""

    def __init__(self, victim: Victim, limit: int) -> None:
        self._victim = victim
        self._limit = limit
        self._tasks: dict[Victim, asyncio.Task[Any]] = {}
        self._taken = 0
        self.struck = False

    def factory(self, loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(_Counted(work, self._step), loop=loop, **more)
        if work.__qualname__ == "Endpoint._run":
            self._tasks["work"] = task
        else:
            self._tasks.setdefault("endpoint", task)
        return task

    def _step(self) -> None:
        self._taken += 1
        victim = self._tasks.get(self._victim)
        if self._taken >= self._limit and not self.struck and victim is not None:
            self.struck = victim.cancel()


class _Counted(Coroutine[Any, Any, Any]):
    """A coroutine that tells of each of its steps."""

    def __init__(self, work: Any, step: Callable[[], None]) -> None:
        self._work = work
        self._step = step
        self.__qualname__ = work.__qualname__

    def send(self, value: Any) -> Any:
        self._step()
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError


@dataclass
class Call:
    """One request as an ASGI server would pass it on. ``disconnect_at``: the number of the
    receive that says so."""

    key: str
    disconnect_at: int | None = None
    sent: list[Message] = field(default_factory=list)
    _received: int = 0

    @property
    def scope(self) -> Mapping[str, Any]:
        path = f"/pay/v1/accounts/{self.key}/charges"
        return {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"idempotency-key", self.key.encode()),
                (b"x-execution-fence", b"1"),
                (b"prefer", b"wait=0"),
                (b"x-key", self.key.encode()),
            ],
        }

    async def receive(self) -> Message:
        await asyncio.sleep(0)
        self._received += 1
        if self._received == self.disconnect_at:
            return {"type": "http.disconnect"}
        if self._received > len(BODY):
            await asyncio.Event().wait()
        more = self._received < len(BODY)
        return {"type": "http.request", "body": BODY[self._received - 1], "more_body": more}

    async def send(self, message: Message) -> None:
        await asyncio.sleep(0)
        self.sent.append(message)

    @property
    def answer(self) -> tuple[int, bytes, bool]:
        """Status, body, and whether it is a replay."""
        head = self.sent[0]
        body = b"".join(message.get("body", b"") for message in self.sent[1:])
        return head["status"], body, (b"idempotent-replayed", b"true") in head["headers"]


@dataclass
class Harness:
    """A gateway in this process."""

    gateway: Gateway
    upstream: RecordingUpstream

    async def call(self, key: str, disconnect_at: int | None = None) -> Call:
        made = Call(key, disconnect_at)
        await self.gateway(made.scope, made.receive, made.send)
        return made

    async def settle_down(self) -> None:
        """Until everything that runs detached has ended, and the pool has all of its
        connections."""
        async with asyncio.timeout(10):
            for tasks in (self.gateway._endpoint.running, self.gateway._background):
                await tasks.drain(10)
            pool = self.gateway._database._pool
            while pool.get_idle_size() != pool.get_size():  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0)
        assert self.gateway.room.count == 0

    def effects(self, key: str) -> int:
        return sum(effect.one("X-Key") == key.encode() for effect in self.upstream.effects)

    async def state(self, key: str) -> str | None:
        sql = (
            "select case when settled_at is null then 'in-flight' else 'settled' end as state"
            " from gateway.commands where key = $1"
        )
        found = await self.gateway._database.fetch(sql, key)
        return found[0]["state"] if found else None


def test_the_server_s_task_at_every_step(database: str, tmp_path: Path) -> None:
    """It is settled if it was sent, never refused half-way, and then replayed."""

    async def attack(here: Harness, key: str) -> None:
        state, effects = await here.state(key), here.effects(key)
        assert (state, effects) in ((None, 0), ("settled", 1)), key
        status, body, replayed = (await here.call(key)).answer
        assert (status, replayed) == (201, effects == 1), body
        assert here.effects(key) == 1

    steps = _at_every_step("endpoint", attack, database, tmp_path)
    assert steps > 10


def test_the_detached_work_at_every_step(database: str, tmp_path: Path) -> None:
    """As at the end of a drain: what was sent is settled or in flight, never free."""

    async def attack(here: Harness, key: str) -> None:
        state, effects = await here.state(key), here.effects(key)
        assert effects <= 1, key
        assert state in (("settled", "in-flight") if effects else (None, "in-flight")), key
        status, body, replayed = (await here.call(key)).answer
        expected = {None: (201, False), "settled": (201, True), "in-flight": (409, False)}[state]
        assert (status, replayed) == expected, body
        assert here.effects(key) == 1 or state == "in-flight"

    steps = _at_every_step("work", attack, database, tmp_path)
    assert steps > 5


@pytest.mark.parametrize("at", range(1, len(BODY) + 1))
def test_a_hang_up_before_the_last_byte(database: str, tmp_path: Path, at: int) -> None:
    async def run(here: Harness) -> None:
        call = await here.call("k", disconnect_at=at)
        await here.settle_down()
        assert call.sent == []
        assert (await here.state("k"), here.effects("k")) == (None, 0)
        assert await here.gateway._database.fetch("select from gateway.entities") == []

    _in_process(run, database, tmp_path)


def test_a_hang_up_right_behind_the_last_byte(database: str, tmp_path: Path) -> None:
    async def run(here: Harness) -> None:
        call = await here.call("k", disconnect_at=len(BODY) + 1)
        await here.settle_down()
        assert call.sent == []
        assert (await here.state("k"), here.effects("k")) == ("settled", 1)
        status, body, replayed = (await here.call("k")).answer
        assert (status, body, replayed) == (201, b'{"effect": 1}', True)

    _in_process(run, database, tmp_path)


def _at_every_step(
    victim: Victim,
    attack: Callable[[Harness, str], Awaitable[None]],
    database: str,
    tmp_path: Path,
) -> int:
    """Cancel the victim at each step in turn and look at what is left; how many steps it took."""

    async def run(here: Harness) -> int:
        await here.call("warm")
        for number in range(1, ENOUGH_STEPS):
            key = f"n{number}"
            steps = Steps(victim, number)
            with suppress(asyncio.CancelledError):
                await _counted(steps, here.call(key))
            await here.settle_down()
            await attack(here, key)
            if not steps.struck:
                return number - 1
        raise AssertionError("it never ended by itself")

    return _in_process(run, database, tmp_path)


async def _counted(steps: Steps, call: Coroutine[Any, Any, Call]) -> Call:
    """Run a call, its tasks and theirs, under ``steps``."""
    loop = asyncio.get_running_loop()
    factory: Any = steps.factory
    loop.set_task_factory(factory)
    try:
        return await asyncio.create_task(call)
    finally:
        loop.set_task_factory(None)


def _in_process(run: Callable[[Harness], Awaitable[T]], database: str, folder: Path) -> T:
    async def main() -> T:
        with RecordingUpstream() as upstream:
            (folder / "pay.toml").write_text(policy(upstream.url, CHARGE))
            gateway = await open_gateway(Settings(), load(folder, {}), Tools({}), database)
            try:
                return await run(Harness(gateway, upstream))
            finally:
                await gateway.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
