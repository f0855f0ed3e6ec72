"""One variant of the unpleasant test, from W1's claim to the last piece of evidence.

W1 claims a job and sends its first effect. Something happens to W1. Its lease expires, and W2 takes
the job over and does both effects. Then W1 is let go on and tries everything, while W2 still holds
the job. Only then does W2 return its result.

A scene is a generator of what it waits for, so that several are played side by side without
threads, and a signal finds everything in one place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, assert_never
from uuid import uuid4

from gateway.crew import CrewError
from gateway.drill.actors import Actor
from gateway.drill.claims import Answer, Claim, Facts, judge
from gateway.drill.policy import LATE, TOOL, late_ids
from gateway.drill.records import Deployment, problem_of
from gateway.drill.report import Report
from gateway.drill.upstream import Upstream

__all__ = ["TITLES", "Cast", "Scene", "Variant", "Wait", "Wire"]

Variant = Literal["network-cut", "blocked-loop", "stopped", "killed", "database-restart"]

TITLES: Mapping[Variant, str] = {
    "network-cut": "W1's network swallows everything, and delivers it after the takeover",
    "blocked-loop": "W1's handler blocks its event loop beyond the stage limit",
    "stopped": "W1 is stopped (SIGSTOP) and goes on after the takeover (SIGCONT)",
    "killed": "W1 is killed, its last requests reach the gateway after the takeover",
    "database-restart": "W1 is cut off, and the database crashes and comes back",
}

_HAPPENED: Mapping[Variant, str] = {
    "network-cut": "W1 is cut off: its connections stay open and carry nothing",
    "blocked-loop": "W1's handler blocks its loop; its keeper goes on until the stage limit",
    "stopped": "W1 is stopped",
    "killed": "W1 is killed, with a renewal, a result and two effects of it in the network",
    "database-restart": "W1 is cut off, and the database was killed and is back",
}

_FINISHED = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Wait:
    """Something to wait for. ``limit_s``: then the drill cannot go on."""

    words: str
    until: Callable[[], bool]
    limit_s: float = 60


class Wire(Protocol):
    """What all connections of a W1 go through."""

    def cut(self) -> None:
        """From the return on nothing passes, and nobody is told."""

    def restore(self) -> None:
        """Let everything pass again, and what was held arrive."""

    def holds(self, text: bytes) -> bool:
        """Whether W1 has sent ``text``."""

    def answer_to(self, text: bytes) -> bytes:
        """What was answered so far on the connection on which ``text`` was sent."""


class Cast(Protocol):
    """Who plays the scenes of a group."""

    def first(self, job: str) -> tuple[Actor, Wire] | None:
        """The W1 that has claimed the job, with what it is connected by."""

    def second(self) -> Actor:
        """The W2 of all scenes. It is started once every W1 holds its job."""

    def all_hold(self) -> bool:
        """Whether every W1 holds its job."""

    def restart_database(self) -> None:
        """Crash the database and bring it back."""


class Scene:
    """See the module."""

    def __init__(
        self,
        variant: Variant,
        run: str,
        deployment: Deployment,
        upstream: Upstream,
        cast: Cast,
        report: Report,
    ) -> None:
        self.variant: Variant = variant
        self._run = run
        self._deployment = deployment
        self._upstream = upstream
        self._cast = cast
        self._report = report
        self._subject = f"{run}-{variant}"
        self._entity = f"drill:{self._subject}"
        self._ids = late_ids(run, variant)
        self._job = str(uuid4())
        self._actor: Actor | None = None
        self._proxy: Wire | None = None
        self._fences = (0, 0)
        self.job: Mapping[str, Any] = {}

    @property
    def job_id(self) -> str:
        return self._job

    def enqueue(self) -> None:
        """Put the job into the queue."""
        if self.variant != "blocked-loop":  # there the handler must have its answer to go on
            self._upstream.hold(self._subject)
        wish = {
            "tool": TOOL,
            "id": self._job,
            "entity": self._entity,
            "session": f"drill:{self._run}",
            "payload": {"run": self._run, "variant": self.variant},
        }
        answer = self._deployment.post("/v1/jobs", {"jobs": [wish]})
        if answer.status_code != 201:
            raise CrewError(f"the job was not enqueued: {answer.status_code} {problem_of(answer)}")

    def play(self) -> Iterator[Wait]:
        yield from self._claim()
        yield from self._interrupt()
        yield from self._expire()
        yield from self._take_over()
        yield from self._go_on()
        yield from self._end()

    def claims(self) -> list[Claim]:
        """The verdict, once it has been played."""
        actor, proxy = self._w1()
        first, second = self._fences
        alive = self.variant != "killed"
        library = actor.said(self._job, "library") if alive else None
        holds = self._cast.second().said(self._job, "holds") or {}
        return judge(
            Facts(
                first=first,
                second=second,
                answers={
                    what: heard(actor, self._job, what)
                    if alive
                    else parsed(proxy.answer_to(self._ids[what].encode())) or Answer(0)
                    for what in LATE
                },
                request_ids=self._ids,
                effects=[(each.step, each.worker) for each in self._effects()],
                audit=self._deployment.audit(self._entity),
                state=str(self.job.get("state")),
                result=self.job.get("result"),
                wanted={"by": "W2", "effects": holds.get("effects")},
                alive=alive,
                library=library.get("refused") if library else "nothing was asked",
                events=[told(each) for each in actor.events() if each.get("job") == self._job],
            )
        )

    def tail(self) -> str:
        """The end of its workers' logs, where it cannot go on."""
        actors = (self._actor, self._cast.second() if self._actor else None)
        return "\n".join(f"{each.name}:\n{each.tail()}" for each in actors if each is not None)

    # -- the steps

    def _claim(self) -> Iterator[Wait]:
        yield Wait("W1 to claim its job", lambda: self._cast.first(self._job) is not None)
        self._actor, self._proxy = self._cast.first(self._job) or (None, None)
        said = self._w1()[0].said(self._job, "claimed") or {}
        self._fences = (said["fence"], 0)
        yield Wait("W1's first effect at the upstream", lambda: bool(self._effects()))
        self._tell(f"W1 holds the job under fence {said['fence']}; its capture is at the upstream")
        yield Wait("every W1 to hold its job", self._cast.all_hold)

    def _interrupt(self) -> Iterator[Wait]:
        actor, proxy = self._w1()
        match self.variant:
            case "network-cut":
                proxy.cut()
            case "blocked-loop":
                yield self._until_said(actor, "blocked")
            case "stopped":
                actor.stop()
            case "killed":
                proxy.cut()
                actor.go_on(self._job)
                held = [each.encode() for each in self._ids.values()]
                yield Wait("W1's last requests in the network", lambda: all(map(proxy.holds, held)))
                actor.kill()
            case "database-restart":
                proxy.cut()
                self._cast.restart_database()
            case _:
                assert_never(self.variant)
        self._tell(_HAPPENED[self.variant])
        if self.variant != "blocked-loop":
            self._upstream.release(self._subject)

    def _expire(self) -> Iterator[Wait]:
        first = self._fences[0]

        def expired() -> bool:
            rows = self._deployment.audit(self._entity)
            return any(row.event == "lease_expired" and row.fence == first for row in rows)

        # Two mistakes show here: the audit of another database, and a longer lease class.
        yield Wait(
            "W1's lease to be recorded as expired (in the gateway's own database, with the lease "
            "class that `fencegate drill --print-policy` prints)",
            expired,
        )
        self._tell(f"the lease under fence {first} has expired, and is on record as such")

    def _take_over(self) -> Iterator[Wait]:
        second = self._cast.second()
        yield self._until_said(second, "claimed")
        fence = (second.said(self._job, "claimed") or {})["fence"]
        self._fences = (self._fences[0], fence)
        yield self._until_said(second, "holds")
        replayed = (second.said(self._job, "holds") or {})["replayed"]
        self._tell(
            f"W2 has done both steps under fence {fence} (capture: "
            f"{'the recorded answer' if replayed[0] == 'true' else 'sent'}), and holds the job"
        )

    def _go_on(self) -> Iterator[Wait]:
        actor, proxy = self._w1()
        if self.variant == "killed":
            proxy.restore()
            self._tell("the network delivers what W1 had sent")
            ids = [each.encode() for each in self._ids.values()]
            yield Wait(
                "answers to W1's last requests",
                lambda: all(parsed(proxy.answer_to(each)) is not None for each in ids),
            )
            return
        # Its go-ahead comes first: when it wakes it tries at once, without looking back.
        actor.go_on(self._job)
        if self.variant == "stopped":
            actor.wake()
        elif self.variant != "blocked-loop":
            proxy.restore()
        self._tell("W1 goes on, and tries everything")
        yield self._until_said(actor, "tried")

    def _end(self) -> Iterator[Wait]:
        self._cast.second().go_on(self._job)

        def finished() -> bool:
            self.job = self._deployment.job(self._job)
            return self.job.get("state") in _FINISHED

        yield Wait("the job to finish", finished)
        self._tell(f"the job has {self.job['state']}")

    # -- what they share

    def _w1(self) -> tuple[Actor, Wire]:
        assert self._actor is not None
        assert self._proxy is not None
        return self._actor, self._proxy

    def _effects(self) -> list[Any]:
        return self._upstream.effects(self._subject)

    def _until_said(self, actor: Actor, what: str) -> Wait:
        def said() -> bool:
            if actor.said(self._job, what) is not None:
                return True
            if actor.ended():
                raise CrewError(f"{actor.name} has ended by itself:\n{actor.tail()}")
            return False

        return Wait(f"{actor.name} to say that it {what}", said)

    def _tell(self, words: str) -> None:
        self._report.progress(self.variant, words)


def told(event: Mapping[str, Any]) -> str:
    """An event of W1's library, as its name and reason."""
    return f"{event.get('event')} {event.get('reason', '')}".strip()


def heard(actor: Actor, job: str, what: str) -> Answer:
    """What a living W1 heard to a late request."""
    said = actor.said(job, "answer", to=what) or {"status": 0, "body": ""}
    return Answer(said["status"], _object(said["body"]))


def parsed(raw: bytes) -> Answer | None:
    """A response as it went over the wire; ``None`` while it is not whole."""
    head, separator, body = raw.partition(b"\r\n\r\n")
    if not separator:
        return None
    lines = head.decode("latin-1").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    length = int(fields.get("content-length", "0"))
    if len(body) < length:
        return None
    return Answer(int(lines[0].split(" ")[1]), _object(body[:length].decode(errors="replace")))


def _object(text: str) -> Mapping[str, object]:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
