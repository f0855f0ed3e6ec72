#!/usr/bin/env python3
"""Everything a developer types, from a bare checkout: `python3 dev.py demo|test|lint|bench|soak`.

Standard library only. The first run makes `.venv` (with uv where it is on PATH, else with venv and
pip); later runs install again only when `pyproject.toml` or `constraints.txt` has changed.
"""

from __future__ import annotations  # an older Python must get as far as the hint, not a SyntaxError

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
STAMP = VENV / "fencegate-dev.stamp"
CONSTRAINTS = ROOT / "constraints.txt"
MINIMUM = (3, 11)
EXTRAS = ("local", "test", "dev")

USAGE = """\
usage: python3 dev.py COMMAND [arguments]

  demo  [...]   run the demonstration (arguments go to `fencegate demo`)
  test  [...]   lint, types, layering and tests (arguments go to pytest)
  lint          the same without pytest
  bench [...]   measure speed beside nginx and others (--quick: within 550 s); installs what it
                compares with; wants nginx and wrk
  soak  [...]   what takes minutes: many jobs; failovers by Patroni (which it installs); a
                million fuzz inputs; rules broken one by one, which named tests notice
"""

# The caller's own environment must not decide what runs here: another virtual environment, a
# PYTHONPATH that shadows modules, PYTHONOPTIMIZE that strips the tests' assertions, and so on.
FOREIGN = re.compile(r"PYTHON|VIRTUAL_ENV|CONDA|__PYVENV|UV_PROJECT|UV_PYTHON|PYTEST_|MYPY|RUFF_")
FOREIGN_PIP = {"PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV"}

# Installers name registries in what they print; logs get shared, so addresses stay out of them.
ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]*://\S+|host='[^']*'|\b(?:[a-z0-9-]+\.)+[a-z]{2,}:\d+")


