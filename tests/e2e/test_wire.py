"""The wire contract: the problems that need a special stack, and what is passed up to the upstream
and what is not. What a malformed request is told is in ``test_bad_input``."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import asyncpg
import pytest

from tests.kit.client import Caller, assert_problem
from tests.kit.db import Server, execute, server, with_connection
from tests.kit.faults import until
from tests.kit.gateway import GatewayProcess, Scene, Stack, gateway, policy, rows, stack
from tests.kit.operating import fencegate
from tests.kit.upstream import Gate, Recorded, closed_port, gated, respond

CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 20
"""

KEYED = """
name = "keyed"
match = "PUT /v1/accounts/{account}/limit"
entity = "account:{path.account}"
send_key = "Idempotency-Key"
send_fence = "X-Fence-Up"
pass_authorization = true
"""

LISTED_GET = """
name = "collect"
match = "GET /v1/accounts/{account}/collect"
entity = "account:{path.account}"
"""

SPLAT = """
name = "thing"
match = "POST /things/{thing}/{part}"
entity = "thing:{path.thing}"
"""

HEAD = """
[upstream_headers]
Authorization = "Bearer ${UPSTREAM_TOKEN}"
X-Account = "fixed"
"""


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    def policies(url: str) -> list[str]:
        return [
            policy(url, CHARGE, KEYED, LISTED_GET),
            policy(url + "/base", SPLAT, name="sub", mount="/sub", head=HEAD),
        ]

    with stack(postgres, policies, env={"UPSTREAM_TOKEN": "t0p"}) as made:
        yield made


@pytest.fixture
def scene(served: Stack) -> Scene:
    return served.scene()


def seen(scene: Scene) -> Recorded:
    """The one request that reached the upstream."""
    (request,) = scene.upstream.requests
    return request


def command(scene: Scene, *more: tuple[str, str]) -> list[tuple[str, str]]:
    return [("Idempotency-Key", scene.key()), ("X-Execution-Fence", "1"), *more]


# -- what is passed up


def test_the_gateways_own_fields_are_not_passed_up(scene: Scene) -> None:
    reply = scene.send(
        fields=[
            ("Authorization", "Bearer fg_1_secret"),
            ("X-Execution-Entity", scene.entity),
            ("Prefer", "wait=3"),
            ("X-Mine", "kept"),
        ]
    )
    assert reply.status == 201
    request = seen(scene)
    for name in ("Authorization", "Idempotency-Key", "X-Execution-Fence", "X-Execution-Entity"):
        assert request.all(name) == []
    assert request.one("X-Mine") == b"kept"
    assert request.body == b'{"amount":100}'


def test_the_host_is_the_upstreams_and_comes_first(scene: Scene) -> None:
    scene.send()
    request = seen(scene)
    assert request.one("Host") == scene.upstream.url.removeprefix("http://").encode()
    assert request.headers[0][0].lower() == b"host"
    assert request.one("Content-Length") == b"14"
    assert request.one("Connection") is None


def test_via_is_added_behind_what_is_there_and_is_the_same_for_the_deployment(
    served: Stack, scene: Scene
) -> None:
    scene.send("k1", fields=[("Via", "1.0 fred, 1.1 other.example")])
    scene.send("k2")
    first, second = scene.upstream.requests
    assert first.all("Via")[0] == b"1.0 fred, 1.1 other.example"
    assert first.all("Via")[1:] == second.all("Via")
    protocol, pseudonym = second.all("Via")[0].split(b" ")
    assert (protocol, pseudonym.startswith(b"fencegate-")) == (b"1.1", True)
    with gateway(served.database, policy(served.upstream.url, CHARGE)) as replica:
        looped = Caller(replica.url).call(
            "POST",
            f"/pay/v1/accounts/{scene.account}/charges",
            [("Via", f"1.1 {pseudonym.decode()}"), *command(scene)],
        )
    assert_problem(looped, "loop-detected")


