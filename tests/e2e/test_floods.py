"""Floods against one process: what is refused, in which order, and who goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.test_keys_over_http import make_key
from tests.kit.client import Caller, Exchange, assert_problem
from tests.kit.db import Server
from tests.kit.gateway import GatewayProcess, Stack, policy, stack
from tests.kit.upstream import Gate, gated, respond

MIB = 2**20

CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 60
request_limit = "6 MiB"
keep_limit = "8 MiB"
fence = "off"
"""

NARROW = """
name = "narrow"
match = "POST /v1/accounts/{account}/refunds"
entity = "account:{path.account}"
timeout_s = 60
fence = "off"
max_in_flight = 4
"""


@pytest.fixture(scope="module")
def tokens(postgres: Server) -> Iterator[tuple[str, dict[str, str]]]:
    with postgres.database() as dsn:
        yield dsn, {name: make_key(dsn, name) for name in ("a", "b")}


@pytest.fixture(scope="module")
def running(postgres: Server, tokens: tuple[str, dict[str, str]]) -> Iterator[Stack]:
    env = {"FENCEGATE_MEMORY_MIB": "16"}
    commands = (CHARGE, NARROW)
    with stack(postgres, lambda url: [policy(url, *commands)], database=tokens[0], env=env) as made:
        yield made


class Crowd:
    """Callers of two tenants, each command of an entity of its own."""

    def __init__(self, running: Stack, tokens: dict[str, str]) -> None:
        self.stack = running
        self._callers = {name: running.caller(token) for name, token in tokens.items()}
        self._number = 0
        self.scene = running.scene()

    def caller(self, tenant: str) -> Caller:
        return self._callers[tenant]

    def open(
        self, tenant: str, size: int = 2, what: str = "charges", *, key: str | None = None
    ) -> Exchange:
        """A command with so many bytes of body, which may be refused before they are sent."""
        head = self.head(tenant, size, what, key=key)
        exchange = self.caller(tenant).raw(head)
        body = b'{"x":"' + b"a" * (size - 8) + b'"}' if size > 8 else b"{}"
        try:
            exchange.send(body)
        except OSError:
            assert exchange.readable()
        return exchange

    def head(
        self, tenant: str, size: int, what: str = "charges", *, key: str | None = None
    ) -> bytes:
        self._number += 1
        name = key or f"{self.scene.account}-{self._number}"
        token = self.caller(tenant)._token
        return (
            f"POST /pay/v1/accounts/{name}/{what} HTTP/1.1\r\nHost: g\r\n"
            f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
            f"Idempotency-Key: {name}\r\nContent-Length: {size}\r\n\r\n"
        ).encode()


@pytest.fixture
def crowd(running: Stack, tokens: tuple[str, dict[str, str]]) -> Crowd:
    running.wait_for_gauge("attempts_in_flight", 0)
    return Crowd(running, tokens[1])


def statuses(exchanges: list[Exchange]) -> list[int]:
    return [exchange.reply().status for exchange in exchanges]


# -- memory


def test_bodies_over_the_memory_are_refused_and_small_ones_go_on(crowd: Crowd) -> None:
    gate = Gate()
    crowd.scene.upstream.script = lambda request: gated(gate) if len(request.body) > 1000 else None
    large = []
    for _ in range(2):
        large.append(crowd.open("a", 3 * MIB))
        crowd.scene.upstream.wait_for_requests(len(large))
    refused = crowd.open("a", 3 * MIB).reply()
    document = assert_problem(refused, "overloaded", waits=True)
    assert "in this gateway process's memory" in document["detail"]
    assert refused.one("Retry-After") == "1"
    assert crowd.open("a").reply().status == 201  # of the same tenant, and small
    assert crowd.open("b").reply().status == 201
    gate.release()
    assert statuses(large) == [201, 201]
    crowd.stack.wait_for_gauge("attempts_in_flight", 0)
    assert crowd.open("a", 3 * MIB).reply().status == 201


def test_a_tenant_that_fills_the_memory_leaves_a_part_to_others(crowd: Crowd) -> None:
    gate = Gate()
    crowd.scene.upstream.script = lambda _: gated(gate)
    within = []
    while True:
        exchange = crowd.open("a", MIB)
        if not _is_sent(crowd, exchange, len(within) + 1):
            assert_problem(exchange.reply(), "overloaded", waits=True)
            break
        within.append(exchange)
    other = crowd.open("b", MIB)
    crowd.scene.upstream.wait_for_requests(len(within) + 1)
    gate.release()
    assert statuses([*within, other]) == [201] * (len(within) + 1)
    assert len(within) == 7  # three quarters of 10 MiB


def _is_sent(crowd: Crowd, exchange: Exchange, count: int) -> bool:
    """Whether it comes to be in flight; else it is answered."""
    while not exchange.readable():
        if crowd.scene.upstream.count >= count:
            return True
    return False


