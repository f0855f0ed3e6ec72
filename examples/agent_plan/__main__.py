"""Turn a model's plan into jobs, run them, and say what became of each step.

Run it again whenever you like: the same plan in the same session is the same jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plan import Plan, Refused, read_plan

from gateway.worker import Client, KeyReused

_HERE = Path(__file__).parent
_LOOK_S = 0.5
_FINAL = ("succeeded", "failed", "cancelled")


def main() -> int:
    parser = argparse.ArgumentParser(prog="agent_plan", description=__doc__)
    parser.add_argument("plan", nargs="?", type=Path, default=_HERE / "plan.json")
    parser.add_argument("--session", default="chat-7", help="the conversation (default chat-7)")
    parser.add_argument("--user", action="append", help="who takes part in it (default ann)")
    parser.add_argument("--no-worker", action="store_true", help="one is running elsewhere")
    options = parser.parse_args()
    try:
        raw = options.plan.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or error
        print(f"{str(options.plan)!a} cannot be read ({why}); name a plan's file", file=sys.stderr)
        return 2
    try:
        plan = read_plan(raw, options.user or ["ann"])
    except Refused as refused:
        print(f"the plan is refused, nothing was enqueued:\n{refused}", file=sys.stderr)
        return 1
    with _worker(wanted=not options.no_worker):
        try:
            return asyncio.run(carry_out(plan, options.session))
        except KeyReused as reused:
            print(f"a step changed after it was enqueued; give it another id: {reused}")
            return 1


@contextmanager
def _worker(*, wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    with subprocess.Popen([sys.executable, _HERE / "worker.py"]) as process:
        try:
            yield
        finally:
            process.terminate()  # it lets its handlers end


async def carry_out(plan: Plan, session: str) -> int:
    """Enqueue each step once what it depends on has succeeded, until nothing moves any more."""
    walk = Walk(plan, session)
    async with Client() as client:
        while True:
            for step in walk.open():
                await walk.ask(client, step)
            if all(walk.state(step) == "waiting" for step in walk.open()):
                return walk.report()
            await asyncio.sleep(_LOOK_S)


class Walk:
    """How far a plan has come."""

    def __init__(self, plan: Plan, session: str) -> None:
        self._plan = plan
        self._session = session
        self._made: dict[str, Any] = {}  # step → what enqueueing it answered last

    def state(self, step: Any) -> str:
        return self._made[step.id].state if step.id in self._made else "not begun"

    def open(self) -> list[Any]:
        """Steps that are not finished, and that nothing is in front of."""
        return [
            step
            for step in self._plan.steps
            if self.state(step) not in _FINAL
            and all(self._succeeded(needed) for needed in step.depends_on)
        ]

    async def ask(self, client: Client, step: Any) -> None:
        """Enqueue it, or hear what became of it: a known key answers with its first job."""
        before = self.state(step)
        results = {needed: self._made[needed].result for needed in step.depends_on}
        made = self._made[step.id] = await client.enqueue(
            step.tool,
            {"arguments": step.arguments.model_dump(), "results": results},
            key=f"plan:{self._session}:{step.id}",
            entity=step.entity,
            session=self._session,
            on_behalf=step.user,
        )
        if made.state != before:
            print(f"{step.id:10} {step.tool:11} {made.job}  {made.state}", flush=True)

    def report(self) -> int:
        """0: all succeeded; 1: something did not; 3: a person is to decide."""
        states = {step.id: self.state(step) for step in self._plan.steps}
        for step, state in states.items():
            if state == "waiting":
                job = self._made[step].job
                print(f"{step}: fencegate jobs approve {job} --reason '…', then run this again")
            elif state != "succeeded":
                print(f"{step}: {state}")
        if "waiting" in states.values():
            return 3
        return 0 if set(states.values()) == {"succeeded"} else 1

    def _succeeded(self, step: str) -> bool:
        return step in self._made and self._made[step].state == "succeeded"


if __name__ == "__main__":
    sys.exit(main())
