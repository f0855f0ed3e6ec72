"""Jobs as a worker does them, judged by what reached the upstream and what became of the job."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.kit.faults import until
from tests.kit.gateway import rows
from tests.kit.operating import fencegate, move_clock
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
    ended = worker.events("tool_request_ended", step="open")[0]
    assert (ended["status"], ended["outcome"], ended["error"]) == (201, "applied", None)
    assert ended["external_request_id"] == started["external_request_id"]
    stages = {(each["stage"], each["entity"]) for each in worker.log if each.get("job") == job}
    assert stages == {(None, f"job:{job}"), ("charge", "account:a1")}
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


WITHOUT_ITS_RESPONSE = """
try:
    await job.http.post("/shop/v1/acts", step="a", json={}, timeout_s=3)
except Executed:
    return "it happened"
return "it was answered"
"""


def test_an_unknown_outcome_waits_for_its_decision_and_is_never_sent_again(made: Rig) -> None:
    made.upstream.next(cut())
    job = made.add(payload={})
    worker = made.worker(act(WITHOUT_ITS_RESPONSE))
    told = worker.wait_for("outcome_unknown", job=job)
    assert (told["level"], told["step"]) == ("warning", "a")
    assert "may have been executed" in told["why"]
    found = made.wait_for_state(job, "queued")
    assert (found["attempts"], [run["how"] for run in made.runs(job)]) == (0, ["handed-back"])
    for seconds in (50, 100, 150):  # each time it asks, and nobody has decided
        until(lambda: made.job(job)["state"] == "queued", "handed back")
        before = len(made.runs(job))
        move_clock(made.database, 2 * seconds)
        until(lambda n=before: len(made.runs(job)) > n, "one more claim")  # type: ignore[misc]
    assert made.upstream.count == 1
    key = f"tool-job:{job}:a"
    resolved = ("commands", "resolve", key, "--tenant", "default", "--executed")
    done = fencegate(*resolved, "--reason", "a test wants it", dsn=made.database)
    assert done.code == 0, done
    made.wait_for_state(job, "queued")
    move_clock(made.database, 1_000)
    found = made.wait_for_state(job, "succeeded", "failed")
    assert (found["result"], found["attempts"]) == ("it happened", 1), worker.said
    assert made.upstream.count == 1


def test_a_command_behind_an_unknown_one_waits_for_its_decision(shared: Rig) -> None:
    shared.upstream.next(cut())
    entity = f"account:{uuid4()}"
    first = shared.add(entity=entity)
    body = 'await job.http.post("/shop/v1/acts", step="a", json={}, timeout_s=3)'
    worker = shared.worker(act(body))
    worker.wait_for("outcome_unknown", job=first)
    second = shared.add(entity=entity)
    told = worker.wait_for("outcome_unknown", job=second)
    assert (told["step"], "entity-unresolved" in told["why"]) == ("a", True)
    found = shared.wait_for_state(second, "queued")
    assert found["attempts"] == 0


def test_a_final_refusal_of_the_upstream_is_not_asked_for_again(shared: Rig) -> None:
    shared.upstream.next(respond(402, b'{"reason": "no money"}', effect=False))
    body = """
