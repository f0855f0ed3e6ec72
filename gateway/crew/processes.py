"""Processes and their certain end: on success, failure, Ctrl-C and `kill -9`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import gateway

__all__ = [
    "Crew",
    "CrewError",
    "Finished",
    "Interrupted",
    "Interrupts",
    "crew_in",
    "environment",
    "open_folder",
]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
_AGAIN_S = 5.0
"""Until a signal that nobody has heard is repeated. Whoever has heard it needs less to get from
there to where the rest is ignored."""

_PATIENCE_S = 10.0
_RUN_TIMEOUT_S = 60.0
_POLL_S = 0.02
_TAIL_LINES = 20


class CrewError(Exception):
    """The show cannot go on; the text says why."""


class Interrupted(BaseException):
    """A signal ended the show. No `Exception`, so that no library takes it for one of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interrupts:
    """Turns signals into `Interrupted`, but never where a process would be forgotten by it.

    What runs at that moment may be a callback of an event loop, or of the garbage collector, whose
    exceptions end there. So a signal is repeated until somebody has heard it: whoever does must
    leave the block of `caught`, or `ignore` the rest.
    """

    def __init__(self) -> None:
        self._held = 0
        self._pending: int | None = None
        self._said: int | None = None

    @contextlib.contextmanager
    def caught(self, limit_s: int) -> Iterator[None]:
        """Signals raise inside the block, and so does the end of `limit_s`."""
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        signal.setitimer(signal.ITIMER_REAL, limit_s, _AGAIN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """What arrives inside the block raises at its end."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if self._held == 0 and self._pending is not None:
            number, self._pending = self._pending, None
            raise Interrupted(number)

    def no_limit(self) -> None:
        """Only signals end it now, no clock."""
        signal.setitimer(signal.ITIMER_REAL, 0)

    def ignore(self) -> None:
        """From here on only the clean-up counts."""
        self._held += 1

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGALRM and self._said is not None:
            number = self._said  # once more
        elif number != signal.SIGALRM:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)
        self._said = number
        if self._held:
            self._pending = number
        else:
            raise Interrupted(number)


@dataclass(frozen=True, slots=True)
class Finished:
    """A process that ran to its end. `output` is what it printed, errors included."""

    code: int
    output: str


class Crew:
    """Starts processes in `folder` and stops them all, by their pids."""

    def __init__(self, folder: Path, interrupts: Interrupts) -> None:
        self._folder = folder
        self._interrupts = interrupts
        self._running: list[subprocess.Popen[str]] = []
        self._endings: list[Callable[[], None]] = []
        guard = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))]
        with interrupts.held():
            self._guard = subprocess.Popen(
                [*guard, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
                text=True,
            )

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        env: Mapping[str, str],
        *,
        to_log: bool = False,
        errors_to_log: bool = False,
    ) -> subprocess.Popen[str]:
        """Start a process with pipes to its standard input and output (its errors among it unless
        ``errors_to_log``), or with all it says going to its log alone. Ctrl-C in the terminal does
        not reach it."""
        with self._interrupts.held(), self.log(name).open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=env,
                stdin=subprocess.DEVNULL if to_log else subprocess.PIPE,
                stdout=log if to_log else subprocess.PIPE,
                stderr=log if to_log or errors_to_log else subprocess.STDOUT,
                start_new_session=True,
                text=True,
                errors="replace",
            )
            self._running.append(process)
            self.watch(process.pid)
        return process

    def run(self, name: str, command: Sequence[str | Path], env: Mapping[str, str]) -> Finished:
        """Start a process and wait for its end."""
        return self.finish(self.start(name, command, env))

    def finish(self, process: subprocess.Popen[str], words: str | None = None) -> Finished:
        """Wait for a started process's end, after sending `words` to it."""
        try:
            output, _ = process.communicate(words, timeout=_RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise CrewError(f"no end after {_RUN_TIMEOUT_S:.0f} s: {process.args!r}") from None
        self._running.remove(process)
        self._tell_guard(f"-{process.pid}")
        return Finished(process.returncode, output)

    def watch(self, pid: int) -> None:
        """Have the guard end this process too, if this one is killed."""
        self._tell_guard(f"+{pid}")

    def remove(self, folder: Path) -> None:
        """Have the guard remove this folder too, if this one is killed."""
        self._tell_guard(str(folder))

    def undisturbed(self) -> contextlib.AbstractContextManager[None]:
        """For what starts something by other means: signals wait for the end of the block."""
        return self._interrupts.held()

    def at_end(self, ending: Callable[[], None]) -> None:
        """Have `stop` call this after the processes have ended."""
        self._endings.append(ending)

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def tail(self, name: str) -> str:
        """The end of a process's log."""
        lines = self.log(name).read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join(f"  {line}" for line in lines)

    def stop(self) -> None:
        """End everything. Signals no longer count from here on."""
        self._interrupts.ignore()
        self._stop_processes()
        try:
            for ending in self._endings:
                ending()
        finally:
            self._dismiss_guard()

    def _stop_processes(self) -> None:
        """Last started, first asked."""
        for process in reversed(self._running):
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # a stopped one only hears once it goes on
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline and any(each.poll() is None for each in self._running):
            time.sleep(_POLL_S)
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # unsent words to one that is gone
                        pipe.close()
        self._running.clear()

    def _dismiss_guard(self) -> None:
        """After everything has ended. It finds nothing left to do."""
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError):
            self._guard.stdin.close()
        self._guard.wait()

    def _tell_guard(self, line: str) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.write(f"{line}\n")
        self._guard.stdin.flush()


def environment(**settings: str) -> dict[str, str]:
    """For a process of the show: the caller's own environment without settings and secrets of
    another gateway (its database above all), and with the way to this very package."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(("FENCEGATE_", "LEGACY_")) and name != "CALLER_TOKEN"
    }
    kept["PYTHONPATH"] = str(Path(gateway.__file__).resolve().parent.parent)
    kept["PYTHONUNBUFFERED"] = "1"
    return {**kept, **settings}


@contextlib.contextmanager
def open_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder that is gone at the end."""
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        if os.geteuid() == 0:
            folder.chmod(0o711)  # root's PostgreSQL runs as another account and must pass through
        yield folder


@contextlib.contextmanager
def crew_in(folder: Path, interrupts: Interrupts) -> Iterator[Crew]:
    """A crew that is stopped at the end."""
    crew = Crew(folder, interrupts)
    try:
        yield crew
    finally:
        crew.stop()
