"""What a gateway key may do, judged at the socket: before the body, and before anything is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.api import jobs as api
from gateway.core.scopes import ALL, BEFORE, DEFAULT, allows
from gateway.store.tenants import KeyInfo, add_key, change_scopes, list_keys, revoke_key
from tests.kit.client import Caller, Reply, assert_problem
from tests.kit.db import Server, execute
from tests.kit.desk import JSON
from tests.kit.faults import until
from tests.kit.gateway import Stack, policy, rows, stack
from tests.kit.operating import on
from tests.kit.upstream import Gate, gated, respond

TOOLS = '[[tools]]\nname = "t"\n'
JOB = "00000000-0000-4000-8000-000000000007"
SLOW = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 60
"""
CHARGE = "/v1/accounts/{}/charges"

KEYS: dict[str, frozenset[str]] = {
    "sender": frozenset({"policy:pay"}),
    "maker": frozenset({"enqueue"}),
    "worker": frozenset({"work"}),
    "desk": frozenset({"operate"}),
    "auditor": frozenset({"audit"}),
    "usual": DEFAULT,
    "of-before": BEFORE,
    "of-later": frozenset({"later", "policies", "policy:pay:read"}),
}

# What takes which scope; bodies that are refused, so that nothing comes of what is allowed.
OWN: dict[str, tuple[str, str, str]] = {
    **{
        route.name: (route.method, route.path.replace("{id}", JOB), route.scope)
        for route in api.ROUTES
    },
    "fences": ("POST", "/v1/fences", "work"),
    "evidence": ("POST", "/v1/evidence", "operate"),
}


@dataclass(frozen=True)
class World:
    stack: Stack
    tokens: dict[str, str] = field(repr=False)

    def caller(self, name: str) -> Caller:
        return self.stack.caller(self.tokens[name])

    def key(self, token: str) -> KeyInfo:
        async def find(database: Any) -> list[KeyInfo]:
            return await list_keys(database)

        key_id = token.split("_")[2]
        return next(key for key in on(self.stack.database, find) if key.key_id == key_id)

    def make(self, *scopes: str) -> tuple[str, Caller]:
        """A key of its own for one test, once the gateway knows it."""

        async def work(database: Any) -> str:
            return await add_key(database, "default", "short-lived", by="t", scopes=scopes)

        token = on(self.stack.database, work)
        caller = self.stack.caller(token)
        until(lambda: caller.call("PUT", "/v1/fences").status == 405, "the key is known")
        return token, caller


@pytest.fixture(scope="module")
def world(postgres: Server) -> Iterator[World]:
    with postgres.database() as dsn:

        async def make(database: Any) -> dict[str, str]:
            return {name: await add_key(database, "default", name, by="t") for name in KEYS}

        tokens = on(dsn, make)
        for name, scopes in KEYS.items():
            words = "null" if name == "of-before" else f"'{{{','.join(sorted(scopes))}}}'"
            execute(
                dsn, f"update gateway.caller_keys set scopes = {words} where principal = '{name}'"
            )

        def policies(url: str) -> list[str]:
            return [
                policy(url, SLOW),
                policy(url, SLOW.replace("account:", "other:"), name="other", mount="/other"),
            ]

        with stack(postgres, policies, database=dsn, tools=TOOLS) as made:
            yield World(made, tokens)


@pytest.fixture(autouse=True)
def _fresh(world: World) -> None:
    world.stack.upstream.clear()
    world.stack.upstream.script = None


def charge(caller: Caller, account: str, *, mount: str = "/pay", **more: Any) -> Reply:
    return opened(caller, account, mount=mount, **more).reply()


def opened(
    caller: Caller, account: str, *, mount: str = "/pay", key: str | None = None, **more: Any
) -> Any:
    fields = [JSON, ("Idempotency-Key", key or f"k-{account}"), ("X-Execution-Fence", "1")]
    fields += more.pop("fields", [])
    return caller.open("POST", mount + CHARGE.format(account), fields, b"{}", **more)


