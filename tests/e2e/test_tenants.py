"""Two tenants on one gateway: whatever one does, the other's is neither seen nor touched.

Every attempt is made twice, with what is the other's and with what nobody has, and both must be
answered alike, byte for byte. After each the other's rows are what they were.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest

from gateway.core.scopes import BEFORE
from gateway.store.tenants import add_key
from tests.kit.client import Caller, Reply, assert_problem
from tests.kit.db import Server
from tests.kit.desk import JSON, Desk
from tests.kit.gateway import Stack, policy, rows, stack
from tests.kit.operating import on
from tests.kit.upstream import Gate, cut, gated, respond

TOOLS = '[[tools]]\nname = "t"\nlease_s = 3600\nheartbeat_s = 600\n'
CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 60
settle_delay_s = 0
"""
HERE = """
name = "here"
match = "POST /v1/accounts/{account}/here"
entity = "here:{path.account}"
issuer = "here"
"""
ANSWER = b"of tenant one"

# Everything that is somebody's; `tenant` leads each.
TABLES = """
select table_name as name from information_schema.columns
 where table_schema = 'gateway' and column_name = 'tenant' and table_name <> 'retention'
   and table_name in (select table_name from information_schema.tables
                       where table_schema = 'gateway' and table_type = 'BASE TABLE')
 order by 1
"""


@dataclass
class World:
    """``one`` owns what is there; ``two`` tries."""

    stack: Stack
    tokens: dict[str, str] = field(repr=False)

    @property
    def one(self) -> Caller:
        return self.stack.caller(self.tokens["one"])

    @property
    def two(self) -> Caller:
        return self.stack.caller(self.tokens["two"])

    def of(self, tenant: str) -> dict[str, list[str]]:
        """All rows of a tenant, by table."""
        dsn = self.stack.database
        found = {}
        for row in rows(dsn, TABLES):
            sql = (
                f"select row_to_json(x)::text as row from gateway.{row['name']} x"
                " where tenant = (select tenant from gateway.tenants where name = $1) order by 1"
            )
            found[row["name"]] = [each["row"] for each in rows(dsn, sql, tenant)]
        return found


@pytest.fixture(scope="module")
def world(postgres: Server) -> Iterator[World]:
    with postgres.database() as dsn:

        async def make(database: Any) -> dict[str, str]:
            return {
                tenant: await add_key(database, tenant, "worker", by="t", scopes=BEFORE)
                for tenant in ("one", "two")
            }

        tokens = on(dsn, make)
        with stack(
            postgres, lambda url: [policy(url, CHARGE, HERE)], database=dsn, tools=TOOLS
        ) as made:
            yield World(made, tokens)


@pytest.fixture(autouse=True)
def _fresh(world: World) -> None:
    world.stack.upstream.clear()
    world.stack.upstream.script = None


def opened(
    caller: Caller,
    account: str,
    key: str,
    fence: int | None = 1,
    *,
    what: str = "charges",
    more: Any = (),
    body: bytes = b"{}",
) -> Any:
    fields = [JSON, ("Idempotency-Key", key), *more]
    if fence is not None:
        fields.append(("X-Execution-Fence", str(fence)))
    return caller.open("POST", f"/pay/v1/accounts/{account}/{what}", fields, body)


def send(caller: Caller, account: str, key: str, fence: int | None = 1, **more: Any) -> Reply:
    reply: Reply = opened(caller, account, key, fence, **more).reply()
    return reply


def said(reply: Reply, *names: object) -> tuple[int, Any, bytes]:
    """All of an answer but its id, its moment and what its caller had named itself."""
    body = reply.body
    for name in names:
        body = body.replace(str(name).encode(), b"NAMED")
    body = re.sub(rb'"request_id": "[^"]*"', b"", body)
    fields = [(name, value) for name, value in reply.headers if name.lower() != "date"]
    without_length = [pair for pair in fields if pair[0].lower() != "content-length"]
    return reply.status, without_length, body


# --- commands -------------------------------------------------------------------------------------


