"""Three gateways on one database, two of which are armed with one failpoint after the other."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from tests.kit.db import Server
from tests.kit.gateway import GatewayProcess
from tests.kit.jobload import TOOLS, JobLoad
from tests.kit.load import Load, policies, script
from tests.kit.upstream import RecordingUpstream

__all__ = ["DRAIN", "Fleet", "Shot", "fleet", "patient_fleet", "shots"]

_REACHED_S = 45.0
"""In which a load reaches every failpoint; reaping and waiting for a lost admit take seconds."""

COMMANDS_A_JOB = 3

DRAIN = ("drain.begun", "drain.ended")
"""Reached by a process that was told to end."""

_WITH = {"admit.abandoned": "admit.committed=error;"}
"""What else has to go wrong for it to be reached."""


@dataclass(frozen=True, slots=True)
class Shot:
    """A process dies when it reaches ``name`` for the ``hit``-th time."""

    name: str
    hit: int

    @property
    def armed(self) -> str:
        return f"{_WITH.get(self.name, '')}{self.name}=kill@{self.hit}"


@dataclass
class Fleet:
    """``always`` is never armed. ``deaths`` counts those that died where they were to."""

    load: Load
    jobs: JobLoad
    always: GatewayProcess
    armed: list[GatewayProcess]
    upstream: RecordingUpstream
    database: str
    files: dict[str, str]
    deaths: Counter[str] = field(default_factory=Counter)
    unreached: list[str] = field(default_factory=list)
    _failure: list[BaseException] = field(default_factory=list)

    def urls(self) -> list[str]:
        return [each.url for each in (self.always, *self.armed)]

    def sweep(self, shots: Sequence[Shot], at_least: int) -> None:
        """Kill a process at each of ``shots`` under load, and see that it died of that."""
        assert len(shots) >= len(self.armed)
        left = deque(shots)
        self.under_load(
            [partial(self._lane, place, left) for place in range(len(self.armed))], at_least
        )
        assert self.unreached == []

    def under_load(self, troubles: Sequence[Callable[[], None]], at_least: int) -> None:
        """Carry commands and jobs out until every trouble is over."""
        lanes = [threading.Thread(target=self._guarded, args=(each,)) for each in troubles]
        over = threading.Event()
        grown = self.load.grown

        def turn(number: int) -> bool:
            with grown:
                grown.wait_for(
                    lambda: over.is_set() or len(self.load.wishes) > number * COMMANDS_A_JOB
                )
            return not over.is_set()

        workers = threading.Thread(target=self._guarded, args=(self.jobs.run, turn))
        for each in (*lanes, workers):
            each.start()
        try:
            self.load.run(lambda: not any(lane.is_alive() for lane in lanes), at_least)
        finally:
            with grown:
                over.set()
                grown.notify_all()
            for each in (*lanes, workers):
                each.join()
        if self._failure:
            raise self._failure[0]

    def _lane(self, place: int, left: deque[Shot]) -> None:
        with contextlib.suppress(IndexError):  # the other lane took the last one
            while left:
                self._guarded(self._shoot, place, left.popleft())

    def _guarded(self, work: Callable[..., None], *args: object) -> None:
        try:
            work(*args)
        except BaseException as failure:  # noqa: BLE001 - raised where the test can see it
            self._failure.append(failure)

    def _shoot(self, place: int, shot: Shot) -> None:
        before = self.armed[place]
        before.close()
        process = GatewayProcess(
            self.database,
            self.files,
            port=before.port,
            env={"FENCEGATE_FAILPOINTS": shot.armed, "FENCEGATE_DRAIN_S": "5"},
            arguments=("--allow-failpoints",),
        )
        self.armed[place] = process.start()
        assert process.process is not None
        if shot.name in DRAIN:
            process.wait_for_log(event="decision")
            process.signal(signal.SIGTERM)
        try:
            code = process.process.wait(_REACHED_S)
        except subprocess.TimeoutExpired:
            self.unreached.append(shot.name)
            return
        assert code == -signal.SIGKILL, (shot, code, process.log[-5:])
        self.deaths[shot.name] += 1


def shots(names: Sequence[str], hits: Sequence[int] = (1,)) -> list[Shot]:
    """Each name at each of its ``hits``; a process ends once only."""
    return [Shot(name, 1 if name in DRAIN else hit) for hit in hits for name in names]


@contextlib.contextmanager
def fleet(
    postgres: Server, *, callers: int = 8, seed: int = 1, failpoints: str | None = None
) -> Iterator[Fleet]:
    """Three that run; ``failpoints``: all of them armed, where nobody shall die."""
    env = {"FENCEGATE_FAILPOINTS": failpoints} if failpoints else {}
    arguments = ("--allow-failpoints",) if failpoints else ()
    with postgres.database() as database, RecordingUpstream(script=script()) as upstream:
        files = _files(upstream, TOOLS)
        processes = [
            GatewayProcess(database, files, env=env, arguments=arguments) for _ in range(3)
        ]
        made: Fleet
        load = Load(lambda: made.urls(), upstream, database, callers, seed)
        jobs = JobLoad(lambda: made.urls(), database, seed)
        made = Fleet(load, jobs, processes[0], processes[1:], upstream, database, files)
        with _running(made):
            yield made


@contextlib.contextmanager
def patient_fleet(database: str, *, patience_s: float) -> Iterator[Fleet]:
    """Two that run on this database, and callers who outlast its absence, as their leases do."""
    with RecordingUpstream(script=script()) as upstream:
        files = _files(upstream, f"{TOOLS}lease_s = {2 * patience_s}\n")
        one, other = GatewayProcess(database, files), GatewayProcess(database, files)
        made: Fleet
        load = Load(lambda: made.urls(), upstream, database, patience_s=patience_s)
        jobs = JobLoad(lambda: made.urls(), database, patience_s=patience_s)
        made = Fleet(load, jobs, one, [other], upstream, database, files)
        with _running(made):
            yield made


def _files(upstream: RecordingUpstream, tools: str) -> dict[str, str]:
    files = {f"p{n}.toml": text for n, text in enumerate(policies(upstream.url))}
    return {**files, "tools.toml": tools}


@contextlib.contextmanager
def _running(made: Fleet) -> Iterator[None]:
    try:
        for each in (made.always, *made.armed):
            each.start()
        yield
    finally:
        for each in (made.always, *made.armed):
            each.close()