answer = await job.http.post("/shop/v1/acts", step="a", json={}, timeout_s=3)
answer.raise_for_status()
"""
    job = shared.add()
    worker = shared.worker(act(body))
    found = shared.wait_for_state(job, "succeeded", "failed")
    assert (found["state"], found["attempts"]) == ("failed", 1)
    assert "the upstream's answer 402 is final for this key" in found["error"]
    assert shared.upstream.count == 1
    raised = worker.wait_for("handler_raised", job=job)
    assert (raised["level"], raised["error"]) == ("warning", "HTTPStatusError")
    assert "402 is final" in raised["why"]
    assert worker.wait_for("job_finished", job=job)["level"] == "warning"


@pytest.mark.parametrize("poison", ["repeat('1', 5000)", "repeat('[', 9000) || repeat(']', 9000)"])
def test_a_payload_that_cannot_be_read_fails_its_job_and_no_other(shared: Rig, poison: str) -> None:
    """As SQL may have stored it before there were bounds."""
    jobs = [shared.add(payload=n) for n in range(3)]
    rows(
        shared.database,
        f"update gateway.jobs set payload = convert_to({poison}, 'UTF8') "
        "where id = $1::text::uuid returning id",
        jobs[1],
    )
    worker = shared.worker(act("return job.payload"))
    told = worker.wait_for("payload_unreadable", job=jobs[1])
    for n in (0, 2):
        found = shared.wait_for_state(jobs[n], "succeeded", "failed")
        assert (found["result"], found["attempts"]) == (n, 1)
    until(lambda: shared.runs(jobs[1]), "the end of its lease")
    assert [run["how"] for run in shared.runs(jobs[1])] == ["failed"]  # and no other attempt
    stored = "select state::text, attempts from gateway.jobs where id = $1::text::uuid"
    assert not [row for row in rows(shared.database, stored, jobs[1]) if row["state"] == "running"]
    assert "the payload cannot be read here" in told["why"]
    assert worker.stop() == 0


LEFT_BEHIND = """
from gateway.worker import Worker, LeaseLost
import asyncio, sys, threading, time

worker = Worker()


def look(job, send):
    while True:
        try:
            job.check()
        except LeaseLost as error:
            break
        time.sleep(0.01)
    try:
        sent = send()
    except LeaseLost as error:
        print(f"left behind: {error.reason} {job.request_timeout_s}", file=sys.stderr, flush=True)


def send(job):
    return job.http.post("/shop/v1/late", step="late", json={})


async def look_async(job):
    loop = asyncio.get_running_loop()
    sent = lambda: asyncio.run_coroutine_threadsafe(send(job), loop).result()
    await asyncio.to_thread(look, job, sent)
"""

IN_A_TASK = f"""{LEFT_BEHIND}
tasks = []


@worker.tool("order")
async def handle(job):
    tasks.append(asyncio.create_task(look_async(job)))
    if job.payload == "raise":
        raise ValueError
    return 1
"""

IN_A_THREAD = f"""{LEFT_BEHIND}
@worker.tool("order")
def handle(job):
    threading.Thread(target=look, args=(job, lambda: send(job))).start()
    if job.payload == "raise":
        raise ValueError
    return 1
"""


@pytest.mark.parametrize("code", [IN_A_TASK, IN_A_THREAD])
@pytest.mark.parametrize("payload", ["return", "raise"])
def test_what_a_handler_leaves_behind_can_do_nothing_more(
    shared: Rig, code: str, payload: str
) -> None:
    job = shared.add(payload=payload)
    worker = shared.worker(code)
    shared.wait_for_state(job, "succeeded", "failed")
    until(lambda: "left behind" in worker.said, "the loss")
    assert "left behind: ended 0.0" in worker.said
    assert shared.upstream.count == 0
    assert not worker.events("tool_request_started")
    assert not worker.events("heartbeat_lost")


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
        ("import asyncio; await asyncio.gather(asyncio.to_thread(sys.exit, 3))", 3, "SystemExit"),
        ('raise RetryLater("later", "5")', 1, "seconds as a number"),
        ("return job.next(7)", 1, "a text as name"),
        ('await job.http.post("/shop/v1/acts", json={})', 1, "step="),
        ('await job.http.post("/nowhere/v1/acts", step="a", json={}, timeout_s=3)', 1, "no-policy"),
        (
            'await job.http.post("/shop/v1/acts", step="a", json={}, timeout_s=30)',
            1,
            "timeout_s=30 never fits into a lease: lease_s is 6",
        ),
    ],
)
def test_what_a_handler_does_decides_what_becomes_of_the_job(
    shared: Rig, body: str, attempts: int, told: str
) -> None:
    job = shared.add()
    worker = shared.worker(act(body, top="import sys"))
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
    shared.add(stage="elsewhere")
    worker.wait_for("no_handler", times=2)


def test_a_lease_shorter_than_the_usual_time_is_no_matter(shared: Rig) -> None:
    job = shared.add()
    shared.worker(act('await job.http.post("/shop/v1/acts", step="a", json={})'))
    found = shared.wait_for_state(job, "succeeded", "failed")
    assert (found["state"], found["attempts"]) == ("succeeded", 1)
