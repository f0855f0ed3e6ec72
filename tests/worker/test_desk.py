"""Whole workers in front of a gateway that answers what the test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.faults import until
from tests.kit.upstream import Answer, Recorded, RecordingUpstream, hang, respond
from tests.worker.code import act
from tests.worker.rig import WorkerProcess
from tests.worker.standin import Desk, problem, raw_lease

Start = Callable[..., WorkerProcess]


@pytest.fixture
def desk() -> Iterator[Desk]:
    with RecordingUpstream() as server:
        yield Desk(server)


@pytest.fixture
def start(desk: Desk, tmp_path: Path) -> Iterator[Start]:
    made: list[WorkerProcess] = []

    def started(code: str, *arguments: str) -> WorkerProcess:
        made.append(WorkerProcess(tmp_path, desk.url, code, *arguments))
        return made[-1]

    yield started
    for each in made:
        each.close()


def test_an_end_waits_for_a_key_that_counts_again(desk: Desk, start: Start) -> None:
    answers = [problem("unauthenticated"), problem("unauthenticated")]
    desk.ends = lambda _: answers.pop() if answers else None
    desk.claims.append([raw_lease("j-1")])
    worker = start(act('return "precious"'))
    assert worker.wait_for("job_finished", job="j-1")["how"] == "completed"
    assert {each.body for each in desk.asked("end")} == {desk.asked("end")[0].body}
    assert len(desk.asked("end")) == 3
    assert not worker.events("end_refused")


@pytest.mark.parametrize("answer", [respond(503, b"{}"), respond(413, b"<html>too large</html>")])
def test_a_lease_is_not_renewed_for_ever_for_an_end_that_nobody_takes(
    desk: Desk, start: Start, answer: Answer
) -> None:
    desk.ends = lambda _: answer
    desk.claims += [[raw_lease("j-1", lease_s=1)], [raw_lease("j-2")]]
    worker = start(act("return 1"), "--concurrency", "1")
    left = worker.wait_for("left_to_time", job="j-1")
    assert (left["level"], left["how"]) == ("error", "completed")
    assert "is FENCEGATE_URL the gateway?" in left["why"] or "no reason is given" in left["why"]
    worker.wait_for("job_claimed", job="j-2")  # its slot is free
    assert worker.events("left_to_time", job="j-1") == [left]


def test_an_end_that_nobody_takes_does_not_keep_a_worker_that_is_to_stop(
    desk: Desk, start: Start
) -> None:
    desk.ends = lambda _: respond(503, b"{}")
    desk.claims.append([raw_lease("j-1", lease_s=3_600)])
    worker = start(act("return 1"), "--drain", "0")
    until(lambda: len(desk.asked("end")) >= 2, "an end that is repeated")
    assert worker.stop() == 0
    assert worker.events("left_to_time", job="j-1")


def test_a_refusal_that_goes_on_is_told_once(desk: Desk, start: Start) -> None:
    desk.claims.append([])
    desk.refused = problem("unauthenticated")
    worker = start(act("return 1"))
    until(lambda: len(desk.asked("claim")) >= 5, "claims")
    (told,) = worker.events("not_claimed")
    assert (told["level"], "FENCEGATE_KEY" in told["why"]) == ("error", True)
    assert worker.stop() == 0


QUICK_THEN_NOT = act("if job.id == 'j-2': await asyncio.Event().wait()", top="import asyncio")


def test_a_job_claimed_ahead_of_a_slow_one_is_handed_back_before_that_ends(
    desk: Desk, start: Start
) -> None:
    # Nothing is claimed ahead before a handler was seen; then as many as are quick.
    desk.claims += [[raw_lease("j-1")], [raw_lease("j-2"), raw_lease("j-3")]]
    worker = start(QUICK_THEN_NOT, "--concurrency", "1", "--drain", "0")
    until(lambda: "j-3" in desk.ended(), "the end of what did not begin")
    assert desk.ended()["j-3"] == {"lease": raw_lease("j-3")["lease"], "how": "handed-back"}
    assert "j-2" not in desk.ended()
    assert desk.asked("claim")[0].json()["limit"] == 1
    assert worker.stop() == 0


WINDOW = act("return job.request_timeout_s")


def test_a_lease_whose_window_is_nearly_over_is_confirmed_before_its_handler_begins(
    desk: Desk, start: Start
) -> None:
    desk.claims.append([raw_lease("j-1", remaining_ms=1)])
    start(WINDOW)
    until(lambda: "j-1" in desk.ended(), "an end")
    assert desk.ended()["j-1"]["result"] > 30
    assert desk.asked("heartbeat", "end")[0].target == b"/v1/jobs/heartbeat"


def test_a_lease_that_is_over_before_its_handler_begins_is_left(desk: Desk, start: Start) -> None:
    lost = json.dumps({"leases": [{"job": "j-1", "lost": "expired"}]}).encode()
    answers = [respond(503, b"{}"), respond(200, lost)]
    desk.beats = lambda _: answers.pop(0) if answers else None
    desk.claims += [[raw_lease("j-1", remaining_ms=1)], [raw_lease("j-2")]]
    worker = start(WINDOW, "--concurrency", "1")
    worker.wait_for("heartbeat_lost", job="j-1", reason="expired")
    worker.wait_for("job_finished", job="j-2")
    assert set(desk.ended()) == {"j-2"}


NO_THREAD = """
import threading
from gateway.worker import Worker