def test_hop_by_hop_fields_end_here_and_the_others_keep_order_and_repeats(scene: Scene) -> None:
    scene.send(
        fields=[
            ("Connection", "keep-alive, X-Hop"),
            ("connection", "x-hop2"),
            ("X-Hop", "1"),
            ("X-HOP2", "2"),
            ("Keep-Alive", "timeout=5"),
            ("TE", "trailers"),
            ("Trailer", "X-Sum"),
            ("Upgrade", "h2c"),
            ("HTTP2-Settings", "AAMAAABk"),
            ("Proxy-Authorization", "Basic eA=="),
            ("Proxy-Connection", "keep-alive"),
            ("X-List", "a"),
            ("X-End", "kept"),
            ("X-List", "b"),
            ("Accept-Encoding", "br, gzip"),
        ]
    )
    request = seen(scene)
    for name in (
        *("Connection", "X-Hop", "X-Hop2", "Keep-Alive", "TE", "Trailer", "Upgrade"),
        *("HTTP2-Settings", "Proxy-Authorization", "Proxy-Connection", "Transfer-Encoding"),
    ):
        assert request.all(name) == [], name
    assert request.all("X-List") == [b"a", b"b"]
    order = [name.lower() for name, _ in request.headers if name.lower().startswith(b"x-")]
    assert order == [b"x-list", b"x-end", b"x-list"]
    assert request.one("Accept-Encoding") == b"br, gzip"


def test_the_gateway_adds_no_fields_of_its_own_but_via(scene: Scene) -> None:
    scene.caller.call("POST", f"/pay/v1/accounts/{scene.account}/charges", command(scene), b"x")
    names = [name.lower() for name, _ in seen(scene).headers]
    assert sorted(names) == [b"content-length", b"host", b"via"]


def test_a_chunked_request_goes_up_with_a_length(scene: Scene) -> None:
    exchange = scene.caller.open(
        "POST",
        f"/pay/v1/accounts/{scene.account}/charges",
        command(scene, ("Transfer-Encoding", "chunked")),
        None,
    )
    exchange.send(b"3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n")
    assert exchange.reply().status == 201
    request = seen(scene)
    assert (request.body, request.one("Content-Length")) == (b"abcdefg", b"7")
    assert request.one("Transfer-Encoding") is None


@pytest.mark.parametrize(
    "target",
    [
        "/things/a%2Db/%7Ep?q=%41&q=a+b&&=%2F",
        "/things/x/y?",
        "/things/X-y_z~1/(p)!$&'*+,;=:@",
        "/things/x/%C3%A9?e=%E9",
    ],
)
def test_path_and_query_go_up_raw_behind_the_base_path(scene: Scene, target: str) -> None:
    reply = scene.caller.call("POST", "/sub" + target, command(scene))
    assert reply.status == 201, reply.body
    assert seen(scene).target == b"/base" + target.removesuffix("?").encode()


def test_upstream_headers_stand_over_the_callers(scene: Scene) -> None:
    fields = [("authorization", "Bearer mine"), ("x-account", "other"), ("X-ACCOUNT", "third")]
    scene.caller.call("POST", "/sub/things/a/b", command(scene, *fields))
    request = seen(scene)
    assert request.all("Authorization") == [b"Bearer t0p"]
    assert request.all("X-Account") == [b"fixed"]


def test_key_fence_and_authorization_go_up_where_the_policy_says_so(scene: Scene) -> None:
    scene.send(fence=17, method="PUT", what="limit", fields=[("Authorization", "Basic Zm9v")])
    request = seen(scene)
    assert request.method == b"PUT"
    assert request.one("X-Fence-Up") == b"17"
    assert request.one("Authorization") == b"Basic Zm9v"
    key = request.one("Idempotency-Key") or b""
    assert key.startswith(b"fg-")
    assert scene.key().encode() not in key
    assert request.all("X-Execution-Fence") == []


def test_the_key_that_goes_up_is_the_same_at_every_attempt_and_of_each_key_its_own(
    scene: Scene,
) -> None:
    scene.upstream.next(respond(429))
    for key in ("k1", "k1", "k2"):
        scene.send(key, method="PUT", what="limit")
    first, again, other = (r.one("Idempotency-Key") for r in scene.upstream.requests)
    assert first == again != other
    row = scene.row("k1")
    assert row is not None
    assert row["upstream_key"].encode() == first


def test_a_quoted_and_a_bare_key_are_the_same_key(scene: Scene) -> None:
    scene.send("k")
    fields = [("Idempotency-Key", f'"{scene.key()}"')]
    assert scene.send(None, fields=fields).replayed
    assert scene.upstream.count == 1


def test_a_get_that_a_policy_lists_is_a_command(scene: Scene) -> None:
    first = scene.send(method="GET", what="collect", body=b"")
    again = scene.send(method="GET", what="collect", body=b"")
    assert (first.outcome, again.outcome, scene.upstream.count) == ("applied", "replayed", 1)
    reply = scene.send(method="HEAD", what="collect", body=b"")
    assert (reply.status, reply.outcome, scene.upstream.count) == (400, "rejected", 1)


