"""Runs one case of the case book against a real gateway: its steps in order, then its verdict.

A case is a JSON object, ``{"id", "input": {"steps": […]}, "expected": {…}}``:

- a step is an ``http`` request (``label`` names its answer; header text is latin-1 on the wire;
  ``{"repeat": [text, n]}`` is text repeated; ``"client": "close …"`` hangs up once the upstream has
  it) or ``raw_latin1`` bytes; the ``upstream`` steps behind it say how the upstream answers it:
  ``respond``, ``raw_latin1`` with ``then``, or a ``fault``
- ``Bearer tenant-X`` stands for a gateway key of a tenant that only this case has, so cases share a
  gateway and never meet; paths are below the mount ``/pay``
- ``expected`` names what the wire contract says: per answer ``status``, problem ``type``,
  ``outcome``, ``sent``, headers and body; and what upstream, database, audit and log must show
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.core.problems import TYPES
from gateway.store.tenants import add_key
from tests.kit.client import Caller, Exchange, Reply, assert_problem
from tests.kit.gateway import Stack, rows
from tests.kit.operating import fencegate, on
from tests.kit.upstream import Answer, Gate, RecordingUpstream, gated, hang, raw, respond

__all__ = ["Case", "World", "load", "make_keys", "run"]

Case = Mapping[str, Any]

MOUNT = "/pay"
_TENANT = re.compile(r"tenant-[A-Za-z0-9:]+")


def load(path: Path) -> list[Case]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@dataclass
class World:
    """What a case runs in. ``tokens``: by case and the tenant's name in it. ``proxy``: where the
    environment of the gateway points to, and nothing may go."""

    stack: Stack
    tokens: Mapping[tuple[str, str], str]
    proxy: RecordingUpstream | None = None


@dataclass
class _Run:
    case: Case
    world: World
    replies: dict[str, Reply] = field(default_factory=dict)

    @property
    def upstream(self) -> RecordingUpstream:
        return self.world.stack.upstream


# -- tenants


def tenants_of(case: Case) -> set[str]:
    """The tenants that a case names."""
    return set(_TENANT.findall(json.dumps(case["input"])))


def tenant_name(case: Case, tenant: str) -> str:
    """Its name in the database: no other case has it."""
    return re.sub(r"[^a-z0-9]+", "_", f"{case['id']} {tenant}".lower()).strip("_")[:63]


def make_keys(dsn: str, cases: Sequence[Case]) -> dict[tuple[str, str], str]:
    """A key for each tenant of each case; SEC-04's own by the command line."""
    made = _make_keys(dsn, cases)
    for case, tenant in made:
        if case == "SEC-04":
            name = tenant_name({"id": case}, tenant)
            done = fencegate("keys", "add", "--tenant", name, "--name", "worker", dsn=dsn)
            made[case, tenant] = done.out.strip()
    return made


def _make_keys(dsn: str, cases: Sequence[Case]) -> dict[tuple[str, str], str]:

    async def work(database: Any) -> dict[tuple[str, str], str]:
        return {
            (case["id"], tenant): await add_key(
                database, tenant_name(case, tenant), "worker", by="tests"
            )
            for case in cases
            for tenant in sorted(tenants_of(case))
        }

    return on(dsn, work)


# -- steps


def run(case: Case, world: World) -> None:
    """Carry a case out and judge it."""
    world.stack.upstream.clear()
    before = _peak_mib(world)
    done = _Run(case, world)
    for request, answers in _exchanges(case["input"]["steps"]):
        _step(done, request, answers)
    _judge(done, before)


def _exchanges(steps: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Any, list[Any]]]:
    """Each request with the upstream's behaviour for it."""
    request: Any = None
    answers: list[Any] = []
    for step in steps:
        if "upstream" in step:
            answers.append(step)
            continue
        if request is not None:
            yield request, answers
        request, answers = step, []
    yield request, answers


def _step(done: _Run, step: Any, answers: list[Any]) -> None:
    gate = Gate()
    done.upstream.next(*(_answer(each, gate) for each in answers))
    seen = done.upstream.count
    exchange = _send(done, step)
    if str(step.get("client", "")).startswith("close"):
        done.upstream.wait_for_requests(seen + 1)
        exchange.hang_up()
        gate.release()
        return
    gate.release()
    done.replies[step["label"]] = exchange.reply()


def _send(done: _Run, step: Any) -> Exchange:
    caller = Caller(done.world.stack.gateway.url)
    if "raw_latin1" in step:
        return caller.raw(_tokens(done, step["raw_latin1"]).encode("latin-1"))
    http = step["http"]
    fields = [(name, _tokens(done, _text(value))) for name, value in http["headers"]]
    host = next((value for name, value in fields if name == "Host"), None)
    fields = [(name, value) for name, value in fields if name != "Host"]
    body = _body(http)
    if http.get("chunked"):
        fields.append(("Transfer-Encoding", "chunked"))
        exchange = caller.open(http["method"], MOUNT + http["path"], fields, None, host=host)
        for start in range(0, len(body), 65536):
            piece = body[start : start + 65536]
            exchange.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        exchange.send(b"0\r\n\r\n")
        return exchange
    return caller.open(http["method"], MOUNT + http["path"], fields, body, host=host)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        text, times = value["repeat"]
        return str(text) * int(times)
    return str(value)