class Stop(Exception):
    """Ends the run. `args[0]` is for the reader, `code` is the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def main(argv: Sequence[str]) -> int:
    commands = {
        "demo": demo,
        "test": test,
        "lint": lint,
        "bench": bench,
        "soak": soak,
        "compare": compare,
    }
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if argv else 2
    if argv[0] not in commands:
        print(f"dev.py: unknown command {argv[0]!r}\n\n{USAGE}", end="", file=sys.stderr)
        return 2
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # our lines stay in order with the tools' own
    try:
        return commands[argv[0]](list(argv[1:]))
    except Stop as stop:
        print(f"dev.py: {stop}", file=sys.stderr)
        return stop.code
    except KeyboardInterrupt:
        return 130


# --- commands -----------------------------------------------------------------------------------


def demo(arguments: list[str]) -> int:
    set_up()
    command = [PYTHON, "-m", "gateway.cli", "demo", *arguments]
    if os.name != "nt":
        # In our place: whoever stops us, by whatever signal, stops the demonstration, too.
        os.chdir(ROOT)
        os.execve(PYTHON, [str(part) for part in command], environment())
    return run(command)


def test(arguments: list[str]) -> int:
    set_up()
    # The whole suite, four modules at a time on two cores: it waits for longer than it computes.
    # In the order in which they are collected (tests/conftest.py), not by how many tests they have.
    how = arguments or ["--numprocesses", "4", "--dist", "loadscope", "--no-loadscope-reorder"]
    return in_order("test", [*lint_steps(), ("pytest", [PYTHON, "-m", "pytest", *how])])


def lint(arguments: list[str]) -> int:
    if arguments:
        raise Stop("lint takes no arguments", 2)
    set_up()
    return in_order("lint", lint_steps())


def bench(arguments: list[str]) -> int:
    set_up("bench")
    return run([PYTHON, "-m", "benchmarks", *arguments])


def soak(arguments: list[str]) -> int:
    set_up("soak")
    # -v: one line for each of them, so that its minutes can be watched.
    return run([PYTHON, "-m", "pytest", "-v", "tests/soak", *arguments])


def compare(arguments: list[str]) -> int:
    if arguments:
        raise Stop("compare takes no arguments", 2)
    set_up()
    return run([PYTHON, "-m", "tests.peers"])


def lint_steps() -> list[tuple[str, list[str | Path]]]:
    # `python -m` keeps working when the checkout has been moved; console scripts do not.
    return [
        ("ruff check", [PYTHON, "-m", "ruff", "check", "."]),
        ("ruff format --check", [PYTHON, "-m", "ruff", "format", "--check", "."]),
        ("mypy --strict gateway", [PYTHON, "-m", "mypy", "--strict", "gateway"]),
        (
            "lint-imports",
            [PYTHON, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        ),
    ]


def in_order(name: str, steps: Sequence[tuple[str, list[str | Path]]]) -> int:
    """Run the steps until one is red; the last line says which, or that all are green."""
    begun = time.monotonic()
    for number, (label, command) in enumerate(steps, start=1):
        print(f"== {number}/{len(steps)} {label}")
        code = run(command)
        if code != 0:
            print(f"dev.py {name}: RED at step {number}/{len(steps)}, {label} (exit code {code})")
            return code if code > 0 else 1
    print(f"dev.py {name}: all {len(steps)} steps green in {time.monotonic() - begun:.0f} s")
    return 0


# --- the environment ----------------------------------------------------------------------------


def set_up(*more: str) -> None:
    """Make `.venv` fit the checkout, with `more` extras than the usual; quick when it does already.

    What was installed once stays: `test` after `soak` installs nothing.
    """
    if sys.version_info < MINIMUM:
        raise Stop(
            f"Fencegate needs Python {MINIMUM[0]}.{MINIMUM[1]} or newer, this is "
            f"{sys.version.split()[0]}; run it as: python3.11 dev.py ...\n"
            "  Debian and Ubuntu: sudo apt-get install python3.11 python3.11-venv",
            2,
        )
    with alone():
        made_from, extras = stamp(), [*EXTRAS, *more]
        if python_works() and STAMP.is_file():
            was_from, *had = STAMP.read_text().splitlines() or [""]
            if was_from == made_from and set(had) >= set(extras):
                return
            extras = [*EXTRAS, *sorted({*had, *more} - {*EXTRAS})]
        print("dev.py: preparing .venv (once, and again when the dependencies change)")
        uv = shutil.which("uv")
        if not python_works():
            make_venv(uv)
        install(uv, extras)
        STAMP.write_text("\n".join([made_from, *extras, ""]))


def make_venv(uv: str | None) -> None:
    if VENV.exists():
        shutil.rmtree(VENV)
    if uv is not None:
        # --seed: with pip in it, so that it can be kept up to date where uv is not on PATH.
        command = [uv, "venv", "--quiet", "--seed", "--python", sys.executable, VENV]
        quietly(command, "making .venv with uv")
        return
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise Stop(
            "this Python cannot make virtual environments (no ensurepip); install its venv "
            "package, then run the same command again:\n"
            f"  sudo apt-get install python3-venv      (or python{version}-venv)",
            2,
        ) from None
    quietly([sys.executable, "-m", "venv", VENV], "making .venv")


def install(uv: str | None, extras: Sequence[str]) -> None:
    pip: list[str | Path] = [PYTHON, "-m", "pip", "--disable-pip-version-check", "install"]
    if uv is not None:
        pip = [uv, "pip", "install", "--python", PYTHON]
    what = ["-c", str(CONSTRAINTS), "-e", f".[{','.join(extras)}]"]
    quietly([*pip, "--quiet", *what], "installing the dependencies")


def stamp() -> str:
    """What the environment was made from."""
    digest = hashlib.sha256()
    for path in (ROOT / "pyproject.toml", CONSTRAINTS):
        digest.update(path.read_bytes())
    # An editable install records where the checkout is.
    return f"{digest.hexdigest()} {ROOT}"


def python_works() -> bool:
    """Whether `.venv` has a Python that starts, is new enough and has pip."""
    probe = (
        "import sys, importlib.util as u;"
        f"sys.exit(sys.version_info < {MINIMUM} or not u.find_spec('pip'))"
    )
    try:
        done = subprocess.run([PYTHON, "-c", probe], env=environment(), capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def quietly(command: Sequence[str | Path], doing: str) -> None:
    """Run an installer; on failure show the end of what it said, without addresses."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        tail = "\n".join("  " + line for line in done.stdout.splitlines()[-20:])
        raise Stop(f"{doing} failed:\n{ADDRESS.sub('<address>', tail)}")


def environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not FOREIGN.match(name) and name not in FOREIGN_PIP
    }
    kept["PATH"] = os.pathsep.join([str(BIN), kept.get("PATH", os.defpath)])
    kept["PYTHONUNBUFFERED"] = "1"
    return kept


def run(command: Sequence[str | Path]) -> int:
    """Run in the checkout with our own environment; the exit code."""
    return subprocess.run(command, cwd=ROOT, env=environment()).returncode


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One set-up at a time: two terminals must not install into one `.venv` together."""
    with Path(__file__).open("rb") as handle:
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
