"""One JSON object per physical line, whatever is logged."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.value import altered
from gateway.observe.log import VALUE_LIMIT, Decided, applied, configure, decision, event
from tests.kit.commands import attempt, command

Seconds = tuple[float, float, float, float]


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("gateway")
    before = (root.handlers[:], root.level, ours.level, logging.raiseExceptions)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
    logging.raiseExceptions = before[3]


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    text = stream.getvalue()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.split("\n")[:-1]]


def test_a_decision_is_a_line_with_what_was_given() -> None:
    stream = io.StringIO()
    configure("info", stream)
    decision(
        Decided(
            request_id="r-1",
            status=412,
            outcome="rejected",
            tenant="billing",
            entity="invoice:1",
            key_digest="00ff",
            fence=41,
            mark=42,
            decision="RejectStale",
            problem="fence-stale",
            duration_ms=1.25,
        )
    )
    (line,) = lines(stream)
    assert str(line.pop("time")).endswith("Z")
    assert line == {
        "level": "info",
        "event": "decision",
        "request_id": "r-1",
        "status": 412,
        "outcome": "rejected",
        "tenant": "billing",
        "entity": "invoice:1",
        "key_digest": "00ff",
        "fence": 41,
        "mark": 42,
        "decision": "RejectStale",
        "problem": "fence-stale",
        "duration_ms": 1.25,
    }


@given(st.text(st.characters(codec=None), min_size=1))
def test_nothing_from_outside_begins_a_line_or_is_lost(text: str) -> None:
    stream = io.StringIO()
    configure("info", stream)
    decision(Decided(request_id="r", status=200, outcome="applied", entity=text, principal=text))
    event("alarm", level="error", reason=text)
    logging.getLogger("elsewhere").warning("%s", text)
    raw = stream.getvalue()
    assert raw.isascii()
    assert raw.replace("\n", "").isprintable()
    one, two, three = lines(stream)
    # Python joins a pair of lone surrogates that it reads back; that is all that may differ.
    for read in (one["entity"], two["reason"], three["message"]):
        assert json.dumps(read) == json.dumps(text)


@given(
    st.builds(
        Decided,
        request_id=st.text(),
        status=st.integers(100, 599),
        outcome=st.just("applied"),
        entity=st.none() | st.text() | st.just("x" * 5000),
        fence=st.none() | st.integers(0, 2**63),
        admit_ms=st.none() | st.floats(0, 1e9),
    )
)
def test_a_decision_is_the_line_that_the_formatter_would_make(decided: Decided) -> None:
    stream = io.StringIO()
    configure("info", stream)
    decision(decided)
    logging.getLogger().addHandler(logging.NullHandler())  # from here on by way of the library
    decision(decided)
    own, usual = stream.getvalue().splitlines()
    stamp = len('{"time": "2026-01-01T00:00:00.000Z"')
    assert own[stamp:] == usual[stamp:]
    assert own[:10] == usual[:10]
    assert own[stamp - 2 : stamp] == 'Z"'


@given(
    st.text(max_size=VALUE_LIMIT),
    st.text(),
    st.none() | st.text(),
    st.none() | st.integers(0, 2**63),
    st.tuples(*[st.floats(0, 1e6)] * 4),
)
def test_the_line_of_what_was_applied_says_what_a_decision_says(
    entity: str, principal: str, caller: str | None, fence: int | None, seconds: Seconds
) -> None:
    stream = io.StringIO()
    configure("info", stream)
    made = altered(
        command(by=attempt(1), entity=entity, fence=fence, policy="p/q"), principal=principal
    )
    written = applied("r-1", 201, caller, "t\n", made, 202, seconds)
    assert written == (len(entity) + len(principal) <= VALUE_LIMIT)
    total, admit, send, settle = (round(each * 1000, 3) for each in seconds)
    decision(
        Decided(
            request_id="r-1",
            status=201,
            outcome="applied",
            caller=caller,
            tenant="t\n",
            principal=principal,
            policy="p/q",
            entity=entity,
            key_digest=made.key_digest.hex(),
            fence=fence,
            decision="Forward",
            attempt=str(made.attempt),
            upstream_status=202,
            duration_ms=total,
            admit_ms=admit,
            send_ms=send,
            settle_ms=settle,
        )
    )
    *own, usual = lines(stream)
    if written:
        assert list(own[0]) == list(usual)
        assert own[0] | {"time": ""} == usual | {"time": ""}


def test_decisions_are_written_as_the_turn_ends_and_nothing_overtakes_them() -> None:
    stream = io.StringIO()

    async def main() -> None:
        for number in (1, 2):
            decision(Decided(request_id=f"r-{number}", status=200, outcome="applied"))
        assert stream.getvalue() == ""
        event("alarm", level="error")
        decision(Decided(request_id="r-3", status=200, outcome="applied"))
        assert len(lines(stream)) == 3
        await asyncio.sleep(0)
        assert len(lines(stream)) == 4
        decision(Decided(request_id="r-4", status=200, outcome="applied"))

    configure("info", stream)
    asyncio.run(main())
    logging.getLogger().handlers[0].flush()  # as at the end of the process
    ids = [line.get("request_id") for line in lines(stream)]
    assert ids == ["r-1", "r-2", None, "r-3", "r-4"]


def test_the_level_is_kept_and_other_libraries_speak_json_too() -> None:
    stream = io.StringIO()
    configure("warning", stream)
    decision(Decided(request_id="r", status=200, outcome="applied"))
    event("started")
    event("alarm", level="error", age_s=61.5)
    try:
        raise RuntimeError("first\nsecond")
    except RuntimeError:
        logging.getLogger("asyncio").exception("task failed")
    logging.getLogger("httptools").info("chatter")
    alarm, failure = lines(stream)
    assert alarm["event"] == "alarm"
    assert alarm["age_s"] == 61.5
    assert failure["logger"] == "asyncio"
    assert "first\nsecond" in str(failure["exception"])


def test_configuring_twice_writes_once() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("info", first)
    configure("info", second)
    event("started")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_fields_cannot_take_the_place_of_the_lines_own() -> None:
    stream = io.StringIO()
    configure("info", stream)
    event("started", time="never", event_="x")
    (line,) = lines(stream)
    assert line["time"] != "never"
