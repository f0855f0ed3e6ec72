"""The gateway as it ships, in a process of its own, on a free port; and a whole stack around it.

A ``Stack`` is a database, a recording upstream and a gateway between callers and it. One serves
many tests: each takes a ``Scene`` from it, with keys and entities of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.client import Caller, Exchange, Fields, Reply
from tests.kit.db import Server, with_connection
from tests.kit.upstream import RecordingUpstream
from tests.kit.valkey import shared_valkey

__all__ = ["Done", "GatewayProcess", "Scene", "Stack", "gateway", "policy", "rows", "stack"]

_READY = re.compile(r"^Fencegate \S+ on (http://\S+)$")
_START_S = 30.0


def caches() -> dict[str, str]:
    """Settings by which every test of gateways runs without the cache of settled responses
    (``TEST_CACHES=off``), or with the one in Redis too (``redis``)."""
    match os.environ.get("TEST_CACHES", "local"):
        case "local":
            return {}
        case "off":
            return {"FENCEGATE_CACHE_MIB": "0"}
        case "redis":
            return {"FENCEGATE_REDIS_URL": shared_valkey().url}
        case other:
            raise AssertionError(f"TEST_CACHES is off, local or redis, not {other}")


def policy(
    upstream: str, *commands: str, name: str = "pay", mount: str = "/pay", head: str = ""
) -> str:
    """A policy file's text; each of ``commands`` is the body of a ``[[commands]]`` table."""
    tables = commands or (CAPTURE, CASE)
    return "\n".join(
        [
            f'name = "{name}"',
            f'mount = "{mount}"',
            f'upstream = "{upstream}"',
            head,
            *(f"[[commands]]\n{table}" for table in tables),
        ]
    )


CAPTURE = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
timeout_s = 2
settle_delay_s = 1
"""

CASE = """
name = "case"
match = "POST /v1/cases"
entity = "customer:{body./input/customer_id}"
timeout_s = 2
"""


@dataclass(frozen=True, slots=True)
class Done:
    """How a process ended."""

    code: int
    out: str
    err: str


class GatewayProcess:
    """One ``fencegate serve``. ``url`` is set once it listens, and ``urls`` names each process
    behind it; ``log`` is what it wrote so far, ``written`` the same as it came, ``printed`` its
    standard output."""

    def __init__(
        self,
        database: str,
        policies: Mapping[str, str],
        *,
        port: int = 0,
        env: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fencegate-policies-")
        for file, text in policies.items():
            (Path(self._folder.name) / file).write_text(text, encoding="utf-8")
        self.database = database
        self.port = port
        self._env = dict(env or {})
        self._arguments = arguments
        self._lines: list[str] = []
        self.printed: list[str] = []
        self._grown = threading.Condition()
        self.url = ""
        self.urls: tuple[str, ...] = ()
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> GatewayProcess:
        """Start it and wait until it listens; raises with its output where it does not."""
        self._reader = self._spawn()
        self.url = self._await_banner()
        self.urls = (self.url,)
        self.port = int(self.url.rsplit(":", 1)[1])
        return self

    def refuses_to_start(self) -> Done:
        """Start it where it must not come to listen; how it ended, and what it said."""
        reader = self._spawn()
        assert self.process is not None
        assert self.process.stdout is not None
        code = self.process.wait(_START_S)
        reader.join(_START_S)
        return Done(code, self.process.stdout.read(), "".join(self._lines))

    def _spawn(self) -> threading.Thread:
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("FENCEGATE_")
        }
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gateway.cli", "serve", "--policies", self._folder.name),
                *("--port", str(self.port), *self._arguments),
            ],
            env={
                **environment,
                **caches(),
                **_of_run(),
                "FENCEGATE_DATABASE_URL": self.database,
                **self._env,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        reader = threading.Thread(target=self._read_log, daemon=True)
        reader.start()
        return reader

    def _await_banner(self) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        until = time.monotonic() + _START_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, until - time.monotonic())):
                line = self.process.stdout.readline()
                if not line:
                    break
                self.printed.append(line)
                match = _READY.match(line.strip())
                if match is not None:
                    threading.Thread(target=self._drain_stdout, daemon=True).start()
                    return match.group(1)
        self.process.kill()
        self.process.wait()
        self._reader.join(_START_S)
        raise AssertionError("the gateway did not start:\n" + "".join(self._lines))

    def _drain_stdout(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line)

    def _read_log(self) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._grown:
                self._lines.append(line)
                self._grown.notify_all()

    @property
    def log(self) -> list[dict[str, Any]]:
        """The JSON lines so far."""
        return [json.loads(line) for line in list(self._lines) if line.startswith("{")]

    @property
    def written(self) -> list[str]:
        """Every line of standard error so far."""
        return list(self._lines)

    def wait_for_log(self, timeout_s: float = 10.0, **values: object) -> dict[str, Any]:
        """Block until a line with all of ``values`` is written; the first such line."""

        def found() -> dict[str, Any] | None:
            wanted = values.items()
            return next((line for line in self.log if wanted <= line.items()), None)

        with self._grown:
            self._grown.wait_for(lambda: found() is not None, timeout_s)
        line = found()
        assert line is not None, f"no line with {values} within {timeout_s} s: {self.log[-20:]}"
        return line

    @property
    def lines(self) -> int:
        """How many lines it wrote so far."""
        return len(self._lines)

    def lines_from(self, number: int) -> tuple[list[str], int]:
        """The JSON lines from the one with this number on, unparsed, and the number of the next."""
        fresh = self._lines[number:]
        return [line for line in fresh if line.startswith("{")], number + len(fresh)

    def wait_until(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Ask again with each line that it writes; whether it came true."""
        with self._grown:
            return self._grown.wait_for(reached, timeout_s)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """``kill -9``, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s: float = 60.0) -> int:
        """SIGTERM, and its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout_s)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        self._folder.cleanup()