def test_the_same_key_and_entity_are_other_commands_with_other_marks(world: World) -> None:
    world.stack.upstream.next(
        respond(201, ANSWER, effect=True), respond(201, b"of tenant two", effect=True)
    )
    assert send(world.one, "same", "k-same", 50).body == ANSWER
    before = world.of("one")
    first = send(world.two, "same", "k-same", 1)
    assert (first.outcome, first.body) == ("applied", b"of tenant two")
    again = send(world.two, "same", "k-same", 1)
    assert (again.outcome, again.body) == ("replayed", b"of tenant two")
    assert_problem(send(world.two, "same", "k-same", 1, body=b"[]"), "key-reused")
    stale = send(world.two, "same", "k-other", 0)
    assert_problem(stale, "fence-stale", fence=0, high_water_mark=1)
    mismatch = send(world.two, "same", "k", more=[("X-Execution-Entity", "account:else")])
    assert_problem(mismatch, "entity-mismatch")
    assert world.of("one") == before
    told = rows(
        world.stack.database,
        "select distinct t.name from gateway.audit join gateway.tenants t using (tenant)"
        " where event <> 'operator' and entity = 'account:same'",
    )
    assert told == [{"name": "two"}]
    assert send(world.one, "same", "k-same", 50).outcome == "replayed"


def test_what_is_open_on_one_tenants_entity_holds_up_no_other(world: World) -> None:
    """Neither in flight nor unknown, and nobody waits for, or is woken by, another's."""
    gate = Gate()
    world.stack.upstream.next(gated(gate, respond(201, ANSWER, effect=True)))
    first = opened(world.one, "open", "k-open")
    world.stack.upstream.wait_for_requests(1)
    waiting = opened(world.one, "open", "k-open", more=[("Prefer", "wait=60")])
    world.stack.wait_for_waiters(1)
    before = world.of("one")
    for key in ("k-open", "k-else"):
        world.stack.upstream.next(respond(201, b"two", effect=True))
        assert send(world.two, "open", key, more=[("Prefer", "wait=0")]).body == b"two"
    assert world.of("one") == before
    assert world.stack.gauge("waiting_callers") == 1
    assert not waiting.readable()
    gate.release()
    assert first.reply().body == ANSWER
    assert waiting.reply().body == ANSWER

    world.stack.upstream.next(cut())
    assert_problem(
        send(world.one, "lost", "k-lost"),
        "outcome-unknown",
        outcome="unknown",
        sent="yes",
        waits=True,
    )
    before = world.of("one")
    world.stack.upstream.next(respond(201, b"two", effect=True))
    assert send(world.two, "lost", "k-lost").outcome == "applied"
    assert world.of("one") == before


def test_the_key_that_goes_up_and_the_digests_differ(world: World) -> None:
    for caller in (world.one, world.two):
        world.stack.upstream.next(respond(201, b"x", effect=True))
        assert send(caller, "digests", "k-digests").status == 201
    found = rows(
        world.stack.database,
        "select key_digest, fingerprint from gateway.commands where key = 'k-digests'",
    )
    assert len({row["key_digest"] for row in found}) == 2
    assert len({row["fingerprint"] for row in found}) == 2


def test_a_fence_that_another_tenant_holds_is_none(world: World) -> None:
    def issue(caller: Caller) -> int:
        body = json.dumps({"entity": "here:f"}).encode()
        return int(caller.call("POST", "/v1/fences", [JSON], body).json()["fence"])

    held = [issue(world.one) for _ in range(3)][-1]
    before = world.of("one")
    stranger = send(world.two, "f", "k-f", held, what="here")
    assert_problem(stranger, "fence-not-held", fence=held, high_water_mark=0, held=None)
    assert issue(world.two) != held
    assert world.of("one") == before
    assert world.stack.upstream.count == 0
    world.stack.upstream.next(respond(201, ANSWER, effect=True))
    assert send(world.one, "f", "k-f", held, what="here").status == 201


def test_guessed_tokens_open_nothing(world: World) -> None:
    (_, tenant, key_id, secret), (_, other, other_id, other_secret) = (
        world.tokens[name].split("_", 3) for name in ("one", "two")
    )
    before = world.of("one")
    guesses = {
        f"fg_{tenant}_{other_id}_{other_secret}",
        f"fg_{tenant}_{key_id}_{other_secret}",
        f"fg_{other}_{key_id}_{other_secret}",
        f"fg_{other}_{key_id}_{secret}",
        f"fg_{tenant}_{other_id}_{secret}",
        f"fg_0{tenant}_{key_id}_{secret}",
        f"fg_{int(tenant) + 2**32}_{key_id}_{secret}",
        f"fg_{tenant}_{key_id}_{secret[:-1]}{'A' if secret[-1] != 'A' else 'B'}",
    }
    nobody = world.stack.caller(f"fg_99_abcdefgh22_{'x' * 43}")
    for token in guesses:
        caller = world.stack.caller(token)
        assert said(send(caller, "same", "k-same", 50)) == said(send(nobody, "same", "k", 50))
        own = [said(each.call("GET", f"/v1/jobs/{uuid4()}")) for each in (caller, nobody)]
        assert (own[0], own[0][0]) == (own[1], 401)
    assert world.of("one") == before
    assert world.stack.upstream.count == 0


