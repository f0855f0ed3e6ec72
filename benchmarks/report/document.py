"""A run as JSON: where and how it was taken, and every figure of every round."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.kit import Results
from benchmarks.load import generator
from benchmarks.others import programs
from benchmarks.plan import Plan
from gateway import __version__

__all__ = ["Document", "read", "taken", "write"]

_PACKAGES = (
    "uvicorn",
    "uvloop",
    "httptools",
    "asyncpg",
    "starlette",
    "httpx",
    "aiohttp",
    "asgi-idempotency-header",
    "fastapi-idempotency",
)


@dataclass(frozen=True, slots=True)
class Document:
    """``taken``: machine, versions, settings and date, as text by name. ``absent``: what could not
    run, and why."""

    taken: dict[str, str]
    results: Results
    growth: Results = field(default_factory=Results)
    jobs: Results = field(default_factory=Results)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def broken(self) -> dict[tuple[str, str], str]:
        return {**self.results.broken, **self.growth.broken, **self.jobs.broken}


def taken(plan: Plan, quick: bool) -> dict[str, str]:
    """Of this machine, now."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "plan": "quick" if quick else "full",
        "rounds": f"{plan.rounds}, {plan.fewer} of what is measured aside",
        "load": f"{plan.seconds} s each, by {generator()}",
        "machine": _machine(),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": platform.python_version(),
        "postgres": programs().version,
        "nginx": _said("nginx", "-v").rpartition("/")[2].split(" ")[0],
        "fencegate": __version__,
        "packages": ", ".join(f"{name} {found}" for name in _PACKAGES if (found := _version(name))),
    }


def write(document: Document, file: Path) -> None:
    made = {
        "taken": dict(document.taken),
        "absent": dict(document.absent),
        "results": _cases(document.results),
        "growth": _cases(document.growth),
        "jobs": _cases(document.jobs),
    }
    file.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def read(file: Path) -> Document:
    """Raises ``ValueError`` or ``KeyError`` for what ``write`` did not make."""
    made = json.loads(file.read_text(encoding="utf-8"))
    parts = [_results(made[name]) for name in ("results", "growth", "jobs")]
    return Document(made["taken"], *parts, made["absent"])


def _cases(results: Results) -> list[dict[str, Any]]:
    return [
        {
            "subject": key[0],
            "what": key[1],
            "broken": results.broken.get(key),
            "rounds": [None if each is None else dict(each) for each in rounds],
        }
        for key, rounds in results.rounds.items()
    ]


def _results(made: list[dict[str, Any]]) -> Results:
    results = Results()
    for case in made:
        key = (case["subject"], case["what"])
        results.rounds[key] = case["rounds"]
        if case["broken"] is not None:
            results.broken[key] = case["broken"]
    return results


def _machine() -> str:
    model = "a processor that does not say its name"
    memory = 0
    try:
        if found := re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M):
            model = found[1]
        if found := re.search(r"^MemTotal:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.M):
            memory = int(found[1])
    except OSError:
        pass
    return f"{os.cpu_count()} cores of {model}, {memory / 2**20:.0f} GiB"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _said(*command: str) -> str:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    except OSError:
        return "not installed"
    return done.stdout.strip()
