"""Each unknown that the example API can make is resolved without a person; with probes failing, by
one. The API's own ledger says whether each decision was right."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.resources import examples_dir
from tests.kit.client import Caller, Reply
from tests.kit.db import Server, execute
from tests.kit.gateway import GatewayProcess, gateway, rows
from tests.kit.operating import fencegate

TOKEN = "only-the-gateway-knows"

POLICY = """
name = "legacy"
mount = "/legacy"
upstream = "{url}"

[upstream_headers]
Authorization = "Bearer ${{LEGACY_TOKEN}}"

[[commands]]
name = "capture"
match = "POST /v1/invoices/{{invoice_id}}/capture"
entity = "invoice:{{path.invoice_id}}"
timeout_s = 1
settle_delay_s = 3
send_key = "Client-Reference"
unknown = "probe"

[commands.probe]
request = "GET /v1/effects?reference={{upstream_key}}"
headers = {{ Legacy-Behaviour = "{behaviour}" }}
applied = {{ status = [200], where = "/effects", items = "some" }}
absent = {{ status = [200], where = "/effects", items = "none" }}
interval_s = 1

[[commands]]
name = "open_case"
match = "POST /v1/cases"
entity = "customer:{{body./customer_id}}"
timeout_s = 1
settle_delay_s = 3
send_key = "Client-Reference"
unknown = "probe"
probe.request = "GET /v1/effects?reference={{upstream_key}}"
probe.headers.Legacy-Behaviour = "{behaviour}"
probe.applied = {{ status = [200], where = "/effects", items = "some" }}
probe.absent = {{ status = [200], where = "/effects", items = "none" }}
probe.interval_s = 1
"""


@contextlib.contextmanager
def legacy_api(folder: Path) -> Iterator[httpx.Client]:
    process = subprocess.Popen(
        [sys.executable, examples_dir() / "legacy_api", "--port", "0", "--ledger", folder / "l"],
        cwd=folder,
        env={**os.environ, "LEGACY_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=found[0], headers=headers, trust_env=False) as client:
            yield client
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@dataclass
class World:
    api: httpx.Client
    gateway: GatewayProcess
    database: str
    sent: list[str] = field(default_factory=list)

    def send(self, what: str, number: int, behaviour: str = "ok", fence: int = 1) -> Reply:
        path, body = _request(what, number)
        return Caller(self.gateway.url).call(
            "POST",
            f"/legacy{path}",
            [
                ("Content-Type", "application/json"),
                ("Idempotency-Key", f"{what}-{number}"),
                ("X-Execution-Fence", str(fence)),
                ("Legacy-Behaviour", behaviour),
            ],
            body,
        )

    def effects(self, what: str, number: int) -> int:
        """How often it was really done."""
        subject = f"{'invoice' if what == 'capture' else 'customer'}:n{number}"
        found = self.api.get("/v1/ledger").json()["effects"]
        return len([each for each in found if each["subject"] == subject])

    def row(self, what: str, number: int) -> dict[str, Any] | None:
        found = rows(
            self.database, "select * from gateway.commands where key = $1", f"{what}-{number}"
        )
        return found[0] if found else None

    def decided(self, what: str, number: int) -> str:
        """Wait for the decision, or for its own late answer; the words in the audit."""
        until = time.monotonic() + 30
        sql = (
            "select reason from gateway.audit where key = $1"
            " and event in ('resolved', 'late_evidence')"
        )
        while not (found := rows(self.database, sql, f"{what}-{number}")):
            assert time.monotonic() < until, self.row(what, number)
        (row,) = found
        return str(row["reason"])


def _request(what: str, number: int) -> tuple[str, bytes]:
    if what == "capture":
        return f"/v1/invoices/n{number}/capture", b'{"amount": 1200, "currency": "EUR"}'
    return "/v1/cases", b'{"customer_id": "n%d", "title": "Late"}' % number


@contextlib.contextmanager
def world(postgres: Server, folder: Path, behaviour: str) -> Iterator[World]:
    with postgres.database() as dsn, legacy_api(folder) as api:
        execute(dsn, "update gateway.sweeps set lag = '0 s'")
        url = str(api.base_url).rstrip("/")
        text = POLICY.format(url=url, behaviour=behaviour)
        with gateway(dsn, text, env={"LEGACY_TOKEN": TOKEN}) as process:
            yield World(api, process, dsn)


# What the switches can do that leaves the outcome unknown, and whether it has an effect in the end.
UNKNOWNS = [
    ("lose-answer", True),
    ("slow; seconds=3", True),
    ("fail-after; status=500", True),
    ("fail-after; status=502", True),
    ("fail-after; status=503", True),
    ("fail-after; status=504", True),
    ("fail-after; status=408", True),
    ("refuse; status=500", False),
    ("refuse; status=503", False),
    ("refuse; status=408", False),
    ("act-later; seconds=2", True),
]


def test_every_unknown_is_resolved_by_probe_and_the_ledger_proves_it(
    postgres: Server, tmp_path: Path
) -> None:
    with world(postgres, tmp_path, "ok") as here:
        cases = [
            (what, number, behaviour, happens)
            for what in ("capture", "open_case")
            for number, (behaviour, happens) in enumerate(
                UNKNOWNS, start=100 if what == "capture" else 200
            )
        ]
        for what, number, behaviour, _ in cases:
            reply = here.send(what, number, behaviour)
            assert reply.problem == "outcome-unknown", behaviour
        for what, number, behaviour, happens in cases:
            said = here.decided(what, number)
            row = here.row(what, number)
            late = row is not None and row["settled_by"] == "late"
            assert not late or behaviour.startswith("slow"), behaviour
            if not late:
                assert said.startswith("executed: " if happens else "not executed: "), behaviour
            assert here.effects(what, number) == happens, behaviour
            assert (row is not None) == happens
        for what, number, behaviour, happens in cases:
            again = here.send(what, number)
            outcomes = {"replayed", "rejected"} if behaviour.startswith("slow") else {"rejected"}
            assert again.outcome in (outcomes if happens else {"applied"}), behaviour
            assert here.effects(what, number) == 1
            # The entity is free for the next command.
            assert here.send(what, number + 1000).outcome == "applied"


def test_with_probes_failing_a_person_decides_and_the_ledger_proves_it(
    postgres: Server, tmp_path: Path
) -> None:
    with world(postgres, tmp_path, "refuse; status=503") as here:
        cases = [("lose-answer", True), ("refuse; status=503", False), ("fail-after", True)]
        for number, (behaviour, _) in enumerate(cases):
            assert here.send("capture", number, behaviour).problem == "outcome-unknown"
        for number, (_, happened) in enumerate(cases):
            # It was asked, on the caller's own request too, and nothing was guessed.
            assert here.send("capture", number).problem == "outcome-unknown"
            row = here.row("capture", number)
            assert row is not None
            assert row["settled_at"] is None
            assert here.effects("capture", number) == happened
            _resolve(here, number, "--executed" if happened else "--not-executed")
        for number, (_, happened) in enumerate(cases):
            again = here.send("capture", number)
            assert (again.status, again.outcome) == (
                (410, "rejected") if happened else (201, "applied")
            )
            assert here.effects("capture", number) == 1


def _resolve(here: World, number: int, verdict: str) -> None:
    """As an operator would, who is told when it is too early."""
    until = time.monotonic() + 30
    while True:
        done = fencegate(
            *("commands", "resolve", f"capture-{number}", verdict, "--reason", "the ledger"),
            dsn=here.database,
        )
        if done.code == 0:
            return
        assert "the upstream may still act" in done.err
        assert time.monotonic() < until


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_killed_anywhere_nothing_is_stuck(postgres: Server, tmp_path: Path, when: str) -> None:
    """kill -9 while the answer is due, between two probes, and while one is being recorded."""
    with world(postgres, tmp_path, "ok") as here:
        if when == "before":
            path, body = _request("capture", 1)
            sent = Caller(here.gateway.url).open(
                "POST",
                f"/legacy{path}",
                [
                    ("Content-Type", "application/json"),
                    ("Idempotency-Key", "capture-1"),
                    ("X-Execution-Fence", "1"),
                    ("Legacy-Behaviour", "slow; seconds=600"),
                ],
                body,
            )
            _until(lambda: here.effects("capture", 1) == 1)
            here.gateway.kill()
            sent.hang_up()
            happened = True
        else:
            assert here.send("capture", 1, "refuse; status=503").problem == "outcome-unknown"
            first = "absent_at is not null" if when == "after" else "tries > 0"
            _until(lambda: bool(rows(here.database, f"select from gateway.watched where {first}")))
            here.gateway.kill()
            happened = False
        # Whoever asked has it for 30 s; the test need not wait for that.
        execute(
            here.database,
            "update gateway.watched set due_at = gateway.clock(), busy_until = '-infinity'",
        )
        text = POLICY.format(url=str(here.api.base_url).rstrip("/"), behaviour="ok")
        with gateway(here.database, text, env={"LEGACY_TOKEN": TOKEN}) as process:
            here.gateway = process
            said = here.decided("capture", 1)
            assert said.startswith("executed: " if happened else "not executed: ")
            again = here.send("capture", 1)
            assert again.status == (410 if happened else 201)
            assert here.effects("capture", 1) == 1


def _until(reached: Any) -> None:
    until = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < until
