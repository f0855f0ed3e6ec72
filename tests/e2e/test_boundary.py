"""Whom the gateway believes: where a request came from, whether it is meant for this machine, and
by whose word a request has gone round in a circle."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.kit.client import Caller, Reply, assert_problem
from tests.kit.db import Server, execute
from tests.kit.gateway import Scene, Stack, gateway, policy, rows, stack
from tests.kit.operating import fencegate
from tests.kit.upstream import Answer, Recorded, closed_port, raw, respond

CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 5
"""

LISTED = CHARGE + "ambiguous = [502, 508]\n"

TOLD = [
    ("X-Forwarded-For", "198.51.100.9"),
    ("X-Forwarded-Proto", "https"),
    ("Forwarded", "for=198.51.100.9"),
    ("X-Real-IP", "198.51.100.9"),
    ("X_Forwarded_For", "203.0.113.1"),
    ("X-Mine", "kept"),
]


@pytest.fixture(scope="module")
def served(postgres: Server) -> Iterator[Stack]:
    with stack(postgres, lambda url: [policy(url, CHARGE)]) as made:
        yield made


@pytest.fixture(scope="module")
def behind_a_proxy(postgres: Server) -> Iterator[Stack]:
    head = '[upstream_headers]\nX-Forwarded-Host = "api.example"'
    env = {"FENCEGATE_TRUSTED_PROXIES": "127.0.0.0/8, 10.0.0.0/8"}
    with stack(postgres, lambda url: [policy(url, CHARGE, head=head)], env=env) as made:
        yield made


@pytest.fixture
def scene(served: Stack) -> Scene:
    return served.scene()


# -- where a request came from


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_nobody_is_believed_about_where_a_request_came_from(scene: Scene, method: str) -> None:
    reply = scene.send(method=method, fields=[*TOLD, ("X-Request-Id", scene.key())])
    assert reply.status == 201
    (request,) = scene.upstream.requests
    assert request.one("X-Mine") == b"kept"
    for name, _ in TOLD[:-1]:
        assert request.all(name) == []
    line = scene.stack.gateway.wait_for_log(request_id=scene.key(), event="decision")
    assert line["caller"] == "127.0.0.1"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_trusted_proxy_is_believed_and_put_behind_what_it_says(
    behind_a_proxy: Stack, method: str
) -> None:
    scene = behind_a_proxy.scene()
    told = [*TOLD, ("X-Request-Id", scene.key())]
    assert scene.send(method=method, fields=told).status == 201
    (request,) = scene.upstream.requests
    assert request.all("X-Forwarded-For") == [b"198.51.100.9, 127.0.0.1"]
    assert request.all("Forwarded") == [b"for=198.51.100.9, for=127.0.0.1"]
    assert request.all("X-Forwarded-Proto") == [b"https"]
    assert request.all("X-Real-IP") == [b"198.51.100.9"]
    assert request.all("X-Forwarded-Host") == [b"api.example"]
    assert request.all("X_Forwarded_For") == []
    line = scene.stack.gateway.wait_for_log(request_id=scene.key(), event="decision")
    assert line["caller"] == "198.51.100.9"


def test_a_retry_by_another_way_is_the_same_command(behind_a_proxy: Stack) -> None:
    scene = behind_a_proxy.scene()
    for address in ("198.51.100.9", "203.0.113.5, 10.0.0.1"):
        reply = scene.send(fields=[("X-Forwarded-For", address), ("X-Real-IP", address)])
        assert reply.status == 201
    assert (reply.replayed, scene.upstream.count) == (True, 1)


@pytest.mark.parametrize(
    "field",
    [
        'entity = "a:{header.X-Forwarded-For}"',
        'entity = "a:{path.account}"\nkey = "{header.X-Real-IP}"',
        'entity = "a:{path.account}"\n[commands.fingerprint]\nheaders = ["Forwarded"]',
    ],
)
def test_no_policy_may_go_by_where_a_request_came_from(
    tmp_path_factory: pytest.TempPathFactory, field: str
) -> None:
    folder = tmp_path_factory.mktemp("policies")
    head = 'name = "c"\nmatch = "POST /v1/accounts/{account}/charges"\n'
    (folder / "p.toml").write_text(policy("http://127.0.0.1:1", head + field))
    done = fencegate("check", "--policies", str(folder))
    assert done.code == 1
    assert "where a request came from" in done.err