def _of_run() -> dict[str, str]:
    """What ``FENCEGATE_TEST_SETTINGS`` (``A=1 B=2``) sets for every gateway of a test run."""
    words = os.environ.get("FENCEGATE_TEST_SETTINGS", "").split()
    return dict(word.split("=", 1) for word in words)


def _made() -> type[GatewayProcess]:
    if os.environ.get("FENCEGATE_TEST_PROCESSES", "1") == "1":
        return GatewayProcess
    from tests.kit.twins import Twins

    return Twins


@contextlib.contextmanager
def gateway(
    database: str,
    *policies: str,
    env: Mapping[str, str] | None = None,
    arguments: tuple[str, ...] = (),
    tools: str | None = None,
) -> Iterator[GatewayProcess]:
    """A running gateway over policy texts, and a text of ``tools.toml``; killed at the end."""
    files = {f"policy{number}.toml": text for number, text in enumerate(policies)}
    if tools is not None:
        files["tools.toml"] = tools
    made = _made()(database, files, env=env, arguments=arguments)
    try:
        yield made.start()
    finally:
        made.close()


def rows(dsn: str, sql: str, *args: object) -> list[dict[str, Any]]:
    """What a query gives."""
    found = with_connection(dsn, lambda conn: conn.fetch(sql, *args))
    return [dict(row) for row in found]


@dataclass
class Stack:
    """A gateway between callers and a recording upstream."""

    gateway: GatewayProcess
    upstream: RecordingUpstream
    database: str
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)

    def caller(self, token: str | None = None) -> Caller:
        return Caller(self.gateway.url, token=token)

    def scene(self) -> Scene:
        """A clean upstream, and keys and entities that no test before used."""
        self.upstream.clear()
        self.upstream.script = None
        return Scene(self, self.caller(), f"a{next(self._numbers)}")

    def gauge(self, name: str) -> float:
        """The value of one metric without labels, of all processes."""
        sum_ = 0.0
        for url in self.gateway.urls:
            text = Caller(url).call("GET", "/metrics").body.decode()
            match = re.search(rf"^fencegate_{name} (\S+)$", text, re.MULTILINE)
            assert match is not None, f"no metric fencegate_{name}"
            sum_ += float(match[1])
        return sum_

    def wait_for_gauge(self, name: str, value: float, timeout_s: float = 10.0) -> None:
        """Ask until a gauge has this value; each question is a round trip."""
        until = time.monotonic() + timeout_s
        while (now := self.gauge(name)) != value:
            assert time.monotonic() < until, f"{name} is {now}, not {value}"

    def wait_for_new_keys(self) -> None:
        """Until the gateway keys were read again, by a question that is asked from now on."""
        until = time.monotonic() + 15
        asked = time.monotonic()
        while self.gauge("key_snapshot_age_seconds") >= time.monotonic() - asked:
            assert time.monotonic() < until, "the keys were not read again"

    def wait_for_waiters(self, count: int) -> None:
        """Until so many callers wait for a key or an entity."""
        self.wait_for_gauge("waiting_callers", count)


