"""An executor without network and database: the naive store, a client that does what it is told, a
clock that is moved by hand."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from gateway.core.command import SettleResult
from gateway.core.decide import Forward, decide
from gateway.core.model import Exchange, Stage
from gateway.proxy.admitting import Admitter
from gateway.proxy.answer import Answer
from gateway.proxy.background import Background
from gateway.proxy.call import Call
from gateway.proxy.execute import Executor
from gateway.proxy.resending import Resender
from gateway.proxy.settling import Settler
from gateway.proxy.trace import Trace
from gateway.proxy.waiting import WaitRoom
from gateway.upstream import Deadlines, Request
from tests.kit.commands import OK, attempt, command, rules
from tests.kit.invariants import Admission, End, Evidence, History, How, Send
from tests.kit.model import FakeStore

T = TypeVar("T")

COMPLETE = Exchange(Stage.BODY_COMPLETE, OK)


def run(main: Coroutine[Any, Any, T]) -> T:
    """On a fresh event loop; a test that hangs fails after 20 s."""
    return asyncio.run(asyncio.wait_for(main, 20))


async def until(condition: Callable[[], bool]) -> None:
    """Let the other tasks run until ``condition`` holds; it never waits for time to pass."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


class ManualClock:
    """Moves when told to, and by what is slept on it."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def pass_in(self, monkeypatch: pytest.MonkeyPatch, module: object) -> None:
        """Let ``module`` sleep on this clock."""
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=self.sleep))


class FakeTransfer:
    """An exchange, and whether the socket was let go."""

    def __init__(self, exchange: Exchange, late: Exchange | None) -> None:
        self.exchange = exchange
        self.closed = False
        self._late = late

    async def late(self, *, until: float, byte_limit: int) -> Exchange | None:
        return self._late

    def close(self) -> None:
        self.closed = True


class FakeClient:
    """Answers with ``exchanges`` in turn, then with a plain success, while ``open`` is set."""

    def __init__(self, steps: Callable[[], int]) -> None:
        self._steps = steps
        self.exchanges: deque[Exchange] = deque()
        self.late: Exchange | None = None
        self.sent: list[tuple[int, Request, Deadlines]] = []
        self.transfers: list[FakeTransfer] = []
        self.open = asyncio.Event()
        self.open.set()

    async def send(
        self, request: Request, deadlines: Deadlines, *, keep_limit: int
    ) -> FakeTransfer:
        self.sent.append((self._steps(), request, deadlines))
        await self.open.wait()
        exchange = self.exchanges.popleft() if self.exchanges else COMPLETE
        self.transfers.append(FakeTransfer(exchange, self.late))
        return self.transfers[-1]

    @property
    def targets(self) -> list[str]:
        """Keys in the order they were sent."""
        return [request.target.decode() for _, request, _ in self.sent]


class WatchedStore(FakeStore):
    """The naive store; it notes when it answered ``Forward``, who ended, and how often each key was
    asked for."""

    def __init__(self, steps: Callable[[], int]) -> None:
        super().__init__()
        self._steps = steps
        self.history = History()
        self.asked: Counter[str] = Counter()

    async def admit(self, commands: Any) -> Any:
        found = await super().admit(commands)
        self.asked.update(each.key for each in commands)
        for each, facts in zip(commands, found, strict=True):
            if isinstance(decide(facts), Forward):
                self.history.admissions.append(
                    Admission(
                        *(self._steps(), each.tenant, each.key, each.entity),
                        *(each.fence, each.attempt, each.serial),
                    )
                )
        return found

    async def settle(self, settles: Any) -> Any:
        return await self._ended("settled", super().settle, settles)

    async def release(self, releases: Any) -> Any:
        return await self._ended("released", super().release, releases)

    async def _ended(self, how: How, do: Any, ends: Any) -> Any:
        results = await do(ends)
        for each, result in zip([end.command for end in ends], results, strict=True):
            if result is not False:
                self.history.ends.append(
                    End(self._steps(), each.tenant, each.key, how, each.attempt)
                )
        return results


class Rig:
    """One process's executor. ``executor`` may be another class: a mutant."""

    def __init__(self, executor: type[Executor] = Executor, *, limit: int = 100) -> None:
        numbers = itertools.count()
        self.steps = lambda: next(numbers)
        self.clock = ManualClock()
        self.store = WatchedStore(self.steps)
        self.client = FakeClient(self.steps)
        self.room = WaitRoom(self.store.ready, limit=limit, limit_per_topic=limit)
        self.background, self.late = Background(), Background()
        self.results: list[SettleResult] = []
        self.executor = executor(
            admitter=Admitter(self.store, self.clock),
            settler=Settler(self.store, lambda _: None),
            resender=Resender(self.store, self.clock),
            prober=self.store,
            room=self.room,
            background=self.background,
            late=self.late,
            clock=self.clock,
            on_settled=lambda _, result, *__: self.results.append(result),
        )

    def call(self, key: str = "k", *, wait_s: float = 30, **about: Any) -> Call:
        return Call(
            command=command(key, by=attempt(0), **about),
            rules=rules(),
            client=self.client,  # type: ignore[arg-type]
            request=Request(b"POST", key.encode(), ()),
            wait_s=wait_s,
            tenant_name="default",
            barred=lambda: None,
        )

    async def run(self, call: Call, gone: asyncio.Event | None = None) -> Answer | None:
        return await self.executor.run(call, gone or asyncio.Event(), Trace())

    def start(self, call: Call, gone: asyncio.Event | None = None) -> asyncio.Task[Answer | None]:
        return asyncio.ensure_future(self.run(call, gone))

    def history(self) -> History:
        """What happened, as the guarantees are checked on it. The first send of a key belongs to
        its first admission, and so on; a send too many to nobody's."""
        history = self.store.history
        left = {key: deque(group) for key, group in _by_key(history.admissions).items()}
        for (at, request, _), transfer in zip(self.client.sent, self.client.transfers, strict=True):
            key = request.target.decode()
            by = left[key].popleft() if left.get(key) else None
            about = (by.entity, by.fence) if by is not None else ("invoice:1", None)
            history.sends.append(
                Send(
                    *(at, 1, key, *about),
                    may_have_executed=_may_have_executed(transfer.exchange),
                    attempt=by.attempt if by is not None else attempt(0),
                )
            )
        history.evidence = [
            Evidence(self.steps(), row.tenant, row.event, None, row.attempt)
            for row in self.store.model.audit
        ]
        return history


def _by_key(admissions: list[Admission]) -> dict[str, list[Admission]]:
    groups: dict[str, list[Admission]] = {}
    for each in admissions:
        groups.setdefault(each.key, []).append(each)
    return groups


def _may_have_executed(exchange: Exchange) -> bool:
    answer = exchange.response
    refused = answer is not None and answer.status in rules().not_executed
    return exchange.stage >= Stage.SENDING_HEADERS and not refused
