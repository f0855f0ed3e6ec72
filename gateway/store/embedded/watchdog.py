"""Stops a server when the process that wanted it dies, even by `kill -9`.

Run as a program, `python -I -S watchdog.py PARENT_PID SERVER_PID`: standard library only, no
import of this package, standard input is a pipe whose other end only the parent holds. It waits
without waking up until the parent is gone (end of file) or the server is.
"""

import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Watchdog", "watch"]

# A fast shutdown writes a checkpoint. One that takes longer is cut short: all committed work is in
# the log anyway, and the promise is "gone within a second".
_FAST_SHUTDOWN_S = 0.5
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Watchdog:
    """The parent's handle on its watchdog."""

    process: "subprocess.Popen[bytes]"

    def end(self) -> None:
        """Wait for it, after the server has ended."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()


def watch(server_pid: int, log_fd: int) -> Watchdog:
    """Start a watchdog over `server_pid` for the calling process."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", Path(__file__), str(os.getpid()), str(server_pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=log_fd,
        cwd="/",
        start_new_session=True,  # Ctrl-C in the terminal is for the parent alone
    )
    return Watchdog(process)


def _main(parent_pid: int, server_pid: int) -> None:
    parent, server = _pidfd(parent_pid), _pidfd(server_pid)
    poll = select.poll()
    poll.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
    for fd in (parent, server):
        if fd is not None:
            # The pipe may live on in children that the parent forked; its pidfd does not.
            poll.register(fd, select.POLLIN)
    ready = {fd for fd, _ in poll.poll()}
    if server is not None and server in ready:
        return
    _send(server_pid, server, signal.SIGINT)
    deadline = time.monotonic() + _FAST_SHUTDOWN_S
    while _running(server_pid, server):
        if time.monotonic() > deadline:
            _send(server_pid, server, signal.SIGQUIT)
            return
        time.sleep(_POLL_S)


def _pidfd(pid: int) -> int | None:
    """A handle that means this very process for ever; None where the system has no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _send(pid: int, pidfd: int | None, number: signal.Signals) -> None:
    try:
        if pidfd is not None:
            signal.pidfd_send_signal(pidfd, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        pass


def _running(pid: int, pidfd: int | None) -> bool:
    if pidfd is not None:
        return not select.select([pidfd], [], [], 0)[0]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