def test_an_entity_field_that_agrees_passes_and_another_is_refused_with_evidence(
    scene: Scene,
) -> None:
    assert scene.send("k1", fields=[("X-Execution-Entity", f" {scene.entity} ")]).status == 201
    reply = scene.send("k2", 9, fields=[("X-Execution-Entity", "account:other")])
    assert_problem(reply, "entity-mismatch", entity=scene.entity, entity_sent="account:other")
    assert (scene.mark(), scene.row("k2"), scene.upstream.count) == (1, None, 1)
    (row,) = scene.audit()
    assert (row["event"], row["policy"]) == ("entity_mismatch", "pay/charge")
    assert "account:other" in row["reason"]
    assert row["request_id"] == reply.json()["request_id"]
    assert (row["key"], row["fence"]) == (scene.key("k2"), 9)
    line = scene.stack.gateway.wait_for_log(request_id=row["request_id"], event="decision")
    about = {
        "policy": "pay/charge",
        "entity": scene.entity,
        "fence": 9,
        "problem": "entity-mismatch",
    }
    assert about.items() <= line.items()
    assert scene.send("k2", 9).status == 201
    admitted = scene.row("k2")
    assert admitted is not None
    assert admitted["key_digest"].hex() == line["key_digest"]


# -- the gateway's own answers


def test_a_problem_carries_the_callers_request_id_where_it_is_plain(scene: Scene) -> None:
    plain = scene.send(None, fields=[("X-Request-Id", "req-17")])
    assert plain.json()["request_id"] == "req-17"
    strange = scene.send(None, fields=[("X-Request-Id", "a b; c='d'")])
    assert len(strange.json()["request_id"]) == 32
    scene.stack.gateway.wait_for_log(request_id="req-17", problem="key-missing", status=400)


def test_a_log_line_tells_the_decision_and_not_the_key(scene: Scene) -> None:
    scene.send("secret-key", 3, fields=[("X-Request-Id", scene.key("id"))])
    line = scene.stack.gateway.wait_for_log(request_id=scene.key("id"))
    assert (line["status"], line["outcome"], line["entity"]) == (201, "applied", scene.entity)
    assert (line["fence"], line["decision"], line["policy"]) == (3, "Forward", "pay/charge")
    row = scene.row("secret-key")
    assert row is not None
    assert line["key_digest"] == row["key_digest"].hex()
    assert "secret-key" not in str(line)


def test_a_gateway_pointed_at_itself_refuses_the_second_pass(postgres: Server) -> None:
    port = closed_port()
    looped = policy(f"http://127.0.0.1:{port}/pay", CHARGE)
    with postgres.database() as dsn, gateway(dsn, looped, arguments=("--port", str(port))) as made:
        caller = Caller(made.url)
        fields = [("Idempotency-Key", "k"), ("X-Execution-Fence", "1")]
        reply = caller.call("POST", "/pay/v1/accounts/a/charges", fields, b"{}")
        assert (reply.status, reply.problem) == (508, "loop-detected")
        safe = caller.call("GET", "/pay/v1/accounts/a")
        assert (safe.status, safe.problem) == (508, "loop-detected")
        assert reply.outcome == "not-executed"
        assert rows(dsn, "select 1 from gateway.commands") == []
        passes = [line for line in made.log if line.get("problem") == "loop-detected"]
        assert len(passes) == 2