def _body(http: Any) -> bytes:
    if "body_generator" in http:
        match = re.fullmatch(r"(\d+) (MiB|B) of '(.)'", http["body_generator"])
        assert match is not None
        return match[3].encode() * (int(match[1]) * {"B": 1, "MiB": 1024 * 1024}[match[2]])
    if "body_latin1" in http:
        return str(http["body_latin1"]).encode("latin-1")
    return _text(http.get("body", "")).encode()


def _tokens(done: _Run, text: str) -> str:
    return _TENANT.sub(lambda match: done.world.tokens[done.case["id"], match[0]], text)


def _answer(step: Any, gate: Gate) -> Answer:
    how = step["upstream"]
    if "fault" in how:
        assert how["fault"] == "no_response_before_deadline_after_full_request"
        return hang()
    if "raw_latin1" in how:
        return raw(how["raw_latin1"].encode("latin-1"), then=how.get("then", "keep"))
    said = how["respond"]
    body = said["body_latin1"].encode("latin-1") if "body_latin1" in said else None
    answer = respond(
        said["status"],
        str(said.get("body", "")).encode() if body is None else body,
        [tuple(pair) for pair in said.get("headers", [])],
        effect=True,
    )
    return gated(gate, answer) if step.get("delay_ms") or how.get("delay_ms") else answer


# -- the verdict


def _judge(done: _Run, before_mib: float) -> None:
    expected = done.case["expected"]
    for label, wanted in expected["responses"].items():
        _judge_reply(done, label, wanted)
    for key, state in expected.get("commands", {}).items():
        _judge_command(done, key, state)
    assert done.upstream.count == expected["upstream_calls"]
    _judge_upstream(done, expected.get("upstream_sees", {}))
    _judge_database(done, expected)
    for line in expected.get("log", []):
        done.world.stack.gateway.wait_for_log(**line)
    if "peak_growth_mib_max" in expected:
        assert _peak_mib(done.world) - before_mib < expected["peak_growth_mib_max"]
    if "proxy_connections" in expected:
        assert done.world.proxy is not None
        assert done.world.proxy.connections == expected["proxy_connections"]
    crashes = [line for line in done.world.stack.gateway.log if "exception" in line]
    assert crashes == []


def _judge_reply(done: _Run, label: str, wanted: Any) -> None:
    reply = done.replies[label]
    assert reply.status == wanted["status"], (label, reply)
    if "type" in wanted:
        assert wanted["type"] in TYPES
        waits = reply.one("Retry-After") is not None
        outcome, sent = wanted["outcome"], wanted.get("sent")
        assert_problem(reply, wanted["type"], outcome=outcome, sent=sent, waits=waits)
    else:
        assert reply.problem is None
    assert reply.outcome == wanted["outcome"], label
    assert reply.replayed == (wanted["outcome"] == "replayed")
    for name, value in wanted.get("headers", []):
        assert value in reply.all(name), (label, name, reply.headers)
    for name in wanted.get("headers_absent", []):
        assert reply.all(name) == [], (label, name)
    if "body" in wanted:
        assert reply.body == wanted["body"].encode("latin-1"), label
    if "same_as" in wanted:
        assert reply.body == done.replies[wanted["same_as"]].body


def _judge_upstream(done: _Run, wanted: Any) -> None:
    for request in done.upstream.requests:
        for name in wanted.get("headers_absent", []):
            assert request.all(name) == [], name
        for name, value in wanted.get("headers_present", []):
            assert request.all(name) == [value.encode("latin-1")], name


def _names(done: _Run) -> list[str]:
    return [tenant_name(done.case, tenant) for tenant in tenants_of(done.case)]


def _judge_command(done: _Run, key: str, state: str | None) -> None:
    sql = (
        "select case when settled_at is not null then 'settled'"
        " when deadline <= gateway.clock() then 'unknown' else 'in-flight' end as state"
        " from gateway.commands join gateway.tenants using (tenant)"
        " where name = any ($1) and key = $2"
    )
    found = rows(done.world.stack.database, sql, _names(done), key)
    assert [row["state"] for row in found] == ([] if state is None else [state]), key


def _judge_database(done: _Run, expected: Any) -> None:
    dsn, names = done.world.stack.database, _names(done)
    marks = rows(
        dsn,
        "select entity, fence from gateway.entities join gateway.tenants using (tenant)"
        " where name = any ($1)",
        names,
    )
    if "entities" in expected:
        assert len(marks) == expected["entities"]
    for entity, fence in expected.get("marks", {}).items():
        found = [row["fence"] for row in marks if row["entity"] == entity]
        assert found == ([] if fence is None else [fence])
    audit = rows(
        dsn,
        "select a.* from gateway.audit a join gateway.tenants t using (tenant)"
        " where t.name = any ($1) and a.event <> 'operator' order by a.at",
        names,
    )
    for number, wanted in enumerate(expected.get("audit", [])):
        assert wanted.items() <= audit[number].items()
    if "audit" in expected:
        assert len(audit) == len(expected["audit"])


def _peak_mib(world: World) -> float:
    """The gateway's high-water mark of memory; 0 where the system does not tell."""
    process = world.stack.gateway.process
    assert process is not None
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        return 0.0
    return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
