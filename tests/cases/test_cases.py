"""The case book: public bug reports of other systems, as tests named by their id."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cases.book import BOOK, FURTHER
from tests.cases.conftest import TOOLS, world_of
from tests.cases.crew import Crew
from tests.cases.driver import Case, World, run
from tests.kit.db import Server, execute
from tests.kit.faults import terminate_backends, until, wait_for_lock_waits
from tests.kit.gateway import gateway, policy, rows
from tests.kit.jobs import MANUAL_CLOCK
from tests.kit.operating import fencegate


def ids(case: Case) -> str:
    return str(case["id"])


@pytest.mark.parametrize("case", BOOK, ids=ids)
def test_case(case: Case, request: pytest.FixtureRequest) -> None:
    run(case, request.getfixturevalue(world_of(case)))


@pytest.mark.parametrize("case", FURTHER, ids=ids)
def test_further(case: Case, request: pytest.FixtureRequest) -> None:
    run(case, request.getfixturevalue(world_of(case)))


def test_every_case_has_further_inputs_of_its_kind() -> None:
    book, further = {ids(case) for case in BOOK}, [ids(case).split("/")[0] for case in FURTHER]
    kinds = {ids(case): case["kind"] for case in BOOK}
    assert set(further) <= book
    for kind in kinds.values():
        assert sum(kinds[of] == kind for of in further) >= 3, kind
    assert len(set(map(ids, FURTHER))) == len(FURTHER)


@pytest.mark.parametrize(
    "field",
    ["", 'entity = ""', 'entity = "a:{path.other}"', 'entity = "{body./x"'],
)
def test_a_fenced_policy_without_an_entity_is_refused_when_it_is_loaded(
    tmp_path: Path, field: str
) -> None:
    """FENCE-10: fence on a route with no entity rule."""
    text = 'name = "p"\nmount = "/p"\nupstream = "http://127.0.0.1:1"\n'
    text += f'[[commands]]\nname = "c"\nmatch = "POST /v1/unscoped/ping"\n{field}\n'
    (tmp_path / "p.toml").write_text(text)
    done = fencegate("check", "--policies", str(tmp_path))
    assert done.code == 1
    assert "entity" in done.err


@pytest.mark.parametrize("with_its_host", [False, True])
def test_a_reaper_that_dies_in_the_middle_holds_up_nobody(
    postgres: Server, with_its_host: bool
) -> None:
    """LEASE-10: ``kill -9`` while its statement waits for a row. The statement goes on without it,
    or is gone with its host; whatever became of that, another gateway finds the rest."""
    with postgres.database() as dsn:
        execute(dsn, MANUAL_CLOCK)
        crew = Crew(dsn, tenant=1)
        crew.step({"enqueue": {"job": "J1", "entity": "e"}})
        crew.step({"enqueue": {"job": "J2", "entity": "e"}})
        crew.step({"worker": "W1", "do": "claim", "lease_s": 60, "label": "c1"})
        crew.step({"worker": "W2", "do": "claim", "label": "c2"})  # sets J2 behind J1's lease
        behind = "select from gateway.jobs where state = 'behind-entity' for update"
        with (
            gateway(dsn, policy("http://127.0.0.1:9"), tools=TOOLS) as reaper,
            crew.locked(behind),
        ):
            crew.step({"sql": "select", "at_s": 61})
            wait_for_lock_waits(dsn, 1, "reap_leases")
            reaper.kill()
            if with_its_host:
                assert terminate_backends(dsn, "reap_leases") >= 1
        with gateway(dsn, policy("http://127.0.0.1:9"), tools=TOOLS):
            until(lambda: not rows(dsn, "select from gateway.job_leases"), "the lease is reaped")
            until(lambda: crew.state("J1") == "queued", "the job is queued again")
        crew.step({"worker": "W2", "do": "claim", "label": "c3", "jobs": 1})
        crew.step({"worker": "W1", "do": "complete", "of": "c1", "label": "e1"})
    first = crew.answers["c1"].split()[1]
    assert crew.answers["c2"] == "none"
    assert crew.answers["c3"] == f"J1 {int(first) + 2}"
    assert crew.answers["e1"] == "rejected: taken"


def test_a_night_that_has_an_hour_less_is_no_shorter(paris: World) -> None:
    """TIME-03: while the database's time zone changes its clocks; all times are shown in UTC."""
    dsn = paris.stack.database
    execute(dsn, "update gateway.manual_clock set at = '2026-03-29 00:59:30Z'")
    crew = Crew(dsn, tenant=1, env=paris.env)
    crew.step({"enqueue": {"job": "J1"}})
    crew.step({"worker": "W1", "do": "claim", "lease_s": 90, "label": "c1"})
    crew.step({"worker": "W2", "do": "claim", "at_s": 45, "clock_s": 0, "label": "c2"})
    crew.step({"worker": "W1", "do": "heartbeat", "at_s": 60, "clock_s": 0, "label": "h1"})
    crew.step({"reap": True, "at_s": 150})
    crew.step({"worker": "W2", "do": "claim", "clock_s": 0, "label": "c3"})
    assert [crew.answers[label] for label in ("c2", "h1")] == ["none", "held 90000"]
    assert crew.answers["c3"].startswith("J1 ")
    shown = fencegate(
        "jobs", "show", str(crew.jobs["J1"]), "--format", "json", dsn=dsn, env=dict(paris.env)
    )
    story = json.loads(shown.out)
    assert story["created_at"] == "2026-03-29T00:59:30.000Z"
    (run,) = story["leases"]
    assert (run["granted_at"], run["ended_at"]) == (
        "2026-03-29T00:59:30.000Z",
        "2026-03-29T01:02:00.000Z",
    )
