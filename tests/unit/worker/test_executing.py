"""What a handler's code does to the loop of all, which goes on."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from gateway.worker import Job
from gateway.worker.endings import Gone, Raised, Returned
from gateway.worker.executing import HandlerLoop, in_thread


class Named:
    """All that the loop wants of a job."""

    id = "j-1"


JOB = cast(Job, Named())


@pytest.fixture
def loop() -> Iterator[HandlerLoop]:
    made = HandlerLoop()
    made.start()
    yield made

    async def nothing() -> None: ...

    asyncio.run(made.shut(nothing, 10))
    made._thread.join(10)
    assert not made.alive()


def outcome(loop: HandlerLoop, handler: Any) -> Any:
    return loop.begin(handler, JOB, lambda: None).done.result(10)


async def fine(_: Job) -> str:
    return "fine"


async def exits_in_a_task(_: Job) -> None:
    async def part() -> None:
        sys.exit(3)

    await asyncio.gather(part())


async def exits_in_a_group(_: Job) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(sys.exit, "bad input"))


async def interrupts(_: Job) -> None:
    async def part() -> None:
        raise KeyboardInterrupt

    await asyncio.gather(part())


@pytest.mark.parametrize("handler", [exits_in_a_task, exits_in_a_group, interrupts])
def test_an_exit_in_a_task_fails_its_job_and_no_other(loop: HandlerLoop, handler: Any) -> None:
    told = outcome(loop, handler)
    assert isinstance(told, Raised)
    assert isinstance(told.error, SystemExit | KeyboardInterrupt)
    assert outcome(loop, fine) == Returned("fine")


def test_an_exit_in_a_callback_ends_nothing(loop: HandlerLoop) -> None:
    async def handler(_: Job) -> str:
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "went on"

    assert outcome(loop, handler) == Returned("went on")


def test_a_loop_that_a_handler_stopped_goes_on(loop: HandlerLoop) -> None:
    async def handler(_: Job) -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return "went on"

    assert outcome(loop, handler) == Returned("went on")
    assert outcome(loop, fine) == Returned("fine")


def test_what_ran_in_a_loop_that_is_gone_is_told_so(
    loop: HandlerLoop, caplog: pytest.LogCaptureFixture
) -> None:
    began = threading.Event()

    async def handler(_: Job) -> None:
        began.set()
        await asyncio.Event().wait()

    outs: list[str] = []
    running = loop.begin(handler, JOB, lambda: outs.append("out"))
    assert began.wait(10)

    def select(_timeout: object) -> None:
        raise OSError("its selector is broken")

    loop.loop._selector.select = select  # type: ignore[attr-defined]
    loop.loop.call_soon_threadsafe(lambda: None)
    told = running.done.result(10)
    assert isinstance(told, Gone)
    assert outs == ["out"]
    loop._thread.join(10)
    assert not loop.alive()
    with pytest.raises(RuntimeError):
        loop.begin(fine, JOB, lambda: None)
    assert loop.lag_s() == 0
    (record,) = [each for each in caplog.records if each.name.startswith("gateway")]
    assert "its selector is broken" in str(record.exc_info)


@pytest.mark.parametrize("how", ["async", "thread"])
def test_that_it_is_out_is_known_before_its_outcome(loop: HandlerLoop, how: str) -> None:
    seen: list[bool] = []
    hold = threading.Event()

    def out() -> None:
        hold.wait(10)
        seen.append(execution.done.done())

    if how == "async":
        execution = loop.begin(fine, JOB, out)
    else:
        execution = in_thread(lambda _: "fine", JOB, out)
    hold.set()
    assert execution.done.result(10) == Returned("fine")
    assert seen == [False]


def test_what_does_not_let_itself_be_cancelled_is_left_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = HandlerLoop()
    made.start()
    began = threading.Event()

    async def stubborn(_: Job) -> None:
        while True:
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    execution = made.begin(stubborn, JOB, lambda: None)
    assert began.wait(10)

    async def nothing() -> None: ...

    asyncio.run(made.shut(nothing, 1))
    made._thread.join(10)
    assert isinstance(execution.done.result(10), Gone)
    del execution, made
    gc.collect()
    assert caplog.records == []
