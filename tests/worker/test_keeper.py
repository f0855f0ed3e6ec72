"""The lease keeper against a server that answers what the test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.leases import LeaseClass
from gateway.worker.client import Client
from gateway.worker.errors import LeaseLost
from gateway.worker.keeper import Keeper
from tests.kit.faults import until
from tests.kit.upstream import Answer, Recorded, RecordingUpstream, respond
from tests.worker.standin import lease, problem, tended

QUICK = LeaseClass(lease_s=60, heartbeat_s=0.05, jitter_s=0, stage_limit_s=3_600)


class Gate:
    """Answers heartbeats: each job is renewed, unless it is in ``lost``."""

    def __init__(self, server: RecordingUpstream) -> None:
        self.server = server
        self.lost: dict[str, str] = {}
        self.instead: Callable[[], Answer] | None = None
        server.script = self._answer

    def _answer(self, request: Recorded) -> Answer:
        if self.instead is not None:
            return self.instead()
        asked = [each["job"] for each in request.json()["leases"]]
        return respond(200, json.dumps({"leases": [self._of(job) for job in asked]}).encode())

    def _of(self, job: str) -> dict[str, Any]:
        if job in self.lost:
            return {"job": job, "lost": self.lost[job]}
        return {"job": job, "remaining_ms": 60_000, "total_remaining_ms": 600_000}

    def beats(self, job: str) -> int:
        return sum(
            job in [each["job"] for each in request.json()["leases"]]
            for request in self.server.requests
        )


@pytest.fixture
def gate() -> Iterator[Gate]:
    with RecordingUpstream() as server:
        yield Gate(server)


@pytest.fixture
def keeper(gate: Gate) -> Iterator[Keeper]:
    made = Keeper(Client(gate.server.url, "fg_k"), "w")
    made.start()
    yield made
    made.stop()
    assert not made.alive


def test_one_heartbeat_is_for_all_leases(gate: Gate, keeper: Keeper) -> None:
    for number in range(20):
        tended(keeper, lease(f"j-{number}", terms=QUICK))
    until(lambda: gate.beats("j-19") >= 3, "three heartbeats")
    last = gate.server.requests[-1].json()
    assert last["worker"] == "w"
    assert sorted(each["job"] for each in last["leases"]) == sorted(f"j-{n}" for n in range(20))


def test_a_loss_is_told_once_and_not_beaten_for(gate: Gate, keeper: Keeper) -> None:
    kept, losses = tended(keeper, lease("j-1", terms=QUICK))
    tended(keeper, lease("j-2", terms=QUICK))
    gate.lost["j-1"] = "cancelled"
    until(lambda: losses == ["cancelled"], "the loss")
    beats = gate.beats("j-2")
    until(lambda: gate.beats("j-2") >= beats + 3, "more heartbeats")
    assert kept.lost == "cancelled"
    assert losses == ["cancelled"]
    assert gate.beats("j-1") <= gate.beats("j-2") - 3


def test_an_own_end_that_was_faster_is_no_loss(gate: Gate, keeper: Keeper) -> None:
    kept, losses = tended(keeper, lease("j-1", terms=QUICK))
    tended(keeper, lease("j-2", terms=QUICK))
    kept.ending = True
    gate.lost["j-1"] = "ended"
    until(lambda: not kept.kept, "the answer")
    beats = gate.beats("j-2")
    until(lambda: gate.beats("j-2") >= beats + 3, "more heartbeats")
    assert (kept.lost, losses) == (None, [])


def test_a_lease_whose_executor_is_gone_is_left_to_time(gate: Gate, keeper: Keeper) -> None:
    alive = [True]
    kept, losses = tended(keeper, lease("j-1", terms=QUICK), alive=lambda: alive[0])
    tended(keeper, lease("j-2", terms=QUICK))
    until(lambda: gate.beats("j-1") >= 2, "heartbeats")
    alive.clear()
    alive.append(False)
    until(lambda: gate.beats("j-1") < gate.beats("j-2") - 2, "heartbeats without it")
    assert losses == []
    with pytest.raises(LeaseLost):  # nobody would deliver its end
        kept.check()


@pytest.mark.parametrize(
    "instead",
    [
        lambda: respond(503, b"<html>down</html>"),
        lambda: respond(200, b'{"leases": []}'),
        lambda: respond(200, b'{"leases": [{"job": "j-1"}]}'),
        lambda: respond(200, b"not json"),
        lambda: problem("store-unavailable"),
        lambda: problem("unauthenticated"),
    ],
)
def test_what_confirms_nothing_is_no_answer(
    gate: Gate, keeper: Keeper, instead: Callable[[], Answer]
) -> None:
    gate.instead = instead
    kept, losses = tended(keeper, lease("j-1", terms=QUICK))
    before = kept.trust
    until(lambda: gate.server.count >= 3, "repeats")
    assert (kept.trust, losses) == (before, [])
    assert kept.missed
    gate.instead = None
    until(lambda: kept.trust != before, "a confirmation")
    assert not kept.missed


def test_a_heartbeat_can_be_asked_for(gate: Gate, keeper: Keeper) -> None:
    kept, _ = tended(keeper, lease("j-1", terms=replace(QUICK, heartbeat_s=3_600)))
    before = kept.trust.until_mono_s
    keeper.ask(kept).result(10)
    assert gate.server.count == 1
    assert kept.trust.until_mono_s > before


def test_a_job_that_comes_back_ends_the_lease_before(gate: Gate, keeper: Keeper) -> None:
    first, losses = tended(keeper, lease("j-1", terms=QUICK))
    second, others = tended(keeper, lease("j-1", fence=8, terms=QUICK))
    assert (first.lost, losses) == ("taken", ["taken"])
    keeper.drop(first)
    before = second.trust
    until(lambda: second.trust != before, "a confirmation")
    assert (second.lost, others) == (None, [])


def test_a_job_that_comes_back_before_the_answer_to_its_end_was_not_lost(
    gate: Gate, keeper: Keeper
) -> None:
    first, losses = tended(keeper, lease("j-1", terms=QUICK))
    first.close()
    second, _ = tended(keeper, lease("j-1", fence=8, terms=QUICK))
    before = second.trust
    until(lambda: second.trust != before, "a confirmation")
    assert (first.lost, losses, second.lost) == (None, [], None)


def test_what_was_dropped_is_not_beaten_for(gate: Gate, keeper: Keeper) -> None:
    kept, _ = tended(keeper, lease("j-1", terms=QUICK))
    tended(keeper, lease("j-2", terms=QUICK))
    until(lambda: gate.beats("j-1") >= 1, "a heartbeat")
    keeper.drop(kept)
    until(lambda: gate.beats("j-1") < gate.beats("j-2") - 2, "heartbeats without it")
    assert keeper.ages()[0] == 1
