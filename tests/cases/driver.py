"""Runs one case of the case book against a real gateway: its steps in order, then its verdict.

A case is a JSON object, ``{"id", "input": {"steps": […]}, "expected": {…}}``:

- a step is an ``http`` request (``label`` names its answer; header text is latin-1 on the wire;
  ``{"repeat": [text, n]}`` is text repeated; ``"client": "close …"`` hangs up once the upstream has
  it; ``wait_for_100`` sends the body only behind a ``100 Continue``; ``same_connection`` goes on
  where the request before was answered; behind the answer to one that reads ``to_the_end`` nothing
  may come but that) or ``raw_latin1`` bytes; the ``upstream`` steps behind it say how the upstream
  answers it: ``respond``, ``raw_latin1`` with ``then``, or a ``fault``
- or ``auth``: ``revoke tenant-X``, ``withdraw SCOPE from tenant-X``, ``grant SCOPE to tenant-X``,
  once the gateway heeds it
- or a step of the workers (``crew.py``); ``fence of LABEL`` in a header is that of a claim
- ``Bearer tenant-X`` stands for a gateway key of a tenant that only this case has, so cases share a
  gateway and never meet; paths are below the mount ``/pay``
- ``expected`` names what the wire contract says: per answer ``status``, problem ``type``,
  ``outcome``, ``sent``, headers (``lines``: these fields have exactly these lines, in this order),
  body and ``interim`` statuses; and what upstream, database, audit, log and metrics must show;
  of workers ``answers`` by label, and ``states``, ``results`` and ``runs`` by job
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gateway.core.problems import TYPES
from gateway.store.tenants import add_key, change_scopes, list_keys, revoke_key
from tests.cases.crew import Crew
from tests.kit.client import Caller, Exchange, Reply, assert_problem
from tests.kit.faults import until
from tests.kit.gateway import Stack, rows
from tests.kit.operating import fencegate, on
from tests.kit.upstream import (
    Answer,
    Gate,
    RecordingUpstream,
    drip,
    early,
    gated,
    hang,
    raw,
    respond,
)

__all__ = ["Case", "World", "load", "make_keys", "run"]

Case = Mapping[str, Any]

MOUNT = "/pay"
NO_COMMAND = "/v1/accounts/nobody/charges"
_TENANT = re.compile(r"tenant-[A-Za-z0-9:]+")
_FENCE = re.compile(r"fence of (\w+)")
_AUTH = re.compile(r"(?:(revoke)|(withdraw|grant) (\S+) (?:from|to)) (tenant-\w+)")


def load(path: Path) -> list[Case]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@dataclass
class World:
    """What a case runs in. ``tokens``: by case and the tenant's name in it. ``proxy``: where the
    environment of the gateway points to, and nothing may go. ``env``: of workers on other hosts."""

    stack: Stack
    tokens: Mapping[tuple[str, str], str]
    proxy: RecordingUpstream | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    judged: int = 0
    """Lines of the gateway's log that earlier cases answer for."""


@dataclass
class _Run:
    case: Case
    world: World
    replies: dict[str, Reply] = field(default_factory=dict)
    interims: dict[str, list[int]] = field(default_factory=dict)
    exchange: Exchange | None = None
    crew: Crew | None = None

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
    before = _peak_mib(world), _counts(world)
    done = _Run(case, world)
    if "yard" in case["input"]:
        done.crew = Crew(world.stack.database, _tenant_number(done), world.env)
    for request, answers in _exchanges(case["input"]["steps"]):
        _step(done, request, answers)
    if done.exchange is not None:
        done.exchange.hang_up()
    _judge(done, *before)


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
    if done.crew is not None and "http" not in step:
        done.crew.step(step)
        return
    if "auth" in step:
        _auth(done, step["auth"])
        return
    gate = Gate()
    done.upstream.next(*(_answer(each, gate) for each in answers))
    seen = done.upstream.count
    exchange = done.exchange = _send(done, step)
    if str(step.get("client", "")).startswith("close"):
        done.upstream.wait_for_requests(seen + 1)
        exchange.hang_up()
        gate.release()
        return
    gate.release()
    interims: list[int] = []
    while (status := exchange.interim(10)) is not None:
        interims.append(status)
        if status == 100 and step.get("wait_for_100"):
            exchange.send(_body(step["http"]))
    done.interims[step["label"]] = interims
    done.replies[step["label"]] = exchange.next()
    if step.get("to_the_end"):
        assert exchange.read_all() == b"", step["label"]


