"""A signal ends a show, wherever it finds it."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from gateway.crew import Interrupted, Interrupts, processes

LIMIT_S = 20


def swallowed(number: signal.Signals) -> None:
    """Let a signal arrive in a callback of an event loop, which ends its exceptions there."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        done = loop.create_future()

        def callback() -> None:
            loop.call_soon(done.set_result, None)
            if number == signal.SIGALRM:
                wait()  # for the time limit
            else:
                signal.raise_signal(number)

        loop.call_soon(callback)
        await done

    asyncio.run(work())


def wait() -> None:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGALRM])
@pytest.mark.parametrize("held", [False, True])
def test_a_signal_is_repeated_until_somebody_hears_it(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, held: bool
) -> None:
    monkeypatch.setattr(processes, "_AGAIN_S", 0.05)
    interrupts = Interrupts()

    def all_of_it() -> None:
        swallowed(number)
        if held:
            with interrupts.held():
                pass
        wait()

    with (
        pytest.raises(Interrupted, match=number.name),
        interrupts.caught(1 if number == signal.SIGALRM else LIMIT_S),
    ):
        all_of_it()


def test_once_it_was_heard_the_rest_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_AGAIN_S", 0.02)
    interrupts = Interrupts()
    with interrupts.caught(LIMIT_S):
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)
        interrupts.ignore()
        for _ in range(20):
            time.sleep(0.01)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
