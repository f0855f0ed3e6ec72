"""``fencegate`` as somebody types it, without the half second that Python needs to import it.

A process that has imported the command line waits on a socket and forks for each command: that is a
process of its own, with its own environment, folder and descriptors, and it ends as any other does.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Done", "type_in"]

ROOT = Path(__file__).parents[2]
LIMIT_S = 120
_AT_START = ("PYTHON", "LC_", "LANG")
"""Variables that Python itself reads as it starts; a command with these is started for itself."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a command line printed, and its exit code."""

    code: int
    out: str
    err: str


def type_in(arguments: tuple[str, ...], env: dict[str, str], cwd: Path) -> Done:
    """Run one command; ``env`` is all that it sees."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = _code(arguments, env, cwd, out.fileno(), err.fileno())
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return Done(code, *texts)


def _code(arguments: tuple[str, ...], env: dict[str, str], cwd: Path, out: int, err: int) -> int:
    env = {**env, "PYTHONPATH": str(ROOT)}
    at_start = {k: v for k, v in env.items() if k.startswith(_AT_START) and k != "PYTHONPATH"}
    plain = all(os.environ.get(name) == value for name, value in at_start.items())
    if not plain or not hasattr(os, "fork"):
        command = [sys.executable, "-m", "gateway.cli", *arguments]
        return subprocess.run(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            timeout=LIMIT_S,
            check=False,
        ).returncode
    wish = {"arguments": arguments, "env": env, "cwd": str(cwd)}
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(LIMIT_S)
        asked.connect(_parent())
        socket.send_fds(asked, [json.dumps(wish).encode() + b"\n"], [out, err])
        heard = asked.makefile("r")
        pid = int(heard.readline())
        try:
            return int(heard.readline() or "-1")
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise


_lock = threading.Lock()
_address: str | None = None


def _parent() -> str:
    """Where the process listens that forks; started once, and gone with this one."""
    global _address
    with _lock:
        if _address is None:
            folder = tempfile.TemporaryDirectory(prefix="fencegate-typed-")
            atexit.register(folder.cleanup)
            _address = f"{folder.name}/s"
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.kit.typed", _address],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        return _address


def _serve(address: str) -> None:
    from gateway.cli.main import main

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them; the kernel buries them
    threading.Thread(target=_end_with_the_tests, daemon=True).start()
    print("ready", flush=True)
    while True:
        asked, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _run(asked, main)
        asked.close()


def _end_with_the_tests() -> None:
    while os.read(0, 4096):  # not sys.stdin, whose lock a fork would take along
        pass
    os._exit(0)


def _run(asked: socket.socket, main: object) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, descriptors, _, _ = socket.recv_fds(asked, 2**20, 2)
    while not text.endswith(b"\n"):
        text += asked.recv(2**20)
    asked.sendall(b"%d\n" % os.getpid())
    wish = json.loads(text)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, descriptor in zip((1, 2), descriptors, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(wish["cwd"])
    os.environ.clear()
    os.environ.update(wish["env"])
    code: int | str | None = 1
    try:
        code = main(wish["arguments"])  # type: ignore[operator]
    except SystemExit as end:
        code = end.code
    finally:
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        sys.stderr.flush()
        asked.sendall(b"%d\n" % (code if isinstance(code, int) else 0 if code is None else 1))
        os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1])
