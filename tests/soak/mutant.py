"""What a mutant is, and the run of its tests on a copy of the checkout."""

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CONTROL_LIMIT_S", "Copy", "Mutant", "Stale", "Verdict", "judged"]

ROOT = Path(__file__).resolve().parents[2]

LIMIT_S = 120.0
"""For the tests of one mutant; the slowest take 15 s on two cores. A mutant that makes its tests
hang is not killed by them."""

CONTROL_LIMIT_S = 900.0
"""For all named tests together, which take two minutes on two idle cores, and several times that
beside other work: a limit against hanging, no judgement."""

_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "dist", "build")

# The copy must come before the editable install, in this process and in those that tests start.
_RUN = """
import pathlib, sys
import pytest
import gateway
here = pathlib.Path.cwd()
assert pathlib.Path(gateway.__file__).is_relative_to(here), gateway.__file__
sys.exit(pytest.main(sys.argv[1:]))
"""

_JUDGED = re.compile(r"assert\b|AssertionError|Failed: |gateway\.errors\.")
"""How a test says that an effect is wrong: an assertion, ``pytest.fail`` and ``raises``, or one of
the product's own errors. A ``NameError`` would only say that the mutant is broken."""


class Stale(Exception):
    """The text that a mutant replaces is not in its file, or not once."""


@dataclass(frozen=True)
class Mutant:
    """``old`` stands exactly once in ``file`` and becomes ``new``; then every one of ``tests``
    must fail. ``breaks``: the rule that is broken, in words."""

    file: str
    breaks: str
    old: str
    new: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{Path(self.file).stem}: {self.breaks}"


@dataclass(frozen=True)
class Verdict:
    """How each test ended, over all its parameters: the messages of its failures, empty if it
    passed. ``broken``: why the run itself says nothing."""

    failures: dict[str, list[str]]
    broken: str | None
    output: str

    @property
    def end(self) -> str:
        """The end of what pytest said."""
        return "\n".join(["", *self.output.splitlines()[-40:]])


class Copy:
    """A copy of the checkout, without history, environments and caches."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        shutil.copytree(ROOT, self.root, ignore=_LEFT_OUT)
        self._report = folder / "report.xml"

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Raises ``Stale`` where the table no longer fits the code."""
        path = self.root / mutant.file
        sound = path.read_text("utf-8")
        count = sound.count(mutant.old)
        if count != 1:
            raise Stale(f"{mutant.file} holds this {count} times instead of once:\n{mutant.old}")
        path.write_text(sound.replace(mutant.old, mutant.new), "utf-8")
        try:
            yield
        finally:
            path.write_text(sound, "utf-8")

    def run(self, tests: Sequence[str], limit_s: float = LIMIT_S) -> Verdict:
        """Run the tests by their ids."""
        self._report.unlink(missing_ok=True)
        options = ["-q", "--no-header", "-p", "no:cacheprovider", f"--junitxml={self._report}"]
        command = [sys.executable, "-c", _RUN, *options, *tests]
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.root),
            # A file is changed and changed back within a second, which byte code does not notice.
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            return Verdict({}, f"took longer than {limit_s:.0f} s", output)
        if process.returncode not in (0, 1) or not self._report.is_file():
            return Verdict({}, f"pytest ended with exit code {process.returncode}", output)
        return self._read(tests, output)

    def _read(self, tests: Sequence[str], output: str) -> Verdict:
        failures: dict[str, list[str]] = {}
        for case in ElementTree.parse(self._report).iter("testcase"):
            name = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}"
            for kind in ("error", "skipped"):
                if case.find(kind) is not None:
                    return Verdict({}, f"{name} ended as {kind}", output)
            found = failures.setdefault(name.partition("[")[0], [])
            found += [failure.attrib.get("message", "") for failure in case.findall("failure")]
        missing = [test for test in tests if test not in failures]
        broken = f"not run: {', '.join(missing)}" if missing else None
        return Verdict(failures, broken, output)


def judged(messages: Sequence[str]) -> bool:
    """Whether each failure is a test's judgement of an effect."""
    return bool(messages) and all(_JUDGED.match(message) for message in messages)