# --- jobs, leases and evidence --------------------------------------------------------------------


@dataclass
class Theirs:
    """What tenant one has, and as much that nobody has."""

    job: str
    waiting: str
    failed: str
    lease: dict[str, Any]
    claim: str
    nothing: str = field(default_factory=lambda: str(uuid4()))

    def strange(self) -> dict[str, Any]:
        return {**self.lease, "job": self.nothing, "entity": "account:nobody"}


@pytest.fixture(scope="module")
def theirs(world: World) -> Theirs:
    mine, claim = Desk(world.one, "w"), str(uuid4())
    failed = mine.one(entity="job:failing")
    assert mine.fail(mine.claimed(), "broke", retry=False)["state"] == "failed"
    staged = mine.one(entity="job:staged")
    mine.complete(mine.claimed(), 1, next={"name": "s2", "wait": True})
    job = mine.one(
        entity="account:job", key="k-job", session="s-one", payload={"hush": ANSWER.decode()}
    )
    (leased,) = mine.claim(1, claim=claim)
    return Theirs(job, staged, failed, leased["lease"], claim)


def attempts(there: Theirs) -> dict[str, tuple[Callable[[Desk, str, Any], Reply], Any, Any]]:
    """What two tries: how, with what is one's, with what nobody has."""

    def by_id(what: str) -> Callable[[Desk, str, Any], Reply]:
        return lambda desk, job, _: desk.operate(job, what)

    def end(how: str, **more: Any) -> Callable[[Desk, str, Any], Reply]:
        def work(desk: Desk, _: str, lease: Any) -> Reply:
            given = {"lease": lease, "how": how, **more}
            return desk.post("/end", {"worker": desk.worker, "ends": [given]})

        return work

    lease, strange = there.lease, there.strange()
    named = (("", lease), ("", strange))
    return {
        "show": (
            lambda desk, job, _: desk.caller.call("GET", f"/v1/jobs/{job}"),
            *((there.job, None), (there.nothing, None)),
        ),
        "cancel": (by_id("cancel"), (there.job, None), (there.nothing, None)),
        "retry": (by_id("retry"), (there.failed, None), (there.nothing, None)),
        "approve": (by_id("approve"), (there.waiting, None), (there.nothing, None)),
        "cancel-session": (
            lambda desk, name, _: desk.post("/cancel", {"session": name, "reason": "r"}),
            *(("s-one", None), ("s-none", None)),
        ),
        "heartbeat": (
            lambda desk, _, lease: desk.post(
                "/heartbeat", {"worker": desk.worker, "leases": [lease]}
            ),
            *named,
        ),
        "complete": (end("completed", result="stolen"), *named),
        "fail": (end("failed", error="stolen"), *named),
        "hand-back": (end("handed-back"), *named),
        "claim-again": (
            lambda desk, claim, _: desk.post(
                "/claim", {"worker": desk.worker, "claim": claim, "limit": 10, "tools": ["t"]}
            ),
            *((there.claim, None), (str(uuid4()), None)),
        ),
    }


NAMES = (
    *("show", "cancel", "retry", "approve", "cancel-session", "heartbeat", "complete", "fail"),
    *("hand-back", "claim-again"),
)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_anothers_is_what_is_not_there(world: World, theirs: Theirs, name: str) -> None:
    work, (job, lease), (no_job, no_lease) = attempts(theirs)[name]
    before = world.of("one")
    desk = Desk(world.two, "w")
    reply, nothing = work(desk, job, lease), work(desk, no_job, no_lease)
    named = [each for each in (job, (lease or {}).get("job")) if each]
    strange = [each for each in (no_job, (no_lease or {}).get("job")) if each]
    assert said(reply, *named) == said(nothing, *strange)
    assert reply.status in (200, 404)
    assert ANSWER not in reply.body
    assert world.of("one") == before


