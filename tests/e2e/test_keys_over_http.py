"""Gateway keys as callers use them: made by the command line, judged at the socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.client import Caller, Reply, assert_problem
from tests.kit.db import Server
from tests.kit.faults import until
from tests.kit.gateway import GatewayProcess, Stack, policy, rows, stack
from tests.kit.operating import fencegate

CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
"""

KEYED = """
name = "keyed"
match = "PUT /v1/accounts/{account}/limit"
entity = "account:{path.account}"
send_key = "Idempotency-Key"
"""

PATH = "/pay/v1/accounts/acc-1/charges"


def make_key(dsn: str, tenant: str, name: str = "worker") -> str:
    done = fencegate("keys", "add", "--tenant", tenant, "--name", name, dsn=dsn)
    assert done.code == 0, done.err
    return done.out.strip()


@pytest.fixture(scope="module")
def tokens(postgres: Server) -> Iterator[tuple[str, dict[str, str]]]:
    """A database and the keys that were made on it before the gateway started."""
    with postgres.database() as dsn:
        yield dsn, {name: make_key(dsn, name) for name in ("a", "b", "revoked")}


@pytest.fixture(scope="module")
def served(postgres: Server, tokens: tuple[str, dict[str, str]]) -> Iterator[Stack]:
    dsn, made = tokens
    key_id = made["revoked"].split("_")[2]
    assert fencegate("keys", "revoke", key_id, dsn=dsn).code == 0
    with stack(postgres, lambda url: [policy(url, CHARGE, KEYED)], database=dsn) as running:
        yield running


@pytest.fixture
def fresh(served: Stack) -> Stack:
    served.upstream.clear()
    return served


def charge(caller: Caller, key: str, *lines: str, fence: int = 1) -> Reply:
    fields = [("Idempotency-Key", key), ("X-Execution-Fence", str(fence))]
    fields += [("Authorization", line) for line in lines]
    return caller.call("POST", PATH, fields, b"{}")


def test_a_key_authenticates_its_holder_in_every_spelling_of_the_scheme(
    fresh: Stack, tokens: tuple[str, dict[str, str]]
) -> None:
    token = tokens[1]["a"]
    caller = fresh.caller()
    for number, scheme in enumerate(("Bearer", "bearer", "BEARER")):
        reply = charge(caller, f"scheme-{number}", f"{scheme} {token}")
        assert reply.status == 201
    found = rows(fresh.database, "select distinct principal from gateway.commands")
    assert found == [{"principal": "worker"}]


def bad_credentials(token: str, revoked: str, other: str) -> dict[str, list[str]]:
    tenant, key_id, secret = token.removeprefix("fg_").split("_", 2)
    return {
        "none": [],
        "empty": [""],
        "no token": ["Bearer "],
        "another scheme": [f"Basic {token}"],
        "no scheme": [token],
        "non-ASCII": ["Bearer caf\u00e9"],
        "non-ASCII at the end": [f"Bearer {token}\u00e9"],
        "two lines": [f"Bearer {token}", f"Bearer {other}"],
        "two equal lines": [f"Bearer {token}", f"Bearer {token}"],
        "two in one line": [f"Bearer {token}, Bearer {other}"],
        "shorter": [f"Bearer {token[:-1]}"],
        "longer": [f"Bearer {token}x"],
        "another secret": [f"Bearer fg_{tenant}_{key_id}_{'A' * len(secret)}"],
        "another key": [f"Bearer fg_{tenant}_zzzzzzzzzz_{secret}"],
        "another tenant": [f"Bearer fg_{int(tenant) + 1}_{key_id}_{secret}"],
        "no such tenant": [f"Bearer fg_99999_{key_id}_{secret}"],
        "a tenant above bigint": [f"Bearer fg_9999999999_{key_id}_{secret}"],
        "revoked": [f"Bearer {revoked}"],
        "capitals": [f"Bearer {token.upper()}"],
        "a NUL of percent": [f"Bearer {token}%00"],
        "very long": ["Bearer " + "x" * 30_000],
    }