@dataclass
class Scene:
    """One test's corner of a stack. ``account`` is unique, and so is every key made here."""

    stack: Stack
    caller: Caller
    account: str

    @property
    def upstream(self) -> RecordingUpstream:
        return self.stack.upstream

    @property
    def entity(self) -> str:
        return f"account:{self.account}"

    def key(self, name: str = "k") -> str:
        return f"{name}-{self.account}"

    def open(
        self,
        key: str | None = "k",
        fence: int | str | None = 1,
        *,
        what: str = "charges",
        body: bytes = b'{"amount":100}',
        fields: Fields = (),
        account: str | None = None,
        method: str = "POST",
        query: str = "",
    ) -> Exchange:
        """Send a command and read nothing yet. ``None`` leaves a field out."""
        own: list[tuple[str, str]] = [("Content-Type", "application/json")]
        if key is not None:
            own.append(("Idempotency-Key", self.key(key)))
        if fence is not None:
            own.append(("X-Execution-Fence", str(fence)))
        target = f"/pay/v1/accounts/{account or self.account}/{what}{query}"
        return self.caller.open(method, target, [*own, *fields], body)

    def send(self, key: str | None = "k", fence: int | str | None = 1, **more: Any) -> Reply:
        """Send a command and hear its answer."""
        return self.open(key, fence, **more).reply()

    def waiter(self, key: str, fence: int = 1, wait: str = "wait=20", **more: Any) -> Exchange:
        """Send a command that will wait, and return once it does."""
        before = self.stack.gauge("waiting_callers")
        sent = self.open(key, fence, fields=[("Prefer", wait)], **more)
        self.stack.wait_for_gauge("waiting_callers", before + 1)
        return sent

    # -- what the database says

    def mark(self, entity: str | None = None) -> int | None:
        """The entity's high-water mark, ``None`` where nothing is remembered of it."""
        found = rows(
            self.stack.database,
            "select fence from gateway.entities where entity = $1",
            entity or self.entity,
        )
        return found[0]["fence"] if found else None

    def issue(self, entity: str | None = None) -> int:
        """A fence that is issued here, as somebody else's queue asks for one."""
        sql = "select gateway.issue_fence('default', $1)"
        (row,) = rows(self.stack.database, sql, entity or self.entity)
        return int(row["issue_fence"])

    def row(self, key: str = "k") -> dict[str, Any] | None:
        """The command's row, with its state."""
        found = rows(
            self.stack.database,
            "select *, case when settled_at is not null then 'settled' when deadline <="
            " gateway.clock() then 'unknown' else 'in-flight' end as state"
            " from gateway.commands where key = $1",
            self.key(key),
        )
        return found[0] if found else None

    def state(self, key: str = "k") -> str | None:
        found = self.row(key)
        return found["state"] if found else None

    def audit(self, *events: str, entity: str | None = None) -> list[dict[str, Any]]:
        """The entity's audit rows in order, of these events or of all."""
        return rows(
            self.stack.database,
            "select * from gateway.audit where entity = $1"
            " and (event = any ($2) or cardinality($2::text[]) = 0) order by at",
            entity or self.entity,
            list(events),
        )

    def wait_for_state(self, state: str | None, key: str = "k", timeout_s: float = 10.0) -> None:
        """Ask the database until the command is in this state."""
        until = time.monotonic() + timeout_s
        while (now := self.state(key)) != state:
            assert time.monotonic() < until, f"{key} is {now}, not {state}"


@contextlib.contextmanager
def stack(
    postgres: Server,
    policies: Callable[[str], Iterable[str]],
    *,
    env: Mapping[str, str] | None = None,
    database: str | None = None,
    tools: str | None = None,
) -> Iterator[Stack]:
    """A whole stack; ``policies`` makes the files' texts from the upstream's URL."""
    with contextlib.ExitStack() as held:
        dsn = database or held.enter_context(postgres.database())
        upstream = held.enter_context(RecordingUpstream())
        process = held.enter_context(gateway(dsn, *policies(upstream.url), env=env, tools=tools))
        yield Stack(process, upstream, dsn)
