"""The net itself is tested: each mutant makes the tests fail that are named here.

Beside every mutant stands what it was made from, under the same test: that one passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import Phase, settings

from gateway.core.model import Exchange, Stage
from gateway.proxy import execute
from gateway.proxy.execute import Executor
from tests.contract import test_command_store as contract
from tests.contract.subjects import Postgres
from tests.integration.test_store_model import STEPS, Bench, StoreMachine, run_machine
from tests.kit.commands import response
from tests.kit.db import Server
from tests.kit.invariants import (
    History,
    given_back_only_on_proof,
    nothing_stale_is_admitted,
    sends_follow_their_admission,
    violations,
)
from tests.mutants.mutants import (
    ReleasesUnknown,
    SendsFirst,
    classify_unknown_as_not_sent,
    drop_the_fence,
)
from tests.unit.core import test_settle as outcomes
from tests.unit.proxy import test_execute as executor
from tests.unit.proxy.rig import Rig, run

# Where one run must be like the last: the same examples, none shrunk, none remembered.
SAME_EVERY_TIME = settings(
    STEPS, max_examples=100, derandomize=True, database=None, phases=[Phase.generate]
)


# Drop the fence predicate.


@pytest.fixture(scope="module")
def sound(postgres: Server) -> Iterator[Bench]:
    with postgres.database() as dsn:
        bench = Bench(dsn)
        yield bench
        bench.close()


@pytest.fixture(scope="module")
def fenceless(postgres: Server) -> Iterator[Bench]:
    with postgres.database() as dsn:
        bench = Bench(dsn)
        bench.run(drop_the_fence(bench.watch))
        yield bench
        bench.close()


FENCE_TESTS: list[Callable[[contract.Caller], None]] = [
    contract.test_a_lower_fence_is_refused_with_evidence_and_an_equal_one_passes,
    contract.test_the_mark_stays_when_a_key_is_given_back,
]


@pytest.mark.parametrize("test", FENCE_TESTS, ids=lambda test: test.__name__)
def test_a_store_without_the_fence_fails_its_contract(
    sound: Bench, fenceless: Bench, test: Callable[[contract.Caller], None]
) -> None:
    test(contract.Caller(Postgres(sound)))
    with pytest.raises(AssertionError):
        test(contract.Caller(Postgres(fenceless)))


def test_a_store_without_the_fence_fails_the_state_machine(fenceless: Bench) -> None:
    bound = type("Bound", (StoreMachine,), {"bench": fenceless})
    with pytest.raises(AssertionError):
        run_machine(bound, settings=SAME_EVERY_TIME)


def _admit_in_turn(bench: Bench, *fences: int) -> History:
    """One command after the other on one entity, each given back; what the machine notes of it."""
    machine = type("Bound", (StoreMachine,), {"bench": bench})()
    caller = contract.Caller(Postgres(bench))
    for number, fence in enumerate(fences):
        made = caller.new(f"k{number}", fence=fence)
        (facts,) = caller.facts(made)
        machine.at += 1
        machine._note_admit(made, facts)
        caller.release(made)
    return machine.history


def test_a_store_without_the_fence_breaks_g2(sound: Bench, fenceless: Bench) -> None:
    assert nothing_stale_is_admitted(_admit_in_turn(sound, 5, 4, 5, 6)) == []
    (violation,) = nothing_stale_is_admitted(_admit_in_turn(fenceless, 5, 4, 5, 6))
    assert violation.startswith("G2: admitted fence 4 after 5")


# Release on unknown; send before the commit.


def _scenario(made_of: type[Executor]) -> History:
    """No answer to the first request, the same key again; then a newer worker, and a stale one."""

    async def main() -> History:
        rig = Rig(made_of)
        rig.client.exchanges += [
            Exchange(Stage.SENT, fault="timeout"),
            Exchange(Stage.BODY_COMPLETE, response(200)),
        ]
        await rig.run(rig.call("a", wait_s=0))
        await rig.run(rig.call("a", wait_s=0))
        await rig.run(rig.call("b", entity="invoice:2", fence=7, wait_s=0))
        await rig.run(rig.call("c", entity="invoice:2", fence=6, wait_s=0))
        return rig.history()

    return run(main())


def test_what_ships_keeps_every_guarantee() -> None:
    history = _scenario(Executor)
    assert violations(history) == []
    assert len(history.sends) == 2


def test_an_executor_that_releases_on_unknown_breaks_g1() -> None:
    history = _scenario(ReleasesUnknown)
    assert given_back_only_on_proof(history)
    assert [send.key for send in history.sends] == ["a", "a", "b"]


def test_a_classifier_that_releases_on_unknown_breaks_g1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "classify", classify_unknown_as_not_sent)
    assert given_back_only_on_proof(_scenario(Executor))


def test_a_classifier_that_releases_on_unknown_fails_the_table_of_outcomes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = outcomes.test_whatever_happens_after_it_without_a_status_is_unknown
    named(Stage.SENT, "timeout")
    monkeypatch.setattr(outcomes, "classify", classify_unknown_as_not_sent)
    with pytest.raises(AssertionError):
        named(Stage.SENT, "timeout")


def test_an_executor_that_releases_on_unknown_fails_its_own_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = executor.test_each_outcome_is_answered_and_decides_the_next_request_with_the_key
    unknown = ("unknown", 504, "outcome-unknown")
    named(executor.NO_ANSWER, unknown, unknown)
    monkeypatch.setattr(executor, "Rig", lambda: Rig(ReleasesUnknown))
    with pytest.raises(AssertionError):
        named(executor.NO_ANSWER, unknown, unknown)


def test_an_executor_that_sends_before_the_commit_breaks_g6_and_g1() -> None:
    history = _scenario(SendsFirst)
    unadmitted = sends_follow_their_admission(history)
    assert len(unadmitted) == len(history.sends) == 4
    assert any(violation.startswith("G1") for violation in violations(history))


def test_an_executor_that_sends_before_the_commit_fails_its_own_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = executor.test_without_a_store_nothing_is_sent
    named()
    monkeypatch.setattr(executor, "Rig", lambda: Rig(SendsFirst))
    with pytest.raises(AssertionError):
        named()