@pytest.mark.parametrize("which", bad_credentials("fg_1_abcdefghij_x", "", ""))
def test_anything_else_is_unauthenticated(
    fresh: Stack, tokens: tuple[str, dict[str, str]], which: str
) -> None:
    made = tokens[1]
    lines = bad_credentials(made["a"], made["revoked"], made["b"])[which]
    before = rows(fresh.database, "select count(*) from gateway.commands")
    reply = charge(fresh.caller(), "never", *lines)
    assert_problem(reply, "unauthenticated")  # type: ignore[arg-type]
    assert reply.one("WWW-Authenticate") == 'Bearer realm="fencegate"'
    assert fresh.upstream.count == 0
    assert rows(fresh.database, "select count(*) from gateway.commands") == before


def test_safe_requests_and_unknown_routes_need_a_key_too(fresh: Stack) -> None:
    caller = fresh.caller()
    for method, target in (("GET", "/pay/v1/x"), ("POST", "/nowhere"), ("HEAD", "/pay/v1/x")):
        reply = caller.call(method, target)
        assert reply.status == 401
    assert fresh.upstream.count == 0
    assert caller.call("GET", "/healthz").status == 200


def test_the_same_key_and_entity_of_two_tenants_never_meet(
    fresh: Stack, tokens: tuple[str, dict[str, str]]
) -> None:
    a, b = (fresh.caller(tokens[1][name]) for name in "ab")
    first = a.call("POST", PATH, [("Idempotency-Key", "same"), ("X-Execution-Fence", "50")], b"{}")
    other = b.call("POST", PATH, [("Idempotency-Key", "same"), ("X-Execution-Fence", "1")], b"[]")
    assert (first.outcome, other.outcome) == ("applied", "applied")
    assert len(fresh.upstream.effects) == 2
    again = b.call("POST", PATH, [("Idempotency-Key", "same"), ("X-Execution-Fence", "1")], b"[]")
    assert (again.replayed, again.body) == (True, other.body)


def test_the_key_that_goes_up_differs_from_tenant_to_tenant(
    fresh: Stack, tokens: tuple[str, dict[str, str]]
) -> None:
    fields = [("Idempotency-Key", "up"), ("X-Execution-Fence", "60")]
    for name in "ab":
        caller = fresh.caller(tokens[1][name])
        assert caller.call("PUT", "/pay/v1/accounts/acc-1/limit", fields, b"{}").status == 201
    first, second = (r.one("Idempotency-Key") for r in fresh.upstream.requests)
    assert first is not None
    assert first != second


def test_a_token_is_written_nowhere(fresh: Stack, tokens: tuple[str, dict[str, str]]) -> None:
    secret = tokens[1]["a"].split("_", 3)[3]  # a secret may hold the separator
    assert charge(fresh.caller(), "written", f"Bearer {tokens[1]['a']}")
    fresh.gateway.wait_for_log(status=201, tenant="a")
    assert secret not in str(fresh.gateway.log)
    sent = b"".join(request.head for request in fresh.upstream.requests)
    assert secret.encode() not in sent


def test_a_key_that_is_revoked_while_its_body_comes_commands_nothing(
    fresh: Stack, tokens: tuple[str, dict[str, str]]
) -> None:
    token = make_key(fresh.database, "a", "short-lived")
    fields = [("Idempotency-Key", "slow"), ("X-Execution-Fence", "100")]
    fields += [("Authorization", f"Bearer {token}"), ("Content-Length", "2")]
    fields += [("Expect", "100-continue")]
    caller = fresh.caller()
    probe = f"Bearer {token}"
    until(lambda: charge(caller, "probe-in", probe, fence=99).status == 201, "the key is known")
    slow = caller.open("POST", PATH, fields, None)
    assert slow.read(5).startswith(b"HTTP/1.1 100 ")
    assert fencegate("keys", "revoke", token.split("_")[2], dsn=fresh.database).code == 0
    until(lambda: charge(caller, "probe-out", probe, fence=99).status == 401, "it is revoked")
    slow.send(b"{}")
    assert_problem(slow.reply(), "unauthenticated")
    assert rows(fresh.database, "select key from gateway.commands where key = 'slow'") == []


def test_without_keys_it_serves_loopback_only(database: str) -> None:
    process = GatewayProcess(
        database, {"p.toml": policy("http://127.0.0.1:1", CHARGE)}, arguments=("--host", "0.0.0.0")
    )
    try:
        done = process.refuses_to_start()
    finally:
        process.close()
    assert done.code != 0
    assert "fencegate keys add" in done.err
