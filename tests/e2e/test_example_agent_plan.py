"""``examples/agent_plan``: a model's plan becomes jobs, and nothing more than jobs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.resources import examples_dir, policies_dir
from tests.kit.db import Server
from tests.kit.gateway import Stack, rows, stack
from tests.kit.operating import ROOT, Done, fencegate
from tests.kit.upstream import Recorded, respond

EXAMPLE = examples_dir() / "agent_plan"
PLAN = json.loads((EXAMPLE / "plan.json").read_text())

TOOLS = """
[[tools]]
name = "plan_charge"
max_running_per_user = 1
[[tools]]
name = "plan_case"
"""


def _legacy(url: str) -> list[str]:
    text = (policies_dir() / "legacy.toml").read_text()
    return [text.replace("http://127.0.0.1:9001", url)]


@pytest.fixture
def legacy(postgres: Server) -> Iterator[Stack]:
    with stack(postgres, _legacy, env={"LEGACY_TOKEN": "secret"}, tools=TOOLS) as made:
        made.upstream.script = _answer
        yield made


def _answer(request: Recorded) -> Any:
    what = "capture" if request.target.endswith(b"/capture") else "case"
    return respond(201, json.dumps({"id": f"{what}_{request.number}"}).encode())


def carry_out(stack: Stack, *arguments: str) -> Done:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("FENCEGATE_")}
    done = subprocess.run(
        [sys.executable, EXAMPLE, *arguments],
        env={**kept, "FENCEGATE_URL": stack.gateway.url, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def jobs(stack: Stack) -> list[dict[str, Any]]:
    sql = "select {} from gateway.{} order by created_at, key"
    columns = "id, key, tool, entity, on_behalf, session, priority, payload, created_at"
    found = [
        row for t in ("job_history", "jobs") for row in rows(stack.database, sql.format(columns, t))
    ]
    return sorted(found, key=lambda row: row["created_at"])


def test_a_plan_becomes_jobs_once_and_waits_where_a_person_must_agree(legacy: Stack) -> None:
    first = carry_out(legacy)
    assert first.code == 3, first
    made = jobs(legacy)
    assert [(row["key"], row["entity"], row["on_behalf"], row["session"]) for row in made] == [
        ("plan:chat-7:small", "invoice:inv-1", "ann", "chat-7"),
        ("plan:chat-7:large", "invoice:inv-2", "ann", "chat-7"),
    ]
    large = made[1]["id"]
    assert f"large: fencegate jobs approve {large} --reason" in first.out
    assert "tell: not begun" in first.out
    assert [request.target for request in legacy.upstream.requests] == [
        b"/v1/invoices/inv-1/capture"
    ]

    again = carry_out(legacy)
    assert again.code == 3, again
    assert [row["id"] for row in jobs(legacy)] == [row["id"] for row in made]
    assert legacy.upstream.count == 1

    why = ("--reason", "Ada agreed")
    assert fencegate("jobs", "approve", str(large), *why, dsn=legacy.database).code == 0
    last = carry_out(legacy)
    assert last.code == 0, last
    captures, cases = legacy.upstream.requests[:2], legacy.upstream.requests[2:]
    assert [request.json()["amount"] for request in captures] == [1200, 250_000]
    (case,) = cases
    assert case.json() == {
        "customer_id": "c-7",
        "title": "Both invoices are charged (capture_1, capture_2)",
    }
    assert len(jobs(legacy)) == 3
    assert carry_out(legacy, "--no-worker").code == 0
    assert legacy.upstream.count == 3


def test_a_step_that_changed_under_its_name_is_not_done(legacy: Stack, tmp_path: Path) -> None:
    steps = [PLAN["steps"][0]]
    assert carry_out(legacy, _written(tmp_path, {"steps": steps})).code == 0
    other = {**steps[0], "arguments": {**steps[0]["arguments"], "amount": 9900}}
    done = carry_out(legacy, _written(tmp_path, {"steps": [other]}))
    assert done.code == 1
    assert "give it another id" in done.out
    assert legacy.upstream.count == 1


def test_what_fails_holds_up_what_depends_on_it_and_nothing_else(
    legacy: Stack, tmp_path: Path
) -> None:
    legacy.upstream.script = lambda request: (
        respond(402, b"{}") if b"inv-1" in request.target else _answer(request)
    )
    charge, _, tell = PLAN["steps"]
    apart = {**tell, "id": "apart", "depends_on": []}
    steps = [{**tell, "depends_on": ["small"]}, charge, apart]
    done = carry_out(legacy, _written(tmp_path, {"steps": steps}))
    assert done.code == 1
    assert "small: failed" in done.out
    assert "tell: not begun" in done.out
    assert {row["key"] for row in jobs(legacy)} == {"plan:chat-7:small", "plan:chat-7:apart"}
    assert [request.target for request in legacy.upstream.effects] == [b"/v1/cases"]


CHARGE = PLAN["steps"][0]


def charge(**changes: Any) -> dict[str, Any]:
    return {**CHARGE, **changes}


def arguments(**changes: Any) -> dict[str, Any]:
    return charge(arguments={**CHARGE["arguments"], **changes})


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([charge(tool="refund")], "steps.0"),
        ([charge(priority=1)], "steps.0.plan_charge.priority"),
        ([charge(lease_s=3600)], "steps.0.plan_charge.lease_s"),
        ([charge(attempts=100)], "steps.0.plan_charge.attempts"),
        ([charge(approved=True)], "steps.0.plan_charge.approved"),
        ([arguments(amount=1_000_001)], "steps.0.plan_charge.arguments.amount"),
        ([arguments(amount="1200")], "steps.0.plan_charge.arguments.amount"),
        ([arguments(amount=0)], "steps.0.plan_charge.arguments.amount"),
        ([arguments(invoice="../../v1/cases")], "steps.0.plan_charge.arguments.invoice"),
        ([arguments(path="/v1/cases")], "steps.0.plan_charge.arguments.path"),
        ([charge(user="bob")], "bob is not in this conversation"),
        ([CHARGE, CHARGE], "step small is there twice"),
        ([charge(depends_on=["x"])], "depends on x, which is not in the plan"),
        (
            [charge(depends_on=["b"]), charge(id="b", depends_on=["small"])],
            "small, b wait for each other",
        ),
        ([], "steps"),
        ([charge(id=f"s{n}") for n in range(21)], "steps"),
    ],
)
def test_what_a_plan_may_not_say_is_refused_before_anything_is_asked(
    tmp_path: Path, steps: list[Any], said: str
) -> None:
    """No gateway is there: a plan that got as far as asking would say so."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("FENCEGATE_")}
    done = subprocess.run(
        [sys.executable, EXAMPLE, _written(tmp_path, {"steps": steps}), "--no-worker"],
        env={**kept, "FENCEGATE_URL": "http://127.0.0.1:1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.startswith("the plan is refused, nothing was enqueued:\n")
    assert said in done.stderr


def test_a_plan_that_is_not_there_is_said_in_a_line(tmp_path: Path) -> None:
    for name in (tmp_path / "nofile.json", tmp_path):
        done = subprocess.run(
            [sys.executable, EXAMPLE, name], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
        assert "cannot be read (" in done.stderr


def test_the_examples_share_no_tool_and_the_shipped_file_has_them_all() -> None:
    """A worker takes any job of a tool that it names: with one name for two kinds of payload, each
    example would take the other's jobs."""
    text = (policies_dir() / "tools.toml.example").read_text()
    listed = set(re.findall(r'^name += "([^"]+)"', text, re.M))
    plans = {step["tool"] for step in PLAN["steps"]}
    node = (examples_dir() / "node_worker" / "README.md").read_text()
    nodes = set(re.findall(r"fencegate jobs enqueue (\S+)", node))
    assert nodes
    assert not plans & nodes
    assert plans | nodes <= listed


def _written(folder: Path, plan: Any) -> str:
    file = folder / "plan.json"
    file.write_text(json.dumps(plan))
    return str(file)