def test_who_announces_much_and_sends_little_keeps_nobody_out(crowd: Crowd) -> None:
    slow = [crowd.caller("a").raw(crowd.head("a", 6 * MIB) + b"{") for _ in range(50)]
    assert crowd.open("a", 4 * MIB).reply().status == 201
    assert crowd.open("b", 4 * MIB).reply().status == 201
    for exchange in slow:
        exchange.hang_up()


def test_a_body_that_outgrows_the_memory_is_refused_as_it_comes(crowd: Crowd) -> None:
    gate = Gate()
    crowd.scene.upstream.script = lambda _: gated(gate)
    slow = crowd.caller("a").raw(crowd.head("a", 4 * MIB) + b"{")
    slow.send(b" " * (MIB // 2))
    held = []
    for _ in range(2):
        held.append(crowd.open("b", 7 * MIB // 2))
        if not _is_sent(crowd, held[-1], len(held)):
            break
    try:
        slow.send(b" " * (5 * MIB // 2))
        slow.send(b" " * MIB)
    except OSError:
        assert slow.readable()
    assert_problem(slow.reply(), "overloaded", waits=True)
    gate.release()
    statuses(held)
    crowd.stack.wait_for_gauge("attempts_in_flight", 0)
    assert crowd.open("a", 4 * MIB).reply().status == 201


def test_a_policy_whose_bodies_can_never_fit_is_refused_at_the_start(postgres: Server) -> None:
    with postgres.database() as dsn:
        text = policy("http://127.0.0.1:9", CHARGE.replace("6 MiB", "64 MiB"))
        process = GatewayProcess(dsn, {"p.toml": text}, env={"FENCEGATE_MEMORY_MIB": "64"})
        try:
            done = process.refuses_to_start()
        finally:
            process.close()
    assert done.code != 0
    assert "request_limit of pay/charge" in done.err
    assert "FENCEGATE_MEMORY_MIB" in done.err


def test_enqueued_bodies_count_too(crowd: Crowd) -> None:
    gate = Gate()
    crowd.scene.upstream.script = lambda _: gated(gate)
    large = []
    for _ in range(2):
        large.append(crowd.open("a", 3 * MIB))
        crowd.scene.upstream.wait_for_requests(len(large))
    body = json.dumps({"jobs": [{"tool": "t", "payload": "a" * (3 * MIB)}]}).encode()
    fields = [("Content-Type", "application/json")]
    reply = crowd.caller("a").call("POST", "/v1/jobs", fields, body)
    document = assert_problem(reply, "overloaded", retry="wait", waits=True)
    assert "memory" in document["detail"]
    gate.release()
    statuses(large)
    crowd.stack.wait_for_gauge("attempts_in_flight", 0)
    again = crowd.caller("a").call("POST", "/v1/jobs", fields, body)
    assert again.problem != "overloaded"


def test_a_tenant_whose_callers_do_not_read_is_refused_until_they_do(crowd: Crowd) -> None:
    crowd.scene.upstream.next(respond(200, b"a" * (7 * MIB)))
    key = f"replayed-{crowd.scene.account}"
    assert crowd.open("a", key=key).reply().status == 200
    deaf = []
    for _ in range(12):
        deaf.append(crowd.caller("a").raw(crowd.head("a", 2, key=key) + b"{}", buffer=4096))
        if deaf[-1].peek_status() != 200:  # answered from the record, and nobody reads on
            break
    refused = crowd.open("a").reply()
    document = assert_problem(refused, "overloaded", waits=True)
    assert "read the answers" in document["detail"]
    assert crowd.open("b").reply().status == 201
    for exchange in deaf:
        exchange.hang_up(reset=True)
    reply = crowd.open("a").reply()
    while reply.status != 201:
        assert_problem(reply, "overloaded", waits=True)
        reply = crowd.open("a").reply()


# -- attempts


def test_attempts_over_max_in_flight_are_refused_before_they_are_admitted(crowd: Crowd) -> None:
    gate = Gate()
    crowd.scene.upstream.script = lambda request: (
        gated(gate) if b"refunds" in request.target else None
    )
    within = []
    for _ in range(3):  # three quarters of four: the rest is for other tenants
        within.append(crowd.open("a", what="refunds"))
        crowd.scene.upstream.wait_for_requests(len(within))
    name = f"refused-{crowd.scene.account}"
    refused = crowd.open("a", what="refunds", key=name).reply()
    document = assert_problem(refused, "overloaded", waits=True)
    assert "max_in_flight of pay/narrow" in document["detail"]
    assert crowd.scene.row("") is None
    assert crowd.scene.mark(f"account:{name}") is None
    other = crowd.open("b", what="refunds")
    crowd.scene.upstream.wait_for_requests(4)
    assert_problem(crowd.open("b", what="refunds").reply(), "overloaded", waits=True)
    assert crowd.open("a").reply().status == 201  # another command
    gate.release()
    assert statuses([*within, other]) == [201] * 4
    crowd.stack.wait_for_gauge("attempts_in_flight", 0)
    assert crowd.open("a", what="refunds", key=name).reply().status == 201


def test_callers_that_wait_take_no_place_of_attempts(crowd: Crowd) -> None:
    gate = Gate()
    crowd.scene.upstream.script = lambda _: gated(gate)
    key = f"same-{crowd.scene.account}"
    first = crowd.open("a", what="refunds", key=key)
    crowd.scene.upstream.wait_for_requests(1)
    waiting = []
    for number in range(1, 6):
        waiting.append(crowd.open("a", what="refunds", key=key))
        crowd.stack.wait_for_waiters(number)
    second = crowd.open("a", what="refunds")
    crowd.scene.upstream.wait_for_requests(2)
    gate.release()
    assert statuses([first, second, *waiting]) == [201] * 7
    assert crowd.scene.upstream.count == 2


# -- places


@pytest.fixture(scope="module")
def small(postgres: Server, tokens: tuple[str, dict[str, str]]) -> Iterator[Stack]:
    """One where six may wait, and four stream."""
    env = {"FENCEGATE_MAX_WAITING": "6", "FENCEGATE_MAX_WAITING_PER_KEY": "6"}
    head = "max_connections = 4"
    with stack(
        postgres, lambda url: [policy(url, CHARGE, head=head)], database=tokens[0], env=env
    ) as made:
        yield made


@pytest.fixture
def tight(small: Stack, tokens: tuple[str, dict[str, str]]) -> Crowd:
    small.wait_for_gauge("attempts_in_flight", 0)
    return Crowd(small, tokens[1])


def test_a_tenant_whose_callers_fill_the_room_leaves_places_to_others(tight: Crowd) -> None:
    gate = Gate()
    tight.scene.upstream.script = lambda _: gated(gate)
    firsts = [tight.open(tenant, key=f"{tenant}-{tight.scene.account}") for tenant in "ab"]
    tight.scene.upstream.wait_for_requests(2)
    waiting = []
    for number in range(1, 5):
        waiting.append(tight.open("a", key=f"a-{tight.scene.account}"))
        tight.stack.wait_for_waiters(number)
    refused = tight.open("a", key=f"a-{tight.scene.account}").reply()
    document = assert_problem(refused, "overloaded", waits=True)
    assert "4 of this tenant's callers" in document["detail"]
    waiting.append(tight.open("b", key=f"b-{tight.scene.account}"))
    tight.stack.wait_for_waiters(5)
    gate.release()
    assert statuses([*firsts, *waiting]) == [201] * 7
    assert tight.scene.upstream.count == 2


def test_a_tenant_that_streams_leaves_streams_to_others(tight: Crowd) -> None:
    gate = Gate()
    tight.scene.upstream.script = lambda request: gated(gate) if b"held" in request.target else None
    held = []
    for number in range(3):
        held.append(tight.caller("a").open("GET", f"/pay/held-{number}"))
        tight.scene.upstream.wait_for_requests(number + 1)
    fourth = tight.caller("a").open("GET", "/pay/held-3")
    for number in range(3):  # as often as it likes, and while another waits
        assert tight.caller("b").call("GET", f"/pay/b-{number}").outcome == "unguarded"
    assert tight.scene.upstream.count == 6
    held.pop().hang_up()
    tight.scene.upstream.wait_for_requests(7)
    gate.release()
    assert [each.reply().outcome for each in [*held, fourth]] == ["unguarded"] * 3
    for _ in range(8):
        assert tight.caller("a").call("GET", "/pay/a").outcome == "unguarded"


# -- connections


def test_over_the_limit_of_connections_the_newest_are_refused(postgres: Server) -> None:
    env = {"FENCEGATE_MAX_CONNECTIONS": "16"}
    with stack(postgres, lambda url: [policy(url, CHARGE)], env=env) as made:
        scene = made.scene()
        gate = Gate()
        scene.upstream.next(gated(gate))
        attempt = scene.open("first", None)
        scene.upstream.wait_for_requests(1)
        idle = [made.caller().raw(b"POST /pay") for _ in range(15)]
        reply = scene.send("second", None, account="elsewhere")
        document = assert_problem(reply, "overloaded", waits=True)
        assert "connections" in document["detail"]
        assert made.caller().call("GET", "/healthz").status == 200
        gate.release()
        assert attempt.reply().status == 201
        for exchange in idle:
            exchange.hang_up()
        again = scene.send("second", None, account="elsewhere")
        while again.status != 201:
            again = scene.send("second", None, account="elsewhere")


def test_connections_that_lie_idle_keep_nobody_out(postgres: Server) -> None:
    env = {"FENCEGATE_MAX_CONNECTIONS": "16"}
    with stack(postgres, lambda url: [policy(url, CHARGE)], env=env) as made:
        scene = made.scene()
        gate = Gate()
        scene.upstream.next(gated(gate))
        attempt = scene.open("first", None)
        scene.upstream.wait_for_requests(1)
        health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        idle = []
        for _ in range(20):
            idle.append(made.caller().raw(health, method="GET"))
            assert idle[-1].next().status == 200
        for number in range(20):
            assert scene.send(f"more-{number}", None, account="elsewhere").status == 201
        gate.release()
        assert attempt.reply().status == 201  # it had come before all of them