def _auth(done: _Run, text: str) -> None:
    """Change a key, and wait until the gateway judges by that."""
    match = _AUTH.fullmatch(text)
    assert match is not None, text
    revoke, how, scope, tenant = match.groups()
    name = tenant_name(done.case, tenant)

    async def change(database: Any) -> None:
        (key,) = await list_keys(database, name)
        if revoke:
            assert await revoke_key(database, name, key.key_id, by="tests") == "revoked"
            return
        scopes = {*key.may, scope} if how == "grant" else {*key.may} - {scope}
        assert await change_scopes(database, key, scopes, by="tests")

    on(done.world.stack.database, change)
    token = done.world.tokens[done.case["id"], tenant]
    caller = Caller(done.world.stack.gateway.url, token=token)
    # Neither becomes anything: the command has no key, the job no id.
    asked = ("GET", "/v1/jobs/none") if scope == "enqueue" else ("POST", MOUNT + NO_COMMAND)
    is_barred = how != "grant"
    until(lambda: (caller.call(*asked).status in (401, 403)) is is_barred, text)


def _send(done: _Run, step: Any) -> Exchange:
    caller = Caller(done.world.stack.gateway.url)
    if "raw_latin1" in step:
        return caller.raw(_tokens(done, step["raw_latin1"]).encode("latin-1"))
    http = step["http"]
    fields = [(name, _tokens(done, _text(value))) for name, value in http["headers"]]
    host = next((value for name, value in fields if name == "Host"), None)
    fields = [(name, value) for name, value in fields if name != "Host"]
    body = _body(http)
    if step.get("same_connection"):
        assert done.exchange is not None
        return caller.open(
            http["method"], MOUNT + http["path"], fields, body, host=host, on=done.exchange
        )
    if step.get("wait_for_100"):
        if all(name != "Content-Length" for name, _ in fields):
            fields.append(("Content-Length", str(len(body))))
        return caller.open(http["method"], MOUNT + http["path"], fields, None, host=host)
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
    if str(http.get("body_generator", "")).startswith("gzip"):
        return _bomb(http["body_generator"])
    if "body_generator" in http:
        match = re.fullmatch(r"(\d+) (MiB|B) of '(.)'", http["body_generator"])
        assert match is not None
        return match[3].encode() * (int(match[1]) * {"B": 1, "MiB": 1024 * 1024}[match[2]])
    if "body_latin1" in http:
        return str(http["body_latin1"]).encode("latin-1")
    if "body_b64" in http:
        return base64.b64decode(http["body_b64"])
    return _text(http.get("body", "")).encode()


def _bomb(text: str) -> bytes:
    """A gzip file of so many zeros: a member for each MiB, which together are one file."""
    match = re.fullmatch(r"gzip\((\d+) (MiB|GiB) zeros\)", text)
    assert match is not None
    times = int(match[1]) * {"MiB": 1, "GiB": 1024}[match[2]]
    return gzip.compress(bytes(1024 * 1024), mtime=0) * times


def _tokens(done: _Run, text: str) -> str:
    if done.crew is not None:
        crew = done.crew
        text = _FENCE.sub(lambda match: str(crew.fence(match[1])), text)
    return _TENANT.sub(lambda match: done.world.tokens[done.case["id"], match[0]], text)


def _tenant_number(done: _Run) -> int:
    sql = "select tenant from gateway.tenants where name = $1"
    (row,) = rows(done.world.stack.database, sql, tenant_name(done.case, "tenant-A"))
    return int(row["tenant"])


def _answer(step: Any, gate: Gate) -> Answer:
    how = step["upstream"]
    if "fault" in how:
        return _fault(how["fault"])
    if "raw_latin1" in how:
        return raw(how["raw_latin1"].encode("latin-1"), then=how.get("then", "keep"))
    said = how["respond"]
    fields = [tuple(pair) for pair in said.get("headers", [])]
    if "body_chunks" in said:
        return drip(_chunked(said["status"], fields, said["body_chunks"]))
    answer = respond(said["status"], _body(said), fields, effect=True)
    return gated(gate, answer) if step.get("delay_ms") or how.get("delay_ms") else answer


