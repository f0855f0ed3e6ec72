"""Admit, send, settle for one call, without network and database."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from gateway.core.command import Command, Settle, SettleResult
from gateway.core.model import Exchange, Stage
from gateway.core.problems import Problem
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.proxy.answer import Answer
from gateway.proxy.waiting import Entity
from tests.kit.commands import DEADLINE_MS, OK, attempt, command, response
from tests.kit.invariants import assert_holds
from tests.unit.proxy.rig import Rig, run, until

NOT_SENT = Exchange(Stage.CONNECTING, fault="refused")
NO_ANSWER = Exchange(Stage.SENT, fault="timeout")
CUT = Exchange(Stage.STATUS_SEEN, OK, "closed")


def status(number: int) -> Exchange:
    return Exchange(Stage.BODY_COMPLETE, response(number))


def outcome(answer: Answer | None) -> tuple[str, int, str | None]:
    assert answer is not None
    return answer.outcome, answer.status, answer.problem


def test_a_success_is_settled_then_relayed_then_replayed() -> None:
    async def main() -> None:
        rig = Rig()
        assert outcome(await rig.run(rig.call())) == ("applied", 200, None)
        assert outcome(await rig.run(rig.call())) == ("replayed", 200, None)
        assert rig.results == ["settled"]
        assert len(rig.client.sent) == 1
        assert_holds(rig.history())

    run(main())


@pytest.mark.parametrize(
    ("exchange", "first", "second"),
    [
        (NOT_SENT, ("not-sent", 502, "not-sent"), ("applied", 200, None)),
        (status(429), ("not-executed", 429, None), ("applied", 200, None)),
        (status(422), ("applied", 422, None), ("replayed", 422, None)),
        (status(503), ("unknown", 504, "outcome-unknown"), ("unknown", 504, "outcome-unknown")),
        (NO_ANSWER, ("unknown", 504, "outcome-unknown"), ("unknown", 504, "outcome-unknown")),
        (
            CUT,
            ("applied", 502, "response-incomplete"),
            ("rejected", 410, "response-not-retained"),
        ),
    ],
)
def test_each_outcome_is_answered_and_decides_the_next_request_with_the_key(
    exchange: Exchange, first: object, second: object
) -> None:
    async def main() -> None:
        rig = Rig()
        rig.client.exchanges.append(exchange)
        assert outcome(await rig.run(rig.call())) == first
        assert outcome(await rig.run(rig.call())) == second
        assert_holds(rig.history())

    run(main())


def test_a_refusal_that_was_cut_short_is_not_called_executed() -> None:
    async def main() -> None:
        rig = Rig()
        rig.client.exchanges.append(Exchange(Stage.STATUS_SEEN, response(429), "closed"))
        answer = await rig.run(rig.call())
        assert outcome(answer) == ("not-executed", 502, "response-incomplete")
        assert answer is not None
        document = json.loads(answer.body)
        assert document["retry"] == "same-key"
        assert "was executed" not in document["detail"]
        assert outcome(await rig.run(rig.call())) == ("applied", 200, None)

    run(main())


def test_a_bug_while_recording_is_raised_and_nothing_is_relayed() -> None:
    async def main() -> None:
        rig = Rig()

        async def fails(_: object) -> list[object]:
            raise ValueError("bug")

        rig.store.settle = fails  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="bug"):
            await rig.run(rig.call())

    run(main())


def test_a_recording_goes_on_when_its_call_is_cut_off() -> None:
    async def main() -> None:
        rig = Rig()
        settle, asked, answered = rig.store.settle, asyncio.Event(), asyncio.Event()

        async def slow(settles: Any) -> Any:
            asked.set()
            await answered.wait()
            return await settle(settles)

        rig.store.settle = slow  # type: ignore[method-assign]
        call = rig.start(rig.call())
        await asked.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        answered.set()
        await rig.background.drain(10)
        assert rig.results == ["settled"]
        assert outcome(await rig.run(rig.call())) == ("replayed", 200, None)

    run(main())


@pytest.mark.parametrize("error", [AnswerLost("reset"), StoreUnavailable("down")])
def test_a_recording_whose_first_try_fails_is_repeated_before_anybody_hears(
    error: Exception,
) -> None:
    async def main() -> None:
        rig = Rig()
        settle, tries = rig.store.settle, [error]

        async def fails(settles: Any) -> Any:
            if tries:
                raise tries.pop()
            return await settle(settles)

        rig.store.settle = fails  # type: ignore[method-assign]
        assert outcome(await rig.run(rig.call())) == ("applied", 200, None)
        assert rig.results == ["settled"]
        assert len(rig.background) == 0

    run(main())


def test_late_bytes_settle_what_was_answered_as_unknown() -> None:
    async def main() -> None:
        rig = Rig()
        rig.client.exchanges.append(NO_ANSWER)
        rig.client.late = Exchange(Stage.BODY_COMPLETE, OK)
        assert outcome(await rig.run(rig.call())) == ("unknown", 504, "outcome-unknown")
        await until(lambda: len(rig.results) == 1)
        assert outcome(await rig.run(rig.call())) == ("replayed", 200, None)

    run(main())


def test_unknown_is_on_record_before_the_late_answer_that_heals_it() -> None:
    async def main() -> None:
        rig = Rig()
        rig.client.exchanges.append(NO_ANSWER)
        rig.client.late = Exchange(Stage.BODY_COMPLETE, OK)
        hold, settle = rig.store.hold, rig.store.settle
        recorded: list[str] = []
        database_answers = asyncio.Event()

        async def held(holds: Any) -> list[bool]:
            await database_answers.wait()
            recorded.append("unknown")
            return await hold(holds)

        async def settled(settles: Any) -> list[SettleResult]:
            recorded.append("settled")
            return await settle(settles)

        rig.store.hold, rig.store.settle = held, settled  # type: ignore[method-assign]
        call = rig.start(rig.call())
        await until(lambda: rig.client.transfers != [] and len(rig.late) == 1)
        for _ in range(100):  # turns enough for a settle that does not wait
            await asyncio.sleep(0)
        database_answers.set()
        assert outcome(await call) == ("unknown", 504, "outcome-unknown")
        await until(lambda: rig.results == ["late"])
        assert recorded == ["unknown", "settled"]

    run(main())


@pytest.mark.parametrize("late", [status(429), status(503), None])
def test_late_bytes_that_are_no_answer_leave_it_unknown(late: Exchange | None) -> None:
    async def main() -> None:
        rig = Rig()
        rig.client.exchanges.append(NO_ANSWER)
        rig.client.late = late
        await rig.run(rig.call())
        await rig.late.drain(10)
        assert outcome(await rig.run(rig.call())) == ("unknown", 504, "outcome-unknown")

    run(main())


# Waiting for an earlier command.


def test_commands_of_an_entity_are_sent_one_by_one_in_the_order_they_came() -> None:
    async def main() -> None:
        rig = Rig()
        rig.client.open.clear()
        calls = []
        for number, key in enumerate("abcd"):
            calls.append(rig.start(rig.call(key)))
            await until(lambda number=number: rig.room.count == number and rig.client.sent)
        rig.client.open.set()
        answers = await asyncio.gather(*calls)
        assert [each.outcome for each in answers if each] == ["applied"] * 4
        assert rig.client.targets == list("abcd")
        assert_holds(rig.history())

    run(main())


def test_all_who_wait_for_a_key_hear_the_recorded_answer() -> None:
    async def main() -> None:
        rig = Rig()
        rig.client.open.clear()
        calls = [rig.start(rig.call()) for _ in range(4)]
        await until(lambda: rig.room.count == 3)
        rig.client.open.set()
        answers = await asyncio.gather(*calls)
        assert sorted(each.outcome for each in answers if each) == ["applied", *["replayed"] * 3]
        assert rig.client.targets == ["k"]

    run(main())


def test_a_waiter_whose_caller_hung_up_admits_nothing() -> None:
    async def main() -> None:
        rig = Rig()
        rig.client.open.clear()
        gone = asyncio.Event()
        first = rig.start(rig.call("a"))
        await until(lambda: bool(rig.client.sent))
        hung_up = rig.start(rig.call("b"), gone)
        await until(lambda: rig.room.count == 1)
        last = rig.start(rig.call("c"))
        await until(lambda: rig.room.count == 2)
        gone.set()
        rig.client.open.set()
        assert await hung_up is None
        assert outcome(await first) == outcome(await last) == ("applied", 200, None)
        assert rig.client.targets == ["a", "c"]

    run(main())


def test_who_is_woken_and_has_hung_up_passes_its_turn_on() -> None:
    async def main() -> None:
        rig = Rig()
        rig.client.open.clear()
        gone = asyncio.Event()
        first = rig.start(rig.call("a"))
        await until(lambda: bool(rig.client.sent))
        hung_up = rig.start(rig.call("b"), gone)
        await until(lambda: rig.room.count == 1)
        last = rig.start(rig.call("c"))
        await until(lambda: rig.room.count == 2)
        rig.room.wake(Entity(1, "invoice:1"))
        gone.set()
        assert await hung_up is None
        await until(lambda: rig.store.asked["c"] == 2)
        rig.client.open.set()
        await asyncio.gather(first, last)
        assert rig.store.asked["b"] == 1

    run(main())


def test_who_is_woken_and_needs_no_slot_wakes_the_next() -> None:
    """The second finds its key settled by another process and replays; the third must not stand
    still."""

    async def main() -> None:
        rig = Rig()
        rig.client.open.clear()
        first = rig.start(rig.call("a"))
        await until(lambda: bool(rig.client.sent))
        second = rig.start(rig.call("b"))
        await until(lambda: rig.room.count == 1)
        third = rig.start(rig.call("c"))
        await until(lambda: rig.room.count == 2)
        elsewhere = command("b", by=attempt(1), serial=False)
        await rig.store.admit([elsewhere])
        await rig.store.settle([Settle(elsewhere, OK, True)])
        rig.client.open.set()
        answers = await asyncio.gather(first, second, third)
        assert [each.outcome for each in answers if each] == ["applied", "replayed", "applied"]
        assert rig.client.targets == ["a", "c"]

    run(main())


FORBIDDEN = Problem("forbidden", "Use another key.")


def test_whose_right_ended_while_it_waited_passes_its_turn_on_and_admits_nothing() -> None:
    async def main() -> None:
        rig = Rig()
        rig.client.open.clear()
        first = rig.start(rig.call("a"))
        await until(lambda: bool(rig.client.sent))
        barred = rig.start(replace(rig.call("b"), barred=lambda: FORBIDDEN))
        await until(lambda: rig.room.count == 1)
        last = rig.start(rig.call("c"))
        await until(lambda: rig.room.count == 2)
        rig.client.open.set()
        answers = await asyncio.gather(first, barred, last)
        assert outcome(answers[1]) == ("rejected", 403, "forbidden")
        assert rig.client.targets == ["a", "c"]
        assert rig.store.asked["b"] == 1

    run(main())


@pytest.mark.parametrize("wait_s", [0, 0.01])
def test_whose_right_ended_is_not_told_that_it_waited_in_vain(wait_s: float) -> None:
    async def main() -> None:
        rig = Rig()
        rig.client.open.clear()
        first = rig.start(rig.call("a"))
        await until(lambda: bool(rig.client.sent))
        call = replace(rig.call("b", wait_s=wait_s), barred=lambda: FORBIDDEN)
        assert outcome(await rig.run(call)) == ("rejected", 403, "forbidden")
        rig.client.open.set()
        await first

    run(main())


@pytest.mark.parametrize("barred", [True, False])
def test_whose_right_ended_while_the_upstream_was_asked_hears_nothing_of_it(barred: bool) -> None:
    async def main() -> None:
        rig = Rig()
        rig.client.exchanges.append(NO_ANSWER)
        probed: dict[str, Any] = {"unknown": "probe", "probe_target": b"/x"}
        assert outcome(await rig.run(rig.call(**probed))) == ("unknown", 504, "outcome-unknown")

        async def ask(command: Command, judged: UUID) -> bool:
            assert rig.store.model.probed(command, judged, "applied", 0, 1) == "resolved"
            return True

        rig.store.ask = ask  # type: ignore[method-assign]
        call = replace(rig.call(**probed), barred=lambda: FORBIDDEN if barred else None)
        told = (403, "forbidden") if barred else (410, "response-not-retained")
        assert outcome(await rig.run(call)) == ("rejected", *told)

    run(main())


def test_a_caller_that_does_not_wait_hears_at_once() -> None:
    async def main() -> None:
        rig = Rig()
        rig.client.open.clear()
        first = rig.start(rig.call("a"))
        await until(lambda: bool(rig.client.sent))
        assert outcome(await rig.run(rig.call("b", wait_s=0))) == ("rejected", 409, "entity-busy")
        assert outcome(await rig.run(rig.call("a", wait_s=0))) == ("rejected", 409, "in-flight")
        rig.client.open.set()
        await first

    run(main())


def test_a_full_room_refuses_and_says_so() -> None:
    async def main() -> None:
        rig = Rig(limit=1)
        rig.client.open.clear()
        calls = [rig.start(rig.call("a")), rig.start(rig.call("a"))]
        await until(lambda: rig.room.count == 1)
        assert outcome(await rig.run(rig.call("a"))) == ("rejected", 503, "overloaded")
        rig.client.open.set()
        await asyncio.gather(*calls)

    run(main())


def test_who_is_refused_for_a_full_room_wakes_nobody() -> None:
    """The waiter would leave its place to admit again, and another could take it meanwhile."""

    async def main() -> None:
        rig = Rig(limit=1)
        rig.client.open.clear()
        first = rig.start(rig.call("a"))
        await until(lambda: bool(rig.client.sent))
        waiter = rig.start(rig.call("b"))
        await until(lambda: rig.room.count == 1)
        for _ in range(3):
            assert outcome(await rig.run(rig.call("c"))) == ("rejected", 503, "overloaded")
        for _ in range(100):  # turns enough for a waiter that was woken
            await asyncio.sleep(0)
        assert (rig.store.asked["b"], rig.room.count) == (1, 1)
        rig.client.open.set()
        answers = await asyncio.gather(first, waiter)
        assert [each.outcome for each in answers if each] == ["applied", "applied"]
        assert rig.client.targets == ["a", "b"]

    run(main())


def test_stopping_ends_every_wait_and_lets_what_is_in_flight_settle() -> None:
    async def main() -> None:
        rig = Rig()
        rig.client.open.clear()
        first = rig.start(rig.call("a"))
        await until(lambda: bool(rig.client.sent))
        waiter = rig.start(rig.call("b"))
        await until(lambda: rig.room.count == 1)
        rig.room.close()
        assert outcome(await waiter) == ("rejected", 409, "entity-busy")
        rig.client.open.set()
        assert outcome(await first) == ("applied", 200, None)

    run(main())


# The store's failures.


def test_without_a_store_nothing_is_sent() -> None:
    async def main() -> None:
        rig = Rig()

        async def down(_: object) -> list[object]:
            raise StoreUnavailable("the database is down")

        rig.store.admit = down  # type: ignore[method-assign]
        assert outcome(await rig.run(rig.call())) == ("rejected", 503, "store-unavailable")
        assert rig.client.sent == []

    run(main())


def test_an_attempt_that_is_given_up_is_released_in_case_its_lost_try_committed() -> None:
    async def main() -> None:
        rig = Rig()
        admit = rig.store.admit

        async def lost(commands: object) -> list[object]:
            await admit(commands)
            rig.clock.now += 10
            raise AnswerLost("reset")

        rig.store.admit = lost  # type: ignore[method-assign]
        assert outcome(await rig.run(rig.call())) == ("rejected", 503, "store-unavailable")
        rig.store.admit = admit  # type: ignore[method-assign]
        await until(lambda: not rig.store.model.rows)
        assert rig.client.sent == []
        await rig.background.cancel()

    run(main())


def test_what_a_lost_try_commits_behind_the_first_release_is_released_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        rig = Rig()
        admit, sleep = rig.store.admit, asyncio.sleep
        lost: list[Any] = []
        committed: list[Any] = []

        async def silent(commands: Any) -> list[object]:
            lost.append(commands)
            rig.clock.now += 10
            raise AnswerLost("reset")

        async def meanwhile(seconds: float) -> None:
            if seconds > 0:
                committed.append(await admit(lost[-1]))
            await sleep(0)

        rig.store.admit = silent  # type: ignore[method-assign]
        monkeypatch.setattr(asyncio, "sleep", meanwhile)
        assert outcome(await rig.run(rig.call())) == ("rejected", 503, "store-unavailable")
        await until(lambda: committed != [])
        await until(lambda: not rig.store.model.rows)
        assert rig.client.sent == []

    run(main())


def test_an_attempt_admitted_too_late_is_given_back_unsent() -> None:
    async def main() -> None:
        rig = Rig()
        admit, seen = rig.store.admit, []

        async def slow(commands: object) -> list[object]:
            if not seen:
                seen.append(await admit(commands))
                rig.store.model.advance(DEADLINE_MS)
            return await admit(commands)

        rig.store.admit = slow  # type: ignore[method-assign]
        assert outcome(await rig.run(rig.call())) == ("not-sent", 502, "not-sent")
        await until(lambda: not rig.store.model.rows)
        assert rig.client.sent == []

    run(main())