def test_the_list_of_attempts_is_every_route(theirs: Theirs) -> None:
    from gateway.api import jobs as api

    ends = {"complete", "fail", "hand-back"}
    tried = {name for name in attempts(theirs) if name not in ends}
    routes = {route.name for route in api.ROUTES} - {"enqueue", "end"}
    assert {name.removesuffix("-again") for name in tried} == routes
    assert set(NAMES) == set(attempts(theirs))


def test_a_job_under_anothers_id_and_key_is_a_job_of_its_own(world: World, theirs: Theirs) -> None:
    before = world.of("one")
    desk = Desk(world.two, "w")
    (made,) = desk.enqueue(
        {"tool": "t", "id": theirs.job, "key": "k-job", "entity": "account:job", "payload": 7}
    )
    assert (made["job"], made["created"], made["state"]) == (theirs.job, True, "queued")
    shown = desk.show(theirs.job)
    assert (shown["payload"], shown["state"], shown["attempts"]) == (7, "queued", 0)
    (leased,) = desk.claim(1, claim=theirs.claim)
    assert (leased["payload"], leased["lease"]["job"]) == (7, theirs.job)
    # Now that two has a job of that id, and perhaps a lease of that fence, they still never meet.
    assert desk.complete(leased["lease"], "two's")["state"] == "succeeded"
    assert world.of("one") == before
    mine = Desk(world.one, "w")
    assert mine.beat(theirs.lease)[0]["remaining_ms"] > 0
    assert mine.show(theirs.job)["state"] == "running"


def test_evidence_of_anothers_command_is_of_none(world: World) -> None:
    world.stack.upstream.next(cut())
    send(world.one, "evidence", "k-evidence")
    (row,) = rows(
        world.stack.database, "select attempt from gateway.commands where key = 'k-evidence'"
    )
    before = world.of("one")

    def report(key: str, attempt: UUID | None, verdict: str) -> Reply:
        found = {"key": key, "verdict": verdict, "reason": "r"}
        if attempt is not None:
            found["attempt"] = str(attempt)
        return world.two.call("POST", "/v1/evidence", [JSON], json.dumps(found).encode())

    for verdict in ("executed", "not-executed"):
        for attempt in (None, row["attempt"]):
            reply = report("k-evidence", attempt, verdict)
            other = report("k-nobody", attempt and uuid4(), verdict)
            assert_problem(reply, "no-command")
            assert said(reply, "k-evidence") == said(other, "k-nobody")
    assert world.of("one") == before
    # And by nobody else's report is its entity free.
    assert_problem(send(world.one, "evidence", "k-2"), "entity-unresolved", waits=True)


def test_no_route_lists_what_there_is(world: World) -> None:
    """So there is no cursor to turn to another tenant's page; this fails when a listing comes."""
    paths = world.stack.caller().call("GET", "/openapi.json").json()["paths"]
    reading = {path for path, item in paths.items() if "get" in item}
    assert reading == {"/v1/jobs/{id}"}
    for target in ("/v1/jobs", "/v1/jobs?tenant=one", "/v1/commands", "/v1/audit", "/v1/tenants"):
        reply = world.two.call("GET", target)
        assert reply.status in (404, 405), target


def test_naming_a_tenant_in_a_request_changes_nothing(world: World, theirs: Theirs) -> None:
    before = world.of("one")
    fields = [("X-Tenant", "one"), ("X-Fencegate-Tenant", "one"), ("Tenant", "1")]
    shown = world.two.call("GET", f"/v1/jobs/{theirs.failed}", fields)
    assert_problem(shown, "job-unknown")
    for body in ({"jobs": [{"tool": "t", "tenant": "one"}]}, {"jobs": [], "tenant": 1}):
        reply = world.two.call("POST", "/v1/jobs", [JSON, *fields], json.dumps(body).encode())
        assert_problem(reply, "request-invalid")
    assert world.of("one") == before


def test_the_log_names_whose_each_refusal_is(world: World, theirs: Theirs) -> None:
    named = [("X-Request-Id", "whose-is-it")]
    world.two.call("GET", f"/v1/jobs/{theirs.failed}", named)
    line = world.stack.gateway.wait_for_log(request_id="whose-is-it")
    assert (line["tenant"], line["problem"]) == ("two", "job-unknown")
