"""Whoever asks about jobs over HTTP, one word for each thing that can be asked.

Documents are given as values or as the bytes that shall go over the wire.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from tests.kit.client import Caller, Exchange, Fields, Reply

__all__ = ["JSON", "Desk", "raw"]

JSON = ("Content-Type", "application/json")

Value = Mapping[str, Any]


def raw(document: bytes | object) -> bytes:
    return document if isinstance(document, bytes) else json.dumps(document).encode()


@dataclass(frozen=True, slots=True)
class Desk:
    """One caller, and the name of its worker."""

    caller: Caller
    worker: str = "w1"

    def open(self, tail: str, document: bytes | object, fields: Fields = ()) -> Exchange:
        return self.caller.open("POST", f"/v1/jobs{tail}", [JSON, *fields], raw(document))

    def post(self, tail: str, document: bytes | object, fields: Fields = ()) -> Reply:
        return self.open(tail, document, fields).reply()

    def enqueue(self, *jobs: Value) -> list[dict[str, Any]]:
        return list(good(self.post("", {"jobs": jobs}), 200, 201)["jobs"])

    def one(self, tool: str = "t", **more: Any) -> str:
        """Enqueue one new job; its id."""
        (made,) = self.enqueue({"tool": tool, **more})
        assert made["created"] is True
        return str(made["job"])

    def claim(
        self, limit: int = 10, tools: tuple[str, ...] = ("t",), claim: str | None = None
    ) -> list[dict[str, Any]]:
        wish = {"worker": self.worker, "claim": claim or str(uuid4()), "limit": limit}
        return list(good(self.post("/claim", {**wish, "tools": tools}))["leases"])

    def claimed(self, tool: str = "t") -> dict[str, Any]:
        """Claim the one job there is; its lease, to be sent back."""
        (found,) = self.claim(1, (tool,))
        return dict(found["lease"])

    def beat(self, *leases: Value) -> list[dict[str, Any]]:
        asked = {"worker": self.worker, "leases": leases}
        return list(good(self.post("/heartbeat", asked))["leases"])

    def end(self, *ends: Value) -> list[dict[str, Any]]:
        return list(good(self.post("/end", {"worker": self.worker, "ends": ends}))["ends"])

    def complete(self, lease: Value, result: Any = None, **more: Any) -> dict[str, Any]:
        (answer,) = self.end({"lease": lease, "how": "completed", "result": result, **more})
        return answer

    def fail(self, lease: Value, error: str = "it broke", **more: Any) -> dict[str, Any]:
        (answer,) = self.end({"lease": lease, "how": "failed", "error": error, **more})
        return answer

    def show(self, job: str) -> dict[str, Any]:
        return dict(good(self.caller.call("GET", f"/v1/jobs/{job}"))["job"])

    def operate(self, job: str, what: str, reason: str = "because") -> Reply:
        return self.post(f"/{job}/{what}", {"reason": reason})


def good(reply: Reply, *statuses: int) -> Any:
    assert reply.status in (statuses or (200,)), (reply.status, reply.body)
    assert reply.one("Content-Type") == "application/json"
    assert reply.one("Cache-Control") == "no-store"
    assert int(reply.one("Content-Length") or -1) == len(reply.body)
    return reply.json()