def assert_forbidden(reply: Reply, scope: str) -> None:
    document = assert_problem(reply, "forbidden", scope=scope)
    assert f"--scope {scope}`" in document["detail"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", OWN)
def test_each_of_our_routes_takes_its_scope(world: World, name: str, key: str) -> None:
    method, path, scope = OWN[name]
    body = b"" if method == "GET" else b'{"zzz":1}'
    reply = world.caller(key).call(method, path, [JSON] if body else [], body)
    if allows(KEYS[key], scope):
        assert reply.problem in ("request-invalid", "job-unknown", "entity-missing"), reply
    else:
        assert_forbidden(reply, scope)


def test_every_route_has_a_scope_of_the_list() -> None:
    assert {scope for _, _, scope in OWN.values()} == {"enqueue", "work", "operate"}


@pytest.mark.parametrize("key", KEYS)
def test_a_policy_takes_its_own_guarded_and_not(world: World, key: str) -> None:
    """``pay`` allows ``pay``, and neither another policy nor what is no policy at all."""
    world.stack.upstream.script = lambda _: respond(201, b"{}", effect=True)
    caller, sent = world.caller(key), 0
    for name in ("pay", "other"):
        may = allows(KEYS[key], f"policy:{name}")
        for reply in (
            charge(caller, f"{key}-{name}", mount=f"/{name}"),
            caller.call("GET", f"/{name}/v1/anything"),
        ):
            if may:
                assert reply.status == 201
            else:
                assert_forbidden(reply, f"policy:{name}")
        sent += 2 * may
    assert world.stack.upstream.count == sent
    assert caller.call("POST", "/nowhere").problem == "no-policy"
    left = rows(
        world.stack.database,
        "select entity from gateway.entities where entity like '%' || $1 || '-%'",
        key,
    )
    assert len(left) == sent // 2


def test_it_is_refused_before_the_body_is_asked_for(world: World) -> None:
    fields = [("Expect", "100-continue"), ("Content-Length", "5000000"), JSON]
    for method, path, key, scope in (
        ("POST", "/other" + CHARGE.format("big"), "sender", "policy:other"),
        ("GET", "/other/passage", "worker", "policy:other"),
        ("POST", "/v1/jobs", "worker", "enqueue"),
        ("POST", "/v1/evidence", "usual", "operate"),
    ):
        waiting = world.caller(key).open(method, path, fields, None)
        assert waiting.interim() is None
        assert_forbidden(waiting.reply(), scope)
    assert world.stack.upstream.count == 0


def test_nothing_is_said_about_what_the_request_would_have_met(world: World) -> None:
    """Neither the replay, nor that a fence is stale, nor that a key is used for something else, and
    no row is left, whatever the request looks like."""
    assert charge(world.caller("usual"), "told", mount="/other").outcome == "applied"
    before = rows(world.stack.database, "select count(*) as n from gateway.audit")
    other = world.caller("sender")
    answers = [
        charge(other, "told", mount="/other"),
        charge(other, "told", mount="/other", key="unknown"),
        other.call("POST", "/other" + CHARGE.format("told"), [JSON], b"{"),
        other.call("POST", "/other" + CHARGE.format("told"), [("X-Execution-Fence", "0")], b"{}"),
        charge(other, "told", mount="/other", fields=[("X-Execution-Entity", "other:else")]),
    ]
    for reply in answers:
        assert_forbidden(reply, "policy:other")
    assert len({json.dumps({**r.json(), "request_id": ""}) for r in answers}) == 1
    assert rows(world.stack.database, "select count(*) as n from gateway.audit") == before


def test_the_key_comes_first_then_the_method_then_the_scope(world: World) -> None:
    stranger, worker = world.stack.caller(), world.caller("worker")
    assert_problem(stranger.call("POST", "/v1/evidence"), "unauthenticated")
    assert_problem(worker.call("GET", "/v1/evidence"), "method-not-allowed")
    assert_forbidden(worker.call("POST", "/v1/evidence"), "operate")


def test_whoever_may_nothing_is_told_so_in_the_log(world: World) -> None:
    named = [("X-Request-Id", "barred-1")]
    world.caller("worker").call("POST", "/pay" + CHARGE.format("x"), named, b"")
    line = world.stack.gateway.wait_for_log(request_id="barred-1")
    wanted = ("default", "worker", 403, "forbidden")
    assert (line["tenant"], line["principal"], line["status"], line["problem"]) == wanted
    world.caller("maker").call("POST", "/v1/fences", [("X-Request-Id", "barred-2")], b"")
    line = world.stack.gateway.wait_for_log(request_id="barred-2")
    assert (line["event"], line["problem"]) == ("fence_not_issued", "forbidden")


# --- time passes ------------------------------------------------------------------------------


def withdraw(world: World, token: str, *left: str) -> None:
    key = world.key(token)

    async def work(database: Any) -> None:
        assert await change_scopes(database, key, left, by="t")

    on(world.stack.database, work)


def revoke(world: World, token: str) -> None:
    key = world.key(token)

    async def work(database: Any) -> None:
        assert await revoke_key(database, "default", key.key_id, by="t") == "revoked"

    on(world.stack.database, work)


def is_barred(caller: Caller) -> bool:
    """A command without a key is refused for that, unless its caller is before."""
    return caller.call("POST", "/pay" + CHARGE.format("nobody")).status in (401, 403)


@pytest.mark.parametrize("how", ["revoked", "withdrawn"])
def test_who_waits_for_an_answer_and_loses_its_right_is_not_told(world: World, how: str) -> None:
    """Its own command's, which another key of the tenant had sent."""
    token, caller = world.make("policy:pay", "work")
    account, gate = f"waits-{how}", Gate()
    world.stack.upstream.next(gated(gate, respond(201, b"secret", effect=True)))
    first = opened(world.caller("usual"), account)
    world.stack.upstream.wait_for_requests(1)
    before = world.stack.gauge("waiting_callers")
    waits = [("Prefer", "wait=60")]
    barred, still = (
        opened(each, account, fields=waits) for each in (caller, world.caller("usual"))
    )
    world.stack.wait_for_waiters(int(before) + 2)
    if how == "revoked":
        revoke(world, token)
    else:
        withdraw(world, token, "work")
    until(lambda: is_barred(caller), "the gateway knows")
    gate.release()
    assert first.reply().status == 201
    reply = barred.reply()
    assert_problem(reply, "unauthenticated" if how == "revoked" else "forbidden")
    assert b"secret" not in reply.body
    replay = still.reply()
    assert (replay.outcome, replay.body) == ("replayed", b"secret")
    assert world.stack.upstream.count == 1


def test_who_waits_for_an_entity_and_loses_its_right_makes_room_for_the_next(world: World) -> None:
    token, caller = world.make("policy:pay")
    gate = Gate()
    world.stack.upstream.next(
        gated(gate, respond(201, b"1", effect=True)), respond(201, b"2", effect=True)
    )
    first = opened(world.caller("usual"), "queue", key="q-1")
    world.stack.upstream.wait_for_requests(1)
    before = int(world.stack.gauge("waiting_callers"))
    waits = [("Prefer", "wait=60")]
    barred = opened(caller, "queue", key="q-2", fields=waits)
    world.stack.wait_for_waiters(before + 1)
    behind = opened(world.caller("usual"), "queue", key="q-3", fields=waits)
    world.stack.wait_for_waiters(before + 2)
    withdraw(world, token, "work")
    until(lambda: is_barred(caller), "the gateway knows")
    gate.release()
    assert first.reply().status == 201
    assert_forbidden(barred.reply(), "policy:pay")
    last = behind.reply()
    assert (last.outcome, last.body) == ("applied", b"2")
    keys = rows(world.stack.database, "select key from gateway.commands where key like 'q-%'")
    assert sorted(row["key"] for row in keys) == ["q-1", "q-3"]


def test_who_waits_in_vain_and_lost_its_right_hears_that(world: World) -> None:
    token, caller = world.make("policy:pay")
    gate = Gate()
    world.stack.upstream.next(gated(gate, respond(201, b"{}", effect=True)))
    first = opened(world.caller("usual"), "vain")
    world.stack.upstream.wait_for_requests(1)
    withdraw(world, token, "audit")
    until(lambda: is_barred(caller), "the gateway knows")
    assert_forbidden(charge(caller, "vain", fields=[("Prefer", "wait=0")]), "policy:pay")
    gate.release()
    assert first.reply().status == 201


@pytest.mark.parametrize("path", ["/pay" + CHARGE.format("slow"), "/v1/fences"])
def test_a_scope_that_is_withdrawn_while_the_body_comes(world: World, path: str) -> None:
    token, caller = world.make("policy:pay", "work")
    fields = [JSON, ("Expect", "100-continue"), ("Content-Length", "22")]
    fields += [("Idempotency-Key", "slow-body"), ("X-Execution-Fence", "1")]
    slow = caller.open("POST", path, fields, None)
    assert slow.interim() == 100
    withdraw(world, token, "audit")
    until(lambda: is_barred(caller), "the gateway knows")
    slow.send(b'{"entity":"account:s"}')
    assert_forbidden(slow.reply(), "policy:pay" if "pay" in path else "work")
    assert world.stack.upstream.count == 0
    assert rows(world.stack.database, "select from gateway.commands where key = 'slow-body'") == []
    assert (
        rows(world.stack.database, "select from gateway.entities where entity = 'account:s'") == []
    )


def test_without_any_key_everything_is_allowed(postgres: Server) -> None:
    assert {"policy:*", "enqueue", "work", "operate", "audit"} == ALL
    with stack(postgres, lambda url: [policy(url, SLOW)], tools=TOOLS) as made:
        caller = made.caller()
        for method, path, _ in OWN.values():
            reply = caller.call(method, path, [JSON], b'{"zzz":1}' if method == "POST" else b"")
            assert reply.problem in ("request-invalid", "job-unknown", "entity-missing")
        made.upstream.next(respond(201, b"{}"))
        assert charge(caller, "open").status == 201
