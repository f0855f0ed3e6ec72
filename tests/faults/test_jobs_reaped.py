"""A lease whose worker, or whose gateway, is gone: any other gateway ends it by time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kit.client import Caller, assert_problem
from tests.kit.db import Server
from tests.kit.desk import Desk
from tests.kit.faults import terminate_backends, until
from tests.kit.gateway import CAPTURE, GatewayProcess, Scene, Stack, gateway, policy, rows
from tests.kit.operating import move_clock
from tests.kit.pgproxy import PgProxy
from tests.kit.upstream import RecordingUpstream

TOOLS = """
models = ["m-1"]
[[tools]]
name = "t"
backoff_s = 0
backoff_max_s = 0
[[tools]]
name = "slow"
[[tools]]
name = "once"
attempts = 1
"""
HERE = CAPTURE + 'issuer = "here"\n'
REAP = "gateway.reap_leases("


@dataclass
class Pair:
    """Two gateways on one database; the first reaches it through a proxy."""

    first: GatewayProcess
    second: GatewayProcess
    scene: Scene
    proxy: PgProxy

    @property
    def database(self) -> str:
        return self.scene.stack.database

    def desk(self, process: GatewayProcess) -> Desk:
        return Desk(Caller(process.url))


@pytest.fixture
def pair(postgres: Server) -> Iterator[Pair]:
    with (
        postgres.database() as dsn,
        RecordingUpstream() as upstream,
        PgProxy(dsn) as proxy,
        gateway(proxy.dsn, policy(upstream.url, HERE), tools=TOOLS) as first,
        gateway(dsn, policy(upstream.url, HERE), tools=TOOLS) as second,
    ):
        yield Pair(first, second, Stack(second, upstream, dsn).scene(), proxy)


@contextmanager
def alone(pair: Pair, process: GatewayProcess) -> Iterator[None]:
    """Only this gateway reaps in the block."""
    other = pair.first if process is pair.second else pair.second
    other.kill()
    yield


def reaped(process: GatewayProcess, lease: dict[str, Any]) -> dict[str, Any]:
    return process.wait_for_log(event="lease_expired", job=lease["job"], fence=lease["fence"])


def test_a_killed_gateways_leases_are_reaped_by_another_and_their_fences_are_stale(
    pair: Pair,
) -> None:
    scene, first, second = pair.scene, pair.desk(pair.first), pair.desk(pair.second)
    job = first.one(entity=scene.entity, model="m-1", provider="nobody-knows")
    lease = first.claimed()
    assert scene.send("first", fence=lease["fence"]).status == 201
    pair.first.kill()
    assert second.beat(lease)[0]["remaining_ms"] > 0  # the lease is no matter of the process
    move_clock(pair.database, 61)
    line = reaped(pair.second, lease)
    assert (line["state"], line["attempt"], line["entity"]) == ("queued", 1, scene.entity)
    assert line["lease_ms_left"] <= 0
    assert_problem(scene.send("second", fence=lease["fence"]), "fence-stale")
    assert second.beat(lease) == [{"job": job, "lost": "expired"}]
    assert second.complete(lease, 1) == {"job": job, "rejected": "expired"}
    again = second.claimed()
    assert (again["job"], again["attempt"]) == (job, 2)
    assert again["fence"] > lease["fence"]
    assert scene.send("second", fence=again["fence"]).status == 201
    assert second.complete(again, 2)["state"] == "succeeded"
    assert len(scene.upstream.effects) == 2
    text = Caller(pair.second.url).call("GET", "/metrics").body.decode()
    label = '{model="m-1",provider="other",tool="t"} 1.0'
    assert f"fencegate_leases_expired_total{label}" in text
    assert f"fencegate_jobs_reclaimed_total{label}" in text


def test_what_becomes_of_a_job_goes_by_its_tools_class(pair: Pair) -> None:
    desk = pair.desk(pair.second)
    slow, once = desk.one("slow"), desk.one("once")
    leases = [desk.claimed("slow"), desk.claimed("once")]
    move_clock(pair.database, 61)
    until(lambda: desk.show(once)["state"] == "failed", "the last attempt was the last")
    until(lambda: desk.show(slow)["state"] == "queued", "there is another attempt")
    assert desk.claim(1, ("slow",)) == []  # not before its backoff
    delay = "select extract(epoch from run_at - gateway.clock())::float8 as s from gateway.jobs"
    assert 0 < rows(pair.database, delay)[0]["s"] <= 5
    for lease in leases:
        audit = rows(
            pair.database,
            "select fence from gateway.audit where event = 'lease_expired' and job = $1",
            lease["job"],
        )
        assert audit == [{"fence": lease["fence"]}]  # once, whoever of the two it was


def test_a_gateway_that_dies_as_it_reaps_leaves_nothing_stuck(pair: Pair) -> None:
    desk = pair.desk(pair.second)
    job = desk.one()
    lease = desk.claimed()
    pair.second.kill()
    held = pair.proxy.hold_statement(REAP)
    move_clock(pair.database, 61)
    held.wait_hit()
    pair.first.kill()
    held.cut()
    pair.second.start()
    assert reaped(pair.second, lease)["state"] == "queued"
    assert pair.desk(pair.second).claimed()["job"] == job


def test_the_reaper_goes_on_after_lost_answers_and_lost_connections(pair: Pair) -> None:
    desk = pair.desk(pair.first)
    with alone(pair, pair.first):
        one = desk.one()
        lost = pair.proxy.cut_after(REAP)
        desk.claimed()
        move_clock(pair.database, 61)
        lost.wait_hit()  # it is done, and the reaper does not know
        until(lambda: desk.show(one)["state"] == "queued", "the job is queued again")
        assert pair.first.wait_for_log(event="reaper_failed")["level"] == "warning"
        pair.first.wait_for_log(event="reaper_works_again")
        lease = desk.claimed()
        assert (lease["job"], lease["attempt"]) == (one, 2)
        pair.proxy.refuse()
        move_clock(pair.database, 122)
        until(lambda: len(events(pair.first, "reaper_failed")) == 2, "it is refused")
        terminate_backends(pair.database, "gateway.")
        pair.proxy.accept()
        assert reaped(pair.first, lease)["state"] == "queued"
        # Said once for each time of trouble, not each second.
        assert len(events(pair.first, "reaper_failed")) == 2


def events(process: GatewayProcess, name: str) -> list[dict[str, Any]]:
    return [line for line in process.log if line["event"] == name]


def test_a_full_batch_is_followed_by_the_next_at_once(pair: Pair) -> None:
    desk = pair.desk(pair.second)
    for _ in range(5):
        desk.enqueue(*({"tool": "t"} for _ in range(100)))
    leases = [each["lease"] for _ in range(5) for each in desk.claim(100)]
    assert len(leases) == 500
    move_clock(pair.database, 61)
    left = "select count(*) as n from gateway.job_leases"
    until(lambda: rows(pair.database, left) == [{"n": 0}], "all are reaped")
    assert rows(
        pair.database,
        "select count(*) as n, count(distinct job) as jobs from gateway.audit"
        " where event = 'lease_expired'",
    ) == [{"n": 500, "jobs": 500}]


def test_overdue_jobs_are_given_up_and_those_of_unlisted_tools_are_reaped_too(pair: Pair) -> None:
    """A job that SQL enqueued and whose tool has left ``tools.toml`` since it was claimed."""
    desk = pair.desk(pair.second)
    job = desk.one(give_up_at="2026-01-01T00:00:00Z")
    until(lambda: desk.show(job)["state"] == "failed", "it is given up")
    until(
        lambda: any(
            line["event"] == "job_given_up" and line["job"] == job
            for line in [*pair.first.log, *pair.second.log]
        ),
        "it is said",
    )
    desk.one()
    lease = desk.claimed()
    for table in ("jobs", "job_leases"):
        rows(pair.database, f"update gateway.{table} set tool = 'gone'")
    move_clock(pair.database, 61)
    until(lambda: desk.show(lease["job"])["state"] == "queued", "it is reaped")


def test_nothing_is_reaped_before_its_time(pair: Pair) -> None:
    desk = pair.desk(pair.second)
    desk.one()
    lease = desk.claimed()
    looks = pair.proxy.count("gateway.expired_leases(")
    until(lambda: pair.proxy.count("gateway.expired_leases(") >= looks + 2, "it looked twice")
    assert desk.beat(lease)[0]["remaining_ms"] > 0
    assert events(pair.first, "lease_expired") == events(pair.second, "lease_expired") == []
