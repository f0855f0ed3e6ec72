"""A crash report says of what kind a mistake is and where, and nothing of what was handled."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
from collections.abc import Iterator

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from gateway.observe.crash import brief, loop_error, trace
from gateway.observe.log import VALUE_LIMIT, configure, event


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("gateway")
    before = (root.handlers[:], root.level, ours.level, logging.raiseExceptions)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
    logging.raiseExceptions = before[3]


def caught(secret: str) -> BaseException:
    try:
        try:
            int(f"hush{secret}")
        except ValueError as error:
            error.add_note(secret)
            raise KeyError(secret) from error
    except KeyError as error:
        return error


@given(st.text(st.characters(codec="utf-8"), min_size=8).map(lambda text: f"hush{text}"))
def test_no_message_is_kept(secret: str) -> None:
    error = caught(secret)
    for told in (brief(error), trace(error)):
        assert "hush" not in told
    assert brief(error).startswith("KeyError at test_crash.py:")
    first, second = (each for each in trace(error).split("\n") if "Error" in each)
    assert (first, second) == ("ValueError", "KeyError")
    assert "in caught" in trace(error)


def test_the_systems_own_words_and_a_databases_code_are_kept() -> None:
    class Refused(Exception):
        sqlstate = "23505"

    assert trace(OSError(28, "hush", "/hush")) == f"OSError ({os.strerror(28)})"
    assert trace(Refused("hush")).endswith("Refused (23505)")


def test_several_at_once_and_very_deep_ones_stay_short() -> None:
    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        raise ExceptionGroup("hush", [ValueError("hush")] * 1000)

    try:
        deep(500)
    except ExceptionGroup as error:
        told = trace(error)
    assert "hush" not in told
    assert told.count("of several: ValueError") == 10
    assert len(told.split("\n")) < 60
    loop = ValueError("hush")
    loop.__cause__ = loop
    assert trace(loop) == "ValueError"


@pytest.mark.parametrize("base", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_a_loop_says_of_a_callback_or_a_task_holds_no_argument(base: object) -> None:
    seen: list[tuple[str, str | None]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: seen.append(loop_error(context)))

        def fails(data: bytes) -> None:
            raise ValueError(data)

        async def fails_later(data: bytes) -> None:
            raise ValueError(data)

        loop.call_soon(fails, b"hush")
        task = asyncio.ensure_future(fails_later(b"hush"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task
        import gc

        gc.collect()

    with asyncio.Runner(loop_factory=base) as runner:  # type: ignore[arg-type]
        runner.run(main())
    assert len(seen) == 2
    assert "hush" not in repr(seen)
    said = {words for words, _ in seen}
    assert said == {"Exception in callback", "Task exception was never retrieved"}
    assert all(told is not None and "ValueError" in told for _, told in seen)


def test_a_gateway_logs_a_crash_without_its_message_and_a_worker_with_it() -> None:
    for messages in (False, True):
        stream = io.StringIO()
        configure("debug", stream, messages=messages)
        logging.getLogger("uvicorn.error").error("failed", exc_info=caught("hush"))
        (line,) = map(json.loads, stream.getvalue().splitlines())
        assert ("hush" in line["exception"]) is messages
        assert "KeyError" in line["exception"]


def test_no_value_makes_a_line_long() -> None:
    stream = io.StringIO()
    configure("info", stream)
    event("alarm", reason="x" * 10 * VALUE_LIMIT)
    logging.getLogger("elsewhere").warning("y" * 10 * VALUE_LIMIT)
    for line in map(json.loads, stream.getvalue().splitlines()):
        value = line.get("reason") or line["message"]
        assert len(value) == VALUE_LIMIT + 1
        assert value.endswith("…")
