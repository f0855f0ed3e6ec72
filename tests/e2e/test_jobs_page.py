"""``docs/jobs.md`` over HTTP: its lines are pasted into a shell, in their order."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.kit.db import Server
from tests.kit.gateway import policy, stack

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "jobs.md").read_text(encoding="utf-8")
BLOCKS = [text for text in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S) if "curl" in text]

COMMAND = """
name = "charge"
match = "POST /v1/charges"
entity = "account:{body./account}"
"""


def pasted(text: str) -> Any:
    """What a line answers."""
    done = subprocess.run(
        ["sh", "-c", text.replace("curl ", "curl -s ", 1)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout, done
    return json.loads(done.stdout)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_page_suffices_for_a_worker(postgres: Server) -> None:
    tools = '[[tools]]\nname = "charge"\n'
    with stack(postgres, lambda url: [policy(url, COMMAND)], tools=tools) as made:
        enqueue, claim, beat, end, look = (
            text.replace("http://127.0.0.1:8080", made.gateway.url) for text in BLOCKS
        )
        (queued,) = pasted(enqueue)["jobs"]
        assert queued == {**queued, "created": True, "same": True, "state": "queued"}
        other = enqueue.replace("1200", "1300")
        assert pasted(other)["jobs"] == [{**queued, "created": False, "same": False}]
        (granted,) = pasted(claim)["leases"]
        for name in re.findall(r'"([a-z_]+)":', PAGE[PAGE.index('{"leases":[{"lease"') :][:600]):
            assert name in json.dumps(granted) or name == "leases", name
        held = granted["lease"]
        assert held["fence"] == 1048577  # as on the page
        job = held["job"]
        assert pasted(claim) == {"leases": []}  # another uuid, another worker
        (beaten,) = pasted(beat.replace("8b9e…", job))["leases"]
        assert beaten["remaining_ms"] > 0
        assert pasted(end.replace("8b9e…", job))["ends"] == [
            {"job": job, "state": "succeeded", "again": False}
        ]
        assert pasted(end.replace("8b9e…", job))["ends"][0]["again"]
        (second,) = pasted(enqueue.replace("order-17", "order-18"))["jobs"]
        show, cancel, retry, approve, session = look.replace("8b9e…", second["job"]).splitlines()
        assert pasted(show)["job"]["key"] == "order-18"
        assert pasted(cancel)["state"] == "cancelled"
        assert pasted(retry)["state"] == "queued"
        assert pasted(approve)["type"].endswith(":job-state")
        assert pasted(session) == {"cancelled": [], "left": 0}
