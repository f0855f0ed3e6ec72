"""One side of the comparison: the same callers and the same script, another address."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.crew import Crew, CrewError, Finished
from gateway.demo.ledger import Command
from gateway.demo.render import Narrator
from gateway.demo.wire import Answer, Exchange, parse
from gateway.demo.world import Api

__all__ = ["Stage", "Worker"]


@dataclass(slots=True)
class Stage:
    """Where an act is played. `guarded`: there is a gateway between callers and `api`."""

    title: str
    base_url: str
    guarded: bool
    api: Api
    crew: Crew
    out: Narrator
    caller_env: Mapping[str, str] = field(repr=False)
    operator_env: Mapping[str, str] | None = field(default=None, repr=False)
    differences: list[str] = field(default_factory=list)

    def send(self, name: str, command: Command, *, fence: int, body: str | None = None) -> Answer:
        """Have a caller send the command, show what went over the wire."""
        finished = self._caller(name, command, fence, body or command.body)
        exchange = _read(finished)
        self.out.sent(exchange.request)
        self.out.came_back(exchange.answer)
        return exchange.answer

    def send_copies(self, name: str, command: Command, *, fence: int, copies: int) -> Exchange:
        """All at the same time. The request is shown; the answers are the caller's to tell."""
        many = ("--copies", str(copies))
        exchange = _read(self._caller(name, command, fence, command.body, *many))
        self.out.sent(exchange.request)
        return exchange

    def look(self, name: str, path: str) -> Answer:
        """Have a caller read something."""
        argv = _argv("--name", name, "GET", self.base_url + path)
        exchange = _read(self.crew.run("callers", argv, self.caller_env))
        self.out.sent(exchange.request)
        self.out.came_back(exchange.answer)
        return exchange.answer

    def claim(self, name: str, command: Command, *, fence: int) -> Worker:
        """Start a worker that has claimed its job and is about to write."""
        argv = _argv("--wait", *self._arguments(name, command, fence, command.body))
        process = self.crew.start("callers", argv, self.caller_env)
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said.startswith("* "):
            raise CrewError(f"worker {name} did not start:\n{said}{process.stdout.read()}")
        self.out.say(said[2:].strip() + ".")
        return Worker(name, process, self)

    def operate(self, *arguments: str) -> str:
        """Type a `fencegate` command, as an operator does; what it printed."""
        if self.operator_env is None:
            raise CrewError("there is no gateway to operate here")
        argv = [sys.executable, "-m", "gateway.cli", *arguments]
        finished = self.crew.run("operator", argv, self.operator_env)
        self.out.typed(shlex.join(["fencegate", *arguments]), finished.output)
        if finished.code != 0:
            self.expect(False, f"fencegate {arguments[0]} ends with 0, not {finished.code}")
        return finished.output

    def expect(self, holds: bool, words: str) -> None:
        """Something that the story claims; what does not hold is told in the verdict."""
        self.out.checked(holds, words)
        if not holds:
            self.differences.append(f"{self.title}: expected that {words}")

    def _caller(self, name: str, command: Command, fence: int, body: str, *more: str) -> Finished:
        argv = _argv(*more, *self._arguments(name, command, fence, body))
        return self.crew.run("callers", argv, self.caller_env)

    def _arguments(self, name: str, command: Command, fence: int, body: str) -> list[str]:
        said = ["--name", name, "--key", command.key, "--fence", str(fence), "--body", body]
        return [*said, "POST", self.base_url + command.path]


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker between its claim and its write."""

    name: str
    process: subprocess.Popen[str]
    stage: Stage

    def pause(self) -> None:
        """Stop it as a suspended machine or a long collection of garbage does. Its go-ahead is
        given while it sleeps: when it wakes it writes at once, without looking back."""
        self.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise CrewError(f"worker {self.name} ended instead of pausing")
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def wake(self) -> Answer:
        """Let it go on; the answer that it gets to its write."""
        self.process.send_signal(signal.SIGCONT)
        exchange = _read(self.stage.crew.finish(self.process))
        self.stage.out.sent(exchange.request)
        self.stage.out.came_back(exchange.answer)
        return exchange.answer


def _argv(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gateway.demo.caller", *arguments]


def _read(finished: Finished) -> Exchange:
    try:
        return parse(finished.output)
    except ValueError as error:
        raise CrewError(f"{error}:\n{finished.output}") from error
