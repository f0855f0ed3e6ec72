"""Patroni promotes the standby of a leader that is gone, under load (acceptance 4).

As in ``tests/faults/test_failover.py``, but nobody here decides who leads: Patroni does, and the
gateways find out.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from gateway.faultkit.upstream import Recorded
from tests.kit.client import Caller, Reply, assert_problem
from tests.kit.db import with_connection
from tests.kit.faults import CHARGE, pass_s, until
from tests.kit.fleet import Fleet, patient_fleet
from tests.kit.gateway import GatewayProcess, gateway, policy, rows
from tests.kit.invariants import History, Send, assert_holds, read_store
from tests.kit.operating import fencegate
from tests.kit.patroni import Patroni, patroni, why_not
from tests.kit.upstream import RecordingUpstream

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

MIB = 1024 * 1024

BEFORE = 300
"""Commands that are answered before the leader is gone, and again after."""

ALONE_S = 4.0
"""So long the promoted server has no standby. Longer than an admit waits for an answer (2.5 s)."""

PROMOTED_S = 30.0
"""In which whoever asks finds the promoted server, and looks there for what it remembers."""

OUTAGE_S = 180.0
"""Longer than any: 20 s until Patroni may promote, and some 10 s until the other is back."""


# -- synchronous


def test_a_leader_killed_in_strict_synchronous_mode_takes_nothing_with_it() -> None:
    with (
        patroni(synchronous=True, maximum_lag=MIB) as cluster,
        patient_fleet(cluster.dsn, patience_s=OUTAGE_S) as two,
    ):
        outage = Outage(cluster, two)
        two.under_load([outage.run], 3 * BEFORE)
        stored = {row["key"] for row in rows(cluster.dsn, SETTLED)}
        lost = outage.heard - stored
        print(f"{outage}; {len(outage.heard)} acknowledged before, lost = {len(lost)}")
        assert lost == set()
        assert len(outage.heard) >= BEFORE
        assert rows(cluster.dsn, "select * from gateway.losses") == []
        assert outage.effects_alone() == 0, "something was sent that no standby had"

        until(lambda: rows(cluster.dsn, IN_FLIGHT) == [{"n": 0}], "all attempts have ended", 60)
        counts, jobs = two.load.reckon(two.always.url), two.jobs.reckon()
        print(f"{counts}; {jobs}")
        assert counts.settled > 2 * BEFORE
        for process in (two.always, *two.armed):
            assert [line for line in process.log if line.get("event") == "rows_lost"] == []
            assert Caller(process.url).call("GET", "/readyz").status == 200


SETTLED = "select key from gateway.commands where settled_at is not null"
IN_FLIGHT = (
    "select count(*) as n from gateway.commands where settled_at is null and deadline > now()"
)


@dataclass
class Outage:
    """From ``kill -9`` of the leader to the first effect after it."""

    cluster: Patroni
    two: Fleet
    heard: set[str] = field(default_factory=set)
    """Keys whose answer was heard before the leader was killed."""
    killed: float = 0.0
    promoted: float = 0.0
    alone_until: float = 0.0

    def run(self) -> None:
        load, cluster = self.two.load, self.cluster
        until(lambda: len(load.heard) >= BEFORE, "the load runs", OUTAGE_S)
        self.heard = set(load.heard)
        self.killed = time.monotonic()
        cluster.leader.kill()
        cluster.wait_promoted()
        self.promoted = time.monotonic()
        pass_s(self.promoted, ALONE_S)
        self.alone_until = time.monotonic()
        cluster.leader.start()
        cluster.wait_in_step(cluster.standby, cluster.leader)
        seen = len(load.heard)
        until(lambda: len(load.heard) >= seen + BEFORE, "commands go through again", OUTAGE_S)

    def effects_alone(self) -> int:
        return sum(self.promoted < each.arrived_mono < self.alone_until for each in self._effects)

    def __str__(self) -> str:
        gap = max(
            (later.arrived_mono - before.arrived_mono, later.arrived_mono)
            for before, later in pairwise(self._effects)
        )
        assert gap[1] > self.killed, "the longest silence was another"
        return (
            f"outage {gap[0]:.1f} s, of which {self.promoted - self.killed:.1f} s until Patroni"
            f" had promoted and {ALONE_S} s in which the old leader was left dead"
        )

    @property
    def _effects(self) -> Sequence[Recorded]:
        return sorted(self.two.upstream.effects, key=lambda each: each.arrived_mono)


# -- asynchronous

CALLERS = 8
ACCOUNTS = 5
"""Of each caller; its commands go round them, with fences that rise."""


def test_what_a_lagging_standby_does_not_have_is_named_and_everybody_stops() -> None:
    with patroni(synchronous=False, maximum_lag=64 * MIB) as cluster, _pair(cluster) as pair:
        pair.until_heard(BEFORE)
        kept = set(pair.heard)
        cluster.wait_caught_up()
        cluster.cut_off()
        pair.until_heard(BEFORE)
        heard = set(pair.heard)
        killed = time.monotonic()
        cluster.leader.kill()
        cluster.wait_promoted()
        promoted = time.monotonic()
        for process in pair.gateways:
            process.wait_for_log(PROMOTED_S, event="rows_lost")  # each has lost some of its own
            assert _lost_reason(process) is not None
        sent = Counter(_key(each) for each in pair.upstream.effects)
        for process in pair.gateways:
            refused = pair.ask(process, Asked("next", "somebody", 1))
            assert_problem(refused, "rows-lost", waits=True)

        named = _named(cluster.dsn)
        with cluster.leader.disk() as disk:
            truth = with_connection(disk, read_store)
            unnamed = _unnamed(disk, cluster.standby.dsn, named, sent)
        print(
            f"{promoted - killed:.1f} s until Patroni had promoted; {len(heard)} acknowledged"
            f" before, of which lost and named = {len(heard & named)}, lost and not named ="
            f" {len(unnamed)}; {len(named - heard)} more on their way"
        )
        assert unnamed == []
        assert len(heard & named) >= BEFORE / 2, "the standby hardly lagged"
        assert named & kept == set(), "what every server has was called lost"
        assert pair.effects_after(promoted) == 0, "somebody sent before anybody looked"

        reason = "compared with the ledger"
        done = fencegate("acknowledge-loss", "--reason", reason, dsn=cluster.dsn)
        assert done.code == 0, done.err
        pair.until_heard(BEFORE)
        pair.end()
        print(f"{len(pair.heard)} answered in the end, {pair.upstream.count} requests upstream")
        pair.check(named)
        pair.check_history(truth, cluster.dsn)


@dataclass(frozen=True, slots=True)
class Asked:
    key: str
    account: str
    fence: int


@dataclass
class Callers:
    """Each asks for one command after the other, and repeats it until it is decided."""

    gateways: Sequence[GatewayProcess]
    upstream: RecordingUpstream
    heard: dict[str, Reply] = field(default_factory=dict)
    asked: dict[str, Asked] = field(default_factory=dict)
    abandoned: bool = False
    """The test has failed: nobody repeats anything any more."""
    _over: threading.Event = field(default_factory=threading.Event)
    _running: list[Future[None]] = field(default_factory=list)

    def start(self, pool: ThreadPoolExecutor) -> None:
        self._running = [pool.submit(self.run, number) for number in range(CALLERS)]

    def run(self, caller: int) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            account = f"c{caller}-{number % ACCOUNTS}"
            asked = Asked(f"c{caller}-{number}", account, number)
            self.asked[asked.key] = asked
            self.heard[asked.key] = self._insist(asked, number)

    def _insist(self, asked: Asked, number: int) -> Reply:
        end = time.monotonic() + OUTAGE_S
        while time.monotonic() < end and not self.abandoned:
            number += 1
            reply = self.ask(self.gateways[number % 2], asked)
            if reply.problem in (None, "response-not-retained"):
                return reply
            assert reply.problem in GOES_ON, reply
            time.sleep(0.2)  # a caller's manners; nothing is waited for
        raise AssertionError(f"{asked} was not decided: {reply}")

    def ask(self, process: GatewayProcess, asked: Asked) -> Reply:
        fields = [
            *(("Idempotency-Key", asked.key), ("X-Key", asked.key)),
            *(("X-Execution-Fence", str(asked.fence)), ("X-Fence", str(asked.fence))),
            *(("X-Account", asked.account), ("Content-Type", "application/json")),
        ]
        target = f"/pay/v1/accounts/{asked.account}/charges"
        return Caller(process.url).call("POST", target, fields, b"{}")

    def until_heard(self, more: int) -> None:
        seen = len(self.heard)
        until(lambda: len(self.heard) >= seen + more, f"{more} more are answered", OUTAGE_S)

    def end(self) -> None:
        """Return once every caller has heard what became of its last command."""
        self._over.set()
        for each in self._running:
            each.result()

    def effects_after(self, mono: float) -> int:
        return sum(each.arrived_mono > mono for each in self.upstream.effects)

    def check(self, named: set[str]) -> None:
        """No key has two effects, and what was heard is heard again, but for a body that is
        gone."""
        effects = Counter(_key(each) for each in self.upstream.effects)
        assert effects == Counter(self.heard.keys())
        latest = {asked.account: asked.fence for asked in self.asked.values()}  # they rise
        for key, before in self.heard.items():
            asked = self.asked[key]
            now = self.ask(self.gateways[0], replace(asked, fence=latest[asked.account]))
            if now.problem == "response-not-retained":
                assert key in named, now
                assert now.json()["upstream"] == {"status": 201}
            else:
                assert now.replayed, (asked, now)
                assert before.problem or now.body == before.body, (asked, before, now)

    def check_history(self, truth: History, database: str) -> None:
        """The invariants, of all that was sent: ``truth`` is what the lost leader knew."""
        history = with_connection(database, read_store)
        history.ends += truth.ends
        history.evidence += truth.evidence
        (tenant,) = {row["tenant"] for row in rows(database, "select tenant from gateway.tenants")}
        offset = time.time() - time.monotonic()
        for each in self.upstream.requests:
            asked = self.asked[_key(each)]
            at, entity = each.arrived_mono + offset, f"account:{asked.account}"
            history.sends.append(Send(at, tenant, asked.key, entity, asked.fence))
        assert len(history.sends) > 3 * BEFORE
        assert_holds(history)
        suspected = "select * from gateway.audit where event = 'duplicate_effect_suspected'"
        assert rows(database, suspected) == []


GOES_ON = ("store-unavailable", "rows-lost", "in-flight", "outcome-unknown", "entity-busy")
"""A failover makes no other: not ``fence-stale``, not ``key-conflict``."""


@contextmanager
def _pair(cluster: Patroni) -> Iterator[Callers]:
    with RecordingUpstream() as upstream:
        text = policy(upstream.url, CHARGE)
        with gateway(cluster.dsn, text) as one, gateway(cluster.dsn, text) as other:
            made = Callers((one, other), upstream)
            with ThreadPoolExecutor(CALLERS) as pool:
                made.start(pool)
                try:
                    yield made
                except BaseException:
                    made.abandoned = True
                    raise
                finally:
                    made.end()


def _key(request: Recorded) -> str:
    return (request.one("X-Key") or b"").decode()


def _lost_reason(process: GatewayProcess) -> str | None:
    reply = Caller(process.url).call("GET", "/readyz")
    reason = reply.json().get("reason", "") if reply.status == 503 else ""
    return reason if "lost" in reason else None


def _named(dsn: str) -> set[str]:
    """The keys that an operator is shown."""
    listed = fencegate("losses", "--format", "jsonl", "--limit", "0", dsn=dsn)
    assert listed.code == 0, listed.err
    found = [json.loads(line) for line in listed.out.splitlines()]
    return {row["key"] for row in found if row["key"]}


def _unnamed(disk: str, now: str, named: set[str], sent: Counter[str]) -> list[object]:
    """What was sent and the dead leader had committed, and neither stands on the new one nor is
    named. No mark is lower, whoever it is of."""
    had, have = _commands(disk), _commands(now)
    assert named <= set(had), "what the leader never had was called lost"
    assert named <= set(have), "what is named is put back"
    marks = "select entity, fence from gateway.entities where fence is not null"
    after = {row["entity"]: row["fence"] for row in rows(now, marks)}
    for row in rows(disk, marks):
        assert after.get(row["entity"], -1) >= row["fence"], (row, after.get(row["entity"]))
    missing = {key for key, row in had.items() if not _stands(row, have.get(key))} - named
    return [(had[key], have.get(key)) for key in missing if key in have or sent[key]]


def _stands(had: dict[str, Any], has: dict[str, Any] | None) -> bool:
    """It is as it was; or its answer, which was not recorded yet, has been, and whole."""
    if has is None or had["attempt"] != has["attempt"]:
        return False
    return had == has or (had["status"] is None and has["body"] is not None)


def _commands(dsn: str) -> dict[str, dict[str, Any]]:
    sql = "select key, attempt, status, body from gateway.commands"
    return {row["key"]: row for row in rows(dsn, sql)}
