"""The drill's network cut, with a cut that no program of ours makes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.crew import Crew, CrewError, Interrupts, crew_in, environment, open_folder
from gateway.drill.actors import Actor, worker_command
from gateway.drill.claims import CLAIMS
from gateway.drill.ground import Ground, own_ground
from gateway.drill.report import Report
from gateway.drill.run import perform
from gateway.drill.scene import Scene, Wire
from gateway.faultkit.proxy import FaultProxy
from tests.kit.operating import fencegate
from tests.netns.namespace import Namespace, made, missing

RUN = "netns"

pytestmark = pytest.mark.skipif(
    (reason := missing() if sys.platform.startswith("linux") else "needs Linux") is not None,
    reason=reason or "",
)


class Cable:
    """The way between W1 and the gateway: a plain relay on the cable's end, never cut itself."""

    def __init__(self, space: Namespace, relay: FaultProxy) -> None:
        self._space = space
        self._relay = relay

    def cut(self) -> None:
        self._space.cut()

    def restore(self) -> None:
        self._space.restore()

    def holds(self, text: bytes) -> bool:
        return self._relay.holds(text)

    def answer_to(self, text: bytes) -> bytes:
        return self._relay.answer_to(text)


class Cast:
    """W1 in the namespace, W2 outside."""

    def __init__(self, crew: Crew, ground: Ground, space: Namespace, relay: FaultProxy) -> None:
        self._crew = crew
        self._url, self._key = ground.deployment.url, ground.deployment.key
        self._wire = Cable(space, relay)
        inside = f"http://{space.host}:{relay.port}"
        self._first = self._start("W1", inside, space.command(*worker_command(1)))
        self._second: Actor | None = None

    def first(self, job: str) -> tuple[Actor, Wire] | None:
        if self._first.ended():
            raise CrewError(f"W1 has ended by itself:\n{self._first.tail()}")
        return None if self._first.said(job, "claimed") is None else (self._first, self._wire)

    def second(self) -> Actor:
        self._second = self._second or self._start("W2", self._url, worker_command(1))
        return self._second

    def all_hold(self) -> bool:
        self.second()
        return True

    def restart_database(self) -> None:
        raise AssertionError("nobody asked for that")

    def close(self) -> None:
        for actor in (self._first, self._second):
            if actor is not None:
                actor.kill()

    def _start(self, role: str, url: str, command: list[str]) -> Actor:
        assert self._key is not None
        env = environment(
            FENCEGATE_URL=url, FENCEGATE_KEY=self._key, DRILL_NAME=role, DRILL_RUN=RUN
        )
        return Actor(self._crew, role, command, env)


def made_key(dsn: str) -> str:
    assert fencegate("migrate", dsn=dsn).code == 0
    scopes = [word for scope in ("policy:*", "enqueue", "work") for word in ("--scope", scope)]
    done = fencegate("keys", "add", "--tenant", "default", "--name", "drill", *scopes, dsn=dsn)
    assert done.code == 0, done.err
    return done.out.split()[-1]


@contextlib.contextmanager
def relayed(space: Namespace, ground: Ground) -> Iterator[FaultProxy]:
    target = urlsplit(ground.deployment.url)
    assert target.hostname is not None
    assert target.port is not None
    relay = FaultProxy(target.hostname, target.port, listen=space.host).start()
    try:
        yield relay
    finally:
        relay.stop()


def test_a_worker_behind_a_real_partition_can_do_no_harm() -> None:
    interrupts = Interrupts()
    with (
        interrupts.caught(200),
        open_folder("fencegate-netns-") as folder,
        crew_in(folder, interrupts) as crew,
        made() as space,
        own_ground(RUN, folder, crew, made_key) as ground,
        relayed(space, ground) as relay,
        contextlib.closing(Cast(crew, ground, space, relay)) as cast,
    ):
        out = StringIO()
        scene = Scene(
            "network-cut", RUN, ground.deployment, ground.upstream, cast, Report(out, "text")
        )
        scene.enqueue()
        perform([scene])
        claims = scene.claims()
    assert [each.name for each in claims] == list(CLAIMS)
    assert [each for each in claims if not each.holds] == [], out.getvalue()


def names(folder: str) -> set[str]:
    return {each.name for each in Path(folder).iterdir()}


def test_nothing_of_a_namespace_stays() -> None:
    devices = names("/sys/class/net")
    with made() as space:
        assert space.name in names("/run/netns")
        assert len(names("/sys/class/net") - devices) == 1
    assert space.name not in names("/run/netns")
    assert names("/sys/class/net") <= devices
