"""Ends the processes of a show when what started them was killed and could not.

Run as a program, `python -I -S guard.py FOLDER`: standard library only, no import of this package.
Standard input is a pipe whose other end only the starter holds. It reads lines: `+PID` and `-PID`
for processes that began and ended, `/PATH` for further folders. At the end of file it ends what is
left and removes the folders.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time

__all__: list[str] = []

_PATIENCE_S = 5.0
_POLL_S = 0.02


def _main(folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched: dict[int, int | None] = {}
    folders = [folder]
    for line in sys.stdin:
        if line[0] == "/":
            folders.append(line.rstrip("\n"))
        elif line[0] == "+":
            watched[int(line[1:])] = _pidfd(int(line[1:]))
        else:
            _close(watched.pop(int(line[1:]), None))
    _end(watched)
    for each in folders:
        shutil.rmtree(each, ignore_errors=True)


def _end(watched: dict[int, int | None]) -> None:
    for number in (signal.SIGTERM, signal.SIGCONT):  # a stopped process only hears once it goes on
        for pid, handle in watched.items():
            _send(pid, handle, number)
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and any(_runs(*each) for each in watched.items()):
        time.sleep(_POLL_S)
    for pid, handle in watched.items():
        _send(pid, handle, signal.SIGKILL)


def _pidfd(pid: int) -> int | None:
    """A handle that means this very process for ever; None where the system has no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _close(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def _send(pid: int, handle: int | None, number: signal.Signals) -> None:
    try:
        if handle is not None:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        pass


def _runs(pid: int, handle: int | None) -> bool:
    try:
        if handle is not None:
            signal.pidfd_send_signal(handle, 0)
        else:
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    _main(sys.argv[1])
