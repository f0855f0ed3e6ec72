"""Running a load and reading what became of it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from benchmarks.kit import Broken

__all__ = ["Kind", "Load", "Seen", "Target", "generator", "run"]

Kind = Literal["fresh", "replay", "stale", "reused"]

_SCRIPT = Path(__file__).with_name("requests.lua")
_PATIENCE_S = 30.0
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a load goes: ``url`` up to what stands before ``/v1/customers/…``."""

    url: str
    token: str = "none"


@dataclass(frozen=True, slots=True)
class Load:
    """``size``: bytes of each request's body. ``seeds``: prefix and count of keys that are settled,
    for every kind but ``fresh``."""

    kind: Kind
    connections: int
    seconds: float
    size: int = 200
    seeds: tuple[str, int] = ("none", 1)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the callers saw. ``issued``: requests that were begun; those cut off by the end of the
    run are the difference to ``answered``, at most one for each connection. ``refused``: answers
    from 400 on. ``errors``: connections that broke, and answers that took longer than ten seconds.
    ``prefix``: of the keys of this run."""

    issued: int
    answered: int
    refused: int
    errors: int
    seconds: float
    p50_ms: float
    p99_ms: float
    prefix: str = ""

    @property
    def rate(self) -> float:
        return self.answered / self.seconds


def generator() -> str:
    """What makes the load here."""
    if shutil.which("wrk") is None:
        return "a small generator in Python (wrk is not installed)"
    said = subprocess.run(["wrk", "--version"], capture_output=True, text=True).stdout
    return " ".join(said.split()[:2])


def run(load: Load, *targets: Target) -> Seen:
    """One load; split evenly, where there are several targets. Raises ``Broken`` if it could not
    run, or connections broke under it."""
    share = load.connections // len(targets)
    started = [_start(load, share, target) for target in targets]
    seen = [_finish(process, prefix) for process, prefix in started]
    total = Seen(
        issued=sum(each.issued for each in seen),
        answered=sum(each.answered for each in seen),
        refused=sum(each.refused for each in seen),
        errors=sum(each.errors for each in seen),
        seconds=max(each.seconds for each in seen),
        p50_ms=max(each.p50_ms for each in seen),
        p99_ms=max(each.p99_ms for each in seen),
        prefix=seen[0].prefix,
    )
    if total.errors:
        raise Broken(f"{total.errors} connections broke or answers took longer than 10 s")
    if not total.answered:
        raise Broken("nothing was answered")
    if total.issued - total.answered > load.connections:
        raise Broken(f"{total.issued} requests begun, only {total.answered} answered")
    return total


def _start(load: Load, connections: int, target: Target) -> tuple[subprocess.Popen[str], str]:
    prefix = f"{os.getpid():07d}n{next(_numbers):05d}k"
    parts = urlsplit(target.url)
    if shutil.which("wrk") is None:
        spec = {**asdict(load), "connections": connections, "prefix": prefix, **asdict(target)}
        command = [sys.executable, "-m", "benchmarks.load.small", json.dumps(spec)]
    else:
        seeds = (load.seeds[0], str(load.seeds[1]))
        command = [
            *("wrk", "--threads", "1", "--connections", str(connections)),
            *("--duration", f"{load.seconds:.0f}s", "--timeout", "10s"),
            *("--script", str(_SCRIPT)),
            *(f"{parts.scheme}://{parts.netloc}", "--"),
            *(load.kind, str(load.size), parts.path, target.token, prefix, *seeds),
        ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    return process, prefix


def _finish(process: subprocess.Popen[str], prefix: str) -> Seen:
    try:
        said, _ = process.communicate(timeout=_PATIENCE_S)
    except BaseException:
        process.kill()
        process.wait()
        raise
    lines: Sequence[str] = [line for line in said.splitlines() if line.startswith('{"issued"')]
    if process.returncode != 0 or not lines:
        raise Broken(f"the load generator failed: {said.strip()[-300:]}")
    return Seen(**json.loads(lines[-1]), prefix=prefix)
