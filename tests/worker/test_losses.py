"""A worker that loses its lease, or cannot know whether it has it."""

from __future__ import annotations

import pytest

from tests.kit.answers import Answer, Gate
from tests.kit.cutting import CuttingProxy
from tests.kit.faults import until
from tests.kit.upstream import Recorded, gated, respond
from tests.worker.code import HOLD_THEN_ACT, HOLD_THEN_ACT_IN_A_THREAD, RETURN, TWO_STAGES, act
from tests.worker.rig import Rig


class Holds:
    """The upstream: the first ``hold`` waits for its gate, everything else is answered at once."""

    def __init__(self, rig: Rig, *held: str, times: int = 1) -> None:
        self.gate = Gate()
        self._held = {f"/v1/{each}".encode(): times for each in held or ("hold",)}
        rig.upstream.script = self.answer

    def answer(self, request: Recorded) -> Answer:
        answer = respond(200, b'{"case": 7, "charge": 8}')
        if self._held.get(request.target, 0) > 0:
            self._held[request.target] -= 1
            return gated(self.gate, answer)
        return answer


def asked(rig: Rig, what: str, count: int = 1) -> None:
    """Until the upstream has been asked for it so often."""
    target = f"/v1/{what}".encode()
    until(
        lambda: sum(r.target == target for r in rig.upstream.requests) >= count,
        f"{count} times {what}",
    )


ALONE = ("--concurrency", "1")
"""While it is at a job it claims no other, so it cannot take its own over."""


@pytest.mark.parametrize("held", ["hold", "held"])
def test_a_crash_within_a_stage_makes_one_case_and_one_charge(made: Rig, held: str) -> None:
    Holds(made, held)
    job = made.add(payload={"customer": "c1", "account": "a1"})
    first = made.worker(TWO_STAGES)
    asked(made, held)
    first.kill()
    made.leases_end()
    made.worker(TWO_STAGES)
    found = made.wait_for_state(job, "succeeded", "failed")
    assert (found["state"], found["result"]) == ("succeeded", {"charge": 8})
    assert made.effects("cases") == [{"customer": "c1"}]
    assert made.effects("charges") == [{"case": 7}]
    assert [run["how"] for run in made.runs(job)].count("expired") == 1


@pytest.mark.parametrize("code", [HOLD_THEN_ACT, HOLD_THEN_ACT_IN_A_THREAD])
def test_a_worker_that_was_stopped_past_its_lease_does_nothing_more(made: Rig, code: str) -> None:
    holds = Holds(made)
    job = made.add(payload={"n": 1})
    first = made.worker(code)
    asked(made, "hold")
    first.pause()
    made.leases_end()
    second = made.worker(code)
    done = made.wait_for_state(job, "succeeded", "failed")
    assert done["state"] == "succeeded"
    holds.gate.release()
    first.go_on()
    lost = first.wait_for("heartbeat_lost", job=job)
    assert lost["reason"] in ("taken", "ended", "expired")
    assert lost["fence"] < second.events("job_claimed")[0]["fence"]
    assert first.stop() == 0
    assert made.effects("acts") == [{"n": 1}]
    assert made.job(job)["result"] == done["result"]
    assert not first.events("job_finished")


def test_the_gateway_refuses_what_a_zombie_sends_inside_its_own_window(made: Rig) -> None:
    """The database's clock stepped: the worker trusts its lease, and the fence is what protects."""
    holds = Holds(made)
    job = made.add(payload={"n": 1})
    with CuttingProxy(made.gateway.url) as proxy:
        first = made.worker(HOLD_THEN_ACT, *ALONE, url=proxy.url)
        asked(made, "hold")
        # Before the first one's window begins to end: a process takes its time to start.
        made.worker(HOLD_THEN_ACT).wait_for("worker_started")
        proxy.mute("POST /v1/jobs/heartbeat")
        made.leases_end()
        made.wait_for_state(job, "succeeded")
        holds.gate.release()
        lost = first.wait_for("heartbeat_lost", job=job, reason="taken")
        assert lost["lease_ms_left"] > 0
        assert first.events("tool_request_started", step="act")
    (refused,) = made.audit("fence_stale")
    assert refused["fence"] == lost["fence"] < refused["high_water_mark"]
    assert made.effects("acts") == [{"n": 1}]


def test_a_result_that_comes_too_late_is_sent_once_as_evidence(made: Rig) -> None:
    holds = Holds(made)
    job = made.add()
    first = made.worker(RETURN, *ALONE)
    asked(made, "hold")
    made.leases_end()
    first.wait_for("heartbeat_lost", job=job)
    made.worker(RETURN)
    made.wait_for_state(job, "succeeded")
    holds.gate.release()
    rejected = first.wait_for("result_rejected", job=job)
    assert rejected["reason"] in ("taken", "ended", "expired")
    assert first.stop() == 0
    assert len(made.audit("result_rejected")) == 1
    assert [run["how"] for run in made.runs(job)] == ["expired", "completed"]


