"""Two queues as their users run them: schema, trigger, worker processes, and a way to let their
own idea of a dead worker come true without waiting for it."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import asyncpg
from pgqueuer import AsyncpgDriver, Queries

from tests.integrate.page import block
from tests.kit.db import execute, with_connection
from tests.kit.faults import until
from tests.kit.gateway import rows

__all__ = ["IN_A_TRANSACTION", "PgQueuerKit", "ProcrastinateKit", "Queue", "Worker"]

_WAIT_S = 30.0

# The slow part of a job: it says that it has begun, and ends when it is told to.
_BILLING = """
import asyncio
import sys


async def amount_of(invoice):
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return 1200
"""


IN_A_TRANSACTION = """
select from pg_stat_activity
 where datname = current_database() and state <> 'idle' and pid <> pg_backend_pid()
   and application_name <> 'fencegate'
"""


class Worker:
    """One worker process of a queue."""

    def __init__(self, folder: Path, command: list[str], env: dict[str, str]) -> None:
        self._log = (folder / f"worker-{len(list(folder.iterdir()))}.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def wait_until_begun(self) -> None:
        """Block until it is in the middle of a job."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(_WAIT_S), self.said()
        assert self.process.stdout.readline() == "begun\n", self.said()

    def stop(self, dsn: str) -> None:
        """SIGSTOP: for the process no time passes. Not in the middle of a transaction, whose locks
        would keep everybody else from the queue."""

        def stopped_outside() -> bool:
            self.process.send_signal(signal.SIGSTOP)
            assert os.WIFSTOPPED(os.waitpid(self.process.pid, os.WUNTRACED)[1])
            if not rows(dsn, IN_A_TRANSACTION):
                return True
            self.process.send_signal(signal.SIGCONT)
            return False

        until(stopped_outside, "the worker is stopped outside of its transactions")

    def go_on(self, jobs: int = 1) -> None:
        """Let its job go on (and the next ones), and the process itself where it is stopped."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n" * jobs)
        self.process.stdin.flush()
        self.process.send_signal(signal.SIGCONT)

    def said(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(_WAIT_S)
        for stream in (self.process.stdin, self.process.stdout, self._log):
            assert stream is not None
            stream.close()


class Queue(Protocol):
    """What the story needs of a queue."""

    def install(self) -> None: ...
    def enqueue(self, invoice: str) -> None: ...
    def worker(self) -> Worker: ...
    def take_back(self) -> None: ...
    def succeeded(self) -> bool: ...


class _Kit:
    heading: str

    def __init__(
        self, folder: Path, dsn: str, gateway_url: str, *, key_per_attempt: bool = False
    ) -> None:
        """``key_per_attempt``: as if each attempt were a wish of its own. Then only the fence
        refuses one."""
        self.folder, self.dsn = folder, dsn
        (folder / "billing.py").write_text(_BILLING, encoding="utf-8")
        code = block(self.heading, "python")
        if key_per_attempt:
            assert code.count('job.id}"') == 1
            code = code.replace('job.id}"', 'job.id}-{os.getpid()}"')
        (folder / "invoices.py").write_text(code, encoding="utf-8")
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PG")},
            "DATABASE_URL": dsn,
            "GATEWAY_URL": gateway_url,
            "PYTHONPATH": str(folder),
        }

    def run(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
        )
        assert done.returncode == 0, done.stderr


class ProcrastinateKit(_Kit):
    heading = "procrastinate"

    def install(self) -> None:
        self.run("-m", "procrastinate", "--app=invoices.app", "schema", "--apply")
        execute(self.dsn, block(self.heading, "sql"))

    def enqueue(self, invoice: str) -> None:
        self._in_the_app(f"enqueue({invoice!r})")

    def worker(self) -> Worker:
        command = ["-m", "procrastinate", "--app=invoices.app", "worker"]
        return Worker(self.folder, command, self.env)

    def take_back(self) -> None:
        execute(
            self.dsn,
            "update procrastinate_workers set last_heartbeat = last_heartbeat - interval '1 hour'",
        )
        # The periodic task, now and not at the next full minute.
        self._in_the_app("now()")

    def succeeded(self) -> bool:
        sql = "select status::text from procrastinate_jobs where task_name = 'capture'"
        return rows(self.dsn, sql) == [{"status": "succeeded"}]

    def _in_the_app(self, call: str) -> None:
        self.run(
            "-c",
            "import asyncio, contextlib, procrastinate\n"
            "from invoices import app, enqueue, retry_stalled\n"
            "async def now():\n"
            "    with contextlib.suppress(procrastinate.exceptions.AlreadyEnqueued):\n"
            "        await retry_stalled.defer_async(timestamp=0)\n"
            "async def main():\n"
            "    async with app.open_async():\n"
            f"        await {call}\n"
            "asyncio.run(main())\n",
        )


class PgQueuerKit(_Kit):
    heading = "pgqueuer"

    def install(self) -> None:
        async def made(connection: asyncpg.Connection) -> None:
            await Queries(AsyncpgDriver(connection)).install()

        with_connection(self.dsn, made)
        execute(self.dsn, block(self.heading, "sql"))

    def enqueue(self, invoice: str) -> None:
        self.run(
            "-c",
            "import asyncio, asyncpg, os, pgqueuer\n"
            "from invoices import enqueue\n"
            "async def main():\n"
            "    connection = await asyncpg.connect(os.environ['DATABASE_URL'])\n"
            "    queries = pgqueuer.Queries(pgqueuer.AsyncpgDriver(connection))\n"
            f"    await enqueue(queries, {invoice!r})\n"
            "    await connection.close()\n"
            "asyncio.run(main())\n",
        )

    def worker(self) -> Worker:
        return Worker(self.folder, ["-m", "invoices"], self.env)

    def take_back(self) -> None:
        """Its dequeue takes what has no heartbeat by itself."""
        execute(
            self.dsn,
            "update pgqueuer set heartbeat = heartbeat - interval '1 hour' where status = 'picked'",
        )

    def succeeded(self) -> bool:
        sql = "select 1 from pgqueuer_log where status = 'successful'"
        return rows(self.dsn, "select 1 from pgqueuer") == [] and len(rows(self.dsn, sql)) == 1
