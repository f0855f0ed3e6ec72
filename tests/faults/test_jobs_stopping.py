"""SIGTERM: nothing new begins; what a worker has to say is heard until the process ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from tests.kit.client import Exchange, assert_problem
from tests.kit.db import Server
from tests.kit.desk import JSON, Desk
from tests.kit.gateway import CAPTURE, Stack, policy, rows, stack

TOOLS = '[[tools]]\nname = "t"\n'


@pytest.fixture
def served(postgres: Server) -> Iterator[Stack]:
    with stack(postgres, lambda url: [policy(url, CAPTURE)], tools=TOOLS) as running:
        yield running


def half(desk: Desk, tail: str, document: object) -> tuple[Exchange, bytes]:
    """A question whose head the gateway has read; its body is still to come."""
    body = json.dumps(document).encode()
    fields = [JSON, ("Content-Length", str(len(body))), ("Expect", "100-continue")]
    sent = desk.caller.open("POST", f"/v1/jobs{tail}", fields, None)
    assert sent.read(5).startswith(b"HTTP/1.1 100 ")
    return sent, body


def test_heartbeats_and_ends_are_heard_and_claims_and_new_jobs_are_not(served: Stack) -> None:
    desk = Desk(served.caller())
    jobs = [desk.one() for _ in range(3)]
    leases = [each["lease"] for each in desk.claim(2)]
    claim = {"worker": "w", "claim": jobs[0], "limit": 1, "tools": ["t"]}
    refused = [
        half(desk, "/claim", claim),
        half(desk, "", {"jobs": [{"tool": "t", "key": "late"}]}),
        half(desk, f"/{jobs[2]}/cancel", {"reason": "r"}),
    ]
    beat = half(desk, "/heartbeat", {"worker": "w", "leases": leases})
    ended = {"lease": leases[0], "how": "completed", "result": "it is done"}
    end = half(desk, "/end", {"worker": "w", "ends": [ended]})

    served.gateway.signal(signal.SIGTERM)
    served.gateway.wait_for_log(event="draining")

    for sent, body in refused:
        sent.send(body)
        assert_problem(sent.reply(5), "overloaded", waits=True, retry="wait")
    for sent, body in (beat, end):
        sent.send(body)
    assert [each["job"] for each in beat[0].reply(5).json()["leases"]] == [
        each["job"] for each in leases
    ]
    assert end[0].reply(5).json()["ends"][0]["state"] == "succeeded"
    assert served.gateway.process is not None
    assert served.gateway.process.wait(10) == 0

    found = rows(served.database, "select result from gateway.job_history")
    assert found == [{"result": b'"it is done"'}]
    states = rows(served.database, "select state from gateway.jobs order by state")
    assert [row["state"] for row in states] == ["ready", "running"]
    assert rows(served.database, "select 1 from gateway.job_keys where key = 'late'") == []