start = threading.Thread.start


def refuse(self):
    if self.name.startswith("job "):
        raise RuntimeError("can't start new thread")
    start(self)


threading.Thread.start = refuse
worker = Worker()


@worker.tool("order")
def handle(job):
    return 1
"""


def test_a_job_that_gets_no_thread_is_handed_back(desk: Desk, start: Start) -> None:
    desk.claims.append([raw_lease("j-1")])
    worker = start(NO_THREAD)
    until(lambda: "j-1" in desk.ended(), "an end")
    assert {**desk.ended()["j-1"], "lease": 0} == {"lease": 0, "how": "handed-back", "delay_s": 60}
    assert "can't start new thread" in worker.wait_for("executor_gone", job="j-1")["why"]


BREAKS = act(
    """
if job.id == "j-1":
    began.set()
    await asyncio.Event().wait()
await began.wait()
asyncio.get_running_loop()._selector.close()
await asyncio.Event().wait()
""",
    top="import asyncio\nbegan = asyncio.Event()",
)


def test_a_worker_whose_handlers_have_no_loop_any_more_ends_in_order(
    desk: Desk, start: Start
) -> None:
    desk.claims.append([raw_lease("j-1"), raw_lease("j-2")])
    worker = start(BREAKS, "--concurrency", "2")
    assert worker.ended() == 1
    assert {job: end["how"] for job, end in desk.ended().items()} == {
        "j-1": "handed-back",
        "j-2": "handed-back",
    }
    assert len(worker.events("executor_gone")) == 2
    assert "the event loop of the async handlers has ended" in worker.said
    assert worker.events("worker_stopped")


def test_the_drain_counts_from_the_signal_whatever_the_claim_does(desk: Desk, start: Start) -> None:
    desk.claims += [[raw_lease("j-1")], hang(), hang(), hang(), hang()]
    worker = start(act("import asyncio; await asyncio.sleep(60)"), "--drain", "0")
    worker.wait_for("job_claimed")
    until(lambda: len(desk.asked("claim")) == 2, "a claim on its way")
    assert worker.stop(10) == 0  # one answer is waited for 10 s
    assert desk.ended()["j-1"]["how"] == "handed-back"
    assert any("the last claim" in e.get("why", "") for e in worker.events("left_to_time"))


STUBBORN = act(
    """
import asyncio
while True:
    job.progress()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        pass
"""
)


def test_a_handler_that_does_not_let_itself_be_cancelled_ends_without_a_word(
    desk: Desk, start: Start
) -> None:
    def lost(request: Recorded) -> Answer:
        jobs = [{"job": each["job"], "lost": "taken"} for each in request.json()["leases"]]
        return respond(200, json.dumps({"leases": jobs}).encode())

    desk.claims.append([{**raw_lease("j-1"), "terms": QUICK}])
    worker = start(STUBBORN, "--drain", "0")
    worker.wait_for("heartbeat_ok", job="j-1")
    desk.beats = lost
    worker.wait_for("heartbeat_lost", job="j-1")
    assert worker.stop() == 0
    assert "destroyed" not in worker.said
    assert "Traceback" not in worker.said


QUICK = {"lease_s": 60, "heartbeat_s": 0.1, "jitter_s": 0, "misses": 3, "stage_limit_s": 600}