# -- without keys: this machine only


def asked(stack: Stack, host: str, *fields: tuple[str, str], token: str | None = None) -> Reply:
    caller = Caller(stack.gateway.url, token=token)
    return caller.open("GET", "/pay/v1/report", fields, host=host).reply()


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:80", "app.localhost", "127.0.0.2", "[::1]"]
)
def test_without_keys_a_host_of_this_machine_is_served(scene: Scene, host: str) -> None:
    assert asked(scene.stack, host, ("Origin", f"http://{host}")).status == 201


@pytest.mark.parametrize(
    ("host", "fields"),
    [
        ("evil.example", []),
        ("evil.example:8080", [("Origin", "http://evil.example:8080")]),
        ("127.0.0.1.evil.example", []),
        ("10.0.0.1", []),
        ("localhost", [("Origin", "https://evil.example")]),
        ("localhost", [("Origin", "null")]),
        ("localhost", [("Sec-Fetch-Site", "cross-site")]),
        ("localhost", [("Sec-Fetch-Site", "same-site")]),
    ],
)
def test_without_keys_a_page_of_another_site_reaches_nothing(
    scene: Scene, host: str, fields: list[tuple[str, str]]
) -> None:
    assert_problem(asked(scene.stack, host, *fields), "local-only")
    own = [("Idempotency-Key", scene.key()), ("X-Execution-Fence", "1"), *fields]
    target = f"/pay/v1/accounts/{scene.account}/charges"
    guarded = scene.caller.open("POST", target, own, b"{}", host=host).reply()
    assert_problem(guarded, "local-only")
    metrics = scene.caller.open("GET", "/metrics", fields, host=host).reply()
    assert (metrics.status, metrics.json()["status"]) == (403, "forbidden")
    for path in ("/v1/fences", "/v1/jobs"):
        fields = [*fields, ("Content-Type", "application/json")]
        api = scene.caller.open("POST", path, fields, b'{"entity":"e"}', host=host).reply()
        assert api.problem == "local-only"
    assert (scene.upstream.count, scene.row(), scene.mark()) == (0, None, None)


def test_with_keys_any_host_and_origin_is_served(postgres: Server) -> None:
    with postgres.database() as dsn:
        token = fencegate("keys", "add", "--tenant", "t", "--name", "n", dsn=dsn).out.strip()
        with stack(postgres, lambda url: [policy(url, CHARGE)], database=dsn) as made:
            origin = ("Origin", "https://shop.example")
            across = ("Sec-Fetch-Site", "cross-site")
            assert asked(made, "api.example", origin, across, token=token).status == 201
            read = Caller(made.gateway.url).open("GET", "/metrics", [origin], host="api.example")
            assert read.reply().status == 200
            assert_problem(asked(made, "localhost"), "unauthenticated")


# -- loops


def charged(url: str, key: str, *fields: tuple[str, str]) -> Reply:
    own = [("Idempotency-Key", key), ("X-Execution-Fence", "1"), *fields]
    return Caller(url).call("POST", "/pay/v1/accounts/a/charges", own, b"{}")


def test_a_loop_gives_the_key_back_and_it_works_once_the_way_is_mended(postgres: Server) -> None:
    """Through a twin of the gateway: another process on the same database."""
    port = closed_port()
    looped = policy(f"http://127.0.0.1:{port}/pay", CHARGE)
    with postgres.database() as dsn, gateway(dsn, looped) as first:
        with gateway(dsn, looped, arguments=("--port", str(port))):
            reply = charged(first.url, "k")
            assert (reply.status, reply.problem) == (508, "loop-detected")
            assert (reply.outcome, reply.json()["sent"]) == ("not-executed", "no")
            assert reply.one("Gateway-Loop") == reply.json()["refused"]
            assert rows(dsn, "select 1 from gateway.commands") == []
        with stack(postgres, lambda url: [policy(url, CHARGE)], database=dsn) as mended:
            assert charged(mended.gateway.url, "k").outcome == "applied"


