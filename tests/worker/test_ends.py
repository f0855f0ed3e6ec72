"""Ends that go together, and what becomes of those that nobody takes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from gateway.worker.client import Client
from gateway.worker.endings import Completed, body_of
from gateway.worker.errors import NoAnswer, Refused
from gateway.worker.sending import Ends
from gateway.worker.wire import Ended
from tests.kit.upstream import Answer, Recorded, RecordingUpstream, respond
from tests.worker.standin import Desk, problem, raw_lease


@pytest.fixture
def desk() -> Iterator[Desk]:
    with RecordingUpstream() as server:
        yield Desk(server)


def sent(desk: Desk) -> list[list[str]]:
    """The jobs of each request."""
    return [[end["lease"]["job"] for end in r.json()["ends"]] for r in desk.asked("end")]


async def send(ends: Ends, job: str, *, result: str = "1", alone: bool = False) -> Ended:
    end = body_of(raw_lease(job)["lease"], Completed(result))
    return await ends.send(job, end, alone=alone, within_s=30)


def play(desk: Desk, work: Callable[[Ends], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with Client(desk.url, "fg_k") as client:
            ends = Ends(client, "w")
            try:
                return await work(ends)
            finally:
                await ends.close()

    return asyncio.run(run())


def test_one_alone_waits_for_nobody(desk: Desk) -> None:
    assert play(desk, lambda ends: send(ends, "j-1")) == Ended("succeeded")
    assert sent(desk) == [["j-1"]]


def test_those_that_come_together_go_together_and_each_hears_its_own(desk: Desk) -> None:
    def mixed(request: Recorded) -> Answer:
        jobs = [end["lease"]["job"] for end in request.json()["ends"]]
        told = [{"job": j, "rejected": "taken"} for j in jobs[:1]]
        told += [{"job": j, "state": "succeeded", "again": False} for j in jobs[1:]]
        return respond(200, json.dumps({"ends": told}).encode())

    desk.ends = mixed

    async def work(ends: Ends) -> list[Ended]:
        return await asyncio.gather(*(send(ends, f"j-{n}") for n in range(250)))

    answers = play(desk, work)
    assert [len(each) for each in sent(desk)] == [100, 100, 50]
    firsts = {each[0] for each in sent(desk)}
    for number, answer in enumerate(answers):
        expected = Ended(None, rejected="taken") if f"j-{number}" in firsts else Ended("succeeded")
        assert answer == expected


def test_large_results_share_no_request(desk: Desk) -> None:
    large = json.dumps("x" * 250_000)

    async def work(ends: Ends) -> None:
        await asyncio.gather(*(send(ends, f"j-{n}", result=large) for n in range(10)))

    play(desk, work)
    assert all(len(each.body) < 2_200_000 for each in desk.asked("end"))
    assert sorted(job for each in sent(desk) for job in each) == [f"j-{n}" for n in range(10)]


def test_a_refusal_is_heard_by_the_one_that_it_is_about(desk: Desk) -> None:
    desk.ends = lambda r: problem("request-invalid") if b'"j-1"' in r.body else None

    async def work(ends: Ends) -> list[Ended | BaseException]:
        sends = (send(ends, f"j-{n}") for n in range(3))
        return await asyncio.gather(*sends, return_exceptions=True)

    first, second, third = play(desk, work)
    assert (first, third) == (Ended("succeeded"), Ended("succeeded"))
    assert isinstance(second, Refused)
    assert sent(desk)[0] == ["j-0", "j-1", "j-2"]


def test_without_an_answer_each_hears_that_and_may_go_alone(desk: Desk) -> None:
    answers = [respond(503, b"{}")]
    desk.ends = lambda _: answers.pop() if answers else None

    async def work(ends: Ends) -> list[Ended]:
        sends = (send(ends, f"j-{n}") for n in range(3))
        failed = await asyncio.gather(*sends, return_exceptions=True)
        assert all(isinstance(each, NoAnswer) for each in failed)
        return await asyncio.gather(*(send(ends, f"j-{n}", alone=True) for n in range(3)))

    assert play(desk, work) == [Ended("succeeded")] * 3
    assert sorted(map(len, sent(desk))) == [1, 1, 1, 3]
