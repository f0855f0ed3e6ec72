"""Two gateways on one database and one Redis: replays that need no database, from either."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.kit.client import Reply, assert_problem
from tests.kit.db import Server
from tests.kit.gateway import Scene, Stack, gateway, policy, stack
from tests.kit.operating import fencegate
from tests.kit.pgproxy import PgProxy
from tests.kit.valkey import Valkey, valkey

CHARGE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 20
settle_delay_s = 0
"""

NEVER = """
name = "never"
match = "POST /v1/accounts/{account}/never"
entity = "account:{path.account}"
cache_s = 0
"""

WRITTEN = 'cache_writes_total{result="written"}'
HITS = 'cache_asked_total{cache="redis",result="hit"}'
MISSES = 'cache_asked_total{cache="redis",result="miss"}'
FAILED = 'cache_asked_total{cache="redis",result="failed"}'


@dataclass
class Two:
    """``proxy`` stands between the second and its database; the second has a cache of its own."""

    one: Stack
    two: Stack
    proxy: PgProxy
    redis: Valkey

    def scene(self) -> Scene:
        return self.one.scene()

    def at_two(self, scene: Scene) -> Scene:
        return Scene(self.two, self.two.caller(), scene.account)

    def in_time(self, scene: Scene) -> Reply:
        """Ask the second; on a busy machine Redis may be too late once, and is asked a second later
        again."""
        until = time.monotonic() + 10
        while (reply := self.at_two(scene).send()).status == 503 and time.monotonic() < until:
            pass
        return reply

    def send_and_share(self, scene: Scene) -> bytes:
        """Send at the first, and wait until it is in Redis."""
        before = self.one.gauge(WRITTEN)
        body = scene.send().body
        self.one.wait_for_gauge(WRITTEN, before + 1)
        return body


@pytest.fixture(scope="module")
def two(postgres: Server) -> Iterator[Two]:
    with postgres.database() as dsn, PgProxy(dsn) as proxy, valkey() as redis:
        env = {"FENCEGATE_REDIS_URL": redis.url, "FENCEGATE_CACHE_MIB": "8"}
        policies = [CHARGE, NEVER]
        with (
            stack(postgres, lambda url: [policy(url, *policies)], database=dsn, env=env) as one,
            gateway(proxy.dsn, policy(one.upstream.url, *policies), env=env) as second,
        ):
            yield Two(one, Stack(second, one.upstream, dsn), proxy, redis)


def test_another_process_replays_it_while_the_database_is_away(two: Two) -> None:
    scene = two.scene()
    body = two.send_and_share(scene)
    two.proxy.refuse()
    try:
        again = two.in_time(scene)
        assert (again.status, again.body, again.outcome) == (201, body, "replayed")
        assert two.two.gauge(HITS) == 1
        assert_problem(two.at_two(scene).send("new"), "store-unavailable", waits=True)
        assert_problem(two.at_two(scene).send(fence=2), "store-unavailable", waits=True)
        other = two.at_two(scene).send(body=b'{"amount":1}')
        assert_problem(other, "store-unavailable", waits=True)
        # From here on it knows by itself.
        two.redis.ask("FLUSHALL")
        assert two.at_two(scene).send().outcome == "replayed"
        line = two.two.gateway.wait_for_log(cache="local", entity=scene.entity)
        assert line["outcome"] == "replayed"
    finally:
        two.proxy.accept()
    assert two.one.gateway.wait_for_log(entity=scene.entity)["decision"] == "Forward"
    assert two.two.gateway.wait_for_log(cache="redis", entity=scene.entity)["decision"] == "Replay"
    assert scene.upstream.count == 1


def test_where_the_database_answers_nobody_asks_redis(two: Two) -> None:
    scene = two.scene()
    two.send_and_share(scene)
    assert two.at_two(scene).send("first", account="other").outcome == "applied"
    before = two.two.gauge(HITS)
    assert two.at_two(scene).send().outcome == "replayed"
    assert two.at_two(scene).send().outcome == "replayed"
    assert two.two.gauge(HITS) == before
    assert two.two.gateway.wait_for_log(cache="local", entity=scene.entity)


def test_what_was_erased_is_replayed_from_nowhere(two: Two) -> None:
    scene = two.scene()
    two.send_and_share(scene)
    there = two.redis.ask("KEYS", "*")
    done = fencegate(
        *("commands", "erase", "--entity", scene.entity, "--reason", "asked"), dsn=two.one.database
    )
    assert done.code == 0
    two.two.wait_for_new_keys()
    two.proxy.refuse()
    before, until = two.two.gauge(MISSES), time.monotonic() + 10
    try:
        while two.two.gauge(MISSES) == before:  # it was looked for, and not found
            assert_problem(two.at_two(scene).send(), "store-unavailable", waits=True)
            assert time.monotonic() < until
    finally:
        two.proxy.accept()
    assert two.redis.ask("KEYS", "*") == there
    assert scene.upstream.count == 1


def test_a_policy_that_says_so_leaves_nothing_there(two: Two) -> None:
    scene = two.scene()
    before = two.redis.keys
    scene.send("private", what="never")
    two.send_and_share(scene)  # written behind it
    assert two.redis.keys == before + 1


def test_a_redis_that_is_away_changes_no_answer(two: Two) -> None:
    scene = two.scene()
    two.send_and_share(scene)
    with two.redis.hung():
        assert scene.send("during").outcome == "applied"
        assert scene.send("during").outcome == "replayed"
        two.proxy.refuse()
        try:
            assert_problem(two.at_two(scene).send(), "store-unavailable", waits=True)
        finally:
            two.proxy.accept()
    assert two.two.gauge(FAILED) >= 1
    assert two.two.gateway.wait_for_log(event="cache_away")["level"] == "warning"
    assert two.two.caller().call("GET", "/readyz").status in (200, 503)  # as the database says
    two.two.gateway.wait_for_log(event="cache_back")
    assert scene.upstream.count == 2