# -- the database


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server that this module may stop."""
    with server() as made:
        yield made


@pytest.fixture(scope="module")
def fragile(own_server: Server) -> Iterator[Stack]:
    with stack(own_server, lambda url: [policy(url, CHARGE)]) as made:
        yield made


def assert_unavailable(scene: Scene, key: str) -> None:
    reply = scene.send(key, 50)
    document = assert_problem(reply, "store-unavailable", waits=True)
    assert "nothing was sent" in document["detail"]


def test_a_database_that_is_down_refuses_everything_and_nothing_is_sent(
    fragile: Stack, own_server: Server
) -> None:
    scene = fragile.scene()
    assert scene.send("before").status == 201
    own_server.cluster.stop()
    try:
        assert_unavailable(scene, "during")
        assert_unavailable(scene, "before")
        until(lambda: not_ready(fragile), "it is not ready")
        assert fragile.caller().call("GET", "/healthz").status == 200
        safe = fragile.caller().call("GET", "/pay/v1/accounts/a")
        assert (safe.status, safe.outcome) == (201, "unguarded")
        mismatch = scene.send("m", fields=[("X-Execution-Entity", "account:other")])
        assert_problem(mismatch, "store-unavailable", waits=True)
    finally:
        own_server.restart()
    assert scene.send("during").status == 201
    assert scene.send("before").replayed
    assert scene.mark() == 1
    assert [r.method for r in scene.upstream.requests] == [b"POST", b"GET", b"POST"]


def test_a_database_that_restarts_loses_and_doubles_nothing(
    fragile: Stack, own_server: Server
) -> None:
    scene = fragile.scene()
    restart = threading.Thread(target=own_server.restart, kwargs={"immediate": True})
    restart.start()
    answers: list[int] = []
    number = 0
    while restart.is_alive() or answers[-1] != 201:
        number += 1
        reply = scene.send(f"k{number}", 1)
        answers.append(reply.status)
        if reply.status == 503:
            assert_problem(reply, "store-unavailable", waits=True)
    restart.join()
    assert set(answers) <= {201, 503}
    assert len(scene.upstream.effects) == answers.count(201)
    for number, status in enumerate(answers, start=1):
        if status == 201:
            assert scene.send(f"k{number}", 1).replayed


def test_an_answer_that_came_while_the_database_was_away_is_recorded(
    fragile: Stack, own_server: Server
) -> None:
    scene = fragile.scene()
    gate = Gate()
    scene.upstream.next(gated(gate))
    caller = scene.open("k", 1)
    scene.upstream.wait_for_requests(1)
    own_server.cluster.stop()
    gate.release()
    own_server.restart()
    assert (caller.reply().status, scene.state()) == (201, "settled")
    assert scene.send("k", 1).replayed
    assert scene.upstream.count == 1


def set_read_only(dsn: str, value: str) -> None:
    """For every session to come; those that are there end."""
    name = dsn.rsplit("/", 1)[1]

    async def work(conn: asyncpg.Connection[asyncpg.Record]) -> None:
        await conn.execute("set default_transaction_read_only = off")
        await conn.execute(f"alter database {name} set default_transaction_read_only = {value}")
        await conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )

    with_connection(dsn, work)


def not_ready(fragile: Stack) -> str:
    ready = fragile.caller().call("GET", "/readyz")
    return str(ready.json()["reason"]) if ready.status == 503 else ""


def test_a_read_only_database_refuses_commands_and_says_why(fragile: Stack) -> None:
    scene = fragile.scene()
    set_read_only(fragile.database, "on")
    try:
        reply = scene.send("during", 50)
        document = assert_problem(reply, "store-unavailable", waits=True)
        assert "read-only" in document["detail"]
        # The look of a moment ago is everybody's for a second.
        until(lambda: "read-only" in not_ready(fragile), "it says why it is not ready")
    finally:
        set_read_only(fragile.database, "off")
    assert (scene.mark(), scene.row("during"), scene.upstream.count) == (None, None, 0)
    assert scene.send("during", 1).status == 201


def refused_start(dsn: str) -> str:
    """Start a gateway that must not serve; what it said."""
    process = GatewayProcess(dsn, {"p.toml": policy("http://127.0.0.1:1", CHARGE)})
    try:
        done = process.refuses_to_start()
    finally:
        process.close()
    assert done.code != 0
    assert "Traceback" not in done.err
    return done.err


def test_an_unmigrated_database_is_not_served(empty_database: str) -> None:
    assert "run: fencegate migrate" in refused_start(empty_database)
    assert rows(empty_database, "select to_regnamespace('gateway') as s") == [{"s": None}]
    assert fencegate("migrate", dsn=empty_database).code == 0
    with gateway(empty_database, policy("http://127.0.0.1:1", CHARGE)):
        pass


def test_a_newer_schema_is_not_served(database: str) -> None:
    execute(
        database,
        "insert into gateway.migrations (version, name, checksum) values (9999, '9999_x.sql', 'x')",
    )
    assert "newer than this release" in refused_start(database)


def test_a_database_that_does_not_answer_is_not_served() -> None:
    said = refused_start(f"postgresql://nobody:secret@127.0.0.1:{closed_port()}/nothing")
    assert "secret" not in said
