"""The suites of the boundary, the decisions and other people's clients again: with two gateway
processes on one database in place of one, and with what makes one fast turned off.

What is left out for two processes says why: a limit, a metric, a warning or a place in a line is
one process's own by design (docs/architecture.md, docs/limits.md), or the way in between is the
test's and not the gateway's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

SUITES = ("tests/e2e", "tests/cases", "tests/clients", "tests/relay")

OF_ONE_PROCESS: Mapping[str, tuple[str, ...]] = {
    "limits are counted for each process": (
        "tests/e2e/test_floods.py",
        "tests/e2e/test_waiting.py::test_attempts_over_the_limit_are_refused_before_any",
        "tests/e2e/test_waiting.py::test_waiters_over_the_limit_are_refused_and_the_others_go_on",
        "tests/e2e/test_outcomes.py::test_no_free_connection_to_the_upstream_is_not_sent",
        "tests/e2e/test_fences.py::test_who_asks_for_a_locked_entity_keeps_no_turn_from_others",
        "tests/clients/test_retries.py::test_a_gateway_at_its_limit_sends_once_it_can",
        "tests/cases/test_database.py::test_callers_that_go_at_any_moment_leave_the_pool_as_it_was",
    ),
    "each process reads the gateway keys every 5 s, and the test waits for one of them": (
        "tests/cases/test_cases.py::test_case[IDEM-11]",
        "tests/cases/test_cases.py::test_further[IDEM-11/",
        "tests/e2e/test_scopes.py::test_a_scope_that_is_withdrawn_while_the_body_comes",
        "tests/e2e/test_scopes.py::test_who_waits_",
        "tests/e2e/test_keys_over_http.py::test_a_key_that_is_revoked_while_its_body_comes",
    ),
    "a process warns of equal commands, and of vain queries, that it saw itself": (
        "tests/cases/test_cases.py::test_case[IDEM-12]",
        "tests/cases/test_cases.py::test_further[IDEM-12/",
        "tests/e2e/test_probe.py::test_a_query_that_proves_nothing_is_warned_of_once",
    ),
    "the test reads the metrics of whichever process answers": (
        "tests/e2e/test_jobs.py::test_a_late_end_is_rejected_audited_logged_and_counted",
        "tests/e2e/test_jobs.py::test_claims_and_leases_are_counted_by_closed_labels",
    ),
    "whoever waits at another process is woken by its own look, so their order is not kept": (
        "tests/e2e/test_decisions.py::test_commands_of_one_entity_go_in_the_order_in_which",
    ),
    "the policy names the port of the one gateway": (
        "tests/e2e/test_boundary.py::test_a_loop_gives_the_key_back",
        "tests/e2e/test_boundary.py::test_a_loop_through_somebody_else_is_unknown",
        "tests/e2e/test_boundary.py::test_a_policy_that_lists_the_status_goes_before_that",
        "tests/e2e/test_wire.py::test_a_gateway_pointed_at_itself_refuses_the_second_pass",
    ),
    "the splitter ends a connection otherwise than the gateway": (
        "tests/e2e/test_http1.py::test_a_body_that_breaks_off_does_not_end_like_a_whole_one",
        "tests/e2e/test_passage_bodies.py::test_an_early_answer_is_relayed_and_ends_the_sending",
        "tests/e2e/test_passage_bodies.py::test_a_body_is_asked_for_once_the_upstream_is_there",
    ),
}


def run(variables: Mapping[str, str], *more: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "loadscope"]
    done = subprocess.run(
        [*command, *SUITES, *more],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    print(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout[-20_000:]


def test_two_processes() -> None:
    left_out = [f"--deselect={each}" for several in OF_ONE_PROCESS.values() for each in several]
    run({"FENCEGATE_TEST_PROCESSES": "2"}, *left_out)


@pytest.mark.parametrize(
    "settings",
    ["FENCEGATE_BATCH_LIMIT=1 FENCEGATE_CACHE_MIB=0", "FENCEGATE_CACHE_MIB=0"],
    ids=["neither batches nor a cache", "no cache"],
)
def test_without_what_makes_it_fast(settings: str) -> None:
    run({"FENCEGATE_TEST_SETTINGS": settings})