def test_a_loop_through_somebody_else_is_unknown(postgres: Server) -> None:
    """A points at B, which has a database of its own, and B at A. B is refused itself, so it knows;
    to A somebody in between handed it on."""
    port = closed_port()
    with postgres.database() as one, postgres.database() as two:
        # Databases of a test run are copies of one, and so far of one name in Via.
        execute(two, "update gateway.deployment set id = gen_random_uuid()")
        to_a = policy(f"http://127.0.0.1:{port}/pay", CHARGE)
        with gateway(two, to_a) as b:
            sends = 'send_key = "Idempotency-Key"\nsend_fence = "X-Execution-Fence"'
            to_b = policy(f"{b.url}/pay", CHARGE + sends)
            with gateway(one, to_b, arguments=("--port", str(port))) as a:
                reply = charged(a.url, "k")
                assert_problem(reply, "outcome-unknown", outcome="unknown", sent="yes", waits=True)
                assert reply.json()["upstream"]["status"] == 508
                line = b.wait_for_log(event="decision", outcome="not-executed")
                assert line["upstream_status"] == 508
        assert rows(two, "select 1 from gateway.commands") == []
        assert len(rows(one, "select 1 from gateway.commands where settled_at is null")) == 1


@pytest.mark.parametrize(
    ("head", "outcome"),
    [
        (b"", "applied"),
        (b"Gateway-Loop: fencegate-ffffffffffff\r\n", "unknown"),
        (b"Gateway-Loop: other\r\n", "unknown"),
    ],
)
def test_a_508_that_is_not_about_us_proves_nothing(scene: Scene, head: bytes, outcome: str) -> None:
    scene.upstream.next(raw(b"HTTP/1.1 508 Loop\r\n" + head + b"Content-Length: 1\r\n\r\nx"))
    assert scene.send().outcome == outcome


def test_an_api_that_asks_us_with_our_fields_and_relays_our_refusal_has_acted(scene: Scene) -> None:
    """It hands everything that it was sent on to the request that it makes, our Via too."""

    def acts(request: Recorded) -> Answer:
        at = http.client.HTTPConnection(urlsplit(scene.stack.gateway.url).netloc, timeout=10)
        at.putrequest("POST", "/pay/v1/accounts/b/charges", skip_host=True)
        for name, value in request.headers:
            at.putheader(name.decode(), value)
        at.endheaders(request.body)
        reply = at.getresponse()
        body = reply.read()
        at.close()
        kept = [(name, value) for name, value in reply.getheaders() if name != "content-length"]
        return respond(reply.status, body, kept, effect=True)

    scene.upstream.script = acts
    try:
        reply = scene.send()
    finally:
        scene.upstream.script = None
    assert_problem(reply, "outcome-unknown", outcome="unknown", sent="yes", waits=True)
    assert reply.json()["upstream"]["status"] == 508
    assert len(scene.upstream.effects) == 1
    assert scene.state() == "unknown"


def test_a_policy_that_lists_the_status_goes_before_that(postgres: Server) -> None:
    port = closed_port()
    looped = policy(f"http://127.0.0.1:{port}/pay", LISTED)
    with postgres.database() as dsn, gateway(dsn, looped, arguments=("--port", str(port))) as made:
        assert charged(made.url, "k").outcome == "unknown"


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_via_says_which_version_the_caller_spoke(scene: Scene, version: str) -> None:
    head = f"GET /pay/v1/report HTTP/{version}\r\nHost: localhost\r\n\r\n"
    assert scene.caller.raw(head.encode(), method="GET").reply().status == 201
    assert (scene.upstream.requests[0].one("Via") or b"").startswith(f"{version} ".encode())


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/openapi.json"])
def test_a_fixed_path_that_is_only_read_says_so_and_leaves_a_line(scene: Scene, path: str) -> None:
    reply = scene.caller.call("POST", path, [], b"{}")
    assert_problem(reply, "method-not-allowed", outcome="rejected")
    assert reply.one("Allow") == "GET"
    request_id = reply.json()["request_id"]
    scene.stack.gateway.wait_for_log(event="path_refused", path=path, request_id=request_id)
    assert scene.caller.call("GET", path).status == 200
