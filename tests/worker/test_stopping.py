"""A worker that stops, and gateways that do."""

from __future__ import annotations

import signal

import pytest

from tests.kit.cutting import CuttingProxy
from tests.kit.faults import until
from tests.worker.code import HOLD_THEN_ACT, HOLD_THEN_ACT_IN_A_THREAD, act
from tests.worker.rig import Rig
from tests.worker.test_losses import Holds, asked

BOTH = pytest.mark.parametrize("code", [HOLD_THEN_ACT, HOLD_THEN_ACT_IN_A_THREAD])


@BOTH
def test_a_handler_may_end_while_the_worker_stops(shared: Rig, code: str) -> None:
    holds = Holds(shared)
    job, later = shared.add(payload={"n": 1}), shared.add(payload={"n": 2}, priority=9)
    worker = shared.worker(code, "--concurrency", "1")
    asked(shared, "hold")
    worker.process.terminate()
    worker.wait_for("stopping")
    beats = len(worker.events("heartbeat_ok"))
    worker.wait_for("heartbeat_ok", count=beats + 1, job=job)
    holds.gate.release()
    assert worker.ended() == 0
    assert shared.job(job)["state"] == "succeeded"
    assert shared.job(later)["state"] == "queued"
    assert shared.effects("acts") == [{"n": 1}]


def test_what_is_not_done_is_handed_back_and_does_not_count(shared: Rig) -> None:
    Holds(shared)
    job = shared.add(payload={"n": 1})
    first = shared.worker(HOLD_THEN_ACT, "--drain", "0")
    asked(shared, "hold")
    assert first.stop() == 0
    found = shared.job(job)
    assert (found["state"], found["attempts"]) == ("queued", 0)
    assert [run["how"] for run in shared.runs(job)] == ["handed-back"]
    shared.worker(HOLD_THEN_ACT)
    found = shared.wait_for_state(job, "succeeded", "failed")
    assert (found["state"], found["attempts"]) == ("succeeded", 1)
    assert shared.effects("acts") == [{"n": 1}]


GOES_ON = """
from gateway.worker import Worker, LeaseLost
import asyncio, sys, time

worker = Worker()


def go_on(job):
    print("goes on", file=sys.stderr, flush=True)
    try:
        while True:
            job.check()
            time.sleep(0.01)
    except LeaseLost as error:
        print(f"goes on: {error.reason}", file=sys.stderr, flush=True)


@worker.tool("order")
async def handle(job):
    await asyncio.to_thread(go_on, job)
"""


def test_a_thread_of_a_job_that_was_handed_back_may_do_nothing_more(shared: Rig) -> None:
    job = shared.add()
    worker = shared.worker(GOES_ON, "--drain", "0")
    until(lambda: "goes on" in worker.said, "the thread")
    assert worker.stop() == 0  # it waits for the thread, which hears of it
    assert "goes on: ended" in worker.said
    assert shared.job(job)["attempts"] == 0


def test_a_thread_that_goes_on_past_the_drain_is_beaten_for_until_it_is_out(shared: Rig) -> None:
    holds = Holds(shared)
    job = shared.add(payload={"n": 1})
    worker = shared.worker(HOLD_THEN_ACT_IN_A_THREAD, "--drain", "0")
    asked(shared, "hold")
    worker.process.terminate()
    worker.wait_for("stopping")
    beats = len(worker.events("heartbeat_ok"))
    worker.wait_for("heartbeat_ok", count=beats + 2, job=job)
    holds.gate.release()
    assert worker.ended() == 0
    assert shared.job(job)["state"] == "succeeded"


def test_a_second_signal_ends_it_at_once_and_the_lease_by_time(made: Rig) -> None:
    Holds(made)
    job = made.add(payload={"n": 1})
    worker = made.worker(HOLD_THEN_ACT)
    asked(made, "hold")
    worker.process.send_signal(signal.SIGINT)
    worker.wait_for("stopping")
    worker.process.send_signal(signal.SIGINT)
    assert worker.ended() == 128 + signal.SIGINT
    assert made.job(job)["state"] == "running"
    made.leases_end()
    made.wait_for_state(job, "queued")


