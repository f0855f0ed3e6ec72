"""A `fencegate demo` or `drill` that runs, and whether something of it stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

__all__ = ["Show", "start"]

MARK = "TEST_SHOW_MARK"


@dataclass
class Show:
    """A command that runs. Its processes are found by a variable that all of them have."""

    process: subprocess.Popen[str]
    mark: str
    folder: Path

    def read_until(self, words: str) -> str:
        assert self.process.stdout is not None
        seen = ""
        for line in self.process.stdout:
            seen += line
            if words in line:
                return seen
        raise AssertionError(f"it ended before it said {words!r}:\n{seen}")

    def finish(self) -> tuple[int, str]:
        """Its exit code and what it said from here on. It has a limit of time of its own."""
        assert self.process.stdout is not None
        output = self.process.stdout.read()
        return self.process.wait(), output

    def left(self) -> list[str]:
        """Command lines of its processes that still run."""
        needle = f"{MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and needle in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:  # gone meanwhile
                continue
        return found

    def assert_nothing_left(self, within_s: float = 0) -> None:
        deadline = time.monotonic() + within_s
        while left := self.left():
            assert time.monotonic() < deadline, left
        assert list(self.folder.iterdir()) == []


def start(folder: Path, *arguments: str, **env: str) -> Show:
    """``fencegate`` with these arguments; its files go into ``folder``."""
    mark = uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli", *arguments],
        env={**os.environ, MARK: mark, "TMPDIR": str(folder), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return Show(process, mark, folder)