def test_cancelling_a_job_cancels_its_handler(made: Rig) -> None:
    Holds(made)
    job = made.add()
    worker = made.worker(HOLD_THEN_ACT)
    asked(made, "hold")
    made.cancel(job)
    worker.wait_for("heartbeat_lost", job=job, reason="cancelled")
    worker.wait_for("handler_raised", job=job, error="CancelledError")
    assert worker.stop() == 0
    assert made.effects("acts") == []
    assert made.job(job)["state"] == "cancelled"


BLOCKING = act(
    """
httpx.get(job.payload, timeout=60)
await job.http.post("/shop/v1/acts", step="act", json={}, timeout_s=3)
""",
    tool="brief",
    top="import httpx",
)


def test_a_blocked_event_loop_loses_its_lease_by_the_stage_limit(made: Rig) -> None:
    holds = Holds(made)
    job = made.add("brief", payload=f"{made.upstream.url}/v1/hold")
    first = made.worker(BLOCKING)
    asked(made, "hold")
    first.wait_for("heartbeat_lost", job=job, reason="stage-limit")
    assert first.wait_for("handlers_blocked")  # and claims nothing more
    beats = len(first.events("heartbeat_ok", job=job))
    assert beats > 0
    made.leases_end()
    made.worker(BLOCKING)
    assert made.wait_for_state(job, "succeeded", "failed")["state"] == "succeeded"
    holds.gate.release()
    first.wait_for("handler_raised", job=job)
    assert first.stop() == 0
    assert len(made.effects("acts")) == 1
    assert len(first.events("heartbeat_ok", job=job)) == beats


def test_signs_of_life_keep_a_lease_past_the_stage_limit(made: Rig) -> None:
    holds = Holds(made)
    body = """
async def hold():
    async with httpx.AsyncClient(timeout=60) as client:
        await client.get(job.payload)
held = asyncio.ensure_future(hold())
while not held.done():
    job.progress()
    await asyncio.wait([held], timeout=0.1)
return "done"
"""
    job = made.add("brief", payload=f"{made.upstream.url}/v1/hold")
    worker = made.worker(act(body, tool="brief", top="import asyncio, httpx"))
    # Four beats of at least 0.4 s: longer than the limit of 1 s.
    worker.wait_for("heartbeat_ok", count=4, job=job)
    holds.gate.release()
    assert made.wait_for_state(job, "succeeded", "failed")["state"] == "succeeded"


def test_ownership_is_unknown_while_nobody_answers_and_known_again_after(made: Rig) -> None:
    """Heartbeats arrive and their answers do not: the lease goes on, and the worker cannot know."""
    holds = Holds(made, times=2)
    body = """
await job.http.get("/shop/v1/hold", timeout_s=60)
try:
    await job.http.post("/shop/v1/acts", step="act", json={}, timeout_s=3)
except OwnershipUnknown as error:
    refused = str(error)
await job.http.get("/shop/v1/hold", timeout_s=60)
await job.http.post("/shop/v1/acts", step="act", json={}, timeout_s=3)
return refused
"""
    job = made.add()
    with CuttingProxy(made.gateway.url) as proxy:
        worker = made.worker(act(body), url=proxy.url)
        asked(made, "hold")
        proxy.mute("POST /v1/jobs/heartbeat")
        worker.wait_for("heartbeat_lost", job=job, reason="no-answer")
        worker.wait_for("ownership_unknown", job=job)
        holds.gate.step()
        asked(made, "hold", 2)
        assert made.effects("acts") == []
        confirmed = len(worker.events("heartbeat_ok", job=job))
        proxy.unmute()
        worker.wait_for("heartbeat_ok", count=confirmed + 1, job=job)
        holds.gate.step()
        found = made.wait_for_state(job, "succeeded", "failed")
    assert (found["state"], found["attempts"]) == ("succeeded", 1), worker.said
    assert "nobody has confirmed the lease" in found["result"]
    assert len(made.effects("acts")) == 1
    assert len(worker.events("ownership_unknown", job=job)) == 1


def test_a_cut_network_is_a_loss_once_it_is_back(made: Rig) -> None:
    holds = Holds(made)
    job = made.add(payload={"n": 1})
    with CuttingProxy(made.gateway.url) as proxy:
        first = made.worker(HOLD_THEN_ACT, url=proxy.url)
        asked(made, "hold")
        proxy.silence()
        first.wait_for("ownership_unknown", job=job)
        made.worker(HOLD_THEN_ACT)
        made.wait_for_state(job, "succeeded")
        proxy.speak()  # the tool's answer is still held, so the heartbeat's comes first
        first.wait_for("handler_raised", job=job, error="CancelledError")
        holds.gate.release()
        assert first.stop() == 0
    (lost,) = [e for e in first.events("heartbeat_lost") if e["reason"] != "no-answer"]
    assert lost["reason"] in ("expired", "taken")
    assert made.effects("acts") == [{"n": 1}]
