"""The processes of one group of scenes: a W1 behind a proxy of its own for each, and one W2."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlsplit

from gateway.crew import Crew, CrewError, environment
from gateway.drill.actors import Actor, worker_command
from gateway.drill.records import Deployment
from gateway.drill.scene import Scene
from gateway.faultkit.proxy import FaultProxy

__all__ = ["Group"]


class Group:
    """See the module. It is the `Cast` of its scenes.

    Any W1 may get any of the jobs: they take one each, and the job says which variant it is.
    """

    def __init__(
        self, crew: Crew, deployment: Deployment, run: str, restart: Callable[[], None] | None
    ) -> None:
        self._crew = crew
        self._deployment = deployment
        self._run = run
        self._restart = restart
        self._firsts: list[tuple[Actor, FaultProxy]] = []
        self._second: Actor | None = None
        self._jobs: Sequence[str] = ()

    @contextlib.contextmanager
    def playing(self, scenes: Sequence[Scene]) -> Iterator[None]:
        """Start everybody; end them with the block."""
        self._jobs = [each.job_id for each in scenes]
        target = urlsplit(self._deployment.url)
        host, port = target.hostname or "127.0.0.1", target.port or 80
        try:
            for scene in scenes:
                proxy = FaultProxy(host, port).start()
                url = f"http://127.0.0.1:{proxy.port}"
                self._firsts.append((self._start(f"W1-{scene.variant}", "W1", url, 1), proxy))
            for scene in scenes:
                scene.enqueue()
            yield
        finally:
            for actor, proxy in self._firsts:
                actor.kill()
                proxy.stop()
            if self._second is not None:
                self._second.kill()

    def first(self, job: str) -> tuple[Actor, FaultProxy] | None:
        for actor, proxy in self._firsts:
            if actor.said(job, "claimed") is not None:
                return actor, proxy
            if actor.ended() and self._second is None:
                raise CrewError(f"{actor.name} has ended by itself:\n{actor.tail()}")
        return None

    def all_hold(self) -> bool:
        if any(self.first(job) is None for job in self._jobs):
            return False
        self.second()  # not before: it would take one of their jobs
        return True

    def second(self) -> Actor:
        if self._second is None:
            self._second = self._start(
                f"W2-{len(self._jobs)}", "W2", self._deployment.url, len(self._jobs)
            )
        return self._second

    def restart_database(self) -> None:
        if self._restart is None:
            raise CrewError("nobody said how to restart the database; add --restart-database")
        self._restart()

    def _start(self, name: str, role: str, url: str, concurrency: int) -> Actor:
        settings = {"FENCEGATE_URL": url, "DRILL_NAME": role, "DRILL_RUN": self._run}
        if self._deployment.key:
            settings["FENCEGATE_KEY"] = self._deployment.key
        return Actor(self._crew, name, worker_command(concurrency), environment(**settings))