def test_a_handler_sees_that_the_worker_stops(shared: Rig) -> None:
    body = """
import asyncio
job.progress()
await job.http.get("/shop/v1/hold", timeout_s=60)
while not job.stopping:
    await asyncio.sleep(0.01)
return "stopped early"
"""
    job = shared.add()
    worker = shared.worker(act(body))
    asked(shared, "hold")
    assert worker.stop() == 0
    assert shared.job(job)["result"] == "stopped early"


def test_a_claim_whose_answer_is_lost_returns_the_same_lease(shared: Rig) -> None:
    job = shared.add(payload={"n": 1})
    with CuttingProxy(shared.gateway.url) as proxy:
        dropped = proxy.drop_answer("POST /v1/jobs/claim")
        worker = shared.worker(HOLD_THEN_ACT, url=proxy.url)
        dropped.wait()
        found = shared.wait_for_state(job, "succeeded", "failed")
    assert (found["state"], found["attempts"]) == ("succeeded", 1)
    assert len(shared.runs(job)) == 1
    assert len(worker.events("job_claimed")) == 1


def test_an_end_whose_answer_is_lost_is_sent_again_and_recorded_once(shared: Rig) -> None:
    job = shared.add(payload={"n": 1})
    with CuttingProxy(shared.gateway.url) as proxy:
        dropped = proxy.drop_answer("POST /v1/jobs/end")
        worker = shared.worker(HOLD_THEN_ACT, url=proxy.url)
        dropped.wait()
        finished = worker.wait_for("job_finished", job=job)
    assert (finished["how"], finished["again"]) == ("completed", True)
    assert len(shared.runs(job)) == 1
    assert not worker.events("result_rejected")


def test_a_command_whose_answer_is_lost_is_asked_for_again(shared: Rig) -> None:
    job = shared.add(payload={"n": 1})
    with CuttingProxy(shared.gateway.url) as proxy:
        dropped = proxy.drop_answer("POST /shop/v1/acts")
        worker = shared.worker(HOLD_THEN_ACT, url=proxy.url)
        dropped.wait()
        found = shared.wait_for_state(job, "succeeded", "failed")
    assert (found["state"], found["attempts"]) == ("succeeded", 1), worker.said
    assert shared.effects("acts") == [{"n": 1}]
    assert len(worker.events("tool_request_started", step="act")) == 2


def test_a_gateway_that_restarts_costs_no_attempt(shared: Rig) -> None:
    holds = Holds(shared, times=100)
    job = shared.add(payload={"n": 1})
    with CuttingProxy(shared.gateway.url) as proxy:
        worker = shared.worker(HOLD_THEN_ACT, url=proxy.url)
        asked(shared, "hold")
        proxy.refuse()
        worker.wait_for("heartbeat_lost", job=job, reason="no-answer")
        proxy.accept()
        beats = len(worker.events("heartbeat_ok"))
        worker.wait_for("heartbeat_ok", count=beats + 1, job=job)
        holds.gate.release()
        found = shared.wait_for_state(job, "succeeded", "failed")
    assert (found["state"], found["attempts"]) == ("succeeded", 1), worker.said
    assert shared.effects("acts") == [{"n": 1}]


def test_an_end_waits_for_a_gateway_that_is_away(shared: Rig) -> None:
    body = """
import httpx
await job.http.get("/shop/v1/hold", timeout_s=60)
async with httpx.AsyncClient(timeout=60) as client:
    await client.get(job.payload)
return 1
"""
    job = shared.add(payload=f"{shared.upstream.url}/v1/direct")
    with CuttingProxy(shared.gateway.url) as proxy:
        holds_direct = Holds(shared, "direct")
        worker = shared.worker(act(body), url=proxy.url)
        asked(shared, "direct")
        proxy.refuse()
        holds_direct.gate.release()
        worker.wait_for("heartbeat_lost", job=job, reason="no-answer")
        proxy.accept()
        finished = worker.wait_for("job_finished", job=job)
    assert finished["how"] == "completed"
    assert shared.job(job)["state"] == "succeeded"
