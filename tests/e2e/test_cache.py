"""Replays from the memory of the process: what they are, when they may be, and when not."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kit.client import Reply, assert_problem
from tests.kit.db import Server
from tests.kit.gateway import GatewayProcess, Scene, Stack, gateway, policy, stack
from tests.kit.operating import fencegate
from tests.kit.pgproxy import PgProxy
from tests.kit.upstream import Gate, gated, respond

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

BRIEF = """
name = "brief"
match = "POST /v1/accounts/{account}/brief"
entity = "account:{path.account}"
cache_s = 1
"""

SMALL = """
name = "small"
match = "POST /v1/accounts/{account}/small"
entity = "account:{path.account}"
keep_limit = "16 B"
"""

OPTIONAL = """
name = "note"
match = "POST /v1/accounts/{account}/notes"
entity = "note:{path.account}"
fence = "optional"
"""

HERE = """
name = "held"
match = "POST /v1/accounts/{account}/held"
entity = "held:{path.account}"
issuer = "here"
"""

HITS = 'cache_asked_total{cache="local",result="hit"}'

ALL = (CHARGE, NEVER, BRIEF, SMALL, OPTIONAL, HERE)


@dataclass
class Pair:
    """A gateway with a cache, through a proxy to its database, and one without on the same."""

    cached: Stack
    plain: GatewayProcess
    proxy: PgProxy

    def scene(self) -> Scene:
        return self.cached.scene()

    def from_store(self, scene: Scene) -> Scene:
        """The same callers at the gateway without a cache."""
        other = Stack(self.plain, self.cached.upstream, self.cached.database)
        return Scene(other, other.caller(), scene.account)

    def caches_of(self, scene: Scene, count: int) -> list[str | None]:
        """Where the answers to this scene came from, once so many are logged."""
        assert self.cached.gateway.wait_until(lambda: len(self.lines_of(scene)) >= count, 10)
        return [line.get("cache") for line in self.lines_of(scene)]

    def lines_of(self, scene: Scene) -> list[dict[str, Any]]:
        """Its decisions, as they were logged."""
        return [
            line
            for line in self.cached.gateway.log
            if line["event"] == "decision" and line.get("entity", "").endswith(f":{scene.account}")
        ]


@pytest.fixture(scope="module")
def pair(postgres: Server) -> Iterator[Pair]:
    with (
        postgres.database() as dsn,
        PgProxy(dsn) as proxy,
        stack(
            postgres,
            lambda url: [policy(url, *ALL)],
            database=proxy.dsn,
            env={"FENCEGATE_CACHE_MIB": "8"},
        ) as cached,
        gateway(dsn, policy(cached.upstream.url, *ALL), env={"FENCEGATE_CACHE_MIB": "0"}) as plain,
    ):
        yield Pair(Stack(cached.gateway, cached.upstream, dsn), plain, proxy)


def until(asked: Callable[[], Reply], right: Callable[[Reply], bool]) -> Reply:
    end = time.monotonic() + 10
    while not right(reply := asked()):
        assert time.monotonic() < end, reply
    return reply


def said(reply: Reply) -> tuple[int, list[tuple[str, str]], bytes]:
    fields = [field for field in reply.headers if field[0].lower() != "date"]
    return reply.status, fields, reply.body


def test_it_is_the_replay_that_the_store_gives(pair: Pair) -> None:
    scene = pair.scene()
    fields = [("Set-Cookie", "a=b"), ("X-One", "1"), ("x-one", "2"), ("Date", "yesterday")]
    scene.upstream.next(respond(404, b'{"no":1}', fields))
    first = scene.send()
    again = scene.send()
    assert (first.outcome, again.outcome, again.replayed) == ("applied", "replayed", True)
    assert said(again) == said(scene.send()) == said(pair.from_store(scene).send())
    assert scene.upstream.count == 1
    assert pair.caches_of(scene, 3) == [None, "local", "local"]
    line = pair.lines_of(scene)[-1]
    assert (line["decision"], line["outcome"]) == ("Replay", "replayed")
    assert "attempt" not in line


def test_a_replay_needs_no_database(pair: Pair) -> None:
    scene = pair.scene()
    scene.send()
    scene.send("noted", None, what="notes")
    pair.proxy.refuse()
    try:
        assert scene.send().outcome == "replayed"
        assert scene.send("noted", None, what="notes").outcome == "replayed"
        assert_problem(scene.send("other", account="b"), "store-unavailable", waits=True)
        assert_problem(scene.send(fence=2), "store-unavailable", waits=True)
    finally:
        pair.proxy.accept()
    until(lambda: scene.send(fence=2), lambda reply: reply.outcome == "replayed")
    assert scene.upstream.count == 2


def test_a_higher_fence_reaches_the_store_and_is_remembered(pair: Pair) -> None:
    scene = pair.scene()
    scene.send(fence=3)
    assert scene.send(fence=7).outcome == "replayed"
    assert scene.mark() == 7
    assert_problem(scene.send(fence=3), "fence-stale")
    assert pair.caches_of(scene, 3) == [None, None, None]
    assert len(scene.audit("fence_stale")) == 1


def test_a_newer_owner_of_another_command_makes_the_older_stale(pair: Pair) -> None:
    scene = pair.scene()
    assert [scene.send("mine", 3).outcome for _ in range(3)] == ["applied", *2 * ["replayed"]]
    scene.send("theirs", 4)
    assert_problem(scene.send("mine", 3), "fence-stale")
    assert scene.send("theirs", 4).outcome == "replayed"
    assert pair.caches_of(scene, 6) == [None, "local", "local", None, None, "local"]


def test_a_stale_fence_that_only_the_store_has_seen_hears_its_own_answer(pair: Pair) -> None:
    """The documented difference: nothing is sent for it."""
    scene = pair.scene()
    scene.send("mine", 3)
    pair.from_store(scene).send("theirs", 4)
    assert scene.send("mine", 3).outcome == "replayed"
    assert_problem(scene.send("new", 3), "fence-stale")
    assert_problem(scene.send("mine", 3), "fence-stale")
    assert scene.upstream.count == 2


def test_a_fence_that_was_issued_later_is_heard_of_by_what_is_new(pair: Pair) -> None:
    """Documented too: no command brought the newer fence here."""
    scene = pair.scene()
    scene.send("mine", 3)
    scene.issue()
    assert scene.send("mine", 3).outcome == "replayed"
    assert_problem(scene.send("new", 3), "fence-stale")
    assert_problem(scene.send("mine", 3), "fence-stale")
    assert scene.upstream.count == 1


def test_another_request_under_the_key_is_told_so(pair: Pair) -> None:
    scene = pair.scene()
    for _ in range(3):
        scene.send()
    assert_problem(scene.send(body=b'{"amount":101}'), "key-reused")
    assert_problem(scene.send(query="?a=b"), "key-reused")
    assert scene.send(body=b'{ "amount": 100 }').outcome == "replayed"
    assert scene.send(fields=[("X-Request-Id", "other")]).outcome == "replayed"
    assert_problem(scene.send(fields=[("X_Execution_Fence", "1")]), "request-invalid")
    assert pair.caches_of(scene, 7)[-2:] == ["local", "local"]


def test_an_absent_fence_hears_what_a_fenced_one_did(pair: Pair) -> None:
    scene = pair.scene()
    scene.send(fence=5, what="notes")
    assert scene.send(fence=None, what="notes").outcome == "replayed"
    assert pair.caches_of(scene, 2) == [None, "local"]
    scene.send("bare", fence=None, what="notes")
    assert scene.send("bare", fence=6, what="notes").outcome == "replayed"
    assert pair.caches_of(scene, 4)[2:] == [None, None]
    assert scene.mark(f"note:{scene.account}") == 6


@pytest.mark.parametrize("what", ["never", "small", "held", "charges"])
def test_what_is_never_cached(pair: Pair, what: str) -> None:
    """``charges``: fences are issued here for the entity, whatever its policy says."""
    scene = pair.scene()
    entity = f"held:{scene.account}" if what == "held" else scene.entity
    fence = scene.issue(entity) if what in ("held", "charges") else 1
    body = b'{"long":"and longer"}'
    scene.upstream.next(respond(201, body))
    assert scene.send(fence=fence, what=what).status == 201
    again = scene.send(fence=fence, what=what)
    if what == "small":
        assert_problem(again, "response-not-retained")
    else:
        assert again.outcome == "replayed"
    assert pair.caches_of(scene, 2) == [None, None]


def test_what_was_given_back_is_not_cached(pair: Pair) -> None:
    scene = pair.scene()
    scene.upstream.next(respond(429))
    assert scene.send().outcome == "not-executed"
    assert scene.send().outcome == "applied"
    assert pair.caches_of(scene, 2) == [None, None]


def test_who_waits_is_answered_by_the_store(pair: Pair) -> None:
    scene = pair.scene()
    gate = Gate()
    scene.upstream.next(gated(gate))
    first = scene.open()
    scene.upstream.wait_for_effects(1)
    second = scene.waiter("k")
    gate.release()
    assert (first.reply().outcome, second.reply().outcome) == ("applied", "replayed")
    assert scene.send().outcome == "replayed"
    assert sorted(map(str, pair.caches_of(scene, 3))) == ["None", "None", "local"]


def test_it_ends_with_cache_s(pair: Pair) -> None:
    scene = pair.scene()
    scene.send(what="brief")
    assert scene.send(what="brief").outcome == "replayed"
    sent = itertools.count(3)
    until(
        lambda: scene.send(what="brief"),
        lambda _: pair.caches_of(scene, count := next(sent))[count - 1] is None,
    )
    assert pair.caches_of(scene, 2)[:2] == [None, "local"]
    assert scene.upstream.count == 1


def test_an_erasure_ends_it(pair: Pair) -> None:
    scene = pair.scene()
    scene.send()
    assert scene.send().outcome == "replayed"
    done = fencegate(
        *("commands", "erase", "--entity", scene.entity, "--reason", "asked"),
        dsn=pair.cached.database,
    )
    assert done.code == 0
    gone = until(scene.send, lambda reply: reply.status == 410)
    assert_problem(gone, "response-not-retained")
    # What comes after it is cached again.
    before = pair.cached.gauge(HITS)
    scene.send("next")
    assert scene.send("next").outcome == "replayed"
    assert pair.cached.gauge(HITS) == before + 1


def test_many_answers_take_no_more_than_their_room(pair: Pair) -> None:
    scene = pair.scene()
    for number in range(40):
        scene.upstream.next(respond(201, bytes(200_000)))
        assert scene.send(f"large{number}", what="notes", fence=None).status == 201
    assert pair.cached.gauge("cache_bytes") <= 8 * 2**20
