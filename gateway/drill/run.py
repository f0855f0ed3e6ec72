"""The drill from its first line to its verdict, and the end of everything it started."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.crew import Crew, CrewError, Interrupted, Interrupts, crew_in, open_folder
from gateway.drill.cast import Group
from gateway.drill.claims import Claim
from gateway.drill.ground import Ground, given_ground, own_ground
from gateway.drill.report import Format, OutputLost, Report
from gateway.drill.scene import TITLES, Scene, Variant, Wait
from gateway.errors import FencegateError

__all__ = ["drill", "perform"]

# It takes about a minute; whoever waits was promised an end within 280 s, clean-up included.
_LIMIT_S = 265
_POLL_S = 0.05

_ALONE: Variant = "database-restart"
"""It would disturb the others."""


def drill(
    *,
    variants: Sequence[Variant],
    form: Format,
    url: str | None,
    key: str | None,
    listen: tuple[str, int],
    restart_database: str | None,
) -> int:
    """0 if every claim holds, 1 if one does not, 2 if it could not be played, 128 + number where a
    signal ended it. No ``variants``: all that can be played."""
    if os.name != "posix":
        print("fencegate drill: needs Linux or macOS", file=sys.stderr)
        return 2
    interrupts = Interrupts()
    report = Report(sys.stdout, form)
    try:
        with (
            interrupts.caught(_LIMIT_S),
            open_folder("fencegate-drill-") as folder,
            crew_in(folder, interrupts) as crew,
        ):
            run = secrets.token_hex(4)
            ground = (
                _own(run, folder, crew, report)
                if url is None
                else given_ground(run, url, key, listen, restart_database, crew)
            )
            with ground as played:
                return 0 if _play(run, _chosen(variants, played), played, crew, report) else 1
    except Interrupted as interrupted:
        if interrupted.number == signal.SIGALRM:
            print(f"fencegate drill: no verdict within {_LIMIT_S} s", file=sys.stderr)
            return 2
        print(f"fencegate drill: ended by {interrupted}", file=sys.stderr)
        return 128 + interrupted.number
    except (CrewError, FencegateError) as error:
        print(f"fencegate drill: {error}", file=sys.stderr)
        return 2
    except OutputLost as lost:
        # The interpreter would stumble over the same output once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if lost.reason is not None:
            print(
                f"fencegate drill: the output cannot be written ({lost.reason}); make room, or "
                "send it elsewhere",
                file=sys.stderr,
            )
        return 2
    except OSError as error:
        print(f"fencegate drill: {error}; mend that, then start it again", file=sys.stderr)
        return 2
    except Exception:  # noqa: BLE001  1 is a verdict: a mistake of the drill's own must not read as one
        traceback.print_exc()
        return 2


@contextlib.contextmanager
def _own(run: str, folder: Path, crew: Crew, report: Report) -> Iterator[Ground]:
    report.progress("", "starting PostgreSQL, the gateway and an upstream that cannot undo")
    with own_ground(run, folder, crew) as ground:
        yield ground


def _chosen(variants: Sequence[Variant], ground: Ground) -> list[Variant]:
    wanted = dict.fromkeys(variants or TITLES)
    if ground.restart is None:
        if _ALONE in variants:
            raise CrewError(
                f"{_ALONE}: say how the database is restarted, with --restart-database 'COMMAND'"
            )
        wanted.pop(_ALONE, None)
    return list(wanted)


def _play(
    run: str, variants: Sequence[Variant], ground: Ground, crew: Crew, report: Report
) -> bool:
    found: dict[str, Sequence[Claim]] = {}
    together = [each for each in variants if each != _ALONE]
    alone = [each for each in variants if each == _ALONE]
    for names in filter(None, (together, alone)):
        group = Group(crew, ground.deployment, run, ground.restart)
        scenes = [
            Scene(name, run, ground.deployment, ground.upstream, group, report) for name in names
        ]
        report.progress(
            "", f"starting a W1 behind a proxy of its own for each of: {', '.join(names)}"
        )
        with group.playing(scenes):
            perform(scenes)
            for scene in scenes:
                found[scene.variant] = scene.claims()
    for variant in variants:
        report.claims(variant, TITLES[variant], found[variant])
    return report.verdict(found)


def perform(scenes: Sequence[Scene]) -> None:
    """Play them side by side, each as far as it comes. Raises `CrewError` where one waits in
    vain."""
    playing = [_Playing(scene) for scene in scenes]
    while [each for each in playing if each.go_on()]:  # each is asked, hence no any()
        time.sleep(_POLL_S)


class _Playing:
    """A scene, what it waits for, and until when."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._steps = scene.play()
        self._until_mono = 0.0
        self._wait = self._next()

    def go_on(self) -> bool:
        """As far as it comes; whether it is to be asked again."""
        while self._wait is not None and self._wait.until():
            self._wait = self._next()
        if self._wait is not None and time.monotonic() > self._until_mono:
            raise CrewError(
                f"{self._scene.variant}: waited {self._wait.limit_s:.0f} s in vain for "
                f"{self._wait.words}\n{self._scene.tail()}"
            )
        return self._wait is not None

    def _next(self) -> Wait | None:
        wait = next(self._steps, None)
        if wait is not None:
            self._until_mono = time.monotonic() + wait.limit_s
        return wait
