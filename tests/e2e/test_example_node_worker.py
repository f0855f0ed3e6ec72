"""``examples/node_worker`` against the real gateway: a job to its end, and a lease that is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.resources import examples_dir
from tests.clients.node import node
from tests.kit.client import Caller
from tests.kit.db import Server
from tests.kit.faults import until
from tests.kit.gateway import Stack, policy, rows, stack
from tests.kit.upstream import Gate, gated, respond

WORKER = examples_dir() / "node_worker" / "worker.mjs"

CAPTURE = """
name = "capture"
match = "POST /v1/invoices/{invoice}/capture"
entity = "invoice:{path.invoice}"
timeout_s = 5
settle_delay_s = 1
"""

# The shortest lease that fits: 5 s are one request.
TOOLS = """
[[tools]]
name = "node_charge"
lease_s = 6
heartbeat_s = 0.3
jitter_s = 0.1
misses = 3
backoff_s = 0
backoff_max_s = 0
stage_limit_s = 60
"""


@pytest.fixture(scope="module")
def legacy(postgres: Server) -> Iterator[Stack]:
    with stack(
        postgres,
        lambda url: [policy(url, CAPTURE, name="legacy", mount="/legacy")],
        tools=TOOLS,
    ) as made:
        yield made


class Node:
    """A worker in a process of its own, and what it said so far."""

    def __init__(self, url: str, script: Path, *arguments: str) -> None:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("NODE_")}
        self.process = subprocess.Popen(
            [node(), script, *arguments],
            env={**kept, "FENCEGATE_URL": url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[dict[str, Any]] = []
        self.errors = ""
        self._readers = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._complain, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    def _complain(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def wait_for(self, event: str) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            assert self.process.poll() is None or self.events(event), self.errors
            return self.events(event)

        until(found, f"the worker says {event}; it said {self.said}", timeout_s=30)
        return self.events(event)[0]

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.said if line["event"] == event]

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        for reader in self._readers:
            reader.join(10)
        return code


@contextlib.contextmanager
def worker(stack: Stack, script: Path = WORKER, *arguments: str) -> Iterator[Node]:
    made = Node(stack.gateway.url, script, *arguments)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
            made.process.wait()


def enqueue(stack: Stack, invoice: str) -> str:
    """The id of a new job that charges it."""
    payload = {"invoice": invoice, "amount": 1200, "currency": "EUR"}
    job = {"tool": "node_charge", "payload": payload, "entity": f"invoice:{invoice}"}
    return str(ask(stack.caller(), "", {"jobs": [job]})["jobs"][0]["job"])


def ask(caller: Caller, path: str, body: Any) -> Any:
    fields = [("Content-Type", "application/json")]
    reply = caller.call("POST", f"/v1/jobs{path}", fields, json.dumps(body).encode())
    assert reply.status < 300, reply
    return reply.json()


def state(stack: Stack, job: str) -> str:
    reply = stack.caller().call("GET", f"/v1/jobs/{job}")
    return str(reply.json()["job"]["state"])


def test_a_job_runs_through_to_its_end(legacy: Stack) -> None:
    legacy.upstream.clear()
    legacy.upstream.next(respond(201, b'{"id": "capture_1"}', effect=True))
    job = enqueue(legacy, "inv-1")
    with worker(legacy) as node:
        done = node.wait_for("job_finished")
        assert (done["job"], done["how"], done["state"]) == (job, "completed", "succeeded")
        assert node.stop() == 0
        assert node.errors == ""
    (command,) = rows(
        legacy.database, "select * from gateway.commands where entity = 'invoice:inv-1'"
    )
    assert command["key"] == f"tool-job:{job}:capture"
    assert command["fence"] == node.events("job_claimed")[0]["fence"]
    shown = legacy.caller().call("GET", f"/v1/jobs/{job}").json()["job"]
    assert (shown["state"], shown["result"]) == ("succeeded", {"capture": "capture_1"})
    assert len(legacy.upstream.effects) == 1


def test_heartbeats_go_on_while_the_api_is_slow_and_while_the_worker_stops(legacy: Stack) -> None:
    legacy.upstream.clear()
    gate = Gate()
    legacy.upstream.next(gated(gate, respond(201, b'{"id": "capture_2"}', effect=True)))
    job = enqueue(legacy, "inv-2")
    with worker(legacy) as node:
        legacy.upstream.wait_for_requests(1)
        node.process.send_signal(signal.SIGTERM)
        beaten = "select beat_at > granted_at as is from gateway.job_leases where job = $1"
        until(lambda: rows(legacy.database, beaten, job)[0]["is"], "a heartbeat came")
        other = enqueue(legacy, "inv-3")
        gate.release()
        assert node.process.wait(30) == 0
    assert state(legacy, job) == "succeeded"
    assert state(legacy, other) == "queued"
    ask(legacy.caller(), f"/{other}/cancel", {"reason": "the test is over"})


def test_a_command_that_the_api_refuses_is_not_tried_again(legacy: Stack) -> None:
    legacy.upstream.clear()
    legacy.upstream.next(respond(402, b'{"error": "no funds"}', effect=False))
    job = enqueue(legacy, "inv-4")
    with worker(legacy) as node:
        assert node.wait_for("job_finished")["state"] == "failed"
        assert node.stop() == 0
    assert state(legacy, job) == "failed"
    assert legacy.upstream.count == 1


# A handler that computes for long on the event loop, and then sends by a client of its own.
BLOCKED = """
import { readSync } from "node:fs";
const { work, Refused } = await import(process.argv[2]);
const url = process.env.FENCEGATE_URL;
async function charge(job) {
  console.log(JSON.stringify({ event: "blocked" }));
  readSync(0, Buffer.alloc(1)); // nothing else runs until the test says so
  const answer = await fetch(`${url}/legacy/v1/invoices/${job.payload.invoice}/capture`, {
    method: "POST", headers: { ...job.headers("capture"), "Content-Type": "application/json" },
    body: JSON.stringify({ amount: job.payload.amount }),
  });
  console.log(JSON.stringify({ event: "own_client", status: answer.status }));
  const asked = await job.command("capture", "POST", "/legacy/v1/x", {}).catch((error) => error);
  console.log(JSON.stringify({ event: "own_command", error: asked.constructor.name }));
  return "late";
}
const stop = new AbortController();
process.once("SIGTERM", () => stop.abort());
await work({ tools: { node_charge: charge }, signal: stop.signal, concurrency: 1 });
"""


def test_a_lease_that_was_taken_over_while_the_event_loop_was_blocked(
    legacy: Stack, tmp_path: Path
) -> None:
    legacy.upstream.clear()
    legacy.upstream.next(respond(201, b'{"id": "capture_5"}', effect=True))
    script = tmp_path / "blocked.mjs"
    script.write_text(BLOCKED)
    job = enqueue(legacy, "inv-5")
    with worker(legacy, script, WORKER.as_uri()) as late:
        late.wait_for("blocked")
        with worker(legacy) as second:
            done = second.wait_for("job_finished")
            assert (done["job"], done["state"]) == (job, "succeeded")
            assert second.stop() == 0
        late.tell()
        assert late.wait_for("own_client")["status"] == 412
        assert late.wait_for("heartbeat_lost")["reason"] == "expired"
        assert late.wait_for("own_command")["error"] in ("LeaseLost", "OwnershipUnknown")
        assert late.wait_for("result_rejected")["reason"] == "expired"
        assert late.stop() == 0
    assert len(legacy.upstream.effects) == 1
    events = "select event from gateway.audit where entity = 'invoice:inv-5' order by at"
    seen = [row["event"] for row in rows(legacy.database, events)]
    assert seen == ["lease_expired", "fence_stale", "result_rejected"]