def _fault(name: str) -> Answer:
    if name == "no_response_before_deadline_after_full_request":
        return hang()
    match = re.fullmatch(r"final_(\d+)_after_(\d+)KiB_then_close", name)
    assert match is not None, name
    # An orderly close: what still comes is read, or a reset might overtake the answer.
    answer = respond(int(match[1]), b"enough", close=True)
    return early(replace(answer, then="fin"), after=int(match[2]) * 1024)


def _chunked(status: int, fields: Sequence[tuple[str, str]], chunks: Sequence[str]) -> list[bytes]:
    """A response in so many segments, each a chunk."""
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in fields)]
    head = "\r\n".join([*lines, "Transfer-Encoding: chunked", "", ""]).encode("latin-1")
    pieces = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in map(str.encode, chunks)]
    return [head, *pieces, b"0\r\n\r\n"]


# -- the verdict


def _judge(done: _Run, before_mib: float, before: Mapping[str, float]) -> None:
    expected = done.case["expected"]
    for label, wanted in expected["responses"].items():
        _judge_reply(done, label, wanted)
    for key, state in expected.get("commands", {}).items():
        _judge_command(done, key, state)
    # A request that the upstream did not want to hear to its end has reached it all the same.
    assert done.upstream.count + len(done.upstream.partial) == expected["upstream_calls"]
    _judge_upstream(done, expected.get("upstream_sees", {}))
    _judge_database(done, expected)
    if done.crew is not None:
        _judge_jobs(done.crew, expected)
    for line in expected.get("log", []):
        done.world.stack.gateway.wait_for_log(**line)
    now = _counts(done.world)
    for series, more in expected.get("counts", {}).items():
        assert now[series] - before[series] == more, series
    if "peak_growth_mib_max" in expected:
        assert _peak_mib(done.world) - before_mib < expected["peak_growth_mib_max"]
    if "proxy_connections" in expected:
        assert done.world.proxy is not None
        assert done.world.proxy.connections == expected["proxy_connections"]
    written = done.world.stack.gateway.written
    for line in written[done.world.judged :]:
        # One event is one physical line, and nothing in it commands a terminal.
        assert line.isascii()
        assert line.rstrip("\n").isprintable()
        assert "exception" not in json.loads(line)
    done.world.judged = len(written)


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
    if "lines" in wanted:
        names = {name.lower() for name, _ in wanted["lines"]}
        found = [[name.lower(), value] for name, value in reply.headers if name.lower() in names]
        assert found == [[name.lower(), value] for name, value in wanted["lines"]], label
    if "interim" in wanted:
        assert done.interims[label] == wanted["interim"], label
    _judge_body(reply, label, wanted)
    if "same_as" in wanted:
        assert reply.body == done.replies[wanted["same_as"]].body
    if "upstream_status" in wanted:
        assert reply.json()["upstream"]["status"] == wanted["upstream_status"], label


def _judge_body(reply: Reply, label: str, wanted: Any) -> None:
    if "body" in wanted:
        assert reply.body == wanted["body"].encode("latin-1"), label
    if "body_generator" in wanted:
        assert reply.body == _body(wanted), label
    if "body_b64" in wanted:
        assert reply.body == base64.b64decode(wanted["body_b64"]), label


def _judge_upstream(done: _Run, wanted: Any) -> None:
    for request in done.upstream.requests:
        for name in wanted.get("headers_absent", []):
            assert request.all(name) == [], name
        for name, value in wanted.get("headers_present", []):
            assert request.all(name) == [value.encode("latin-1")], name
        if "body_b64" in wanted:
            assert request.body == base64.b64decode(wanted["body_b64"])


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


def _judge_jobs(crew: Crew, expected: Any) -> None:
    assert crew.answers == expected["answers"]
    for name, state in expected["states"].items():
        assert crew.state(name) == state, name
    for name, result in expected.get("results", {}).items():
        assert crew.result(name) == result, name
    for name, runs in expected.get("runs", {}).items():
        assert crew.runs(name) == runs, name


def _peak_mib(world: World) -> float:
    """The gateway's high-water mark of memory; 0 where the system does not tell."""
    process = world.stack.gateway.process
    assert process is not None
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        return 0.0
    return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024


def _counts(world: World) -> dict[str, float]:
    """Every series of the gateway's metrics, without the common prefix."""
    text = world.stack.caller().call("GET", "/metrics").body.decode()
    samples = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name.removeprefix("fencegate_"): float(value) for name, value in samples}
