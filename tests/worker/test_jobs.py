"""Jobs as a worker does them, judged by what reached the upstream and what became of the job."""

from __future__ import annotations

import pytest

from tests.kit.upstream import cut, respond
from tests.worker.code import TWO_STAGES, act
from tests.worker.rig import Rig


def test_two_stages_run_one_after_the_other(shared: Rig) -> None:
    shared.upstream.script = lambda r: respond(201, b'{"case": 7, "charge": 8}')
    job = shared.add(payload={"customer": "c1", "account": "a1"})
    worker = shared.worker(TWO_STAGES)
    found = shared.wait_for_state(job, "succeeded", "failed")
    assert (found["state"], found["result"]) == ("succeeded", {"charge": 8}), worker.said
    assert shared.effects("cases") == [{"customer": "c1"}]
    assert shared.effects("charges") == [{"case": 7}]
    (case,) = [r for r in shared.upstream.effects if r.target == b"/v1/cases"]
    started = worker.events("tool_request_started", step="open")[0]
    assert case.one("X-Request-Id") == started["external_request_id"].encode()
    assert worker.stop() == 0


def test_a_hundred_jobs_are_done_once_each(shared: Rig) -> None:
    jobs = [shared.add(payload={"n": n}) for n in range(100)]
    body = 'await job.http.post("/shop/v1/acts", step="a", json=job.payload, timeout_s=4)'
    worker = shared.worker(act(body), "--concurrency", "20")
    for job in jobs:
        found = shared.wait_for_state(job, "succeeded", "failed")
        assert (found["state"], found["attempts"]) == ("succeeded", 1), worker.said[-3000:]
    assert sorted(each["n"] for each in shared.effects("acts")) == list(range(100))


def test_an_upstream_that_did_nothing_is_asked_again_within_the_attempt(shared: Rig) -> None:
    shared.upstream.next(respond(429, b"slow down", [("Retry-After", "0")], effect=False))
    job = shared.add(payload={})
    shared.worker(act('await job.http.post("/shop/v1/acts", step="a", json={}, timeout_s=3)'))
    found = shared.wait_for_state(job, "succeeded", "failed")
    assert (found["state"], found["attempts"]) == ("succeeded", 1)
    assert len(shared.effects("acts")) == 1


def test_an_unknown_outcome_fails_the_attempt_and_is_never_sent_again(shared: Rig) -> None:
    shared.upstream.next(cut())
    job = shared.add(payload={})
    worker = shared.worker(
        act('await job.http.post("/shop/v1/acts", step="a", json={}, timeout_s=3)')
    )
    found = shared.wait_for_state(job, "succeeded", "failed")
    assert (found["state"], found["attempts"]) == ("failed", 3)
    assert "OutcomeUnknown" in found["error"]
    assert shared.upstream.count == 1
    assert {e["error"] for e in worker.events("handler_raised")} == {"OutcomeUnknown"}


def test_a_response_that_is_not_kept_is_no_reason_to_try_again(shared: Rig) -> None:
    shared.upstream.next(respond(201, b"x" * (1 << 20) + b"x"))
    body = """
await job.http.post("/shop/v1/acts", step="a", json={}, timeout_s=3)
await job.http.post("/shop/v1/acts", step="a", json={}, timeout_s=3)
"""
    job = shared.add(payload={})
    shared.worker(act(body))
    found = shared.wait_for_state(job, "succeeded", "failed")
    assert (found["state"], found["attempts"]) == ("failed", 1)
    assert "Executed" in found["error"]
    assert len(shared.effects("acts")) == 1


@pytest.mark.parametrize(
    ("body", "attempts", "told"),
    [
        ('raise Unretryable("no such customer")', 1, "no such customer"),
        ('raise RetryLater("later", 0)', 3, "later"),
        ('raise KeyError("x")', 3, "KeyError"),
        ("import sys; sys.exit(3)", 3, "SystemExit"),
        ("return object()", 1, "type object is not JSON"),
        ('return float("nan")', 1, "is not JSON"),
        ('return "x" * 262144', 1, "keep it elsewhere"),
        ('return job.next("s", entity="é")', 1, "refuses the result"),
        ('await job.http.post("/shop/v1/acts", json={})', 3, "step="),
        ('await job.http.post("/nowhere/v1/acts", step="a", json={}, timeout_s=3)', 1, "no-policy"),
        (
            'await job.http.post("/shop/v1/acts", step="a", json={})',
            3,
            "OwnershipUnknown: the lease is trusted for",
        ),
    ],
)
def test_what_a_handler_does_decides_what_becomes_of_the_job(
    shared: Rig, body: str, attempts: int, told: str
) -> None:
    job = shared.add()
    worker = shared.worker(act(body))
    found = shared.wait_for_state(job, "succeeded", "failed")
    assert (found["state"], found["attempts"]) == ("failed", attempts), worker.said
    assert told in found["error"]
    assert shared.upstream.count == 0


def test_one_step_with_two_bodies_is_refused_before_it_is_sent(shared: Rig) -> None:
    body = """
for n in range(2):
    await job.http.post("/shop/v1/acts", step="a", json={"n": n}, timeout_s=3)
"""
    job = shared.add()
    shared.worker(act(body))
    found = shared.wait_for_state(job, "succeeded", "failed")
    assert "give each command of a job a step of its own" in found["error"]
    assert shared.effects("acts") == [{"n": 0}]


def test_a_stage_without_a_handler_is_left_to_another_worker(shared: Rig) -> None:
    job = shared.add(stage="elsewhere")
    worker = shared.worker(act("return 1"))
    worker.wait_for("no_handler", job=job, stage="elsewhere")
    found = shared.wait_for_state(job, "queued")
    assert found["attempts"] == 0
    assert [run["how"] for run in shared.runs(job)] == ["handed-back"]
