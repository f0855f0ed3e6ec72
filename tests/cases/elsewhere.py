"""A worker on another host: a process of its own whose clock is off, or that dies with its lease.

What it is to do is the JSON object of its one argument; what the store answered is its one line.
Then it goes on, as a worker with a lease does, until its stdin ends or somebody kills it.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import time
from typing import Any
from uuid import UUID

__all__ = ["ask"]


def ask(what: dict[str, Any], env: dict[str, str], *, dies: bool) -> Any:
    """Have a process of its own do it; what the store answered. ``dies``: by ``kill -9``."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.cases.elsewhere", json.dumps(what)],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        if dies:
            process.kill()
        process.stdin.close()
        process.wait(30)
    return json.loads(line)


def _set_clock(by_s: float) -> None:
    """Every clock that Python code can read, before anybody has taken hold of one."""
    for name, unit in (("time", 1), ("monotonic", 1), ("time_ns", 10**9), ("monotonic_ns", 10**9)):
        real = getattr(time, name)
        setattr(time, name, lambda real=real, unit=unit: real() + type(real())(by_s * unit))
    real_datetime = datetime.datetime

    class Off(real_datetime):  # type: ignore[valid-type, misc]
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return real_datetime.now(tz) + datetime.timedelta(seconds=by_s)

    datetime.datetime = Off  # type: ignore[misc]


def _work(what: dict[str, Any]) -> Any:
    import asyncio

    from gateway.core.jobs import Held, Renewed, Terms
    from gateway.store.database import Database
    from gateway.store.jobs import JobStore

    async def run() -> Any:
        database = await Database.open(what["dsn"], size=1)
        try:
            store = JobStore(database)
            if what["do"] == "claim":
                terms = [Terms(*each) for each in what["terms"]]
                claim = UUID(what["claim"])
                found = await store.claim(what["tenant"], 100, what["owner"], claim, terms)
                return [[each.entity, str(each.job), each.fence] for each in found]
            entity, job, fence = what["lease"]
            (said,) = await store.renew(what["tenant"], [Held(entity, UUID(job), fence)])
            if isinstance(said, Renewed):
                return f"held {said.remaining_ms}"
            return f"lost: {said.reason}"
        finally:
            await database.close()

    return asyncio.run(run())


def main() -> None:
    what = json.loads(sys.argv[1])
    _set_clock(what["clock_s"])
    print(json.dumps(_work(what)), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
